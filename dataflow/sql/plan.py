"""The logical plan: frozen nodes, each knowing its output fields.

A node's expressions refer to its input's columns by position; a join's residual and keys see the
left columns first, then the right ones (`left_keys` over the left input, `right_keys` over the
right input, each by its own positions). Plans are picklable and comparable: equal plans compute
the same rows.
"""

from __future__ import annotations

from dataclasses import dataclass

from dataflow.expressions.ir import Expression
from dataflow.schema import Field, Relation


@dataclass(frozen=True)
class Scan:
    """The rows of a base relation or of another maintained view: the columns at `columns`."""

    relation: Relation
    columns: tuple[int, ...]
    fields: tuple[Field, ...]


@dataclass(frozen=True)
class Values:
    """Constant rows: every cell a Literal. A SELECT without FROM is one row of no columns."""

    rows: tuple[tuple[Expression, ...], ...]
    fields: tuple[Field, ...]


@dataclass(frozen=True)
class Filter:
    """Rows for which predicate (boolean) is true."""

    input: Plan
    predicate: Expression

    @property
    def fields(self) -> tuple[Field, ...]:
        """The input's."""
        return self.input.fields


@dataclass(frozen=True)
class Project:
    """One expression for each output field."""

    input: Plan
    expressions: tuple[Expression, ...]
    fields: tuple[Field, ...]


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


@dataclass(frozen=True)
class AggregateCall:
    """function: count, sum, avg, min, max, bool_and, bool_or; "count" without argument is count(*).

    field is the output field: its type is PostgreSQL's for the whole call.
    """

    function: str
    argument: Expression | None
    is_distinct: bool
    filter: Expression | None
    field: Field


@dataclass(frozen=True)
class Aggregate:
    """GROUP BY: the output has the group expressions' fields, then the calls' fields.

    No group expressions: one row, also over an empty input.
    """

    input: Plan
    groups: tuple[Expression, ...]
    calls: tuple[AggregateCall, ...]
    fields: tuple[Field, ...]


@dataclass(frozen=True)
class Distinct:
    """Each row once."""

    input: Plan

    @property
    def fields(self) -> tuple[Field, ...]:
        """The input's."""
        return self.input.fields


@dataclass(frozen=True)
class UnionAll:
    """All rows of all inputs, whose columns have equal types."""

    inputs: tuple[Plan, ...]
    fields: tuple[Field, ...]


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


Plan = (
    Scan | Values | Filter | Project | Join | SemiJoin | Aggregate | Distinct | UnionAll | SingleRow
)


@dataclass(frozen=True)
class ViewPlan:
    """A view, ready to be lowered.

    key: positions of output columns that form a unique key and are never NULL; () makes it a bag.
    warnings: told in the create response. evaluates: SQL of the subtrees computed in PostgreSQL.
    """

    root: Plan
    key: tuple[int, ...]
    warnings: tuple[str, ...] = ()
    evaluates: tuple[str, ...] = ()


def inputs_of(plan: Plan) -> tuple[Plan, ...]:
    """The nodes that feed a node, left to right."""
    if isinstance(plan, Join | SemiJoin):
        return (plan.left, plan.right)
    if isinstance(plan, UnionAll):
        return plan.inputs
    return () if isinstance(plan, Scan | Values) else (plan.input,)


def scans_of(plan: Plan) -> tuple[Scan, ...]:
    """All scans below a node, left to right, repeats included."""
    if isinstance(plan, Scan):
        return (plan,)
    return tuple(scan for child in inputs_of(plan) for scan in scans_of(child))
