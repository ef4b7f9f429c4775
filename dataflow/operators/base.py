"""The contract of an operator: what callers guarantee, what it guarantees, how violations surface.

One class, one file, three families: linear (no state), bilinear (join), group (touched keys are
re-evaluated, new minus old). State comes in through the constructor; an operator never opens,
commits or closes anything. Rows whose expression fails go to the ErrorCollector, with their
weights, so that a repaired row retracts its error. Operators run in one thread. Start at
`Operator`, then `Traits`. Invariant: an operator's traits are true of it;
tests/property/test_contract.py checks each class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

from dataflow.delta import Delta
from dataflow.errors import InvariantError, TidemarkError, ViewError, internal_error
from dataflow.expressions.evaluator import Evaluator, RowErrors
from dataflow.schema import Field, RelationName
from dataflow.types import SqlType
from dataflow.work import UNLIMITED, CheckedArrangement, CheckedSums, WorkMeter
from storage.errors import NegativeWeightError, OutOfSpaceError, StorageError
from storage.store import Arrangement, ArrangementSpec, Store, Sums, SumsSpec

# Errors that end one view and no others.
_GIVEN_UP = (OutOfSpaceError, MemoryError, NegativeWeightError)
# Errors that an operator does not cause: an unreachable source, a disk.
_OF_OTHERS = (TidemarkError, StorageError, OSError)


@dataclass(frozen=True)
class Traits:
    """What a dataflow may rely on in an operator beyond the contract of `Operator`.

    Most are declared by the class; where the plan decides, the constructor declares them.
    is_linear: the output depends on the input delta alone and adds up as it does. has_state: it may
    have arrangements or sums; False: it has none. emits_parts: it has `Chunked.parts`.
    needs_evaluator: it may call the evaluator; False: it never does. depends_on_history: which step
    a row comes with has a say in what is emitted, so the deltas add up to no function of the input
    (see `lateness`); its state must be durable before its output is seen. clearable: the inputs of
    which it has stored every row that had an effect; for these it is a `Clearable`.

    About consolidation. passes_rows: each output row is an input row with its weight, so the output
    is as consolidated as the input. accepts_unconsolidated: rows of the input may repeat and cancel
    out; the output adds up to the same, and costs about as much. may_skip_consolidation: it is a
    `Consolidating`, whose output may stay unconsolidated if no reader needs more.
    """

    is_linear: bool = False
    has_state: bool = True
    emits_parts: bool = False
    needs_evaluator: bool = True
    depends_on_history: bool = False
    passes_rows: bool = False
    accepts_unconsolidated: bool = False
    may_skip_consolidation: bool = False
    clearable: tuple[int, ...] = ()


class Operator(Protocol):
    """Incremental: state and deltas in, one consolidated delta out.

    Callers guarantee, and an operator does not check again:
    - one delta for each input, in the plan's order, with the columns of its fields;
    - each is consolidated (a row once, no weight zero) unless accepts_unconsolidated. The sum of
      all deltas of an input so far has no negative weight after any step;
    - it is stepped at least once in its life, if need be without rows: that step emits constant
      rows and global aggregates. Later steps over empty deltas may be left out;
    - a node's change of an epoch comes in one step, or in several that add up to it, all before
      the store's commit of that epoch. No step follows one that raised: the view is removed;
    - the scope and name of the Context, and so the ids of the arrangements, are the same after a
      restart: the state found under them was written by the same plan.

    An operator guarantees:
    - total: every such input has a result. A row whose expression fails is an error row. It raises
      only errors that end the view (ViewError, no memory) or have another cause (a lost
      connection);
    - deterministic: equal state and equal deltas give equal rows, to the bit. Time, randomness and
      the order of rows in a delta have no influence (see Remember for functions that are not pure);
    - incremental, unless it depends_on_history: the deltas emitted so far add up to the plan's
      answer over the deltas applied so far. So a step over a + b equals a step over a plus one over
      b;
    - consolidated output, from consolidated input, unless `skip_consolidation` was called;
    - no arrangement of its own has a negative weight after `apply`;
    - the key of each of its states begins with the columns of the node's exchange, in their order,
      if it has some: so state can be cut by it (`connectors.spark.maintained.layout`).

    How a violation surfaces:
    - retraction of a row that does not exist: the arrangement raises NegativeWeightError, or a
      group's count InvariantError state.negative_weight. `view_error` names the operator that
      stores the row, often a reader of the faulty one;
    - any other exception, InvariantError among them, is view.internal_error with the operator's
      name. In both cases every view that reads the operator fails and is rebuilt; others continue;
    - a wrong row of the right shape goes unnoticed, except by `tidemark verify`.
    """

    @property
    def traits(self) -> Traits:
        """The operator's traits, fixed at construction."""
        ...

    @property
    def step(self) -> Callable[..., Delta]:
        """Take one delta for each input, empty ones included, and return the change."""
        ...


class Chunked(Protocol):
    """An operator that may make far more rows than it takes, and emits them in parts."""

    def parts(self, *inputs: Delta, max_rows: int) -> Iterator[Delta]:
        """Like `step`, in consolidated deltas of about that many rows that add up to its result.

        Read the parts to the end. Between two of them, readers may be stepped and the store may
        flush memory. Invariant: the change of any one row is in one delta, so no weight goes below
        zero.
        """
        ...


class Consolidating(Protocol):
    """An operator that consolidates its output only for its readers."""

    is_unconsolidated: bool
    """Whether the output may be unconsolidated. Set between steps."""


