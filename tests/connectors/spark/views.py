"""Two tables and hand-made plans over them, one for each way that rows can travel between tasks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

import numpy as np

from dataflow.delta import Column, Delta
from dataflow.expressions.evaluator import NoEvaluator
from dataflow.expressions.ir import Call, ColumnRef, Expression, Literal
from dataflow.plan.nodes import (
    Aggregate,
    AggregateCall,
    AsOfJoin,
    Distinct,
    Filter,
    Frame,
    FrameBound,
    Join,
    Plan,
    Project,
    RecursionRef,
    Recursive,
    Scan,
    SemiJoin,
    SingleRow,
    SortKey,
    ThresholdFilter,
    TopK,
    UnionAll,
    Values,
    Window,
    WindowCall,
)
from dataflow.schema import Field, Relation, RelationName
from dataflow.types import BOOL, FLOAT8, INT4, INT8, TEXT

CUSTOMERS = Relation(
    RelationName("shop", "public", "customers"),
    1001,
    (Field("id", INT4, False), Field("region", TEXT), Field("unread", TEXT), Field("rank", INT4)),
    key=(0,),
)
ORDERS = Relation(
    RelationName("shop", "public", "orders"),
    1002,
    (
        Field("id", INT4, False),
        Field("line", INT4, False),
        Field("customer", INT4),
        Field("amount", INT4),
        Field("status", TEXT),
        Field("weight", FLOAT8),
    ),
    key=(0, 1),
)
LOG = Relation(
    RelationName("shop", "public", "log"), 1003, (Field("word", TEXT),), key=(), is_full=True
)
REGIONS = ["north", "south", "east", "west", "", None]
STATUSES = ["new", "paid", "sent", None]


def no_evaluator() -> NoEvaluator:
    """All plans here are native."""
    return NoEvaluator()


def draw_rows(relation: Relation, rng: Random, keys: range) -> list[tuple]:
    """Rows with NULLs, duplicates where there is no key, and skew."""
    if relation == CUSTOMERS:
        return [(k, rng.choice(REGIONS), "x" * 20, rng.choice([None, 1, 2, 3])) for k in keys]
    if relation == LOG:
        return [(rng.choice(["a", "b", "ü", None]),) for _ in keys]
    return [
        (
            k // 2,
            k % 2,
            rng.choice([None, 1, 2, rng.randrange(200)]),
            rng.choice([None, rng.randrange(-5, 100)]),
            rng.choice(STATUSES),
            rng.choice([None, 0.5, 1.25, 1e10]),
        )
        for k in keys
    ]


@dataclass(frozen=True)
class DrawnPart:
    """A snapshot part that draws its rows again wherever it is read."""

    relation: Relation
    columns: tuple[int, ...]
    keys: range
    chunk: int = 100

    @property
    def name(self) -> str:
        """Which rows."""
        return f"{self.relation.name}:{self.keys.start}-{self.keys.stop}"

    def read(self) -> Iterator[Delta]:
        """Chunks of the needed columns."""
        rows = draw_rows(self.relation, Random(self.keys.start), self.keys)
        for start in range(0, len(rows), self.chunk):
            yield to_delta(self.relation, rows[start : start + self.chunk], self.columns)


def to_delta(relation: Relation, rows: list[tuple], columns: tuple[int, ...]) -> Delta:
    """Rows of weight 1 with these columns."""
    made = [Column.of(relation.fields[c].type.physical, [r[c] for r in rows]) for c in columns]
    return Delta(made, np.ones(len(rows), np.int64))


def scan(relation: Relation, *columns: int) -> Scan:
    """A scan of these columns."""
    return Scan(relation, columns, tuple(relation.fields[c] for c in columns))


def column(plan: Plan, index: int) -> ColumnRef:
    """A reference to a plan's output column."""
    return ColumnRef(index, plan.fields[index].type)


def number(value: int) -> Literal:
    """An int4 constant."""
    return Literal(str(value), INT4)


def aggregate(function: str, argument: Expression | None, field: Field, **more) -> AggregateCall:
    """One call, by default neither DISTINCT nor filtered."""
    is_distinct = more.get("is_distinct", False)
    return AggregateCall(function, argument, is_distinct, more.get("filter"), field)


def group(plan: Plan, *keys: int, calls: tuple[AggregateCall, ...]) -> Aggregate:
    """GROUP BY plain columns."""
    fields = (*(plan.fields[k] for k in keys), *(c.field for c in calls))
    return Aggregate(plan, tuple(column(plan, k) for k in keys), calls, fields)


def join(kind: str, left: Plan, right: Plan, keys: tuple[tuple[int, int], ...]) -> Join:
    """A join on pairs of columns."""
    return Join(
        kind,
        left,
        right,
        tuple(column(left, a) for a, _ in keys),
        tuple(column(right, b) for _, b in keys),
        None,
        left.fields + right.fields,
    )


COUNT = aggregate("count", None, Field("n", INT8, False))


