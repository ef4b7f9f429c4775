"""The contract of an operator: what callers guarantee, what it guarantees, what is lost otherwise.

One class, one file, three families: linear (no state), bilinear (join), group (touched keys are
re-evaluated, new minus old). State comes in through the constructor; an operator never opens,
commits or closes anything. Rows whose expression fails go to the ErrorCollector, with their
weights, so that a repaired row takes its error back. Start at `Operator`, then `Traits`.
Invariant: an operator's traits are true of it; tests/property/test_contract.py checks each class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

from dataflow.delta import Delta
from dataflow.errors import InvariantError, TidemarkError, ViewError, internal_error
from dataflow.expressions.evaluator import Evaluator, RowErrors
from dataflow.schema import Field
from dataflow.types import SqlType
from storage.errors import NegativeWeightError, OutOfSpaceError, StorageError
from storage.store import Arrangement, ArrangementSpec, Store, Sums, SumsSpec

# What ends a view and no others.
_GIVEN_UP = (OutOfSpaceError, MemoryError, NegativeWeightError)
# What is not of an operator's making: a source that is away, a disk.
_OF_OTHERS = (TidemarkError, StorageError, OSError)


@dataclass(frozen=True)
class Traits:
    """What a dataflow may rely on in an operator beyond the contract of `Operator`.

    Most are declared by the class; where the plan decides, the constructor declares them.
    is_linear: the output depends on the input delta alone and adds up as it does. has_state: it
    may keep arrangements or sums; False: it makes none. emits_parts: it has `InParts.parts`.
    needs_evaluator: it may ask the evaluator; False: it does not, whatever the plan.

    About consolidation. passes_rows: each output row is an input row with its weight, so the
    output is as consolidated as the input. accepts_unconsolidated: rows of the input may repeat
    and cancel out; the output adds up to the same, and costs about as much. may_skip_consolidation:
    it is a `Consolidating`, whose output need not be added up where no reader needs it.
    """

    is_linear: bool = False
    has_state: bool = True
    emits_parts: bool = False
    needs_evaluator: bool = True
    passes_rows: bool = False
    accepts_unconsolidated: bool = False
    may_skip_consolidation: bool = False


class Operator(Protocol):
    """Incremental: state and deltas in, one consolidated delta out.

    Callers guarantee, and an operator does not check again:
    - one delta for each input, in the plan's order, with the columns of its fields;
    - each is consolidated (a row once, no weight zero) unless accepts_unconsolidated. The sum of
      all deltas of an input so far has no negative weight after any step;
    - it is stepped at least once in its life, without rows if there are none: constant rows and
      global aggregates come to be in that step. Later a step over empty deltas may be left out;
    - a node's change of an epoch comes in one step, or in several that add up to it, all before
      the store's commit of that epoch. None follows a step that raised: the view is taken out;
    - the scope and name of the Context, and so the ids of the arrangements, are the same after a
      restart: the state found under them is what the same plan left there.

    An operator guarantees:
    - total: every such input has an answer. A row whose expression fails is an error row. Only
      what ends the view (ViewError, no memory) or is not the operator's own (a lost connection)
      is raised;
    - deterministic: equal state and equal deltas give equal rows, to the bit. Time, randomness and
      the order of rows in a delta have no say (see Remember for functions that are not pure);
    - incremental: the deltas given out so far add up to the plan's answer over the deltas taken in
      so far. So a step over a + b gives what a step over a and one over b give together;
    - consolidated output, from consolidated input, unless told to skip that;
    - no arrangement of its own has a negative weight after `apply`.

    What is lost when it is broken:
    - a row taken away that is not there: the arrangement raises NegativeWeightError, or a count
      of a group InvariantError state.negative_weight. `view_error` names the operator that keeps
      the row, which is often the reader of the one at fault;
    - any other exception, InvariantError among them, is view.internal_error with the operator's
      name. In both cases every view that reads the operator fails and is rebuilt; others go on;
    - a wrong row of the right shape is not noticed here, only by `tidemark verify`.
    """

    @property
    def traits(self) -> Traits:
        """What is true of it. Does not change once it is made."""
        ...

    @property
    def step(self) -> Callable[..., Delta]:
        """Take one delta for each input, empty ones included, and return the change."""
        ...


class Chunked(Protocol):
    """An operator that may make far more rows than it is given, and gives them out in parts."""

    def parts(self, *inputs: Delta, most_rows: int) -> Iterator[Delta]:
        """As `step`, in deltas that add up to it, each consolidated, of about so many rows.

        To be read to the end. Between two of them what reads them may be stepped, and the store be
        relieved: every row's own change is whole in one delta, so no row goes below zero.
        """
        ...


class Consolidating(Protocol):
    """An operator that adds up its output only for readers."""

    is_unconsolidated: bool
    """Whether the output may be unconsolidated. Set between steps."""


def parts_of(operator: Operator) -> Callable[..., Iterator[Delta]] | None:
    """Return `InParts.parts` of an operator that has it."""
    return cast(Chunked, operator).parts if operator.traits.emits_parts else None


def skip_consolidation(operator: Operator, *, is_unconsolidated: bool) -> None:
    """Tell an operator whether its output may be unconsolidated; nothing to one that cannot."""
    if operator.traits.may_skip_consolidation:
        cast(Consolidating, operator).is_unconsolidated = is_unconsolidated


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
        return _abandoned(name, error)
    if isinstance(error, _OF_OTHERS) and not isinstance(error, InvariantError):
        return None
    return internal_error(f'operator "{name}"', error)


def _abandoned(name: str, error: OutOfSpaceError | MemoryError | NegativeWeightError) -> ViewError:
    """The end of a view one of whose operators needs more memory at once than there is, or is told
    what its state does not have: that is taken out, and built anew where someone asks for it."""
    if isinstance(error, NegativeWeightError):
        return ViewError(
            error.code,
            f'operator "{name}" was told to take away what it does not have',
            detail=error.detail,
            hint=f"{error.hint}, and please report it",
        )
    detail = error.detail if isinstance(error, OutOfSpaceError) else "malloc has no more"
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
