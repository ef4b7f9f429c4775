"""A thread of a test that changes something without a pause until it is stopped."""

from __future__ import annotations

import threading


class BackgroundWriter:
    """number: of the last change. failure: what has ended it before it was stopped."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.failure: BaseException | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)

    def write(self) -> None:
        """Make one change, and rest as long as the test lets it."""
        raise NotImplementedError

    def start(self) -> None:
        """Write until `stop`."""
        self._thread.start()

    def cancel(self) -> None:
        """End it, after a failure of something else."""
        self._stopping.set()

    def stop(self) -> int:
        """End it; return the number of the last change. Raise what had ended it before."""
        self.cancel()
        self._thread.join()
        if self.failure is not None:
            raise self.failure
        return self.number

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self.write()
        except BaseException as error:
            self.failure = error
