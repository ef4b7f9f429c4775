"""The logical plan: frozen nodes, each knowing its output fields.

A plan is a directed acyclic graph: an object with several readers is computed once. A walk must
visit each object once (`fold`), or nested WITH lists cost exponential time. This file is long
because it defines all kinds of nodes.

A node's expressions refer to its input's columns by position; a join's residual and keys number the
left columns first, then the right ones (`left_keys` over the left input, `right_keys` over the
right input, each by its own positions). Plans are picklable and comparable: equal plans compute the
same rows. Invariant: after the rules a plan has no Apply and no OuterRef.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from functools import cache, cached_property
from typing import TypeVar

from dataflow.expressions.ir import Expression, Literal
from dataflow.frozen import caches_hash
from dataflow.schema import Field, Relation, RowType
from dataflow.types import BOOL, INT8, UTC

FLAG = Field("flag", BOOL)
# The types of the fields of nodes that hold inputs, as they are written here.
_PLAN, _PLANS = "Plan", "tuple[Plan, ...]"
# In the metadata of a field that holds a plan which is no input.
_INSIDE = "inside"


@caches_hash
@dataclass(frozen=True)
class Scan:
    """The rows of a base relation or of another maintained view: the columns at `columns`."""

    relation: Relation
    columns: tuple[int, ...]
    fields: tuple[Field, ...]


@caches_hash
@dataclass(frozen=True)
class Values:
    """Constant rows: every cell a Literal. A SELECT without FROM is one row of no columns."""

    rows: tuple[tuple[Expression, ...], ...]
    fields: tuple[Field, ...]


@caches_hash
@dataclass(frozen=True)
class Filter:
    """The rows for which predicate (boolean) is true."""

    input: Plan
    predicate: Expression

    @property
    def fields(self) -> tuple[Field, ...]:
        return self.input.fields


@caches_hash
@dataclass(frozen=True)
class ThresholdFilter:
    """Rows for which `value operator threshold` is true: of a threshold that moves, in order.

    threshold: one column, one row at most; of several rows the least counts that is not NULL.
    value: over the input's columns, of a type that orders as the threshold's column does.
    operator: "<", "<=", ">" or ">=".
    """

    input: Plan
    threshold: Plan
    value: Expression
    operator: str

    @property
    def fields(self) -> tuple[Field, ...]:
        """The input's."""
        return self.input.fields


@caches_hash
@dataclass(frozen=True)
class ThresholdFlag(ThresholdFilter):
    """All rows, with the value of `value operator threshold` as their last column.

    A threshold without a row, or NULL, makes every flag NULL.
    """

    @property
    def fields(self) -> tuple[Field, ...]:
        """The input's, and the flag."""
        return (*self.input.fields, FLAG)


@caches_hash
@dataclass(frozen=True)
class Watermark:
    """One row of one column: up to where the rows of a column have come, or no row yet.

    input: the value (a timestamp), then the columns by which the least counts (partitions). clock:
    one row of one column, whose moves publish. lateness_us: how much later than the greatest value
    a row may come. idle_us: after which a partition that does not move is left out; 0 for never.
    title: the column, as options name it.
    """

    input: Plan
    clock: Plan
    lateness_us: int
    idle_us: int
    title: str
    fields: tuple[Field, ...]


@caches_hash
@dataclass(frozen=True)
class LateRows:
    """Its input, watched for rows that come when the watermark is beyond their value.

    policy: "applied" passes them on, "dead-letter" leaves them out, "error" ends the view. key:
    positions of the relation's key; a row that replaces one of its key is not late.
    """

    input: Plan
    watermark: Plan
    value: Expression
    key: tuple[int, ...]
    policy: str
    title: str

    @property
    def fields(self) -> tuple[Field, ...]:
        """The input's."""
        return self.input.fields


@caches_hash
@dataclass(frozen=True)
class FinalRows:
    """Its input, and beside it each row once when all watermarks have passed the row's window.

    value: where the window begins, a date or timestamp column of the input. width_us: its length.
    """

    input: Plan
    watermarks: tuple[Plan, ...]
    value: Expression
    width_us: int

    @property
    def fields(self) -> tuple[Field, ...]:
        """The input's."""
        return self.input.fields


