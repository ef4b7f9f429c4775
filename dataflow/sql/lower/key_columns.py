"""The last rewriting of a plan before it becomes operators: keys and arguments as plain columns.

Invariant: the rewritten plan computes the same rows, in the same columns. Expressions that
operators need as columns (join keys, group keys, arguments of aggregates) are computed by a
projection below, and projected away above.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from dataflow.errors import InvariantError, SqlError
from dataflow.expressions.ir import (
    Call,
    ColumnRef,
    Expression,
    Literal,
    columns_of,
    remap,
    substitute,
)
from dataflow.expressions.keys import key_form
from dataflow.plan.aggregate_functions import LEAST
from dataflow.plan.nodes import (
    Aggregate,
    AggregateCall,
    AsOfJoin,
    Bounds,
    Distinct,
    Filter,
    FinalRows,
    Join,
    LateRows,
    Loop,
    Plan,
    Project,
    RecursionRef,
    Recursive,
    Remember,
    RetainedAggregate,
    Scan,
    SemiJoin,
    SetOperation,
    Shard,
    SingleRow,
    TableFunction,
    ThresholdFilter,
    ThresholdFlag,
    TopK,
    UnionAll,
    Values,
    Watermark,
    Window,
    WindowCall,
    fold,
)
from dataflow.schema import Field
from dataflow.sql.bind.rounds import loop_of
from dataflow.types import BOOL, SqlType, TypeKind

_BPCHAR_OID = 1042


def prepare(plan: Plan) -> Plan:
    """Return the plan with every key and argument a plain column; neighbouring projections are
    one."""
    return fold(plan, _prepared)


def _prepared(plan: Plan, inputs: tuple[Plan, ...]) -> Plan:
    """Return the node over prepared inputs."""
    if isinstance(plan, Scan | Values | RecursionRef):
        return plan
    change = _CHANGES.get(type(plan))
    if change is None:
        raise InvariantError("plan.operator", f"a {type(plan).__name__} cannot be lowered")
    return change(plan, *inputs)


def references(fields: Sequence[Field], start: int = 0) -> list[Expression]:
    """Return plain references to the columns of these fields, the first at `start`."""
    return [ColumnRef(start + i, f.type, f.name) for i, f in enumerate(fields)]


def project(plan: Plan, expressions: Sequence[Expression], fields: Sequence[Field]) -> Plan:
    """Return a projection over a plan, merged with one below if that repeats no work."""
    expressions, fields = tuple(expressions), tuple(fields)
    if isinstance(plan, Project) and _merges(plan, expressions):
        merged = tuple(substitute(e, plan.expressions) for e in expressions)
        return project(plan.input, merged, fields)
    is_identity = all(isinstance(e, ColumnRef) and e.index == i for i, e in enumerate(expressions))
    if is_identity and len(expressions) == len(plan.fields):
        return plan
    return Project(plan, expressions, fields)


def _merges(below: Project, expressions: Sequence[Expression]) -> bool:
    """Return whether all below are plain columns, or all above are and drop none that may fail."""
    if all(isinstance(e, ColumnRef | Literal) for e in below.expressions):
        return True
    used = set().union(*(columns_of(e) for e in expressions))
    return all(isinstance(e, ColumnRef) for e in expressions) and all(
        isinstance(e, ColumnRef | Literal) or i in used for i, e in enumerate(below.expressions)
    )


def _widened(plan: Plan, keys: Sequence[Expression]) -> tuple[Plan, tuple[Expression, ...]]:
    """Return the plan with computed keys appended; the keys as references to it."""
    expressions, fields = references(plan.fields), list(plan.fields)
    out: list[Expression] = []
    for key in keys:
        if isinstance(key, ColumnRef):
            out.append(key)
            continue
        if key not in expressions:
            expressions.append(key)
            fields.append(Field(f"key {len(fields)}", key.type))
        at = expressions.index(key)
        out.append(ColumnRef(at, key.type, fields[at].name))
    return project(plan, expressions, fields), tuple(out)


def _sides(
    plan: Join | SemiJoin, left: Plan, right: Plan
) -> tuple[tuple[Plan, Plan], tuple[tuple[Expression, ...], ...], Bounds | None]:
    """Return the inputs with keys and bounds as columns, the keys of each, and the bounds."""
    bounds = plan.bounds
    of_left: list[Expression] = []
    of_right: list[Expression] = []
    if bounds is not None:
        of_value, of_ends = (of_left, of_right) if bounds.is_left else (of_right, of_left)
        of_value.append(bounds.value)
        of_ends += [bounds.low, bounds.high]
    left, own = _widened(left, [*plan.left_keys, *of_left])
    right, others = _widened(right, [*plan.right_keys, *of_right])
    n = len(plan.left_keys)
    if bounds is not None:
        (value,), (low, high) = (own[n:], others[n:]) if bounds.is_left else (others[n:], own[n:])
        bounds = replace(bounds, value=value, low=low, high=high)
    return (left, right), (own[:n], others[:n]), bounds


def _join(plan: Join, left: Plan, right: Plan) -> Plan:
    (left, right), (left_keys, right_keys), bounds = _sides(plan, left, right)
    was_left, was_right = len(plan.left.fields), len(plan.right.fields)
    extra, hidden = len(left.fields) - was_left, len(right.fields) - was_right
    residual = _shifted(plan.residual, was_left, extra)
    fields = (
        plan.fields[:was_left]
        + _nullable(left.fields[was_left:])
        + plan.fields[was_left:]
        + _nullable(right.fields[was_right:])
    )
    joined = Join(plan.kind, left, right, left_keys, right_keys, residual, fields, bounds)
    if extra == hidden == 0:
        return joined
    retained = references(plan.fields[:was_left])
    retained += references(plan.fields[was_left:], was_left + extra)
    return project(joined, retained, plan.fields)


def _as_of_join(plan: AsOfJoin, left: Plan, right: Plan) -> Plan:
    left, own = _widened(left, [*plan.left_keys, plan.value])
    right, others = _widened(right, [*plan.right_keys, *(k.expression for k in plan.order)])
    was_left, was_right = len(plan.left.fields), len(plan.right.fields)
    extra, n = len(left.fields) - was_left, len(plan.right_keys)
    order = tuple(replace(k, expression=c) for k, c in zip(plan.order, others[n:], strict=True))
    fields = (
        plan.fields[:was_left]
        + _nullable(left.fields[was_left:])
        + plan.fields[was_left:]
        + _nullable(right.fields[was_right:])
    )
    joined = AsOfJoin(
        plan.kind, left, right, own[:-1], others[:n], own[-1], plan.operator, order, fields
    )
    retained = references(plan.fields[:was_left])
    retained += references(plan.fields[was_left:], was_left + extra)
    return project(joined, retained, plan.fields)


def _semi_join(plan: SemiJoin, left: Plan, right: Plan) -> Plan:
    (left, right), (left_keys, right_keys), bounds = _sides(plan, left, right)
    was_left = len(plan.left.fields)
    residual = _shifted(plan.residual, was_left, len(left.fields) - was_left)
    joined = SemiJoin(plan.kind, left, right, left_keys, right_keys, residual, bounds)
    return project(joined, references(plan.fields), plan.fields)


def _shifted(residual: Expression | None, left: int, extra: int) -> Expression | None:
    """Return a residual over a left input that is `extra` columns wider."""
    if residual is None or extra == 0:
        return residual
    return remap(residual, {i: i if i < left else i + extra for i in columns_of(residual)})


def _nullable(fields: Sequence[Field]) -> tuple[Field, ...]:
    return tuple(Field(f.name, f.type) for f in fields)


def _aggregate(plan: Aggregate, input: Plan) -> Plan:
    """Group by key form; the shown value of a group is the least of its values by text."""
    below: dict[Expression, int] = {}
    names: list[Field] = []

    def column(expression: Expression, name: str, is_nullable: bool = True) -> ColumnRef:
        if expression not in below:
            below[expression] = len(below)
            names.append(Field(name, expression.type, is_nullable))
        return ColumnRef(below[expression], expression.type, name)

    forms = [g if _is_padded(input, g) else _key_form(g) for g in plan.groups]
    shown_fields = plan.fields[: len(plan.groups)]
    keys = [
        column(form, field.name, field.is_nullable)
        for form, field in zip(forms, shown_fields, strict=True)
    ]
    calls: list[AggregateCall] = []
    above: list[Expression] = []
    for i, (group, form) in enumerate(zip(plan.groups, forms, strict=True)):
        field = shown_fields[i]
        if form == group:
            above.append(ColumnRef(i, field.type, field.name))
            continue
        above.append(ColumnRef(len(keys) + len(calls), field.type, field.name))
        argument = column(group, field.name, field.is_nullable)
        calls.append(AggregateCall(LEAST, argument, False, None, field))
    for call in plan.calls:
        name = call.field.name
        above.append(ColumnRef(len(keys) + len(calls), call.field.type, name))
        calls.append(_filtered(call).over(lambda e, name=name: column(e, name)))
    key_fields = tuple(
        Field(f.name, form.type, f.is_nullable) for f, form in zip(shown_fields, forms, strict=True)
    )
    below_plan = project(input, list(below), names)
    fields = key_fields + tuple(call.field for call in calls)
    return project(Aggregate(below_plan, tuple(keys), tuple(calls), fields), above, plan.fields)


def _retained(plan: RetainedAggregate, input: Plan, *watermarks: Plan) -> Plan:
    """As an aggregate; the groups keep their positions."""
    made = _aggregate(plan, input)
    inner = made.input if isinstance(made, Project) else made
    assert isinstance(inner, Aggregate)
    retained = RetainedAggregate(
        inner.input,
        inner.groups,
        inner.calls,
        inner.fields,
        watermarks,
        plan.window,
        plan.after_us,
        plan.title,
    )
    return replace(made, input=retained) if isinstance(made, Project) else retained


def _table_function(plan: TableFunction, input: Plan) -> Plan:
    """Make the arguments plain columns."""
    below, arguments = _widened(input, [a for c in plan.calls for a in c.arguments])
    given = iter(arguments)
    calls = tuple(replace(c, arguments=tuple(next(given) for _ in c.arguments)) for c in plan.calls)
    width, extra = len(plan.input.fields), len(below.fields) - len(plan.input.fields)
    condition = _shifted(plan.condition, width, extra)
    fields = (*below.fields, *plan.fields[width:])
    called = replace(plan, input=below, calls=calls, condition=condition, fields=fields)
    if extra == 0:
        return called
    retained = references(plan.fields[:width]) + references(plan.fields[width:], width + extra)
    return project(called, retained, plan.fields)


def _key_form(expression: Expression) -> Expression:
    form = key_form(expression)
    if form is None:
        raise SqlError(
            "sql.not_maintained",
            f"grouping by values of type {expression.type.name} is not maintained",
            hint="group by a cast of the value to text",
        )
    return form


def _filtered(call: AggregateCall) -> AggregateCall:
    """Return the call over arguments that are NULL where FILTER is not true.

    Every native aggregate with an argument ignores NULL, so only recomputed ones keep the filter.
    Where it is not true, no argument is computed.
    """
    condition = call.filter
    if call.sql:
        if condition is None:
            return call
        direct, others = call.arguments[: call.direct], call.arguments[call.direct :]
        return replace(call, arguments=(*direct, *(_where(condition, a) for a in others)))
    argument = call.argument
    if condition is not None and argument is None and not call.arguments:
        argument = Literal("t", BOOL)
    if condition is not None and argument is not None:
        argument = _where(condition, argument, is_needed=True)
    if argument is not None and call.is_distinct and call.function == "count":
        # Only the number of distinct values matters: use the key form.
        argument = _key_form(argument)
    arguments = call.arguments
    if condition is not None and arguments:
        arguments = tuple(_where(condition, a, is_needed=True) for a in arguments)
    return replace(call, argument=argument, arguments=arguments, filter=None)


def _where(condition: Expression, argument: Expression, *, is_needed: bool = False) -> Expression:
    if not is_needed and isinstance(argument, ColumnRef | Literal):
        return argument
    null = Literal(None, argument.type)
    return Call("case", (condition, argument, null), argument.type)


def _window(plan: Window, input: Plan) -> Plan:
    """Partition by key form; make order, arguments and filters columns; constants stay."""
    n = len(plan.input.fields)
    calls = [_masked(c) for c in plan.calls]
    partition = [_key_form(e) for e in plan.partition]
    parts = [e for c in calls for e in c.operands]
    required = [*partition, *(k.expression for k in plan.order)]
    required += [e for e in parts if not isinstance(e, Literal)]
    below, columns = _widened(input, required)
    at = dict(zip(required, columns, strict=True))
    order = tuple(replace(k, expression=at[k.expression]) for k in plan.order)
    made = tuple(c.over(lambda e: at.get(e, e)) for c in calls)
    fields = below.fields + tuple(c.field for c in made)
    window = Window(below, tuple(at[e] for e in partition), order, made, fields)
    shown = plan.fields[n:]
    retained = references(plan.fields[:n]) + references(shown, len(below.fields))
    return project(window, retained, plan.fields)


def _masked(call: WindowCall) -> WindowCall:
    """Return the call with arguments that are computed only where FILTER is true, NULL elsewhere.

    The first argument is aggregated, even if constant; later constants are, for example,
    delimiters.
    """
    condition = call.filter
    if condition is None:
        return call
    arguments = tuple(
        a if i and isinstance(a, Literal) else _where(condition, a, is_needed=True)
        for i, a in enumerate(call.arguments)
    )
    return replace(call, arguments=arguments)


def _top_k(plan: TopK, below: Plan) -> Plan:
    keys = [*map(_key_form, plan.partition), *(k.expression for k in plan.order)]
    below, columns = _widened(below, keys)
    n = len(plan.partition)
    order = tuple(replace(k, expression=c) for k, c in zip(plan.order, columns[n:], strict=True))
    made = replace(plan, input=below, partition=columns[:n], order=order)
    return project(made, references(plan.fields), plan.fields)


def _threshold_filter(plan: ThresholdFilter, input: Plan, threshold: Plan) -> Plan:
    below, (value,) = _widened(input, [plan.value])
    made = replace(plan, input=below, threshold=threshold, value=value)
    columns = references(plan.fields)
    if isinstance(plan, ThresholdFlag):
        columns[-1] = ColumnRef(len(below.fields), plan.fields[-1].type, plan.fields[-1].name)
    return project(made, columns, plan.fields)


def _distinct(plan: Distinct, input: Plan) -> Plan:
    groups = tuple(references(plan.fields))
    return _aggregate(Aggregate(plan.input, groups, (), plan.fields), input)


def _set_operation(plan: SetOperation, left: Plan, right: Plan) -> Plan:
    """Compare by key form; values that differ from their form follow after the forms."""
    columns = references(plan.fields)
    forms = [_key_form(column) for column in columns]
    shown = [i for i, form in enumerate(forms) if form != columns[i]]
    expressions = [*forms, *(columns[i] for i in shown)]
    sides = []
    for side, names in ((left, plan.left.fields), (right, plan.right.fields)):
        fields = [
            Field(f.name, form.type, f.is_nullable) for f, form in zip(names, forms, strict=True)
        ]
        sides.append(project(side, expressions, [*fields, *(names[i] for i in shown)]))
    compared = SetOperation(plan.kind, plan.is_all, sides[0], sides[1], len(forms))
    positions = {i: len(forms) + k for k, i in enumerate(shown)}
    above = [ColumnRef(positions.get(i, i), f.type, f.name) for i, f in enumerate(plan.fields)]
    return project(compared, above, plan.fields)


def _recursive(plan: Recursive, base: Plan, step: Plan) -> Plan:
    """Return a Loop: it does not run the base and the step themselves."""
    del base, step
    loop = loop_of(plan)
    inputs = tuple(prepare(i) for i in loop.inputs)
    return Loop(loop.name, inputs, prepare(loop.body), loop.keys, loop.fields)


# Each takes the node and its prepared inputs.
_CHANGES: dict[type, Callable[..., Plan]] = {
    Filter: lambda plan, input: Filter(input, plan.predicate),
    ThresholdFilter: _threshold_filter,
    ThresholdFlag: _threshold_filter,
    Watermark: lambda plan, input, clock: replace(plan, input=input, clock=clock),
    LateRows: lambda plan, input, mark: replace(plan, input=input, watermark=mark),
    FinalRows: lambda plan, input, *marks: replace(plan, input=input, watermarks=marks),
    Project: lambda plan, input: project(input, plan.expressions, plan.fields),
    Join: _join,
    AsOfJoin: _as_of_join,
    SemiJoin: _semi_join,
    SetOperation: _set_operation,
    Aggregate: _aggregate,
    RetainedAggregate: _retained,
    Distinct: _distinct,
    TopK: _top_k,
    Shard: lambda plan, input: replace(plan, input=input),
    UnionAll: lambda plan, *inputs: UnionAll(inputs, plan.fields),
    SingleRow: lambda plan, input: SingleRow(input),
    Remember: lambda plan, input: replace(plan, input=input),
    Recursive: _recursive,
    TableFunction: _table_function,
    Window: _window,
}


def _table_column(plan: Plan, expression: Expression) -> SqlType | None:
    """Return the type of the table's column that a plan's column is (or NULL); None for no
    table."""
    if not isinstance(expression, ColumnRef):
        return None
    index = expression.index
    if isinstance(plan, Scan):
        return plan.fields[index].type
    if isinstance(plan, Project):
        return _table_column(plan.input, plan.expressions[index])
    if isinstance(plan, Join | AsOfJoin):
        left = len(plan.left.fields)
        side, at = (plan.left, index) if index < left else (plan.right, index - left)
        return _table_column(side, ColumnRef(at, expression.type))
    if isinstance(plan, SemiJoin):
        return _table_column(plan.left, expression)
    if isinstance(plan, Remember | ThresholdFlag) and index >= len(plan.input.fields):
        return None
    if isinstance(plan, Filter | Remember | ThresholdFilter | TopK | LateRows | FinalRows):
        return _table_column(plan.input, expression)
    return None


def _is_padded(plan: Plan, expression: Expression) -> bool:
    """Return whether all values of a char(n) have n characters, so that equal ones are equal bytes.

    True for a table's column; not necessarily for the result of a function.
    """
    type = _table_column(plan, expression)
    if type is None or type.kind is not TypeKind.BPCHAR:
        return False
    return type.oid == _BPCHAR_OID and type.typmod >= 0
