"""Random plans over two small relations, and random changes of those. All from a seed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

from dataflow.delta import Delta
from dataflow.expressions.ir import Call, ColumnRef, Expression, Literal
from dataflow.plan.nodes import (
    Aggregate,
    AggregateCall,
    AsOfJoin,
    Bounds,
    Distinct,
    Filter,
    Join,
    Plan,
    Project,
    Scan,
    SemiJoin,
    SetOperation,
    SingleRow,
    SortKey,
    ThresholdFilter,
    ThresholdFlag,
    TopK,
    UnionAll,
    Values,
)
from dataflow.plan.trees import shifted
from dataflow.schema import Field, Relation, RelationName
from dataflow.types import (
    BOOL,
    FIXED_NAN,
    FLOAT4,
    FLOAT8,
    INT4,
    INT8,
    INTERVAL,
    NUMERIC,
    TEXT,
    SqlType,
    TypeKind,
    fixed,
    sql_type,
)
from tests.harness.oracle import exact

FIXED = fixed(12, 2)
# A table's char(3) has three characters; one without a length has what it was given.
PADDED = sql_type("character(3)", 1042, 7)
BPCHAR = sql_type("bpchar", 1042)
_WORDS = [b"", b"a", b"b", b"ab", b"zz", "é".encode()]
_SPANS = [
    b"1 mon",
    b"30 days",
    b"24:00:00",
    b"1 day",
    b"-1 days -02:00:00",
    b"1 year 2 mons",
    b"00:00:00",
]
_NUMBERS = [b"1.5", b"1.50", b"0", b"-2.25", b"100000000000000000000.125", b"7", b"NaN", b"0.000"]
_FLOATS = [0.0, -0.0, 1.5, 0.1, 0.2, -3e10, 1e-300, 2.5e17, float("nan"), float("inf"), -1e17]

_DRAWS: dict[str, Callable[[Random], Any]] = {
    INT4.name: lambda r: r.randint(-2, 4),
    INT8.name: lambda r: r.choice([0, 1, -7, 2**62, 2**63 - 1, -(2**63), 5]),
    TEXT.name: lambda r: r.choice(_WORDS),
    FIXED.name: lambda r: r.choice([0, 5, 150, -1, 99999, FIXED_NAN]),
    NUMERIC.name: lambda r: r.choice(_NUMBERS),
    FLOAT8.name: lambda r: r.choice(_FLOATS),
    FLOAT4.name: lambda r: r.choice([0.5, 1.0, -0.0, 0.0, 3.25]),
    BOOL.name: lambda r: r.random() < 0.6,
    INTERVAL.name: lambda r: r.choice(_SPANS),
    PADDED.name: lambda r: r.choice([b"a  ", b"ab ", b"b  "]),
    BPCHAR.name: lambda r: r.choice([b"a  ", b"a", b"b  "]),
}


class Table:
    """A relation with its present rows; `change` draws a consolidated delta and keeps it."""

    def __init__(self, name: str, types: list[SqlType], random: Random) -> None:
        fields = tuple(Field(f"{name}{i}", t) for i, t in enumerate(types))
        self.relation = Relation(RelationName("s", "public", name), 1, fields, is_full=True)
        self.rows: Counter[tuple[Any, ...]] = Counter()
        self._random = random

    def scan(self) -> Scan:
        """All columns."""
        fields = self.relation.fields
        return Scan(self.relation, tuple(range(len(fields))), fields)

    def _row(self) -> tuple[Any, ...]:
        random = self._random
        return exact(
            tuple(
                None if random.random() < 0.15 else _DRAWS[f.type.name](random)
                for f in self.relation.fields
            )
        )

    def change(self) -> Delta:
        """Inserts, repeats and retractions; now and then everything goes."""
        random = self._random
        change: Counter[tuple[Any, ...]] = Counter()
        present = list(self.rows)
        if present and random.random() < 0.03:
            change.update({row: -weight for row, weight in self.rows.items()})
        else:
            for _ in range(random.choice([0, 1, 1, 2, 5])):
                if present and random.random() < 0.5:
                    row = random.choice(present)
                    if self.rows[row] + change[row] > 0:
                        change[row] -= 1
                        continue
                row = random.choice(present) if present and random.random() < 0.3 else self._row()
                change[row] += random.choice([1, 1, 1, 2])
        kept = [(row, weight) for row, weight in change.items() if weight]
        self.rows.update(dict(kept))
        self.rows = +self.rows
        kinds = "".join(f.type.physical for f in self.relation.fields)
        return Delta.of(kinds, [row for row, _ in kept], [weight for _, weight in kept])


def _ref(plan: Plan, index: int) -> ColumnRef:
    return ColumnRef(index, plan.fields[index].type, plan.fields[index].name)


def _int(value: int) -> Literal:
    return Literal(str(value), INT4)


def _condition(random: Random, ints: list[Expression]) -> Expression:
    """A boolean expression over int columns; one in four may fail."""
    a, b = random.choice(ints), random.choice(ints)
    choice = random.randrange(4)
    if choice == 0:
        return Call("=", (Call("/", (a, b), INT4), _int(1)), BOOL)
    if choice == 1:
        less = Call("<", (a, b), BOOL)
        return Call("and", (less, Call(">", (a, _int(0)), BOOL)), BOOL)
    if choice == 2:
        return Call("is null", (a,), BOOL)
    return Call(random.choice(["<", "=", "<>"]), (a, b), BOOL)


def _ints(plan: Plan, start: int = 0) -> list[Expression]:
    return [
        ColumnRef(start + i, f.type, f.name)
        for i, f in enumerate(plan.fields)
        if f.type.kind is TypeKind.INT4
    ]


def _keys(random: Random, left: Plan, right: Plan) -> tuple[tuple[Expression, ...], ...]:
    """None, one or two equal keys; some computed, some text."""
    pairs: list[tuple[Expression, Expression]] = []
    for _ in range(random.choice([0, 1, 1, 1, 2])):
        a, b = random.choice(_ints(left)), random.choice(_ints(right))
        if random.random() < 0.2:
            a = Call("+", (a, _int(1)), INT4)
        if random.random() < 0.1:
            b = Call("/", (_int(4), b), INT4)
        pairs.append((a, b))
    if random.random() < 0.2:
        pairs.append((_ref(left, 3), _ref(right, 3)))
    return tuple(a for a, _ in pairs), tuple(b for _, b in pairs)


def join(random: Random, left: Plan, right: Plan) -> Join:
    """Any kind, with or without residual."""
    kind = random.choice(["inner", "left", "right", "full"])
    left_keys, right_keys = _keys(random, left, right)
    residual = None
    if random.random() < 0.5:
        ints = _ints(left) + _ints(right, len(left.fields))
        residual = _condition(random, ints)
    fields = tuple(left.fields) + tuple(right.fields)
    return Join(kind, left, right, left_keys, right_keys, residual, fields)


def as_of_join(random: Random, left: Plan, right: Plan) -> Plan:
    """Any direction over a column that has a native order, with and without keys and ties."""
    left_keys, right_keys = _keys(random, left, right)
    sortable = [i for i, f in enumerate(right.fields) if f.type.kind is not TypeKind.BPCHAR]
    types = {f.type for f in left.fields}
    at = random.choice([i for i in sortable if right.fields[i].type in types])
    alike = [i for i, f in enumerate(left.fields) if f.type == right.fields[at].type]
    value: Expression = _ref(left, random.choice(alike))
    if random.random() < 0.3 and value.type == INT4:
        value = Call("+", (value, random.choice(_ints(left))), INT4)
    operator = random.choice(["<", "<=", ">", ">="])
    order = [SortKey(_ref(right, at), operator[0] == "<", random.random() < 0.5)]
    order += [
        SortKey(_ref(right, i), random.random() < 0.5, random.random() < 0.5)
        for i in random.sample(sortable, random.choice([0, 0, 1, 2]))
    ]
    fields = tuple(left.fields) + tuple(right.fields)
    kind = random.choice(["inner", "left"])
    keys = (left_keys, right_keys)
    return AsOfJoin(kind, left, right, *keys, value, operator, tuple(order), fields)


def interval_join(random: Random, left: Plan, right: Plan) -> Plan:
    """Any kind, a value between two of the other input, of any type that has distances."""
    is_left = random.random() < 0.5
    of_value, of_ends = (left, right) if is_left else (right, left)
    n = len(left.fields)
    types = {of_ends.fields[i].type for i in _distances(of_ends)}
    chosen = [i for i in _distances(of_value) if of_value.fields[i].type in types]
    value = _ref(of_value, random.choice(chosen))
    alike = [i for i in _distances(of_ends) if of_ends.fields[i].type == value.type]
    ends: list[Expression] = [_ref(of_ends, random.choice(alike)) for _ in range(2)]
    if value.type == INT4 and random.random() < 0.6:
        ends = [Call(f, (ends[0], _int(random.choice([0, 1, 3]))), INT4) for f in "-+"]
    bounds = Bounds(value, ends[0], ends[1], is_left)
    moved = [shifted(value, 0 if is_left else n), *(shifted(e, n * is_left) for e in ends)]
    parts = [
        Call(random.choice([">", ">="]), (moved[0], moved[1]), BOOL),
        Call(random.choice(["<", "<="]), (moved[0], moved[2]), BOOL),
    ]
    if random.random() < 0.3:
        parts.append(_condition_without_failure(random, _ints(left) + _ints(right, n)))
    residual = Call("and", tuple(parts), BOOL)
    keys = _keys(random, left, right)
    kind = random.choice(["inner", "inner", "left", "right", "full", "semi", "anti"])
    if kind in ("semi", "anti"):
        return SemiJoin(kind, left, right, *keys, residual, bounds)
    fields = tuple(left.fields) + tuple(right.fields)
    return Join(kind, left, right, *keys, residual, fields, bounds)


def _distances(plan: Plan) -> list[int]:
    kinds = (TypeKind.INT4, TypeKind.INT8, TypeKind.FIXED)
    return [i for i, f in enumerate(plan.fields) if f.type.kind in kinds]


def semi_join(random: Random, left: Plan, right: Plan) -> SemiJoin:
    """Semi, anti, not in."""
    kind = random.choice(["semi", "anti", "not in"])
    if kind == "not in":
        keys = (random.choice(_ints(left)),), (random.choice(_ints(right)),)
        return SemiJoin(kind, left, right, *keys, None)
    residual = None
    if random.random() < 0.5:
        residual = _condition(random, _ints(left) + _ints(right, len(left.fields)))
    return SemiJoin(kind, left, right, *_keys(random, left, right), residual)


def selection(random: Random, plan: Plan) -> Plan:
    """Filter."""
    return Filter(plan, _condition(random, _ints(plan)))


def projection(random: Random, plan: Plan) -> Plan:
    """Some columns, some expressions, four columns of the same types again."""
    ints = _ints(plan)
    a, b = random.choice(ints), random.choice(ints)
    sums = [Call(random.choice("+-/"), (a, b), INT4), random.choice(ints), random.choice(ints)]
    expressions = (*sums, Call("coalesce", (_ref(plan, 3), Literal("none", TEXT)), TEXT))
    fields = tuple(Field(f"p{i}", e.type) for i, e in enumerate(expressions))
    return Project(plan, expressions, fields)


def distinct(random: Random, plan: Plan) -> Plan:
    """Distinct rows of some columns."""
    chosen = random.sample(range(len(plan.fields)), random.randint(1, len(plan.fields)))
    expressions = tuple(_ref(plan, i) for i in chosen)
    return Distinct(Project(plan, expressions, tuple(plan.fields[i] for i in chosen)))


def top_k(random: Random, plan: Plan) -> Plan:
    """The first rows by any columns that have a native order."""
    order, width = sort_keys(random, plan), len(plan.fields)
    partition = tuple(_ref(plan, i) for i in random.sample(range(width), random.choice([0, 1, 2])))
    limit = random.choice([0, 1, 1, 2, 3, 7, None])
    with_ties = limit is not None and random.random() < 0.4
    return TopK(plan, partition, order, limit, random.choice([0, 0, 1, 2, 5]), with_ties)


def first_rows(random: Random, plan: Plan) -> Plan:
    """The first of all rows."""
    order, limit = sort_keys(random, plan), random.choice([1, 1, 2, 3, 7])
    offset, with_ties = random.choice([0, 0, 1, 2, 5]), random.random() < 0.4
    return TopK(plan, (), order, limit, offset, with_ties)


def sort_keys(random: Random, plan: Plan) -> tuple[SortKey, ...]:
    """Any columns that have a native order."""
    sortable = [i for i, f in enumerate(plan.fields) if f.type.kind is not TypeKind.BPCHAR]
    chosen = random.sample(sortable, min(len(sortable), random.choice([0, 1, 1, 2])))
    return tuple(
        SortKey(_ref(plan, i), random.random() < 0.5, random.random() < 0.5) for i in chosen
    )


def single_row(random: Random, plan: Plan) -> Plan:
    """A scalar subquery that is often of one row."""
    a = random.choice(_ints(plan))
    condition = Call("=", (a, _int(random.randint(-2, 4))), BOOL)
    rare = Call("and", (condition, Call("=", (_ints(plan)[1], _int(1)), BOOL)), BOOL)
    return SingleRow(Filter(plan, rare))


def threshold_filter(random: Random, plan: Plan, other: Plan) -> Plan:
    """A column that has a native order, against the values of few rows, often of none."""
    threshold = single_row(random, other) if random.random() < 0.3 else other
    shared = {f.type for f in threshold.fields}
    if isinstance(plan, Scan) and random.random() < 0.5:
        # Against itself: of any type.
        threshold = plan
        shared = {f.type for f in plan.fields if f.type.kind is not TypeKind.BPCHAR}
    at = random.choice([i for i, f in enumerate(plan.fields) if f.type in shared])
    value: Expression = _ref(plan, at)
    alike = [i for i, f in enumerate(threshold.fields) if f.type == value.type]
    column = _ref(threshold, random.choice(alike))
    if random.random() < 0.3 and value.type == INT4:
        value = Call(random.choice("+-/"), (value, random.choice(_ints(plan))), INT4)
    narrow = Project(threshold, (column,), (Field("threshold", column.type),))
    kind = random.choice([ThresholdFilter, ThresholdFlag])
    return kind(plan, narrow, value, random.choice(["<", "<=", ">", ">="]))


def constants(random: Random, plan: Plan) -> Plan:
    """Constant rows beside the plan's."""
    null = Literal(None, INT4)
    rows = tuple(
        (_int(1), random.choice([null, _int(2)]), _int(0), Literal("a", TEXT))
        for _ in range(random.randint(1, 3))
    )
    cells = Values(rows, tuple(plan.fields[:4]))
    narrow = Project(plan, tuple(_ref(plan, i) for i in range(4)), tuple(plan.fields[:4]))
    return UnionAll((cells, narrow), tuple(plan.fields[:4]))


