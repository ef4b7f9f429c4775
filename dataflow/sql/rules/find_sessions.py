"""Gaps and islands: groups by a running count of breaks become groups by the moment of the break.

    sum(is_new) OVER (PARTITION BY user ORDER BY ts)          -- numbers the sessions of a user
    max(ts) FILTER (WHERE is_new > 0) OVER (the same)         -- names each by its beginning

A new break raises the numbers of all later rows, but the beginning of its own session only. Both
divide a partition equally: a row lies behind as many breaks as another exactly if the last of them
is at the same `ts`, for no two breaks are at one `ts`. That holds if rows that tie count as one
(RANGE over `ts` alone), or if a row that ties with the one before it, as `lag(ts)` shows, is never
a break. NULLs of `ts` come last and have no moment; the breaks among them are counted.

The rule applies where nothing reads the number itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from enum import Enum
from itertools import product

from dataflow.expressions.intervals import parse_interval, span_of
from dataflow.expressions.ir import Call, ColumnRef, Expression, Literal, columns_of, substitute
from dataflow.plan.nodes import (
    Aggregate,
    Filter,
    Frame,
    Plan,
    Project,
    SortKey,
    TopK,
    Window,
    WindowCall,
    fold,
)
from dataflow.plan.properties.nullability import is_nullable
from dataflow.plan.properties.unique_keys import is_total
from dataflow.plan.trees import refs
from dataflow.plan.walk import shared_nodes, with_inputs
from dataflow.schema import Field
from dataflow.sql.rules.prune_columns import columns_read
from dataflow.types import BOOL, INT8, TypeKind

_INTEGERS = {TypeKind.INT2, TypeKind.INT4, TypeKind.INT8}
_MOMENTS = {TypeKind.TIMESTAMP, TypeKind.TIMESTAMPTZ, TypeKind.DATE, *_INTEGERS}


def find_sessions(plan: Plan) -> Plan:
    """Return the plan with numbers of sessions that only divide rows replaced."""
    read = columns_read(plan)
    shared = shared_nodes(plan)
    # The nodes with several readers as they are after the rule; held, so that an id is one node's.
    held: dict[int, Plan] = {}

    def visit(node: Plan, inputs: tuple[Plan, ...]) -> Plan:
        over = with_inputs(node, inputs)
        if isinstance(over, Aggregate | Window | TopK):
            over = _divided(over, read[id(node)], held)
        if id(node) in shared:
            held[id(over)] = over
        return over

    return fold(plan, visit)


@dataclass(frozen=True)
class _Number:
    """A running number, traced down to its window.

    path: the projections and filters above the window, the highest first. call: its position among
    the window's calls.
    """

    path: tuple[Project | Filter, ...]
    window: Window
    call: int


def _divided(plan: Aggregate | Window | TopK, read: set[int], held: Mapping[int, Plan]) -> Plan:
    """Return the node with its first key that is such a number replaced."""
    keys = plan.groups if isinstance(plan, Aggregate) else plan.partition
    for at, key in enumerate(keys):
        if isinstance(key, ColumnRef) and not _reads(plan, key.index, at, read):
            found = _traced(plan.input, key.index, held)
            if found is None or not _is_divided_by(found, keys):
                continue
            starts = _starts(found)
            if starts is not None:
                return _regrouped(plan, at, _extended(found, starts), len(starts))
    return plan


def _reads(plan: Aggregate | Window | TopK, column: int, key: int, read: set[int]) -> bool:
    """Return whether more than the division by a key depends on its column, or tells of it."""
    if isinstance(plan, Aggregate):
        others = [e for i, e in enumerate(plan.groups) if i != key]
        others += [e for call in plan.calls for e in call.operands]
        return key in read or _mentions(others, column)
    others = [e for i, e in enumerate(plan.partition) if i != key]
    if isinstance(plan, Window):
        others += [k.expression for k in plan.order]
        others += [e for call in plan.calls for e in call.operands]
    else:
        others += [k.expression for k in _order_within(plan)]
    if isinstance(plan, TopK) and not is_total(plan):
        # Ties are broken by all columns.
        return True
    return column in read or _mentions(others, column)


def _order_within(plan: TopK) -> tuple[SortKey, ...]:
    """Return the order without what is equal in a partition anyway."""
    return tuple(k for k in plan.order if k.expression not in plan.partition)


def _mentions(expressions: Sequence[Expression], column: int) -> bool:
    return any(column in columns_of(e) for e in expressions)


def _traced(plan: Plan, column: int, held: Mapping[int, Plan]) -> _Number | None:
    """Return the running number that a column is; None if it is another, or others read it."""
    path: list[Project | Filter] = []
    while id(plan) not in held:
        if isinstance(plan, Window):
            call = column - len(plan.input.fields)
            return _Number(tuple(path), plan, call) if call >= 0 else None
        if isinstance(plan, Project):
            expression = plan.expressions[column]
            others = [e for i, e in enumerate(plan.expressions) if i != column]
            if not isinstance(expression, ColumnRef) or _mentions(others, expression.index):
                return None
            column = expression.index
        elif not isinstance(plan, Filter) or column in columns_of(plan.predicate):
            return None
        path.append(plan)
        plan = plan.input
    return None


def _is_divided_by(number: _Number, keys: Sequence[Expression]) -> bool:
    """Return whether rows with equal keys are in one partition of the window."""
    columns = {k.index for k in keys if isinstance(k, ColumnRef)}
    for node in number.path:
        if isinstance(node, Project):
            found = (node.expressions[i] for i in columns)
            columns = {e.index for e in found if isinstance(e, ColumnRef)}
    partition = number.window.partition
    return all(isinstance(e, ColumnRef) and e.index in columns for e in partition)


def _starts(number: _Number) -> tuple[WindowCall, ...] | None:
    """Return the calls that divide rows as the number does; None if that is not certain."""
    window = number.window
    call = window.calls[number.call]
    frame = call.frame
    bounds = (frame.start.kind, frame.end.kind, frame.exclude)
    if bounds != ("unbounded preceding", "current row", "") or not window.order:
        return None
    first = window.order[0]
    ts = first.expression
    if not isinstance(ts, ColumnRef) or ts.type.kind not in _MOMENTS:
        return None
    has_nulls = is_nullable(ts, window.input.fields)
    if first.is_descending or first.operator or (has_nulls and first.nulls_first):
        return None
    is_break = _break_of(call, window.input)
    if is_break is None:
        return None
    peers = frame
    if frame.mode == "rows" or len(window.order) > 1:
        if not _breaks_no_tie(is_break, ts, window):
            return None
        if _is_in_order_of_lag(window):
            # Of rows that tie the first one is the break, in whichever order they are.
            peers = Frame()
    moment = WindowCall("max", (ts,), is_break, peers, "max($1)", Field("start", ts.type), True)
    if not has_nulls:
        return (moment,)
    is_none = Call("and", (is_break, Call("is null", (ts,), BOOL)), BOOL)
    counted = Field("breaks", INT8, False)
    return (moment, WindowCall("count", (), is_none, frame, "count(*)", counted, True))


def _break_of(call: WindowCall, input: Plan) -> Expression | None:
    """Return the condition under which a row raises the number; None if other rows change it too:
    lower it, or make 0 of NULL."""
    parts: list[Expression] = [] if call.filter is None else [call.filter]
    if call.function == "count" and len(call.arguments) < 2:
        parts += [Call("is not null", (a,), BOOL) for a in call.arguments]
    elif call.function == "sum" and call.arguments[0].type.kind in _INTEGERS:
        flag = call.arguments[0]
        signs = _signs(flag, input)
        if not signs <= {None, 1} and (parts or not signs <= {0, 1}):
            return None
        parts.append(Call(">", (flag, Literal("0", flag.type)), BOOL))
    else:
        return None
    if not parts:
        return None
    return parts[0] if len(parts) == 1 else Call("and", tuple(parts), BOOL)


def _signs(expression: Expression, input: Plan) -> set[int | None]:
    """Return the signs that an integer may have, None for NULL; all if nothing is known."""
    below, found = _unfolded(expression, input)
    if not isinstance(found, Literal | Call):
        return {-1, 0, 1, None}
    columns = sorted(columns_of(found))
    nullable = [i for i in columns if below.fields[i].is_nullable]
    if len(nullable) > _MAX_ARGUMENTS:
        return {-1, 0, 1, None}
    signs: set[int | None] = set()
    for values in product((None, _SOME), repeat=len(nullable)):
        given = dict(zip(nullable, values, strict=True))
        possible = _Possible(lambda c, given=given: given.get(c.index, _SOME))
        for value in possible.values(found):
            if value is _SOME or value is _ANY:
                return {-1, 0, 1, None}
            assert value is None or isinstance(value, Decimal)
            signs.add(None if value is None else (value > 0) - (value < 0))
    return signs


def _unfolded(expression: Expression, plan: Plan) -> tuple[Plan, Expression]:
    """Return an expression over the first plan below projections and filters, and that plan."""
    while isinstance(plan, Project | Filter):
        if isinstance(plan, Project):
            expression = substitute(expression, plan.expressions)
        plan = plan.input
    return plan, expression


def _extended(number: _Number, calls: tuple[WindowCall, ...]) -> Plan:
    """Return the input of the divided node with the calls' columns at its end."""
    window = number.window
    fields = tuple(c.field for c in calls)
    plan: Plan = replace(window, calls=window.calls + calls, fields=window.fields + fields)
    for node in reversed(number.path):
        if isinstance(node, Filter):
            plan = replace(node, input=plan)
        else:
            last = refs(plan)[-len(calls) :]
            plan = Project(plan, (*node.expressions, *last), node.fields + fields)
    return plan


