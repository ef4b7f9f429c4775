"""The logical plan: frozen nodes, each knowing its output fields.

A plan is a directed graph without cycles: one object that stands in several places is computed
once. Whoever walks it visits each object once (`fold`), or nested WITH lists cost exponentially.
This file is long because all kinds of nodes stand in it.

A node's expressions refer to its input's columns by position; a join's residual and keys see the
left columns first, then the right ones (`left_keys` over the left input, `right_keys` over the
right input, each by its own positions). Plans are picklable and comparable: equal plans compute
the same rows. After the rules no Apply and no OuterRef is left.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

from dataflow.expressions.ir import Expression, Literal
from dataflow.frozen import keeps_hash
from dataflow.schema import Field, Relation


@keeps_hash
@dataclass(frozen=True)
class Scan:
    """The rows of a base relation or of another maintained view: the columns at `columns`."""

    relation: Relation
    columns: tuple[int, ...]
    fields: tuple[Field, ...]


@keeps_hash
@dataclass(frozen=True)
class Values:
    """Constant rows: every cell a Literal. A SELECT without FROM is one row of no columns."""

    rows: tuple[tuple[Expression, ...], ...]
    fields: tuple[Field, ...]


@keeps_hash
@dataclass(frozen=True)
class Filter:
    """Rows for which predicate (boolean) is true."""

    input: Plan
    predicate: Expression

    @property
    def fields(self) -> tuple[Field, ...]:
        """The input's."""
        return self.input.fields


@keeps_hash
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


@keeps_hash
@dataclass(frozen=True)
class Project:
    """One expression for each output field."""

    input: Plan
    expressions: tuple[Expression, ...]
    fields: tuple[Field, ...]


@keeps_hash
@dataclass(frozen=True)
class Join:
    """kind: "inner", "left", "right" or "full". No keys: a cross or purely non-equi join.

    Keys are equal under PostgreSQL's `=` (NULL equals nothing) and in key form. The output has
    the left fields, then the right ones (nullable where padded).
    """

    kind: str
    left: Plan
    right: Plan
    left_keys: tuple[Expression, ...]
    right_keys: tuple[Expression, ...]
    residual: Expression | None
    fields: tuple[Field, ...]


@keeps_hash
@dataclass(frozen=True)
class SemiJoin:
    """Left rows with (kind "semi") or without (kind "anti") a match in right.

    kind "not in": anti with SQL's NULL rule for `x NOT IN (subquery)`, the keys being x and the
    subquery's column: no row when right holds a NULL key, a NULL x only when right is empty.
    """

    kind: str
    left: Plan
    right: Plan
    left_keys: tuple[Expression, ...]
    right_keys: tuple[Expression, ...]
    residual: Expression | None

    @property
    def fields(self) -> tuple[Field, ...]:
        """The left input's."""
        return self.left.fields


@keeps_hash
@dataclass(frozen=True)
class AggregateCall:
    """One aggregate call; "count" without argument is count(*).

    field is the output field: its type is PostgreSQL's for the whole call. Without `sql` the call
    is maintained natively: of one `argument`, or of two `arguments` (corr and its like);
    percentile_cont and percentile_disc at `fraction` of the argument's order.
    sql: PostgreSQL's text of a call that is recomputed there, up to FILTER, with $1, $2 ... for
    `arguments`. The first `direct` of them have one value in a group (WITHIN GROUP's direct
    arguments); equal values of those at the positions `alike` stand as the least by text.
    rows_by: what its rows are sorted by, over `arguments`, where its text has no place for that.
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
        """Every expression over the input's columns, the filter last."""
        first = () if self.argument is None else (self.argument,)
        return (*first, *self.arguments, *(() if self.filter is None else (self.filter,)))

    def over(self, change: Callable[[Expression], Expression]) -> AggregateCall:
        """The same call with each operand changed."""
        return replace(
            self,
            argument=None if self.argument is None else change(self.argument),
            filter=None if self.filter is None else change(self.filter),
            arguments=tuple(change(a) for a in self.arguments),
        )


@keeps_hash
@dataclass(frozen=True)
class Aggregate:
    """GROUP BY: the output has the group expressions' fields, then the calls' fields.

    No group expressions: one row, also over an empty input.
    """

    input: Plan
    groups: tuple[Expression, ...]
    calls: tuple[AggregateCall, ...]
    fields: tuple[Field, ...]


@keeps_hash
@dataclass(frozen=True)
class Distinct:
    """Each row once."""

    input: Plan

    @property
    def fields(self) -> tuple[Field, ...]:
        """The input's."""
        return self.input.fields


