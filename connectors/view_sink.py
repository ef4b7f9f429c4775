"""The contract of further sinks of a view: one view's changes, with a progress of their own.

Invariant: what such a sink shows is the view at the newest epoch that its progress names, and
the progress is in the same transaction as the rows. It need not keep pace with the view's table:
epochs that it lacks wait on disk.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from dataflow.delta import Delta


@dataclass(frozen=True)
class ViewEpoch:
    """What one epoch changes in one view.

    deltas: consolidated, each of bounded size, all rows of a key in one of them; may be gone
    through again. rows: how many these are, as far as it is known. positions: by source, as
    people write them. is_initial: all rows of the view as of this epoch, the first of a sink.
    """

    number: int
    positions: Mapping[str, Any]
    deltas: Iterable[Delta]
    rows: int
    is_initial: bool = False


class ViewSink(Protocol):
    """A place that one view goes to beside its table. Used by one thread."""

    def open(self) -> int | None:
        """Shut out every earlier writer and settle what it left undone; the newest epoch that is
        there now, None before the first.

        TemporaryError when it is away. SinkError sink.fenced: another writer has taken over.
        """
        ...

    def write(self, epochs: Sequence[ViewEpoch]) -> None:
        """Write whole epochs, in order, in one transaction; all of them are there on return.

        TemporaryError: none of them is there, or it is not known: `open` tells.
        """
        ...

    def remove(self) -> None:
        """Delete what the sink has made and written."""
        ...

    def interrupt(self) -> None:
        """From any thread: what goes on ends soon, with a TemporaryError, and so does all later."""
        ...

    def close(self) -> None:
        """Give back connections; what was not committed is gone. `open` begins anew."""
        ...