def union_all(random: Random, left: Plan, right: Plan) -> Plan:
    """Both inputs, one of them perhaps twice."""
    inputs = (left, right) if random.random() < 0.5 else (left, right, left)
    return UnionAll(inputs, tuple(left.fields))


def set_operation(random: Random, left: Plan, right: Plan) -> Plan:
    """Any kind over some columns of two plans of equal types."""
    chosen = random.sample(range(len(left.fields)), random.choice([1, 1, 2, 3]))
    sides = [
        Project(p, tuple(_ref(p, i) for i in chosen), tuple(p.fields[i] for i in chosen))
        for p in (left, right)
    ]
    kind = random.choice(["intersect", "except"])
    return SetOperation(kind, random.random() < 0.5, sides[0], sides[1])


_RESULTS = {
    ("sum", TypeKind.INT4): INT8,
    ("sum", TypeKind.FLOAT4): FLOAT4,
    ("sum", TypeKind.FLOAT8): FLOAT8,
    ("avg", TypeKind.FLOAT4): FLOAT8,
    ("avg", TypeKind.FLOAT8): FLOAT8,
    ("sum", TypeKind.INTERVAL): INTERVAL,
}


def _call(random: Random, plan: Plan, ints: list[Expression], number: int) -> AggregateCall:
    condition = _condition_without_failure(random, ints) if random.random() < 0.3 else None
    if random.random() < 0.1:
        return AggregateCall("count", None, False, condition, Field(f"c{number}", INT8))
    argument: Expression = _ref(plan, random.randrange(len(plan.fields)))
    kind = argument.type.kind
    functions = ["count"]
    if kind is TypeKind.BOOL:
        functions += ["bool_and", "bool_or"]
    elif kind in (TypeKind.TEXT, TypeKind.BPCHAR):
        functions += ["min", "max"] * (kind is TypeKind.TEXT)
    elif kind is TypeKind.INTERVAL:
        functions += ["sum"]
    else:
        functions += ["sum", "avg", "min", "max"]
    function = random.choice(functions)
    if function == "count":
        type = INT8
    elif function in ("min", "max"):
        type = argument.type
    else:
        type = BOOL if kind is TypeKind.BOOL else _RESULTS.get((function, kind), NUMERIC)
    is_distinct = random.random() < 0.35
    return AggregateCall(function, argument, is_distinct, condition, Field(f"c{number}", type))


