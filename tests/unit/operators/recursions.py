"""Recursions over a random graph: reach, closures, walks, and every kind of step.

Each function makes one plan over `edges`, `starts` and `prices`; PLANS has them all.
"""

from __future__ import annotations

from dataflow.expressions.ir import Call, ColumnRef, Expression, Literal
from dataflow.plan.nodes import (
    Aggregate,
    AggregateCall,
    Distinct,
    Filter,
    Join,
    Plan,
    Project,
    RecursionRef,
    Recursive,
    Scan,
    SemiJoin,
    UnionAll,
)
from dataflow.schema import Field, Relation, RelationName
from dataflow.types import BOOL, INT4, INT8, NUMERIC, SqlType


def relation(name: str, *columns: tuple[str, SqlType]) -> Relation:
    fields = tuple(Field(n, t) for n, t in columns)
    return Relation(RelationName("s", "public", name), 1, fields, is_full=True)


EDGES = relation("edges", ("src", INT4), ("dst", INT4))
STARTS = relation("starts", ("node", INT4))
PRICES = relation("prices", ("node", INT4), ("price", NUMERIC))


def scan(relation: Relation) -> Scan:
    return Scan(relation, tuple(range(len(relation.fields))), relation.fields)


def last_round(*types: SqlType, name: str = "r") -> RecursionRef:
    return RecursionRef(name, tuple(Field(f"c{i}", t) for i, t in enumerate(types)))


def column(plan: Plan, i: int) -> ColumnRef:
    return ColumnRef(i, plan.fields[i].type)


def integer(value: int) -> Literal:
    return Literal(str(value), INT4)


def call(function: str, *arguments: Expression, type: SqlType = BOOL) -> Call:
    return Call(function, arguments, type)


def pick(plan: Plan, *cells: int | Expression) -> Plan:
    expressions = tuple(column(plan, c) if isinstance(c, int) else c for c in cells)
    return Project(
        plan, expressions, tuple(Field(f"c{i}", e.type) for i, e in enumerate(expressions))
    )


def join(left: Plan, right: Plan, a: int, b: int, kind: str = "inner") -> Plan:
    fields = left.fields + right.fields
    return Join(kind, left, right, (column(left, a),), (column(right, b),), None, fields)


def semi(kind: str, left: Plan, right: Plan, a: int, b: int, residual=None) -> Plan:
    return SemiJoin(kind, left, right, (column(left, a),), (column(right, b),), residual)


def recursion_of(base: Plan, step: Plan, *, is_distinct: bool, name: str = "r") -> Recursive:
    return Recursive(name, base, step, is_distinct, base.fields)


def next_edges(ref: Plan, at: int = 0) -> Plan:
    """The rows of the last round beside the edges that leave them."""
    return join(ref, scan(EDGES), at, 0)


def deeper(joined: Plan, depth: int, *cells: int, most: int = 4) -> Plan:
    """The cells, then the depth and one more, while that is not too deep."""
    kept = Filter(joined, call("<", column(joined, depth), integer(most)))
    return pick(kept, *cells, call("+", column(joined, depth), integer(1), type=INT4))


def reach() -> Plan:
    return recursion_of(scan(STARTS), pick(next_edges(last_round(INT4)), 2), is_distinct=True)


def closure() -> Plan:
    ref = last_round(INT4, INT4)
    return recursion_of(scan(EDGES), pick(next_edges(ref, 1), 0, 3), is_distinct=True)


def closure_of_starts() -> Plan:
    """Of each start the nodes that can be reached from it."""
    step = pick(next_edges(last_round(INT4, INT4), 1), 0, 3)
    return recursion_of(pick(scan(STARTS), 0, 0), step, is_distinct=True)


def closure_backwards() -> Plan:
    step = pick(join(scan(EDGES), last_round(INT4, INT4), 1, 0), 0, 3)
    return recursion_of(scan(EDGES), step, is_distinct=True)


def walks() -> Plan:
    base = pick(scan(STARTS), 0, integer(0))
    return recursion_of(base, deeper(next_edges(last_round(INT4, INT4)), 1, 3), is_distinct=False)


def walks_as_a_set() -> Plan:
    base = pick(scan(STARTS), 0, integer(0))
    return recursion_of(base, deeper(next_edges(last_round(INT4, INT4)), 1, 3), is_distinct=True)


def walks_with_dead_ends() -> Plan:
    """LEFT JOIN: where no edge leaves, a row of NULL follows."""
    base = pick(scan(STARTS), 0, integer(0))
    joined = join(last_round(INT4, INT4), scan(EDGES), 0, 0, "left")
    return recursion_of(base, deeper(joined, 1, 3), is_distinct=False)


def reach_around() -> Plan:
    """Not into nodes that have a price."""
    step = semi("anti", pick(next_edges(last_round(INT4)), 2), scan(PRICES), 0, 0)
    return recursion_of(scan(STARTS), step, is_distinct=True)


def reach_not_in() -> Plan:
    step = semi("not in", pick(next_edges(last_round(INT4)), 2), scan(PRICES), 0, 0)
    return recursion_of(scan(STARTS), step, is_distinct=True)


def walks_where_known() -> Plan:
    base = pick(scan(STARTS), 0, integer(0))
    joined = next_edges(last_round(INT4, INT4))
    residual = call("<", ColumnRef(1, INT4), ColumnRef(4, INT4))
    kept = semi("semi", joined, scan(PRICES), 3, 0, residual)
    return recursion_of(base, deeper(kept, 1, 3), is_distinct=False)


