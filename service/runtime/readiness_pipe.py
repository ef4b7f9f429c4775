"""A process of the service tells its supervisor that it has got something done since it began.

One byte through a pipe, at most once: a pipeline writes it when an epoch of its own is in the sink,
the API when it listens. The supervisor asks once the process has ended: who has got on may come
back at once, who dies before that over and over waits longer each time.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress

_VARIABLE = "TIDEMARK_HEADWAY"

_told = False


def tell() -> None:
    """Something is done. Costs nothing from the second time on; nobody need be listening."""
    global _told
    if _told:
        return
    _told = True
    number = os.environ.pop(_VARIABLE, "")
    if number:
        # Started by hand with the environment of another, nobody listens.
        with suppress(OSError):
            os.write(int(number), b"!")
            os.close(int(number))


class ReadinessPipe:
    """The supervisor's side, for one life of a child."""

    def __init__(self) -> None:
        self._ours, self._theirs = os.pipe()
        os.set_blocking(self._ours, False)

    def given(self, environment: Mapping[str, str]) -> dict[str, str]:
        """The environment for the child, which is to keep `descriptor` open."""
        return {**environment, _VARIABLE: str(self._theirs)}

    @property
    def descriptor(self) -> int:
        """The child's end."""
        return self._theirs

    def started(self) -> None:
        """The child has its end."""
        os.close(self._theirs)

    def ended(self) -> bool:
        """Whether the child, which has ended, had told anything; closes all."""
        try:
            return os.read(self._ours, 1) != b""
        except BlockingIOError:
            # A child of its own still holds the other end open.
            return False
        finally:
            os.close(self._ours)