def _condition_without_failure(random: Random, ints: list[Expression]) -> Expression:
    return Call(
        random.choice(["<", "<>"]), (random.choice(ints), _int(random.randint(-1, 3))), BOOL
    )


def aggregate(random: Random, plan: Plan) -> Plan:
    """Any groups, any calls that the columns' types allow."""
    width = len(plan.fields)
    chosen = random.sample(range(width), random.choice([0, 1, 1, 1, 2]))
    groups = tuple(_ref(plan, i) for i in chosen)
    calls = tuple(
        _call(random, plan, _ints(plan), i) for i in range(random.choice([0, 1, 2, 3, 4]))
    )
    if not groups and not calls:
        calls = (AggregateCall("count", None, False, None, Field("c", INT8)),)
    fields = tuple(plan.fields[i] for i in chosen) + tuple(call.field for call in calls)
    return Aggregate(plan, groups, calls, fields)


def of_all_rows(random: Random, plan: Plan) -> Plan:
    """Any calls without groups: of one kind that is split, or mixed with others."""
    calls: list[AggregateCall] = []
    is_mixed = random.random() < 0.6
    kind, least = random.choice(["extremes", "values"]), random.choice([1, 2, 3])
    while len(calls) < least:
        call = _call(random, plan, _ints(plan) or [_int(1)], len(calls))
        is_extreme = call.function in ("min", "max")
        is_count = call.function == "count" and call.is_distinct and call.filter is None
        if is_mixed or (is_extreme if kind == "extremes" else is_count):
            calls.append(call)
    return Aggregate(plan, (), tuple(calls), tuple(call.field for call in calls))


