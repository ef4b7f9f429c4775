"""Comparisons with one value that moves, anywhere in an expression, become flags of the rows.

`at < now() OR kind = 'a'`, CASE WHEN at < now(), FILTER (WHERE at < now()) read the one row of a
clock beside each row, and would be recomputed for all rows at each tick. A threshold flag is the
comparison's value as a column, and a tick changes the rows between the old and the new threshold
alone. Not where something else reads the single row too, and not in the step of a recursion. An
expression of the row that may fail is left where it is: a CASE around it may keep it from being
computed.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field, replace

from dataflow.expressions.ir import ColumnRef, Expression, children
from dataflow.plan.nodes import (
    Aggregate,
    Join,
    Plan,
    Project,
    Recursive,
    SemiJoin,
    ThresholdFilter,
    ThresholdFlag,
    fold,
    scans_of,
)
from dataflow.plan.outer_refs import may_fail_often
from dataflow.plan.properties.one_row import has_one_row
from dataflow.plan.trees import (
    conjunction,
    conjuncts,
    expressions_within,
    in_postgres,
    map_expressions,
    refs,
)
from dataflow.plan.walk import nodes_of, shared_nodes, with_inputs
from dataflow.schema import Field
from dataflow.sql.rules.find_thresholds import Condition, condition_of
from dataflow.types import BOOL


@dataclass
class _Cross:
    """Rows beside single rows, as a chain of joins without keys; flags: found so far.

    singles: (plan, first column) of each; the rows' own columns are the first ones.
    """

    rows: Plan
    singles: list[tuple[Plan, int]]
    flags: dict[Expression, Condition] = field(default_factory=dict)
    moving: dict[Expression, Plan] = field(default_factory=dict)
    starts: dict[Expression, int] = field(default_factory=dict)

    @property
    def width(self) -> int:
        return len(self.rows.fields)

    def gather(self, expression: Expression) -> None:
        """Collect the comparisons of an expression that can be flags."""
        for single, start in self.singles:
            own = range(self.width)
            found = condition_of(expression, own, 0, start)
            others = range(start, start + len(single.fields))
            if found is None or not _reads(expression, {*own, *others}):
                continue
            if not (may_fail_often(found.value) or in_postgres(found.value)):
                self.flags[expression], self.moving[expression] = found, single
                self.starts[expression] = start
                return
        for child in children(expression):
            self.gather(child)

    def drop_partial(self, expressions: Sequence[Expression]) -> None:
        """Forget the flags of single rows that something else reads too: no tick is saved."""
        read = {leaf.index for e in expressions for leaf in _leaves(e, self.flags)}
        for single, start in self.singles:
            if read & set(range(start, start + len(single.fields))):
                own = [e for e in self.flags if self.starts[e] == start]
                for expression in own:
                    del self.flags[expression]


def flag_conditions(plan: Plan) -> Plan:
    """Return the plan with threshold flags for the comparisons of rows with single rows."""
    shared = shared_nodes(plan)
    recursions = [node for node in nodes_of(plan) if isinstance(node, Recursive)]
    within = {id(node) for recursion in recursions for node in nodes_of(recursion.step)}

    def visit(node: Plan, inputs: tuple[Plan, ...]) -> Plan:
        over = with_inputs(node, inputs)
        if id(node) in within:
            return over
        if isinstance(over, Join) and over.kind == "left" and over.residual is not None:
            return _with_moving_right(over, over.residual)
        is_own = isinstance(node, Project | Aggregate) and id(node.input) not in shared
        if is_own and isinstance(over, Project | Aggregate) and isinstance(over.input, Join):
            return _flagged(over, over.input) or over
        return over

    return fold(plan, visit)


def _flagged(plan: Project | Aggregate, join: Join) -> Plan | None:
    cross = _cross_of(join)
    if cross is None:
        return None
    residual = () if join.residual is None else (join.residual,)
    for expression in (*expressions_within(plan), *residual):
        cross.gather(expression)
    cross.drop_partial([*expressions_within(plan), *residual])
    if not cross.flags:
        return None
    rows, width, count = cross.rows, cross.width, len(cross.flags)
    at: dict[Expression, ColumnRef] = {}
    for expression, found in cross.flags.items():
        at[expression] = ColumnRef(len(rows.fields), BOOL, "flag")
        threshold = _threshold(cross.moving[expression], cross.rows, found)
        rows = ThresholdFlag(rows, threshold, found.value, found.operator)

    def moved(expression: Expression) -> Expression:
        if expression in at:
            return at[expression]
        if isinstance(expression, ColumnRef):
            index = expression.index
            return replace(expression, index=index if index < width else index + count)
        arguments = tuple(map(moved, children(expression)))
        return replace(expression, arguments=arguments) if arguments else expression  # type: ignore[call-arg]

    crossed = rows
    for single, _ in cross.singles:
        fields = crossed.fields + single.fields
        crossed = Join("inner", crossed, single, (), (), None, fields)
    assert isinstance(crossed, Join)
    crossed = replace(crossed, residual=moved(residual[0]) if residual else None)
    return map_expressions(plan, moved, (crossed,))


def _with_moving_right(join: Join, residual: Expression) -> Plan:
    """Return a left join whose right rows are filtered, or flagged, by single rows on its left.

    A condition of ON over right rows and a single row alone says which right rows there are.
    """
    cross = _cross_of(join.left) if isinstance(join.left, Join) else None
    if cross is None:
        return join
    n, right = len(join.left.fields), join.right
    own = range(n, len(join.fields))
    rest: list[Expression] = []
    for part in conjuncts(residual):
        found = _right_condition(part, own, cross)
        if found is None:
            rest.append(part)
        else:
            threshold, condition = found
            right = ThresholdFilter(right, threshold, condition.value, condition.operator)
    flags: dict[Expression, ColumnRef] = {}
    for part in _parts(rest):
        found = _right_condition(part, own, cross)
        if found is not None and part not in flags:
            threshold, condition = found
            flags[part] = ColumnRef(n + len(right.fields), BOOL, "flag")
            right = ThresholdFlag(right, threshold, condition.value, condition.operator)
    if right is join.right:
        return join
    fields = (*join.fields, *right.fields[len(join.right.fields) :])
    condition = conjunction([_with_flags(part, flags) for part in rest])
    made = replace(join, right=right, residual=condition, fields=fields)
    return Project(made, refs(join), join.fields) if flags else made


def _parts(expressions: Sequence[Expression]) -> Iterator[Expression]:
    for expression in expressions:
        yield expression
        yield from _parts(children(expression))


def _right_condition(
    expression: Expression, own: range, cross: _Cross
) -> tuple[Plan, Condition] | None:
    """Return a comparison of the right rows of a join with a single row on its left."""
    for single, start in cross.singles:
        found = condition_of(expression, own, own.start, start)
        others = range(start, start + len(single.fields))
        if found is None or not _reads(expression, {*own, *others}):
            continue
        if not (may_fail_often(found.value) or in_postgres(found.value)):
            return _threshold(single, cross.rows, found), found
    return None


def _with_flags(expression: Expression, flags: dict[Expression, ColumnRef]) -> Expression:
    if expression in flags:
        return flags[expression]
    arguments = tuple(_with_flags(a, flags) for a in children(expression))
    return replace(expression, arguments=arguments) if arguments else expression  # type: ignore[call-arg]


def _threshold(single: Plan, rows: Plan, found: Condition) -> Plan:
    bound = found.threshold
    # It is an error only while there is a row to compare.
    below = SemiJoin("semi", single, rows, (), (), None) if may_fail_often(bound) else single
    return Project(below, (bound,), (Field("threshold", bound.type),))


def _cross_of(join: Join) -> _Cross | None:
    """Return the rows on the left of single rows that tables give; None if it is another join."""
    singles: list[Plan] = []
    rows: Plan = join
    while isinstance(rows, Join) and rows.kind == "inner" and not rows.left_keys:
        is_last = rows is join
        if not (_is_single(rows.right) and (is_last or rows.residual is None)):
            break
        singles.insert(0, rows.right)
        rows = rows.left
    if not singles or has_one_row(rows):
        return None
    starts, start = [], len(rows.fields)
    for single in singles:
        starts.append(start)
        start += len(single.fields)
    return _Cross(rows, list(zip(singles, starts, strict=True)))


def _is_single(plan: Plan) -> bool:
    return bool(scans_of(plan)) and has_one_row(plan)


def _reads(expression: Expression, columns: set[int]) -> bool:
    """Return whether an expression reads no other columns."""
    return all(leaf.index in columns for leaf in _leaves(expression))


def _leaves(expression: Expression, but: Container[Expression] = ()) -> Iterator[ColumnRef]:
    """Yield the columns that an expression reads, outside of the parts in `but`."""
    if expression in but:
        return
    if isinstance(expression, ColumnRef):
        yield expression
    for child in children(expression):
        yield from _leaves(child, but)