class Clearable(Protocol):
    """An operator that can name all rows of an input by what it stores.

    So the input can be emptied although nothing else has its rows: a step that retracts what is
    stored of it undoes all that its rows have done, error rows included.
    """

    def stored_rows(self, side: int) -> Iterator[Delta]:
        """Yield the stored rows of an input in `clearable`, consolidated, in chunks of bounded
        size.

        Columns on which nothing depends may be NULL. The caller retracts each chunk by steps before
        it takes the next one; after the last, nothing is stored of the input.
        """
        ...


class Additive(Protocol):
    """An operator whose input may be added up by key in several places before it is stepped.

    Sums are rows of `sums_kinds`, the columns of the node's exchange first. A row of weight w
    stands for w times its sums, so sums may be concatenated and consolidated like rows. Callers
    guarantee that all rows and sums of an epoch come in one step: only together do they retract no
    more than there is.
    """

    @property
    def sums_kinds(self) -> str:
        """The physical kinds of the columns of sums."""
        ...

    def partial_sums(self, delta: Delta) -> tuple[Delta, Delta]:
        """Return (the rows of a delta that are better left as they are, the sums of the others).

        It depends on the delta alone, and changes no state.
        """
        ...

    def step_sums(self, rows: Delta, sums: Delta) -> Delta:
        """Return what `step` returns for these rows and those whose sums these are."""
        ...


def parts_of(operator: Operator) -> Callable[..., Iterator[Delta]] | None:
    """Return `Chunked.parts` of an operator that has it."""
    return cast(Chunked, operator).parts if operator.traits.emits_parts else None


def stored_rows(operator: Operator, side: int) -> Iterator[Delta]:
    """Return `Clearable.stored_rows` of an operator that has it for the input."""
    assert side in operator.traits.clearable
    return cast(Clearable, operator).stored_rows(side)


def skip_consolidation(operator: Operator, *, is_unconsolidated: bool) -> None:
    """Allow or forbid an operator to emit unconsolidated output; no effect on one that never
    does."""
    if operator.traits.may_skip_consolidation:
        cast(Consolidating, operator).is_unconsolidated = is_unconsolidated


class ErrorCollector(Protocol):
    """The destination of failed rows: a Z-set of (operator, sqlstate, message, row)."""

    def collect(
        self, operator: str, types: Sequence[SqlType], rows: Delta, errors: RowErrors
    ) -> None:
        """Add the failed rows, columns of `types`, with their weights under an operator's name."""
        ...

    def publish(self, rows: Delta) -> None:
        """Add final rows of the view (see FinalRows)."""
        ...


@dataclass(frozen=True)
class Context:
    """An operator's environment: its name, the prefix of its state, the destination of failed rows.

    An arrangement is named "<scope>/<name>/<role>". meter: limits a step; each use of state checks
    it, and so must a long computation without state.
    """

    name: str
    scope: str
    store: Store
    evaluator: Evaluator
    errors: ErrorCollector
    meter: WorkMeter = UNLIMITED

    def arrange(self, role: str, kinds: str, key: Sequence[int]) -> Arrangement:
        """Return the arrangement of rows of `kinds`, looked up by the columns at `key`."""
        spec = ArrangementSpec(f"{self.scope}/{self.name}/{role}", kinds, tuple(key))
        found = self.store.arrange(spec)
        return found if self.meter is UNLIMITED else CheckedArrangement(found, self.meter)

    def arrange_sums(self, role: str, key_kinds: str, width: int) -> Sums:
        """Return a Sums with one vector of `width` sums for each key of `key_kinds`."""
        spec = SumsSpec(f"{self.scope}/{self.name}/{role}", key_kinds, width)
        found = self.store.arrange_sums(spec)
        return found if self.meter is UNLIMITED else CheckedSums(found, self.meter)

    def collect(self, types: Sequence[SqlType], rows: Delta, errors: RowErrors) -> None:
        """Report failed rows as error rows under this operator's name."""
        if errors:
            self.errors.collect(self.name, types, rows, errors)


def view_error(name: str, error: Exception) -> ViewError | None:
    """Return the ViewError of a view whose operator raised this; None if the operator is not the
    cause, and the exception propagates."""
    if isinstance(error, ViewError):
        return error
    if isinstance(error, _GIVEN_UP):
        return _abandoned(name, error)
    if isinstance(error, _OF_OTHERS) and not isinstance(error, InvariantError):
        return None
    return internal_error(f'operator "{name}"', error)


def table_error(name: RelationName, error: Exception) -> ViewError | None:
    """Return the ViewError of the views that read a table whose changes could not be resolved; None
    if the table is not the cause. The refusal of the table's own changes keeps its code."""
    if isinstance(error, TidemarkError) and error.relation == name:
        return ViewError(error.code, error.what, detail=error.detail, hint=error.hint)
    return view_error(f"rows of {name}", error)


def _abandoned(name: str, error: OutOfSpaceError | MemoryError | NegativeWeightError) -> ViewError:
    """Return the ViewError of a view whose operator needs more memory than there is, or retracts a
    row that its state lacks. The view is removed, and rebuilt on request."""
    if isinstance(error, NegativeWeightError):
        return ViewError(
            error.code,
            f'operator "{name}" got a retraction of a row that it does not have',
            detail=error.detail,
            hint=f"{error.hint}, and please report it",
        )
    detail = error.detail if isinstance(error, OutOfSpaceError) else "malloc has no more"
    return ViewError(
        "view.out_of_memory",
        f'operator "{name}" needs more memory at once than is available',
        detail=detail,
        hint="raise --memory (and the container's limit), or write the query so that each window "
        "partition, group or recursion has fewer rows",
    )


def types_of(fields: Sequence[Field]) -> tuple[SqlType, ...]:
    """Return the types of a plan node's output."""
    return tuple(f.type for f in fields)


def kinds_of(fields: Sequence[Field]) -> str:
    """Return the physical kinds of a plan node's output, one letter each."""
    return "".join(f.type.physical for f in fields)