_MOMENTS = {TypeKind.FLOAT4: FLOAT8, TypeKind.FLOAT8: FLOAT8, TypeKind.INT4: NUMERIC}


def additive_aggregate(random: Random, plan: Plan) -> Plan:
    """Any groups, and calls that need only sums over a group."""
    chosen = random.sample(range(len(plan.fields)), random.choice([0, 0, 1, 2]))
    calls: list[AggregateCall] = []
    for number in range(random.choice([1, 2, 3, 5])):
        call = _call(random, plan, _ints(plan), number)
        while call.is_distinct or call.function in ("min", "max"):
            call = _call(random, plan, _ints(plan), number)
        type = call.argument and _MOMENTS.get(call.argument.type.kind)
        if type and random.random() < 0.2:
            call = replace(call, function="var_pop", field=Field(f"c{number}", type))
        calls.append(call)
    groups = tuple(_ref(plan, i) for i in chosen)
    fields = tuple(plan.fields[i] for i in chosen) + tuple(call.field for call in calls)
    return Aggregate(plan, groups, tuple(calls), fields)


WIDE = [INT4, TEXT, INT8, FIXED, NUMERIC, FLOAT8, FLOAT4, BOOL, INTERVAL, BPCHAR, PADDED, INT4]
SMALL = [INT4, INT4, INT4, TEXT]