@caches_hash
@dataclass(frozen=True)
class Project:
    """One expression for each output field."""

    input: Plan
    expressions: tuple[Expression, ...]
    fields: tuple[Field, ...]


@caches_hash
@dataclass(frozen=True)
class Bounds:
    """A value of one input that lies between two of the other, ends included, in every pair.

    value: over the left input's columns if is_left, else over the right's; low and high: over the
    other's. All three are int64 whose order is that of the values.
    """

    value: Expression
    low: Expression
    high: Expression
    is_left: bool


@caches_hash
@dataclass(frozen=True)
class Join:
    """A join. kind: "inner", "left", "right" or "full". No keys: a cross or purely non-equi join.

    Keys are equal under PostgreSQL's `=` (NULL equals nothing) and in key form. The output has
    the left fields, then the right ones (nullable where padded). bounds: what follows of the
    residual, if both inputs are stored in order for it.
    """

    kind: str
    left: Plan
    right: Plan
    left_keys: tuple[Expression, ...]
    right_keys: tuple[Expression, ...]
    residual: Expression | None
    fields: tuple[Field, ...]
    bounds: Bounds | None = None


@caches_hash
@dataclass(frozen=True)
class SortKey:
    """One part of an ORDER BY, its defaults resolved.

    operator: of ORDER BY ... USING where it is not the type's own < or >, else "".
    """

    expression: Expression
    is_descending: bool = False
    nulls_first: bool = False
    operator: str = ""

    @property
    def direction(self) -> str:
        """The suffix of the expression in PostgreSQL's text."""
        using = f"USING {self.operator}" if self.operator else ""
        way = using or ("DESC" if self.is_descending else "ASC")
        return f"{way} NULLS {'FIRST' if self.nulls_first else 'LAST'}"


@caches_hash
@dataclass(frozen=True)
class AsOfJoin:
    """For each left row the first right row of its key, in `order`, that its value reaches.

    kind: "inner", or "left": a left row without one is padded. Keys as in Join. The first part of
    the order is the right row's value, which `operator` compares with the left row's `value`:
    "<" and "<=" in descending order, ">" and ">=" in ascending order. Ties are broken as in TopK.
    """

    kind: str
    left: Plan
    right: Plan
    left_keys: tuple[Expression, ...]
    right_keys: tuple[Expression, ...]
    value: Expression
    operator: str
    order: tuple[SortKey, ...]
    fields: tuple[Field, ...]


@caches_hash
@dataclass(frozen=True)
class SemiJoin:
    """Left rows with (kind "semi") or without (kind "anti") a match in right.

    kind "not in": anti with SQL's NULL rule for `x NOT IN (subquery)`, the keys being x and the
    subquery's column: no row when right holds a NULL key, a NULL x only when right is empty.
    bounds: as in Join.
    """

    kind: str
    left: Plan
    right: Plan
    left_keys: tuple[Expression, ...]
    right_keys: tuple[Expression, ...]
    residual: Expression | None
    bounds: Bounds | None = None

    @property
    def fields(self) -> tuple[Field, ...]:
        """The left input's."""
        return self.left.fields


@caches_hash
@dataclass(frozen=True)
class AggregateCall:
    """One aggregate call; "count" without argument is count(*).

    field: the output field, with PostgreSQL's type of the call. Without `sql` the call is
    maintained natively, over one `argument` or two `arguments` (corr, regr_*); percentile_cont and
    percentile_disc at `fraction` of the argument's order. sql: PostgreSQL's text of a call that is
    recomputed there, up to FILTER, with $1, $2 ... for `arguments`. The first `direct` of them have
    one value per group (WITHIN GROUP's direct arguments); the least by text represents equal values
    of those at the positions `alike`. rows_by: the sort order of its rows, over `arguments`, if its
    text cannot express it.
    """

    function: str
    argument: Expression | None
    is_distinct: bool
    filter: Expression | None
    field: Field
    arguments: tuple[Expression, ...] = ()
    sql: str = ""
    direct: int = 0
    alike: tuple[int, ...] = ()
    fraction: float = 0.0
    is_descending: bool = False
    rows_by: tuple[str, ...] = ()

    @property
    def operands(self) -> tuple[Expression, ...]:
        """Return every expression over the input's columns, the filter last."""
        first = () if self.argument is None else (self.argument,)
        return (*first, *self.arguments, *(() if self.filter is None else (self.filter,)))

    def over(self, change: Callable[[Expression], Expression]) -> AggregateCall:
        """Return the same call with each operand changed."""
        return replace(
            self,
            argument=None if self.argument is None else change(self.argument),
            filter=None if self.filter is None else change(self.filter),
            arguments=tuple(change(a) for a in self.arguments),
        )


