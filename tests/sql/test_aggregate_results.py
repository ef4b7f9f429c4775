"""Oracle: PostgreSQL's own answer to the same aggregate over the same values, as text."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from dataflow.collect import ErrorRows
from dataflow.delta import Column, Delta
from dataflow.expressions.evaluator import NoEvaluator
from dataflow.expressions.ir import ColumnRef
from dataflow.graph import ViewDataflow
from dataflow.plan.nodes import Aggregate, AggregateCall, Scan
from dataflow.schema import Field, Relation, RelationName
from dataflow.sql.lower.lowering import lower
from dataflow.types import (
    BOOL,
    DATE,
    FLOAT4,
    FLOAT8,
    INT2,
    INT4,
    INT8,
    INTERVAL,
    NUMERIC,
    TIMESTAMP,
    SqlType,
    fixed,
    sql_type,
)
from dataflow.values import from_text, to_text
from storage.memory import MemoryStore
from tests.harness.postgres import Database

GROUPS = 40


def _decimal(random: Random) -> str:
    whole = random.choice(["0", "1", "-7", "99999", "10000", "-123456789012345678901234567890"])
    places = random.choice([0, 0, 1, 2, 5, 20])
    digits = "".join(random.choice("0059") for _ in range(places))
    return random.choice(
        ["NaN"] * (random.random() < 0.02) or [whole + "." * (places > 0) + digits]
    )


def _interval(random: Random) -> str:
    parts = [f"{random.randint(-20, 40)} mons", f"{random.randint(-40, 40)} days"]
    parts.append(f"{random.choice([0, 1, -1, 86399, 123456]) + random.random():.6f} seconds")
    return " ".join(random.sample(parts, random.randint(1, 3)))


TYPES: dict[str, tuple[SqlType, Callable[[Random], str]]] = {
    "int2": (INT2, lambda r: str(r.randint(-9, 9))),
    "int4": (INT4, lambda r: str(r.choice([0, 1, 3, -5, 2**31 - 1, 10**4, 9999]))),
    "int8": (INT8, lambda r: str(r.choice([0, 1, -7, 2**63 - 1, -(2**63), 10**12]))),
    "fixed": (fixed(15, 2), lambda r: f"{r.randint(-(10**6), 10**9) / 100:.2f}"),
    "numeric": (NUMERIC, _decimal),
    "real": (FLOAT4, lambda r: str(r.choice([0.5, 1, -2.25, 3e5]))),
    "double": (FLOAT8, lambda r: str(r.choice([0.5, 1, -2.25, 3e9, 0.0]))),
    "interval": (INTERVAL, _interval),
    "date": (DATE, lambda r: f"20{r.randint(10, 40)}-01-{r.randint(10, 28)}"),
    "timestamp": (TIMESTAMP, lambda r: f"20{r.randint(10, 40)}-01-01 00:00:{r.random() * 50:f}"),
    "char": (sql_type("character(4)", 1042, 8), lambda r: r.choice(["a", "ab", "b"])),
    "bool": (BOOL, lambda r: r.choice("tf")),
}
# Which of two equal numerics of different scale is the extreme depends on the order of rows.
FUNCTIONS = {
    "numeric": ["sum", "avg"],
    "date": ["min", "max"],
    "timestamp": ["min", "max"],
    "char": [],
    "bool": [],
}
MOMENTS = ("var_pop", "var_samp", "stddev_pop", "stddev_samp")
BITS = ("bit_and", "bit_or", "bit_xor")
EXACT = ("int2", "int4", "int8", "fixed", "numeric")
RESULTS = {("sum", 21): INT8, ("sum", 23): INT8, ("sum", 700): FLOAT4, ("avg", 1186): INTERVAL}
RESULTS |= {
    ("avg", 700): FLOAT8,
    ("sum", 701): FLOAT8,
    ("avg", 701): FLOAT8,
    ("sum", 1186): INTERVAL,
}


def _calls(name: str, type: SqlType) -> list[AggregateCall]:
    column = ColumnRef(1, type)
    calls = [AggregateCall("count", column, True, None, Field("count distinct", INT8))]
    functions = FUNCTIONS.get(name, ["sum", "avg", "min", "max"])
    functions = [*functions, *(MOMENTS if name in EXACT else ())]
    functions += BITS if name.startswith("int") and name != "interval" else ()
    for function in functions + ["bool_and", "bool_or"] * (name == "bool"):
        kept = ("min", "max", "bool_and", "bool_or", *BITS)
        result = type if function in kept else NUMERIC
        result = RESULTS.get((function, type.oid), result)
        calls.append(AggregateCall(function, column, False, None, Field(function, result)))
        if function in ("sum", "avg", "bit_xor", *MOMENTS) and name not in ("numeric", "interval"):
            calls.append(AggregateCall(function, column, True, None, Field(function, result)))
    return calls


@pytest.mark.parametrize("name", TYPES)
def test_as_postgres(name: str, every_database: Database) -> None:
    """Groups of one to twelve values, added and partly taken back."""
    type, draw = TYPES[name]
    random = Random(name)
    rows = [
        (group, None if random.random() < 0.1 else draw(random))
        for group in range(GROUPS)
        for _ in range(random.randint(1, 12))
    ]
    every_database.execute(f"CREATE TABLE t (g int, v {type.name}, gone boolean)")
    values = ", ".join(
        f"({group}, {'NULL' if value is None else repr(value)}, {random.random() < 0.3})"
        for group, value in rows
    )
    every_database.execute(f"INSERT INTO t VALUES {values}")
    stored = every_database.rows("SELECT g, v::text, gone FROM t")
    calls = _calls(name, type)
    # format() gives the type's own output, as to_text does: a cast would print a boolean as true.
    sql = ", ".join(
        f"NULLIF(format('%s', {c.function}({'DISTINCT ' if c.is_distinct else ''}v)), '')"
        for c in calls
    )
    expected = every_database.rows(f"SELECT g::text, {sql} FROM t WHERE NOT gone GROUP BY g")
    fields = (Field("g", INT4), Field("v", type))
    relation = Relation(RelationName("s", "public", "t"), 1, fields, is_full=True)
    outputs = (fields[0], *(c.field for c in calls))
    plan = Aggregate(Scan(relation, (0, 1), fields), (ColumnRef(0, INT4),), tuple(calls), outputs)
    flow = ViewDataflow(lower(plan), "v", MemoryStore(), NoEvaluator(), ErrorRows())
    parts = [flow.seed()]
    for chosen, weight in ((stored, 1), ([r for r in stored if r[2]], -1)):
        texts = Column.of("s", [row[1] for row in chosen])
        groups = Column.of("i", [row[0] for row in chosen])
        delta = Delta(
            [groups, from_text(type, texts)], Column.of("i", [weight] * len(chosen)).values
        )
        parts.append(flow.step({relation.name: delta.consolidate()}))
    answer = Delta.concat(parts).consolidate()
    columns = [to_text(f.type, c).texts() for f, c in zip(outputs, answer.columns, strict=True)]
    assert sorted(zip(*columns, strict=True)) == sorted(expected)