def distinct_walks() -> Plan:
    base = pick(scan(STARTS), 0, integer(0))
    step = Distinct(deeper(next_edges(last_round(INT4, INT4)), 1, 3))
    return recursion_of(base, step, is_distinct=False)


def grouped(plan: Plan, groups: tuple[int, ...], *calls: tuple[str, int | None, SqlType]) -> Plan:
    made = tuple(
        AggregateCall(f, None if c is None else column(plan, c), False, None, Field(f, t))
        for f, c, t in calls
    )
    keys = tuple(column(plan, g) for g in groups)
    fields = (*(plan.fields[g] for g in groups), *(c.field for c in made))
    return Aggregate(plan, keys, made, fields)


def deepest_walks() -> Plan:
    """GROUP BY over the rows of one round."""
    base = pick(scan(STARTS), 0, integer(0))
    joined = deeper(next_edges(last_round(INT4, INT4)), 1, 0, 3)
    return recursion_of(
        base, pick(grouped(joined, (1,), ("max", 2, INT4)), 0, 1), is_distinct=False
    )


def sizes_of_rounds() -> Plan:
    """A global aggregate has a row for a round of no rows too: n, n - 1, ... and then 0 < 0."""
    counted = grouped(last_round(INT8), (), ("count", None, INT8), ("max", 0, INT8))
    less = Filter(counted, call("<", ColumnRef(0, INT8), Literal("4", INT8)))
    added = call("+", ColumnRef(0, INT8), ColumnRef(1, INT8), type=INT8)
    found = call("coalesce", added, ColumnRef(0, INT8), type=INT8)
    kept = Filter(pick(less, found), call("<", ColumnRef(0, INT8), Literal("9", INT8)))
    starts = grouped(scan(STARTS), (), ("count", None, INT8))
    base = Filter(starts, call("<", ColumnRef(0, INT8), Literal("3", INT8)))
    return recursion_of(base, kept, is_distinct=True)


def step_with_rows_of_its_own() -> Plan:
    dead = pick(scan(PRICES), 0)
    step = UnionAll((pick(next_edges(last_round(INT4)), 2), dead), dead.fields)
    return recursion_of(scan(STARTS), step, is_distinct=True)


def rows_of_its_own_in_each_round() -> Plan:
    """UNION ALL ends where the other term ends: here after a few rounds."""
    base = pick(scan(STARTS), 0, integer(0))
    walks = deeper(next_edges(last_round(INT4, INT4)), 1, 3)
    counted = grouped(last_round(INT4, INT4), (), ("max", 1, INT4))
    prices = pick(scan(PRICES), 0)
    side = Join("inner", prices, counted, (), (), None, prices.fields + counted.fields)
    step = UnionAll((walks, deeper(side, 1, 0)), base.fields)
    return recursion_of(base, step, is_distinct=False)


def inner_recursion() -> Plan:
    """Each round goes from what it has to all that can be reached, then one node on."""
    inner_base = pick(last_round(INT4, INT4), 0, 1)
    inner_step = pick(next_edges(last_round(INT4, INT4, name="i")), 3, 1)
    inner = recursion_of(inner_base, inner_step, is_distinct=True, name="i")
    one = call("+", ColumnRef(0, INT4), integer(1), type=INT4)
    base = pick(scan(STARTS), 0, integer(0))
    more = pick(Filter(inner, call("<", ColumnRef(1, INT4), integer(2))), one, 1)
    deeper = call("+", ColumnRef(1, INT4), integer(1), type=INT4)
    return recursion_of(base, pick(more, 0, deeper), is_distinct=True)


def over_a_recursion() -> Plan:
    step = pick(join(last_round(INT4, name="outer"), closure(), 0, 0), 2)
    return recursion_of(scan(STARTS), step, is_distinct=True, name="outer")


def equal_numbers() -> Plan:
    """1.5 and 1.50 are one row under UNION: the least by text of those that came first."""
    base = pick(join(scan(STARTS), scan(PRICES), 0, 0), 0, 2)
    joined = join(next_edges(last_round(INT4, NUMERIC)), scan(PRICES), 3, 0)
    return recursion_of(base, pick(joined, 3, 5), is_distinct=True)


def failing_rows() -> Plan:
    base = pick(scan(STARTS), 0, integer(0))
    joined = next_edges(last_round(INT4, INT4))
    divided = call("/", integer(6), column(joined, 3), type=INT4)
    kept = Filter(joined, call("<", column(joined, 1), integer(3)))
    deeper = call("+", column(joined, 1), integer(1), type=INT4)
    return recursion_of(base, pick(kept, divided, deeper), is_distinct=False)


def endless() -> Plan:
    """UNION ALL without an end where there is a circle."""
    return recursion_of(scan(STARTS), pick(next_edges(last_round(INT4)), 2), is_distinct=False)


PLANS = [
    reach,
    closure,
    closure_backwards,
    closure_of_starts,
    walks,
    walks_as_a_set,
    walks_with_dead_ends,
    walks_where_known,
    reach_around,
    reach_not_in,
    distinct_walks,
    deepest_walks,
    sizes_of_rounds,
    step_with_rows_of_its_own,
    rows_of_its_own_in_each_round,
    inner_recursion,
    over_a_recursion,
    equal_numbers,
    failing_rows,
]
COUNTS_FAILURES = {failing_rows}