@caches_hash
@dataclass(frozen=True)
class Aggregate:
    """GROUP BY: the output has the group expressions' fields, then the calls' fields.

    No group expressions: one row, also over an empty input.
    """

    input: Plan
    groups: tuple[Expression, ...]
    calls: tuple[AggregateCall, ...]
    fields: tuple[Field, ...]


@caches_hash
@dataclass(frozen=True)
class RetainedAggregate(Aggregate):
    """An aggregate whose old groups are frozen: their rows stay, their state is freed.

    watermarks: of which the least counts. window: the position of the group column that begins a
    window, a date or timestamp. after_us: how far the watermark is beyond a window's begin when
    its group is frozen. title: for the rows that came too late for it.
    """

    watermarks: tuple[Plan, ...]
    window: int
    after_us: int
    title: str


@caches_hash
@dataclass(frozen=True)
class Distinct:
    """Each row once."""

    input: Plan

    @property
    def fields(self) -> tuple[Field, ...]:
        return self.input.fields


@caches_hash
@dataclass(frozen=True)
class UnionAll:
    """All rows of all inputs; their columns have equal types."""

    inputs: tuple[Plan, ...]
    fields: tuple[Field, ...]


@caches_hash
@dataclass(frozen=True)
class SingleRow:
    """A scalar subquery: exactly one row always.

    NULLs over an empty input, an error row over two or more rows.
    """

    input: Plan

    @property
    def fields(self) -> tuple[Field, ...]:
        """The input's, all nullable."""
        return tuple(Field(f.name, f.type) for f in self.input.fields)


@caches_hash
@dataclass(frozen=True)
class TopK:
    """Of each partition the rows from `offset` on, at most `limit` of them, in `order`.

    limit None: all after the offset. with_ties: also those that tie with the last one. Other ties
    are in the order of all their columns by text, so that the answer is unique. Partitions are
    equal as groups are; no partition expressions: one partition of all rows.
    """

    input: Plan
    partition: tuple[Expression, ...]
    order: tuple[SortKey, ...]
    limit: int | None
    offset: int
    with_ties: bool

    @property
    def fields(self) -> tuple[Field, ...]:
        return self.input.fields


@caches_hash
@dataclass(frozen=True)
class Shard:
    """The rows, each with the number of its shard: an int8 column below `count`.

    Equal rows have equal numbers; they depend on nothing but the row's bits.
    """

    input: Plan
    count: int

    @property
    def fields(self) -> tuple[Field, ...]:
        """The input's, and the number."""
        return (*self.input.fields, Field("shard", INT8, False))


@caches_hash
@dataclass(frozen=True)
class FrameBound:
    """kind: "unbounded preceding", "preceding", "current row", "following" or "unbounded
    following"; distance: a constant for "preceding" and "following"."""

    kind: str
    distance: Literal | None = None


@caches_hash
@dataclass(frozen=True)
class Frame:
    """mode: "rows", "range" or "groups"; exclude: "", "current row", "group" or "ties"."""

    mode: str = "range"
    start: FrameBound = FrameBound("unbounded preceding")
    end: FrameBound = FrameBound("current row")
    exclude: str = ""


