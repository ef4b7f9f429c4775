"""The contract of additional sinks: the changes of one view, with their own progress.

Invariant: the sink shows the view at the newest epoch of its progress, and the progress is in the
same transaction as the rows. It may lag behind the view's table: epochs that it lacks wait on disk.
One thread uses a sink; `interrupt` may be called from any.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from dataflow.delta import Delta


@dataclass(frozen=True)
class ViewEpoch:
    """The changes of one epoch in one view.

    deltas: consolidated, each of bounded size, all rows of a key in one of them; can be iterated
    repeatedly. rows: how many rows these have, as far as known. positions: by source, readable.
    is_initial: all rows of the view at this epoch, the first of a sink.
    """

    number: int
    positions: Mapping[str, Any]
    deltas: Iterable[Delta]
    rows: int
    is_initial: bool = False


class ViewSink(Protocol):
    """An additional destination of one view beside its table. Used by one thread."""

    def open(self) -> int | None:
        """Fence every earlier writer, resolve its open transaction, and return the newest epoch.

        Return None before the first epoch. TemporaryError: the sink is unreachable. SinkError
        sink.fenced: another writer has taken over.
        """
        ...

    def write(self, epochs: Sequence[ViewEpoch]) -> None:
        """Write whole epochs, in order, in one transaction; all are durable on return.

        TemporaryError: none of them is written, or the outcome is unknown until `open`.
        """
        ...

    def remove(self) -> None:
        """Delete everything that the sink has created and written."""
        ...

    def interrupt(self) -> None:
        """Interrupt from any thread: the current call and all later ones raise a TemporaryError."""
        ...

    def close(self) -> None:
        """Close connections; uncommitted rows are lost. `open` starts again."""
        ...