@keeps_hash
@dataclass(frozen=True)
class UnionAll:
    """All rows of all inputs, whose columns have equal types."""

    inputs: tuple[Plan, ...]
    fields: tuple[Field, ...]


@keeps_hash
@dataclass(frozen=True)
class SingleRow:
    """A scalar subquery: exactly one row always.

    NULLs over an empty input, an error row over two rows.
    """

    input: Plan

    @property
    def fields(self) -> tuple[Field, ...]:
        """The input's, all nullable."""
        return tuple(Field(f.name, f.type) for f in self.input.fields)


@keeps_hash
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
        """What stands behind the expression in PostgreSQL's text."""
        using = f"USING {self.operator}" if self.operator else ""
        way = using or ("DESC" if self.is_descending else "ASC")
        return f"{way} NULLS {'FIRST' if self.nulls_first else 'LAST'}"


@keeps_hash
@dataclass(frozen=True)
class TopK:
    """Of each partition the rows from `offset` on, at most `limit` of them, in `order`.

    limit None: all after the offset. with_ties: also those that tie with the last one. Rows that
    tie otherwise come in the order of all their columns by text, so that the answer is one.
    Partitions are equal as groups are; no partition expressions: one partition of all rows.
    """

    input: Plan
    partition: tuple[Expression, ...]
    order: tuple[SortKey, ...]
    limit: int | None
    offset: int
    with_ties: bool

    @property
    def fields(self) -> tuple[Field, ...]:
        """The input's."""
        return self.input.fields


@keeps_hash
@dataclass(frozen=True)
class FrameBound:
    """kind: "unbounded preceding", "preceding", "current row", "following" or "unbounded
    following"; distance: a constant for "preceding" and "following"."""

    kind: str
    distance: Literal | None = None


@keeps_hash
@dataclass(frozen=True)
class Frame:
    """mode: "rows", "range" or "groups"; exclude: "", "current row", "group" or "ties"."""

    mode: str = "range"
    start: FrameBound = FrameBound("unbounded preceding")
    end: FrameBound = FrameBound("current row")
    exclude: str = ""


@keeps_hash
@dataclass(frozen=True)
class WindowCall:
    """A call over a window. function: a window function's or an aggregate's name.

    sql: PostgreSQL's text of the call up to FILTER and OVER, with $1, $2 ... for the arguments, so
    that PostgreSQL can compute what has no kernel. field: the output field, PostgreSQL's type.
    is_aggregate: False for a window function.
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
        """The call with every operand changed."""
        return replace(
            self,
            arguments=tuple(change(a) for a in self.arguments),
            filter=None if self.filter is None else change(self.filter),
        )


@keeps_hash
@dataclass(frozen=True)
class Window:
    """Each input row once: the input's fields, then one for each call. Calls share partitioning
    and order; ties are broken as in TopK."""

    input: Plan
    partition: tuple[Expression, ...]
    order: tuple[SortKey, ...]
    calls: tuple[WindowCall, ...]
    fields: tuple[Field, ...]


@keeps_hash
@dataclass(frozen=True)
class Remember:
    """Each input row with expressions computed when the row came, and kept until it goes.

    The fields: the input's, then one for each expression. by_arguments: of one expression, whose
    answer is kept for all rows with the same arguments.
    """

    input: Plan
    expressions: tuple[Expression, ...]
    fields: tuple[Field, ...]
    by_arguments: bool = False


@keeps_hash
@dataclass(frozen=True)
class SetCall:
    """A function that returns rows: sql with $1, $2 ... for the arguments.

    It has `width` columns; fields: those at `columns`, the others are not asked for.
    """

    sql: str
    arguments: tuple[Expression, ...]
    fields: tuple[Field, ...]
    width: int
    columns: tuple[int, ...]


@keeps_hash
@dataclass(frozen=True)
class TableFunction:
    """Each input row beside each row of the calls, which run side by side (ROWS FROM): shorter
    ones are padded with NULLs.

    Fields: the input's, each call's, then the ordinality (bigint from 1) where asked for.
    is_outer: an input row without any row of the calls (for which `condition` is true, which
    reads input and call columns) stays, padded. in_select: the calls are whole expressions of a
    select list around functions of sets, one column each.
    """

    input: Plan
    calls: tuple[SetCall, ...]
    has_ordinality: bool
    is_outer: bool
    fields: tuple[Field, ...]
    condition: Expression | None = None
    in_select: bool = False


@keeps_hash
@dataclass(frozen=True)
class SetOperation:
    """kind: "intersect" or "except"; both sides have equal types. Rows are equal as groups are
    (NULL is NULL). Without is_all each row of the answer comes once.

    compared: set when lowered; the first so many columns tell whether rows are equal, of the
    others the least by text among equal left rows is shown. None: all are compared.
    """

    kind: str
    is_all: bool
    left: Plan
    right: Plan
    compared: int | None = None

    @cached_property
    def fields(self) -> tuple[Field, ...]:
        """The left input's; in both sides of an intersection a column must be NULL to be."""
        if self.kind == "except":
            return self.left.fields
        pairs = zip(self.left.fields, self.right.fields, strict=True)
        return tuple(Field(a.name, a.type, a.is_nullable and b.is_nullable) for a, b in pairs)