def _regrouped(plan: Aggregate | Window | TopK, at: int, input: Plan, width: int) -> Plan:
    """Return the node over a wider input, its key at `at` replaced by the last columns.

    The columns are as before; that of a group's number, which nothing reads, is NULL.
    """
    last = refs(input)[-width:]
    fields = plan.fields
    if isinstance(plan, Aggregate):
        groups = (*plan.groups[:at], *last, *plan.groups[at + 1 :])
        added = input.fields[-width:]
        own = fields[:at] + added + fields[at + 1 :]
        divided: Plan = Aggregate(input, groups, plan.calls, own)
        shown = refs(divided)
        number = Literal(None, fields[at].type)
        return Project(divided, (*shown[:at], number, *shown[at + width :]), fields)
    partition = (*plan.partition[:at], *last, *plan.partition[at + 1 :])
    n = len(plan.input.fields)
    if isinstance(plan, TopK):
        order = _order_within(plan)
        divided = replace(plan, input=input, partition=partition, order=order)
        return Project(divided, refs(divided)[:n], fields)
    own = input.fields + fields[n:]
    divided = Window(input, partition, plan.order, plan.calls, own)
    return Project(divided, (*refs(divided)[:n], *refs(divided)[n + width :]), fields)


def _breaks_no_tie(is_break: Expression, ts: ColumnRef, window: Window) -> bool:
    """Return whether no row is a break whose `ts` is that of the row before it.

    So within a partition each `ts` has one break at most: where it occurs first.
    """
    below, condition = _unfolded(is_break, window.input)
    moment = _unfolded(ts, window.input)[1]
    partition = {_unfolded(e, window.input)[1] for e in window.partition}
    if not isinstance(below, Window) or not below.order or not set(below.partition) <= partition:
        return False
    first = below.order[0]
    if first.expression != moment or first.is_descending or first.operator:
        return False
    n = len(below.input.fields)
    before = {
        ColumnRef(n + i, c.field.type, below.fields[n + i].name)
        for i, c in enumerate(below.calls)
        if _is_before(c, moment)
    }
    ties = {moment, *before}
    possible = _Possible(lambda c: _Moment() if c in ties else _ANY)
    return True not in possible.values(condition)


