"""Comparisons with one value that moves, anywhere in an expression, become flags of the rows.

`at < now() OR kind = 'a'`, CASE WHEN at < now(), FILTER (WHERE at < now()) read the one row of a
clock beside each row, and would be recomputed for all rows at each tick. A threshold flag is the
comparison's value as a column, and a tick changes the rows between the old and the new threshold
alone. Not where something else reads the single row too, and not in the step of a recursion. An
expression of the row that may fail is left where it is: a CASE around it may keep it from being
computed.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator, Sequence
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
    Window,
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
from dataflow.sql.rules.prune_columns import columns_read
from dataflow.types import BOOL

_READERS = Project | Aggregate | Window


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

    def flagged(self) -> Plan:
        """Return the rows with their flags, beside the single rows."""
        rows = self.rows
        for expression, found in self.flags.items():
            threshold = _threshold(self.moving[expression], self.rows, found)
            rows = ThresholdFlag(rows, threshold, found.value, found.operator)
        for single, _ in self.singles:
            rows = Join("inner", rows, single, (), (), None, rows.fields + single.fields)
        return rows

    def moved(self, expression: Expression) -> Expression:
        """Return an expression over what follows the rows, with flags between."""
        for number, known in enumerate(self.flags):
            if expression == known:
                return ColumnRef(self.width + number, BOOL, "flag")
        if isinstance(expression, ColumnRef):
            return replace(expression, index=self.position(expression.index))
        arguments = tuple(map(self.moved, children(expression)))
        return replace(expression, arguments=arguments) if arguments else expression  # type: ignore[call-arg]

    def position(self, index: int) -> int:
        """Return where a column is once the flags follow the rows."""
        return index if index < self.width else index + len(self.flags)

    def widened(self, fields: tuple[Field, ...]) -> tuple[Field, ...]:
        """Return the fields with those of the flags after the rows' own."""
        flags = (Field("flag", BOOL),) * len(self.flags)
        return (*fields[: self.width], *flags, *fields[self.width :])


def flag_conditions(plan: Plan) -> Plan:
    """Return the plan with threshold flags for the comparisons of rows with single rows."""
    shared, required = shared_nodes(plan), columns_read(plan)
    recursions = [node for node in nodes_of(plan) if isinstance(node, Recursive)]
    within = {id(node) for recursion in recursions for node in nodes_of(recursion.step)}

    def visit(node: Plan, inputs: tuple[Plan, ...]) -> Plan:
        over = with_inputs(node, inputs)
        if id(node) in within:
            return over
        if isinstance(over, Join) and isinstance(node, Join) and over.kind in ("left", "full"):
            return _with_moving_sides(over, required[id(node)], is_own=id(node.left) not in shared)
        is_own = isinstance(node, _READERS) and id(node.input) not in shared
        if is_own and isinstance(over, _READERS) and isinstance(over.input, Join):
            return _flagged(over, over.input, required[id(node)]) or over
        return over

    return fold(plan, visit)


def _flagged(
    plan: Project | Aggregate | Window, join: Join, required: Collection[int]
) -> Plan | None:
    """Return a reader of a cross join over flagged rows; required: the columns read of it."""
    cross = _cross_of(join)
    if cross is None:
        return None
    residual = () if join.residual is None else (join.residual,)
    read = [*expressions_within(plan), *residual]
    for expression in read:
        cross.gather(expression)
    if isinstance(plan, Window):
        read += [column for i, column in enumerate(refs(join)) if i in required]
    cross.drop_partial(read)
    if not cross.flags:
        return None
    crossed = cross.flagged()
    assert isinstance(crossed, Join)
    crossed = replace(crossed, residual=cross.moved(residual[0]) if residual else None)
    over = map_expressions(plan, cross.moved, (crossed,))
    if not isinstance(over, Window):
        return over
    return _without_flags(replace(over, fields=cross.widened(plan.fields)), cross, plan.fields)


def _without_flags(over: Plan, cross: _Cross, fields: tuple[Field, ...]) -> Plan:
    """Return the plan with the columns that it had before its rows had flags."""
    columns = refs(over)
    return Project(over, tuple(columns[cross.position(i)] for i in range(len(fields))), fields)


def _with_moving_sides(join: Join, required: Collection[int], *, is_own: bool) -> Plan:
    """Return a left or full join whose rows are filtered, or flagged, by single rows on its left.

    required: the columns read of it. is_own: nothing else reads its left rows.
    """
    cross = _cross_of(join.left) if isinstance(join.left, Join) else None
    if cross is None or join.residual is None:
        return join
    made = _with_moving_right(join, join.residual, cross)
    if is_own and made.residual is not None and made.left.residual is None:  # type: ignore[attr-defined]
        cross.gather(made.residual)
        columns = refs(join)[: len(join.left.fields)]
        read = [column for i, column in enumerate(columns) if i in required]
        cross.drop_partial([made.residual, *made.left_keys, *read])
    if cross.flags:
        assert made.residual is not None
        made = replace(
            made,
            left=cross.flagged(),
            left_keys=tuple(map(cross.moved, made.left_keys)),
            residual=cross.moved(made.residual),
            fields=cross.widened(made.fields),
        )
    if len(made.fields) == len(join.fields):
        return made
    return _without_flags(made, cross, join.fields)


def _with_moving_right(join: Join, residual: Expression, cross: _Cross) -> Join:
    """Return a join whose right rows are filtered, or flagged in further columns.

    Of a left join, a condition of ON over right rows and a single row alone says which right rows
    there are.
    """
    n, right = len(join.left.fields), join.right
    own = range(n, len(join.fields))
    rest: list[Expression] = []
    for part in conjuncts(residual):
        found = _right_condition(part, own, cross) if join.kind == "left" else None
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
    return replace(join, right=right, residual=condition, fields=fields)


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