CASES: dict[str, Callable[[Random, Plan, Plan, Plan], Plan]] = {
    "filter": lambda r, a, b, w: selection(r, a),
    "project": lambda r, a, b, w: projection(r, a),
    "join": lambda r, a, b, w: join(r, a, b),
    "self join": lambda r, a, b, w: join(r, a, selection(r, a)),
    "semi join": lambda r, a, b, w: semi_join(r, a, b),
    "as-of join": lambda r, a, b, w: as_of_join(r, a, b),
    "as-of join of all types": lambda r, a, b, w: as_of_join(r, w, wide_again(r, w)),
    "as-of join of joins": lambda r, a, b, w: as_of_join(r, join(r, a, b), as_of_join(r, b, a)),
    "interval join": lambda r, a, b, w: interval_join(r, a, b),
    "interval join of all types": lambda r, a, b, w: interval_join(r, w, wide_again(r, w)),
    "interval join of joins": lambda r, a, b, w: interval_join(r, join(r, a, b), b),
    "aggregate": lambda r, a, b, w: aggregate(r, w),
    "distinct": lambda r, a, b, w: distinct(r, w),
    "top k": lambda r, a, b, w: top_k(r, w),
    "top k of join": lambda r, a, b, w: top_k(r, join(r, a, b)),
    "join of top k": lambda r, a, b, w: join(r, a, constants(r, top_k(r, b))),
    "union all": lambda r, a, b, w: union_all(r, a, projection(r, b)),
    "set operation": lambda r, a, b, w: set_operation(r, a, b),
    "set operation of all types": lambda r, a, b, w: set_operation(
        r, w, Filter(w, _condition_without_failure(r, _ints(w)))
    ),
    "set operation of unions": lambda r, a, b, w: set_operation(
        r, union_all(r, a, b), set_operation_of_all(r, b, a)
    ),
    "single row": lambda r, a, b, w: single_row(r, a),
    "threshold filter": lambda r, a, b, w: threshold_filter(r, a, b),
    "threshold filter of all types": lambda r, a, b, w: threshold_filter(r, w, a),
    "threshold filter of join": lambda r, a, b, w: threshold_filter(r, join(r, a, b), counted(b)),
    "values": lambda r, a, b, w: constants(r, a),
    "aggregate of join": lambda r, a, b, w: aggregate(r, join(r, a, b)),
    "join of aggregate": lambda r, a, b, w: join(r, a, constants(r, distinct_ints(a))),
    "semi join of join": lambda r, a, b, w: semi_join(r, join(r, a, b), selection(r, b)),
    "having": lambda r, a, b, w: selection(r, counted(a)),
    "scalar": lambda r, a, b, w: Join(
        "inner", a, single_row(r, b), (), (), None, tuple(a.fields) + tuple(b.fields)
    ),
}
# Aggregates of which sums are exchanged, where they are maintained in buckets.
ADDITIVE: dict[str, Callable[[Random, Plan, Plan, Plan], Plan]] = {
    "sums": lambda r, a, b, w: additive_aggregate(r, w),
    "sums of selection": lambda r, a, b, w: additive_aggregate(r, selection(r, a)),
    "sums of join": lambda r, a, b, w: additive_aggregate(r, join(r, a, b)),
    "sums of union": lambda r, a, b, w: additive_aggregate(r, union_all(r, a, projection(r, b))),
    "sums of constants": lambda r, a, b, w: additive_aggregate(r, constants(r, a)),
    "sums of sums": lambda r, a, b, w: additive_aggregate(r, counted(distinct_ints(a))),
    "join with a sum": lambda r, a, b, w: Join(
        "inner", a, total(b), (), (), None, tuple(a.fields) + tuple(total(b).fields)
    ),
}
# The first of all rows, which buckets find in two phases.
FIRST_ROWS: dict[str, Callable[[Random, Plan, Plan, Plan], Plan]] = {
    "rows": lambda r, a, b, w: first_rows(r, w),
    "rows of join": lambda r, a, b, w: first_rows(r, join(r, a, b)),
    "rows of sums": lambda r, a, b, w: first_rows(r, aggregate(r, w)),
    "join of rows": lambda r, a, b, w: join(r, first_rows(r, a), first_rows(r, b)),
    "rows of rows": lambda r, a, b, w: first_rows(r, first_rows(r, union_all(r, a, b))),
}
# Aggregates of all rows, of which buckets find extremes and distinct values in two phases.
OF_ALL_ROWS: dict[str, Callable[[Random, Plan, Plan, Plan], Plan]] = {
    "calls": lambda r, a, b, w: of_all_rows(r, w),
    "calls of join": lambda r, a, b, w: of_all_rows(r, join(r, a, b)),
    "calls of groups": lambda r, a, b, w: of_all_rows(r, aggregate(r, w)),
    "calls of calls": lambda r, a, b, w: of_all_rows(r, of_all_rows(r, a)),
    "join with calls": lambda r, a, b, w: Join(
        "inner", a, c := of_all_rows(r, b), (), (), None, tuple(a.fields) + tuple(c.fields)
    ),
}
# Joins with keys that may be spread, where they are maintained in buckets.
JOINS: dict[str, Callable[[Random, Plan, Plan, Plan], Plan]] = {
    "join": lambda r, a, b, w: keyed_join(r, a, b),
    "self join": lambda r, a, b, w: keyed_join(r, a, selection(r, a)),
    "join of joins": lambda r, a, b, w: keyed_join(r, keyed_join(r, a, b), keyed_join(r, b, a)),
    "join of a union": lambda r, a, b, w: keyed_join(r, union_all(r, a, projection(r, b)), b),
    "semi join": lambda r, a, b, w: keyed_semi_join(r, a, b),
    "semi join of join": lambda r, a, b, w: keyed_semi_join(r, keyed_join(r, a, b), b),
    "aggregate of join": lambda r, a, b, w: aggregate(r, keyed_join(r, a, b)),
    "sums of join": lambda r, a, b, w: additive_aggregate(r, keyed_join(r, a, b)),
    "top k of join": lambda r, a, b, w: top_k(r, keyed_join(r, a, b)),
    "as-of join of join": lambda r, a, b, w: as_of_join(r, keyed_join(r, a, b), b),
    "interval join of join": lambda r, a, b, w: interval_join(r, keyed_join(r, a, b), b),
}