@keeps_hash
@dataclass(frozen=True)
class RecursionRef:
    """Inside the step of the Recursive of this name: the rows that the last round found."""

    name: str
    fields: tuple[Field, ...]


@keeps_hash
@dataclass(frozen=True)
class Recursive:
    """WITH RECURSIVE: base UNION [ALL] step, the step over RecursionRef(name).

    is_distinct: UNION, a row once found is not found again. name is unique in the plan.
    """

    name: str
    base: Plan
    step: Plan
    is_distinct: bool
    fields: tuple[Field, ...]


# What the body of a loop reads; names that no WITH entry has, which begin with a letter.
LOOP_ROWS, LOOP_ROUNDS, LOOP_INPUT = ".rows", ".rounds", ".input"


@keeps_hash
@dataclass(frozen=True)
class Loop:
    """A Recursive as it is lowered (see dataflow.sql.bind.rounds); no rule ever meets one.

    inputs: the base, then what the step reads beside its own rows. body: the step of many rounds
    at once, over RecursionRefs of the rows, the rounds and the inputs; each row has its round as
    its last column. Rows of base and body have the fields, then key forms where a UNION has
    columns that need one; keys: the columns that tell them apart, () for UNION ALL.
    """

    name: str
    inputs: tuple[Plan, ...]
    body: Plan
    keys: tuple[int, ...]
    fields: tuple[Field, ...]


@dataclass(frozen=True)
class Apply:
    """For each left row the rows of right, which reads the left's columns as OuterRef of level 0.

    kind "inner" and "left": LATERAL; the output has the left fields, then the right's (nullable
    for "left"). "semi" and "anti": the left rows for which right has a row, or none; the left
    fields. residual: a condition over left and right rows; its outer references, like those of
    left, are of the Applies around. Gone after the rule `decorrelate`.
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
    | Project
    | Join
    | SemiJoin
    | Aggregate
    | Distinct
    | UnionAll
    | SingleRow
    | TopK
    | Window
    | Remember
    | TableFunction
    | SetOperation
    | RecursionRef
    | Recursive
    | Loop
    | Apply
)


@keeps_hash
@dataclass(frozen=True)
class ViewPlan:
    """A view, ready to be lowered.

    key: positions of output columns that form a unique key and are never NULL; () makes it a bag.
    warnings: told in the create response. evaluates: SQL of the subtrees computed in PostgreSQL.
    pinned: canonical text and value, as PostgreSQL reads it, of what was computed once.
    """

    root: Plan
    key: tuple[int, ...]
    warnings: tuple[str, ...] = ()
    evaluates: tuple[str, ...] = ()
    pinned: tuple[tuple[str, str], ...] = ()


_T = TypeVar("_T")


def inputs_of(plan: Plan) -> tuple[Plan, ...]:
    """The nodes that feed a node, left to right."""
    if isinstance(plan, Join | SemiJoin | SetOperation | Apply):
        return (plan.left, plan.right)
    if isinstance(plan, ThresholdFilter):
        return (plan.input, plan.threshold)
    if isinstance(plan, UnionAll | Loop):
        return plan.inputs
    if isinstance(plan, Recursive):
        return (plan.base, plan.step)
    return () if isinstance(plan, Scan | Values | RecursionRef) else (plan.input,)


def fold(plan: Plan, visit: Callable[[Plan, tuple[_T, ...]], _T]) -> _T:
    """visit(node, what it gave for the inputs), inputs first, each object once."""
    found: dict[int, _T] = {}

    def answer(node: Plan) -> _T:
        if id(node) not in found:
            found[id(node)] = visit(node, tuple(answer(i) for i in inputs_of(node)))
        return found[id(node)]

    return answer(plan)


def scans_of(plan: Plan) -> tuple[Scan, ...]:
    """All scans of a plan, left to right, each object once."""
    found: list[Scan] = []
    fold(plan, lambda node, _: found.append(node) if isinstance(node, Scan) else None)
    return tuple(found)