def plans() -> dict[str, Plan]:
    """By name; see the module."""
    customers, orders = scan(CUSTOMERS, 0, 1, 3), scan(ORDERS, 2, 3, 4, 5)
    words = scan(LOG, 0)
    inverse = Call("/", (number(60), column(orders, 1)), INT4)
    return {
        **_grouped(orders, customers),
        **_bags(orders, customers),
        **_subqueries(orders, customers),
        "recursion": _reached(orders, customers),
        "joined with itself": join("inner", customers, customers, ((0, 2),)),
        "first of each": TopK(
            orders, (column(orders, 0),), (SortKey(column(orders, 1)),), 2, 1, False
        ),
        **_windows(orders),
        "first of all": TopK(orders, (), (SortKey(column(orders, 1), True),), 9, 0, True),
        "plain scan": scan(ORDERS, 4, 3),
        "words": words,
        "counted words": group(words, 0, calls=(COUNT,)),
        "constant": Values(
            ((number(1), Literal("a", TEXT)),), (Field("n", INT4), Field("t", TEXT))
        ),
        "failing rows": Project(
            orders, (column(orders, 2), inverse), (orders.fields[2], Field("i", INT4))
        ),
    }


def _grouped(orders: Plan, customers: Plan) -> dict[str, Plan]:
    joined = join("inner", orders, customers, ((0, 0),))
    calls = (
        COUNT,
        aggregate("sum", column(joined, 1), Field("total", INT8)),
        aggregate("count", column(joined, 2), Field("s", INT8), is_distinct=True),
        aggregate("min", column(joined, 1), Field("least", INT4)),
        aggregate("max", column(joined, 2), Field("most", TEXT)),
        aggregate("sum", column(joined, 3), Field("weight", FLOAT8)),
    )
    by_region = group(joined, 5, calls=calls)
    none = Filter(orders, Call(">", (column(orders, 1), number(1000)), BOOL))
    return {
        "grouped join": by_region,
        "groups of groups": group(by_region, 1, calls=(COUNT,)),
        "global": group(orders, calls=calls[:1]),
        "global without rows": group(none, calls=(COUNT,)),
    }


def _bags(orders: Plan, customers: Plan) -> dict[str, Plan]:
    ids, ranks = _numbers(orders, 0), _numbers(customers, 2)
    both = UnionAll((ids, ranks), ids.fields)
    constant = Values(((number(-7),),), ids.fields)
    return {
        "bag of a left join": Project(
            join("left", customers, orders, ((0, 0),)),
            (ColumnRef(1, TEXT), ColumnRef(4, INT4)),
            (Field("region", TEXT), Field("amount", INT4)),
        ),
        "full join": join("full", ids, ranks, ((0, 0),)),
        "union": both,
        "distinct union": Distinct(both),
        "union with a filter behind": Filter(both, Call(">", (column(both, 0), number(1)), BOOL)),
        "constant and rows": UnionAll((constant, ids), ids.fields),
    }


def _subqueries(orders: Plan, customers: Plan) -> dict[str, Plan]:
    total = group(orders, calls=(COUNT, aggregate("max", column(orders, 1), Field("most", INT4))))
    most = SingleRow(_numbers(total, 1))
    above = Call(">=", (column(orders, 1), ColumnRef(len(orders.fields), INT4)), BOOL)
    ids = _numbers(orders, 0)
    known = Filter(ids, Call("is not null", (column(ids, 0),), BOOL))
    keys = (column(customers, 0),), (column(ids, 0),)
    return {
        "scalar subquery": Join("inner", orders, most, (), (), above, orders.fields + most.fields),
        "as of": AsOfJoin(
            "left",
            orders,
            customers,
            (column(orders, 0),),
            (column(customers, 0),),
            column(orders, 1),
            "<=",
            (SortKey(column(customers, 2), is_descending=True),),
            orders.fields + customers.fields,
        ),
        "as of without keys": AsOfJoin(
            "inner",
            orders,
            customers,
            (),
            (),
            column(orders, 1),
            ">",
            (SortKey(column(customers, 2)),),
            orders.fields + customers.fields,
        ),
        "threshold": ThresholdFilter(orders, most, column(orders, 1), "<"),
        "semi": SemiJoin("semi", customers, ids, *keys, None),
        "anti": SemiJoin("anti", customers, ids, *keys, None),
        "not in": SemiJoin("not in", customers, known, *keys, None),
    }


def _windows(orders: Plan) -> dict[str, Plan]:
    """Rows that are followed, with states; and partitions that are computed as a whole."""
    amount, order = column(orders, 1), (SortKey(column(orders, 1)),)

    def over(keys: tuple[int, ...], *names: tuple[str, Frame]) -> Window:
        calls = tuple(
            WindowCall(
                name,
                () if name == "row_number" else (amount,),
                None,
                frame,
                f"{name}($1)",
                Field(name, INT4 if name == "lag" else INT8),
                name == "sum",
            )
            for name, frame in names
        )
        partition = tuple(column(orders, k) for k in keys)
        return Window(
            orders, partition, order, calls, orders.fields + tuple(c.field for c in calls)
        )

    rest = Frame("rows", FrameBound("current row"), FrameBound("unbounded following"))
    return {
        "running window": over((0,), ("row_number", Frame()), ("sum", Frame()), ("lag", Frame())),
        "running window of two keys": over((2, 0), ("sum", Frame("rows"))),
        "running window of all rows": over((), ("sum", Frame())),
        "whole window": over((2,), ("sum", rest)),
    }


def _reached(orders: Plan, customers: Plan) -> Plan:
    """From ranks over customers to amounts and on, and all there is from the first round on."""
    base = _numbers(customers, 2)
    last = RecursionRef("reached", base.fields)
    onward = _numbers(join("inner", last, orders, ((0, 0),)), 2)
    step = UnionAll((onward, _numbers(customers, 0)), base.fields)
    return Recursive("reached", base, step, True, base.fields)


def _numbers(plan: Plan, index: int) -> Project:
    return Project(plan, (column(plan, index),), (Field("id", INT4),))