def keyed_join(random: Random, left: Plan, right: Plan) -> Plan:
    """A join with at least one key, most often of a kind whose keys may be spread."""
    found = join(random, left, right)
    while not found.left_keys or (found.kind == "full" and random.random() < 0.7):
        found = join(random, left, right)
    return found


def keyed_semi_join(random: Random, left: Plan, right: Plan) -> Plan:
    """Semi or anti with at least one key."""
    found = semi_join(random, left, right)
    while not found.left_keys or found.kind == "not in":
        found = semi_join(random, left, right)
    return found


def total(plan: Plan) -> Plan:
    """The number of all rows."""
    call = AggregateCall("count", None, False, None, Field("n", INT8))
    return Aggregate(plan, (), (call,), (call.field,))


def wide_again(random: Random, plan: Plan) -> Plan:
    """The same relation, perhaps without some of its rows."""
    return plan if random.random() < 0.5 else selection(random, plan)


def set_operation_of_all(random: Random, left: Plan, right: Plan) -> Plan:
    """Any kind over whole rows."""
    kind = random.choice(["intersect", "except"])
    return SetOperation(kind, random.random() < 0.5, left, right)


def distinct_ints(plan: Plan) -> Plan:
    """Distinct rows of a small relation."""
    return Distinct(plan)


def counted(plan: Plan) -> Plan:
    """Groups of a small relation, with int columns for a condition."""
    calls = (
        AggregateCall("min", _ref(plan, 1), False, None, Field("least", INT4)),
        AggregateCall("max", _ref(plan, 2), False, None, Field("greatest", INT4)),
    )
    fields = (plan.fields[0], *(call.field for call in calls))
    return Aggregate(plan, (_ref(plan, 0),), calls, fields)