@caches_hash
@dataclass(frozen=True)
class WindowCall:
    """A call over a window. function: a window function's or an aggregate's name.

    sql: PostgreSQL's text of the call up to FILTER and OVER, with $1, $2 ... for the arguments, for
    calls that have no kernel. field: the output field, with PostgreSQL's type. is_aggregate: False
    for a window function.
    """

    function: str
    arguments: tuple[Expression, ...]
    filter: Expression | None
    frame: Frame
    sql: str
    field: Field
    is_aggregate: bool

    @property
    def operands(self) -> tuple[Expression, ...]:
        """Arguments and filter."""
        return self.arguments + ((self.filter,) if self.filter is not None else ())

    def over(self, change: Callable[[Expression], Expression]) -> WindowCall:
        """Return the call with every operand changed."""
        return replace(
            self,
            arguments=tuple(change(a) for a in self.arguments),
            filter=None if self.filter is None else change(self.filter),
        )


@caches_hash
@dataclass(frozen=True)
class Window:
    """Each input row once: the input's fields, then one for each call. Calls share partitioning
    and order; ties are broken as in TopK."""

    input: Plan
    partition: tuple[Expression, ...]
    order: tuple[SortKey, ...]
    calls: tuple[WindowCall, ...]
    fields: tuple[Field, ...]


@caches_hash
@dataclass(frozen=True)
class Remember:
    """Each input row with expressions computed when it arrives and stored until it leaves.

    The fields: the input's, then one for each expression. by_arguments: one expression, whose
    result is stored for all rows with the same arguments.
    """

    input: Plan
    expressions: tuple[Expression, ...]
    fields: tuple[Field, ...]
    by_arguments: bool = False


@caches_hash
@dataclass(frozen=True)
class SetCall:
    """A function that returns rows: sql with $1, $2 ... for the arguments.

    It has `width` columns; fields: those at `columns`; the others are not requested.
    """

    sql: str
    arguments: tuple[Expression, ...]
    fields: tuple[Field, ...]
    width: int
    columns: tuple[int, ...]


@caches_hash
@dataclass(frozen=True)
class TableFunction:
    """Each input row beside each row of the calls, which run in parallel (ROWS FROM): shorter ones
    are padded with NULLs.

    Fields: the input's, each call's, then the ordinality (bigint from 1) if requested. is_outer: an
    input row without any row of the calls (for which `condition` is true, which reads input and
    call columns) stays, padded. in_select: the calls are whole select-list expressions around
    set-returning functions, one column each; an ordinality is the planner's own there.
    """

    input: Plan
    calls: tuple[SetCall, ...]
    has_ordinality: bool
    is_outer: bool
    fields: tuple[Field, ...]
    condition: Expression | None = None
    in_select: bool = False


@caches_hash
@dataclass(frozen=True)
class SetOperation:
    """A set operation. kind: "intersect" or "except"; both inputs have equal types. Rows are equal
    as groups are (NULL equals NULL). Without is_all each output row occurs once.

    compared: set by lowering; the first that many columns decide equality, the others show the
    least by text among equal left rows. None: all are compared.
    """

    kind: str
    is_all: bool
    left: Plan
    right: Plan
    compared: int | None = None

    @cached_property
    def fields(self) -> tuple[Field, ...]:
        """The left input's; a column of an intersection is nullable only if it is in both
        inputs."""
        if self.kind == "except":
            return self.left.fields
        pairs = zip(self.left.fields, self.right.fields, strict=True)
        return tuple(Field(a.name, a.type, a.is_nullable and b.is_nullable) for a, b in pairs)


@caches_hash
@dataclass(frozen=True)
class RecursionRef:
    """Inside the step of the Recursive of this name: the rows found in the previous round."""

    name: str
    fields: tuple[Field, ...]


@caches_hash
@dataclass(frozen=True)
class Recursive:
    """WITH RECURSIVE: base UNION [ALL] step, the step over RecursionRef(name).

    is_distinct: UNION, a row is found only once. name is unique in the plan.
    """

    name: str
    base: Plan
    step: Plan
    is_distinct: bool
    fields: tuple[Field, ...]


# The names that a loop's body reads; no WITH entry has them, since those begin with a letter.
LOOP_ROWS, LOOP_ROUNDS, LOOP_INPUT = ".rows", ".rounds", ".input"


