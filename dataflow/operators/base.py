"""The contract of an operator, and of what it is lowered from.

One class, one file, three families: linear (no state), bilinear (join), group (touched keys are
re-evaluated, new minus old). State comes in through the constructor; an operator never opens,
commits or closes anything. Rows whose expression fails go to the ErrorCollector, with their
weights, so that a repaired row takes its error back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from dataflow.delta import Delta
from dataflow.errors import InvariantError, TidemarkError, ViewError, internal_error
from dataflow.expressions.evaluator import Evaluator, RowErrors
from dataflow.schema import Field
from dataflow.types import SqlType
from storage.errors import NegativeWeightError, OutOfRoomError, StorageError
from storage.store import Arrangement, ArrangementSpec, Store, Sums, SumsSpec

# What ends a view and no others.
_GIVEN_UP = (OutOfRoomError, MemoryError, NegativeWeightError)
# What is not of an operator's making: a source that is away, a disk.
_OF_OTHERS = (TidemarkError, StorageError, OSError)


class Operator(Protocol):
    """Incremental: state and deltas in, one consolidated delta out."""

    @property
    def step(self) -> Callable[..., Delta]:
        """One epoch. One delta for each input, empty ones included; called at least once."""
        ...


class InParts(Protocol):
    """An operator that may make far more rows than it is given, and gives them out in parts."""

    def parts(self, *inputs: Delta, most_rows: int) -> Iterator[Delta]:
        """As `step`, in deltas that add up to it, each consolidated, of about so many rows.

        To be read to the end. Between two of them what reads them may be stepped, and the store be
        relieved: every row's own change is whole in one delta, so no row goes below zero.
        """
        ...


class ErrorCollector(Protocol):
    """Where operators leave rows that failed: a Z-set of (operator, sqlstate, message, row)."""

    def collect(
        self, operator: str, types: Sequence[SqlType], rows: Delta, errors: RowErrors
    ) -> None:
        """Note the failed rows, of columns of `types`, with their weights under a name."""
        ...


@dataclass(frozen=True)
class Context:
    """What an operator is given: its name, its state's prefix, its way out for what fails.

    An arrangement is named "<scope>/<name>/<role>".
    """

    name: str
    scope: str
    store: Store
    evaluator: Evaluator
    errors: ErrorCollector

    def arrange(self, role: str, kinds: str, key: Sequence[int]) -> Arrangement:
        """Rows of `kinds`, looked up by the columns at `key`."""
        spec = ArrangementSpec(f"{self.scope}/{self.name}/{role}", kinds, tuple(key))
        return self.store.arrange(spec)

    def arrange_sums(self, role: str, key_kinds: str, width: int) -> Sums:
        """One vector of `width` sums for each key of `key_kinds`."""
        return self.store.arrange_sums(
            SumsSpec(f"{self.scope}/{self.name}/{role}", key_kinds, width)
        )

    def collect(self, types: Sequence[SqlType], rows: Delta, errors: RowErrors) -> None:
        """Leave the failed rows out: they go to the error rows under this operator's name."""
        if errors:
            self.errors.collect(self.name, types, rows, errors)


def view_error(name: str, error: Exception) -> ViewError | None:
    """Return the end of a view one of whose operators has raised this; None where the operator has
    no part in it, and the exception goes on as it is."""
    if isinstance(error, ViewError):
        return error
    if isinstance(error, _GIVEN_UP):
        return _given_up(name, error)
    if isinstance(error, _OF_OTHERS) and not isinstance(error, InvariantError):
        return None
    return internal_error(f'operator "{name}"', error)


def _given_up(name: str, error: OutOfRoomError | MemoryError | NegativeWeightError) -> ViewError:
    """The end of a view one of whose operators needs more memory at once than there is, or is told
    what its state does not have: that is taken out, and built anew where someone asks for it."""
    if isinstance(error, NegativeWeightError):
        return ViewError(
            error.code,
            f'operator "{name}" was told to take away what it does not have',
            detail=error.detail,
            hint=f"{error.hint}, and please report it",
        )
    detail = error.detail if isinstance(error, OutOfRoomError) else "malloc has no more"
    return ViewError(
        "view.out_of_memory",
        f'operator "{name}" would take more memory at once than there is',
        detail=detail,
        hint="a larger --memory (and limit of the container), or a query whose window, group or "
        "recursion has fewer rows together",
    )


def types_of(fields: Sequence[Field]) -> tuple[SqlType, ...]:
    """The types of a plan node's output."""
    return tuple(f.type for f in fields)


def kinds_of(fields: Sequence[Field]) -> str:
    """The physical kinds of a plan node's output, one letter each."""
    return "".join(f.type.physical for f in fields)