def _is_in_order_of_lag(window: Window) -> bool:
    """Return whether the window below, of lag(ts), has the same order."""
    below, _ = _unfolded(Literal(None, BOOL), window.input)
    order = [replace(k, expression=_unfolded(k.expression, window.input)[1]) for k in window.order]
    return isinstance(below, Window) and list(below.order) == order


def _is_before(call: WindowCall, moment: Expression) -> bool:
    """Return whether a call is lag(ts)."""
    if call.function != "lag" or call.filter is not None:
        return False
    shifted, *others = call.arguments
    is_one = all(isinstance(o, Literal) and o.text == "1" for o in others)
    return shifted == moment and is_one and len(others) < 2


@dataclass(frozen=True)
class _Moment:
    """The `ts` of a row, or one that is later (sign 1) or earlier (-1) by a constant."""

    sign: int = 0


class _Unknown(Enum):
    """A value of which nothing is known, and one that is only known not to be NULL."""

    ANY = "any"
    SOME = "some"


_ANY, _SOME = _Unknown.ANY, _Unknown.SOME
_Value = bool | Decimal | _Moment | _Unknown | None
_ZERO = Decimal(0)
# Of calls with more arguments nothing is found out.
_MAX_ARGUMENTS = 5


class _Possible:
    """Which values expressions may have, where something is known of their columns.

    A value is a bool, a number (an interval in microseconds), a _Moment, None for NULL, or unknown.
    """

    def __init__(self, column: Callable[[ColumnRef], _Value]) -> None:
        self._column = column

    def values(self, expression: Expression) -> set[_Value]:
        """Return the possible values; a condition has none that is unknown."""
        found = self._values(expression)
        if expression.type.kind is not TypeKind.BOOL or found.isdisjoint((_ANY, _SOME)):
            return found
        return {True, False} | ({None} if _ANY in found or None in found else set())

    def _values(self, expression: Expression) -> set[_Value]:
        if isinstance(expression, ColumnRef):
            return {self._column(expression)}
        if isinstance(expression, Literal):
            return {_constant(expression)}
        if not isinstance(expression, Call):
            return {_ANY}
        if expression.function == "case":
            return self._case(expression.arguments)
        compute = _FUNCTIONS.get(expression.function)
        if compute is None or len(expression.arguments) > _MAX_ARGUMENTS:
            return {_ANY}
        given = [self.values(a) for a in expression.arguments]
        return {compute(*values) for values in product(*given)}

    def _case(self, arguments: Sequence[Expression]) -> set[_Value]:
        found: set[_Value] = set()
        for condition, result in zip(arguments[:-1:2], arguments[1::2], strict=True):
            verdicts = self.values(condition)
            if True in verdicts:
                found |= self.values(result)
            if verdicts == {True}:
                return found
        return found | self.values(arguments[-1])


