"""The contract of additional sinks: the changes of one view, with their own progress.

Invariant: the sink shows the view at the newest epoch of its progress, and the progress is in the
same transaction as the rows. It may lag behind the view's table: epochs that it lacks wait on disk.
One thread uses a sink; `interrupt` may be called from any. A sink whose target has no transactions
may write an epoch again, always with the same ids. A type of sinks is a module with the functions
of `SinkConnector`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from connectors.sink import SinkTable
from dataflow.delta import Delta
from dataflow.errors import SinkError, TemporaryError

ADD_AGAIN = "drop the sink and add it again, with its rows"


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


def fenced(target: str) -> SinkError:
    """Return the error of a writer that another one has replaced. target: what it writes to."""
    what = f"another service writes to {target} for this sink"
    return SinkError("sink.fenced", what, hint="stop one of the two services")


def lost(
    detail: str,
    what: str = "the data written to the sink is gone",
    first: str = "delete what is left of its data",
) -> SinkError:
    """Return the error of a sink whose target is gone. first: to do before it is added again."""
    return SinkError("sink.lost", what, detail=detail, hint=f"{first}, then {ADD_AGAIN}")


class Interruption:
    """What `ViewSink.interrupt` sets, from any thread, and the thread that writes checks."""

    def __init__(self) -> None:
        self._is_set = threading.Event()

    def set(self) -> None:
        """Let every later check fail."""
        self._is_set.set()

    @property
    def is_set(self) -> bool:
        """Return whether it is set."""
        return self._is_set.is_set()

    def check(self) -> None:
        """Fail if it is set. TemporaryError sink.stopped."""
        if self.is_set:
            raise TemporaryError("sink.stopped", "the sink is being stopped")

    def wait(self, seconds: float) -> None:
        """Wait so many seconds, or until it is set."""
        self._is_set.wait(seconds)


@dataclass(frozen=True)
class Detachment:
    """What becomes of a sink's target when the service leaves it, in words that name each thing.

    removed: what only the service needs. kept: what was written for others.
    """

    removed: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()


class ViewSink(Protocol):
    """An additional destination of one view beside its table. Used by one thread.

    One that may leave out what its target refuses counts that in an attribute `skipped_total`.
    """

    def open(self, known: int | None = None) -> int | None:
        """Fence every earlier writer, resolve its open transaction, and return the newest epoch.

        Return None before the first epoch. known: the newest epoch that the state knows to be
        written, None before the first. A sink that can read its target's progress ignores it; one
        that cannot returns it. TemporaryError: the sink is unreachable. SinkError sink.fenced:
        another writer has taken over; sink.lost: the target is gone or was changed by others.
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

    def detachment(self) -> Detachment:
        """Return what `detach` will remove, and what it leaves; nothing is reached."""
        ...

    def detach(self) -> None:
        """Delete what only the service needs; what was written stays, as it is read today.

        It may be repeated. No writer is open. Errors as of `remove`.
        """
        ...

    def interrupt(self) -> None:
        """Interrupt from any thread: the current call and all later ones raise a TemporaryError."""
        ...

    def close(self) -> None:
        """Close connections; uncommitted rows are lost. `open` starts again."""
        ...


class SinkConnector(Protocol):
    """A type of additional sinks: the functions of the module that implements it.

    options: the user's, as an object of JSON; secrets are references. The module named after it
    with `_schema` describes them (connectors/option_schema.py). The option `initial` (rows,
    changes) is common to all types: the worker reads it, and a type accepts it. title: readable,
    schema.view/name.
    """

    def make(
        self, options: Mapping[str, Any], table: SinkTable, identity: str, title: str
    ) -> ViewSink:
        """Return the sink of a view, without reaching its target.

        identity: 32 hex digits, new for each sink that a user adds. table: of a sink that is only
        removed, it has no fields. SinkError sink.bad_option, secret.missing.
        """
        ...

    def check(self, options: Mapping[str, Any], table: SinkTable, title: str) -> dict[str, Any]:
        """Check the options of a new sink against its target; return them with defaults named.

        It finds every reason known in advance for which `make` or `open` would be refused, and
        leaves nothing behind. SinkError sink.bad_option and those of the type; TemporaryError if
        the target is unreachable.
        """
        ...