@caches_hash
@dataclass(frozen=True)
class Loop:
    """A lowered Recursive (see dataflow.sql.bind.rounds); rules never see one.

    inputs: the base, then the other inputs of the step. body: the step for many rounds at once,
    over RecursionRefs of the rows, the rounds and the inputs; the last column of a row is its
    round. Rows of base and body have the fields, then the key forms that a UNION needs; keys: the
    columns that distinguish rows, () for UNION ALL.
    """

    name: str
    inputs: tuple[Plan, ...]
    body: Plan = field(metadata={_INSIDE: True})
    keys: tuple[int, ...]
    fields: tuple[Field, ...]


@dataclass(frozen=True)
class Apply:
    """For each left row the rows of right, which reads left columns as OuterRefs of level 0.

    kind "inner" and "left": LATERAL; the output has the left fields, then the right's (nullable for
    "left"). "semi" and "anti": the left rows for which right has a row, or none; the left fields.
    residual: a condition over left and right rows; its outer references, like those of left, belong
    to enclosing Applies. The rule `decorrelate` removes all Applies.
    """

    kind: str
    left: Plan
    right: Plan
    residual: Expression | None
    fields: tuple[Field, ...]


Plan = (
    Scan
    | Values
    | Filter
    | ThresholdFilter
    | ThresholdFlag
    | Watermark
    | LateRows
    | FinalRows
    | Project
    | Join
    | AsOfJoin
    | SemiJoin
    | Aggregate
    | RetainedAggregate
    | Distinct
    | UnionAll
    | SingleRow
    | TopK
    | Shard
    | Window
    | Remember
    | TableFunction
    | SetOperation
    | RecursionRef
    | Recursive
    | Loop
    | Apply
)


@caches_hash
@dataclass(frozen=True)
class ViewPlan:
    """A view, ready to be lowered.

    key: positions of output columns that form a unique key and are never NULL; () for a multiset
    view. warnings: returned when the view is created. evaluates: SQL of the subtrees computed in
    PostgreSQL. pinned: canonical text and value, as PostgreSQL reads it, of expressions that were
    computed once. time_zone: in which PostgreSQL evaluates. refresh_us: how often
    values that follow the clock change; 0 if there are none. row_types: of the base tables whose
    whole rows are values in it.
    """

    root: Plan
    key: tuple[int, ...]
    warnings: tuple[str, ...] = ()
    evaluates: tuple[str, ...] = ()
    pinned: tuple[tuple[str, str], ...] = ()
    time_zone: str = UTC
    refresh_us: int = 0
    row_types: tuple[RowType, ...] = ()


_T = TypeVar("_T")


def inputs_of(plan: Plan) -> tuple[Plan, ...]:
    """Return the inputs of a node, left to right."""
    found: list[Plan] = []
    for name, is_many in input_fields(type(plan)):
        value = getattr(plan, name)
        found.extend(value) if is_many else found.append(value)
    return tuple(found)


@cache
def input_fields(kind: type) -> tuple[tuple[str, bool], ...]:
    """Return the fields of a class of nodes that hold its inputs, left to right: their names, and
    whether each holds several."""
    return tuple(
        (each.name, each.type == _PLANS)
        for each in fields(kind)
        if each.type in (_PLAN, _PLANS) and not each.metadata.get(_INSIDE)
    )


def fold(plan: Plan, visit: Callable[[Plan, tuple[_T, ...]], _T]) -> _T:
    """Return visit(node, its results for the inputs) of the root; visit inputs first, each object
    once."""
    found: dict[int, _T] = {}

    def answer(node: Plan) -> _T:
        if id(node) not in found:
            found[id(node)] = visit(node, tuple(answer(i) for i in inputs_of(node)))
        return found[id(node)]

    return answer(plan)


def scans_of(plan: Plan) -> tuple[Scan, ...]:
    """Return all scans of a plan, left to right, each object once."""
    found: list[Scan] = []
    fold(plan, lambda node, _: found.append(node) if isinstance(node, Scan) else None)
    return tuple(found)
