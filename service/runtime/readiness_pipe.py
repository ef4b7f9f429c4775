"""A process of the service reports to its supervisor that it has made progress since its start.

It writes one byte to a pipe, at most once: a pipeline when an epoch of its own is in the sink, the
API when it listens. The supervisor reads it after the process has ended. A process that made
progress restarts at once; one that repeatedly dies before waits longer each time.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress

_VARIABLE = "TIDEMARK_HEADWAY"

_reported = False


def report() -> None:
    """Report progress. Free from the second call on; works without a supervisor."""
    global _reported
    if _reported:
        return
    _reported = True
    number = os.environ.pop(_VARIABLE, "")
    if number:
        # Started by hand with another process's environment, nobody listens.
        with suppress(OSError):
            os.write(int(number), b"!")
            os.close(int(number))


class ReadinessPipe:
    """The supervisor's end, for one life of a child."""

    def __init__(self) -> None:
        self._ours, self._theirs = os.pipe()
        os.set_blocking(self._ours, False)

    def child_environment(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return the environment for the child, which must keep `descriptor` open."""
        return {**environment, _VARIABLE: str(self._theirs)}

    @property
    def descriptor(self) -> int:
        """Return the child's end."""
        return self._theirs

    def started(self) -> None:
        """Close our copy of the child's end; call once the child has it."""
        os.close(self._theirs)

    def ended(self) -> bool:
        """Return True if the ended child had reported progress; close the pipe."""
        try:
            return os.read(self._ours, 1) != b""
        except BlockingIOError:
            # One of its children still holds the other end open.
            return False
        finally:
            os.close(self._ours)