def _constant(literal: Literal) -> _Value:
    """Return a constant; an interval only if its parts have one sign."""
    if literal.text is None:
        return None
    if literal.type.kind is TypeKind.BOOL:
        return literal.text == "t"
    if literal.type.kind is TypeKind.INTERVAL:
        parts = parse_interval(literal.text.encode())
        if parts is None or (min(parts) < 0 < max(parts)):
            return _SOME
        return Decimal(span_of(literal.text.encode()))
    if literal.type.kind in (*_INTEGERS, TypeKind.FIXED, TypeKind.DECIMAL, TypeKind.FLOAT8):
        number = Decimal(literal.text)
        return number if number.is_finite() else _SOME
    return _SOME


def _strict(compute: Callable[..., _Value]) -> Callable[..., _Value]:
    """Return a function that is NULL exactly if an argument is, over values that are not."""

    def run(*values: _Value) -> _Value:
        if None in values:
            return None
        return _ANY if _ANY in values else compute(*values)

    return run


def _compared(test: Callable[[Decimal, Decimal], bool]) -> Callable[..., _Value]:
    """Return a comparison of numbers, or of moments, which differ by their signs.

    If they are infinite, they do not differ.
    """

    def compare(a: _Value, b: _Value) -> _Value:
        if isinstance(a, Decimal) and isinstance(b, Decimal):
            return test(a, b)
        if isinstance(a, _Moment) and isinstance(b, _Moment) and 0 in (a.sign, b.sign):
            verdict = test(Decimal(a.sign), Decimal(b.sign))
            return verdict if verdict is test(_ZERO, _ZERO) else _SOME
        return _SOME

    return _strict(compare)


def _moved(direction: int) -> Callable[..., _Value]:
    """Return a sum or difference: of a moment and a constant, or of two equal moments."""

    def move(a: _Value, b: _Value) -> _Value:
        if isinstance(a, _Moment) and isinstance(b, Decimal) and not a.sign:
            return _Moment(direction * ((b > 0) - (b < 0)))
        return _ZERO if direction < 0 and a == b == _Moment() else _SOME

    return _strict(move)


def _and(*values: _Value) -> _Value:
    return False if False in values else None if None in values else True


def _or(*values: _Value) -> _Value:
    return True if True in values else None if None in values else False


def _first(*values: _Value) -> _Value:
    return next((v for v in values if v is not None), None)


def _is(expected: bool | None, answer: bool) -> Callable[..., _Value]:
    def test(value: _Value) -> _Value:
        if value is _ANY:
            return _SOME
        return (value is expected) is answer

    return test


def _is_distinct(answer: bool) -> Callable[..., _Value]:
    compare = _compared(lambda a, b: (a != b) is answer)

    def test(a: _Value, b: _Value) -> _Value:
        found = compare(a, b)
        return _SOME if found is None or found is _ANY else found

    return test


def _as_type(value: _Value) -> _Value:
    """Return a cast: a condition becomes a number, and zero stays zero."""
    if isinstance(value, bool):
        return Decimal(value)
    return value if value is None or value == _ZERO else _ANY


def _part(field: _Value, value: _Value) -> _Value:
    """Return a field of an interval."""
    del field
    return value if value is None or value == _ZERO else _ANY


def _share(a: _Value, b: _Value) -> _Value:
    is_zero = a == _ZERO and isinstance(b, Decimal) and b != _ZERO
    return _ZERO if is_zero else _SOME


_FUNCTIONS: dict[str, Callable[..., _Value]] = {
    "and": _and,
    "or": _or,
    "not": _strict(lambda value: not value),
    "coalesce": _first,
    "is null": _is(None, True),
    "is not null": _is(None, False),
    "is true": _is(True, True),
    "is not true": _is(True, False),
    "is false": _is(False, True),
    "is not false": _is(False, False),
    "is unknown": _is(None, True),
    "is not unknown": _is(None, False),
    "<": _compared(lambda a, b: a < b),
    "<=": _compared(lambda a, b: a <= b),
    ">": _compared(lambda a, b: a > b),
    ">=": _compared(lambda a, b: a >= b),
    "=": _compared(lambda a, b: a == b),
    "<>": _compared(lambda a, b: a != b),
    "is distinct from": _is_distinct(True),
    "is not distinct from": _is_distinct(False),
    "+": _moved(1),
    "-": _moved(-1),
    "/": _strict(_share),
    "extract": _part,
    "date_part": _part,
    "cast": _as_type,
}
