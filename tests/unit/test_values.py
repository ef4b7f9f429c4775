"""Oracle: a real PostgreSQL's own text output of the same values, edges and random ones."""

from __future__ import annotations

import random

import numpy as np
import pytest

from dataflow import types
from dataflow.delta import Column
from dataflow.types import SESSION_SETTINGS, TypeKind, fixed, sql_type
from dataflow.values import from_text, to_text
from tests.harness.postgres import Database

_SEED = 20_240_229
_COUNT = 4_000

_EDGES = {
    types.BOOL: ["t", "f", "true", "false"],
    types.INT2: ["0", "-32768", "32767", "10", "-10"],
    types.INT4: ["0", "-2147483648", "2147483647"],
    types.INT8: ["0", "-9223372036854775808", "9223372036854775807", "-1", "-9", "-10"],
    fixed(18, 0): ["0", "999999999999999999", "-999999999999999999", "NaN"],
    fixed(12, 2): ["0", "-0.01", "0.1", "9999999999.99", "NaN", "-9999999999.99"],
    fixed(18, 18): ["0", "0.000000000000000001", "-0.999999999999999999"],
    types.DATE: [
        *("infinity", "-infinity", "2000-01-01", "1999-12-31", "0001-01-01", "0001-12-31 BC"),
        *("0044-03-15 BC", "4714-11-24 BC", "5874897-12-31", "10000-01-01", "2024-02-29"),
        *("0001-02-29 BC", "1900-02-28", "2000-02-29", "9999-12-31"),
    ],
    types.TIME: ["00:00:00", "24:00:00", "23:59:59.999999", "00:00:00.1", "12:30:00.000001"],
    types.TIMESTAMP: [
        *("infinity", "-infinity", "2000-01-01", "1999-12-31 23:59:59.999999"),
        *("0001-12-31 23:59:59.5 BC", "294276-12-31 23:59:59.999999", "4714-11-24 00:00:00 BC"),
    ],
    types.TIMESTAMPTZ: [
        *("infinity", "-infinity", "2026-01-01 00:00:01.5+00", "4714-11-24 00:00:00+00 BC"),
        *("294276-12-31 23:59:59.999999+00", "2020-01-01 00:00:00+05:30", "12345-06-07 08:09:10Z"),
    ],
    types.FLOAT8: [
        *("0", "-0", "1e20", "1e-5", "0.0001", "1e15", "1e14", "123456789012345", "1e23", "NaN"),
        *("Infinity", "-Infinity", "5e-324", "2.2250738585072014e-308", "1.7976931348623157e308"),
        *("9007199254740993", "0.1", "0.3", "123456789012345.6", "999999999999999.9", "1e22"),
        *(
            "9.5367431640625e-07",
            "1e16",
            "123456789.125",
            "0.00012345",
            "100000",
            "18014398509481988",
        ),
    ],
    types.FLOAT4: [
        *("0", "-0", "1e5", "1e6", "999999", "0.1", "3.4028235e38", "1e-45", "1.1754944e-38"),
        *("16777216", "16777217", "33554434", "1.5", "123456.79", "1e-5", "0.0001", "NaN"),
        *("Infinity", "-Infinity", "8388608.5", "7.038531e-26", "1.17549435e-38", "1e10"),
    ],
    types.INTERVAL: ["1 year 2 mons -3 days 04:05:06.789", "0"],
    types.JSONB: ['{"a": [1, null]}'],
    sql_type("uuid", 2950): ["123e4567-e89b-12d3-a456-426614174000"],
    sql_type("bytea", 17): ["\\x00ff", "\\x"],
    types.TEXT: ["", "a\tb\n\\", "żółć"],
    types.NUMERIC: ["1.500", "NaN", "Infinity", "1e50"],
}


def _float8s(draw: random.Random) -> list[float]:
    bits = [draw.getrandbits(64) for _ in range(_COUNT)]
    found = np.array(bits, np.uint64).view(np.float64)
    around = np.array([2.0**e for e in range(-1074, 1024)])
    whole = np.array([float(draw.getrandbits(draw.randint(50, 80))) for _ in range(_COUNT)])
    tens = [float(f"{draw.randint(1, 99)}e{draw.randint(-300, 300)}") for _ in range(_COUNT)]
    money = np.array([draw.randint(-(10**12), 10**12) / 100 for _ in range(_COUNT)])
    near = np.concatenate([np.nextafter(v, w) for v in (around, tens) for w in (0, np.inf)])
    return np.concatenate([found, around, whole, tens, money, near]).tolist()


def _float4s(draw: random.Random) -> list[float]:
    bits = [draw.getrandbits(32) for _ in range(_COUNT)]
    found = np.array(bits, np.uint32).view(np.float32)
    around = np.array([2.0**e for e in range(-149, 128)], np.float32)
    whole = np.array([draw.getrandbits(draw.randint(20, 40)) for _ in range(_COUNT)], np.float32)
    tens = np.array(
        [float(f"{draw.randint(1, 99)}e{draw.randint(-44, 36)}") for _ in range(_COUNT)], np.float32
    )
    near = [np.nextafter(v, np.float32(w)) for v in (around, tens) for w in (0, np.inf)]
    with np.errstate(invalid="ignore"):
        return np.concatenate([found, around, whole, tens, *near]).astype(np.float64).tolist()


def _drawn(type: types.SqlType) -> list[str]:
    draw = random.Random(_SEED)
    if type.kind is TypeKind.FLOAT8:
        return [repr(x) for x in _float8s(draw)]
    if type.kind is TypeKind.FLOAT4:
        return [repr(x) for x in _float4s(draw)]
    if type.kind in (TypeKind.INT2, TypeKind.INT4, TypeKind.INT8):
        bits = {TypeKind.INT2: 15, TypeKind.INT4: 31, TypeKind.INT8: 63}[type.kind]
        sizes = [draw.randint(1, bits) for _ in range(_COUNT)]
        return [str(draw.getrandbits(size) * draw.choice((1, -1))) for size in sizes]
    if type.kind is TypeKind.FIXED:
        most = 10 ** int(type.name.split("(")[1].split(",")[0])
        values = [draw.randrange(-most + 1, most) for _ in range(_COUNT)]
        return [f"{v}e-{type.scale}" for v in values]
    if type.kind is TypeKind.DATE:
        return [f"epoch {draw.randint(-2_400_000, 2_145_000_000)}" for _ in range(_COUNT)]
    return []


_STAMPS = """SELECT (timestamp '2000-01-01' + (random() * 584e15 - 200e15)::bigint
    * interval '1 microsecond')::{} FROM generate_series(1, 4000)"""
_QUERIES = {
    TypeKind.TIMESTAMP: _STAMPS.format("timestamp"),
    TypeKind.TIMESTAMPTZ: _STAMPS.format("timestamptz"),
    TypeKind.DATE: "SELECT date '2000-01-01' + (random() * 5e6 - 2451000)::int"
    " FROM generate_series(1, 4000) UNION ALL SELECT date '2000-01-01' + (random() * 2e9)::int"
    " FROM generate_series(1, 1000)",
    TypeKind.TIME: "SELECT time '00:00' + random() * interval '1 day'"
    " FROM generate_series(1, 4000)",
}


def _postgres_texts(database: Database, type: types.SqlType) -> list[str]:
    """What PostgreSQL prints for the edges and for random values of the type."""
    connection = database.connect()
    with connection.cursor() as cursor:
        for name, value in SESSION_SETTINGS.items():
            cursor.execute(f"SET {name} TO '{value}'")
        given = _EDGES[type] + [x for x in _drawn(type) if not x.startswith("epoch")]
        cursor.execute(f"SELECT v::{type.name}::text FROM unnest(%s::text[]) AS v", (given,))
        found = [row[0] for row in cursor.fetchall()]
        if type.kind is TypeKind.BOOL:  # the cast says "true", the output function "t"
            found = [x[0] for x in found]
        if type.kind in _QUERIES:
            cursor.execute("SELECT setseed(0.5)")
            cursor.execute(f"SELECT q::text FROM ({_QUERIES[type.kind]}) AS q(q)")
            found += [row[0] for row in cursor.fetchall()]
    connection.close()
    return found


@pytest.mark.parametrize("type", list(_EDGES), ids=lambda t: t.name)
def test_text_of_postgres_comes_back(database: Database, type: types.SqlType) -> None:
    texts = _postgres_texts(database, type)
    texts = [*texts, None, *texts[:3]]
    column = from_text(type, Column.of("s", texts))
    assert column.kind == type.physical
    printed = to_text(type, column).texts()
    assert [(a, b) for a, b in zip(printed, texts, strict=True) if a != b] == []


@pytest.mark.parametrize("type", list(_EDGES), ids=lambda t: t.name)
def test_slices_and_single_rows(database: Database, type: types.SqlType) -> None:
    texts: list[str | None] = [*_postgres_texts(database, type)[:20], None]
    whole = Column.of("s", texts)
    for start in range(len(texts)):
        for stop in (start, start + 1, len(texts)):
            part = from_text(type, whole.slice(start, stop))
            assert to_text(type, part).texts() == texts[start:stop]
            shifted = from_text(type, whole).slice(start, stop)
            assert to_text(type, shifted).texts() == texts[start:stop]


def test_floats_are_the_nearest_ones(database: Database) -> None:
    draw = random.Random(_SEED)
    texts = [f"{draw.getrandbits(70)}e{draw.randint(-60, 20)}" for _ in range(_COUNT)]
    # Half way between two float4, and a little to either side of it.
    texts += ["16777217", "16777217.0000001", "16777216.9999999", "8388608.5", "7.1e-46"]
    texts += ["16777217.000000000000001", "16777216.999999999999999", "1.4012984643248170709e-45"]
    texts += ["1.1754943157898259e-38", "2.1019476964872256e-45", "4.2038953929744512e-45"]
    for type in (types.FLOAT8, types.FLOAT4):
        name = "float4send" if type is types.FLOAT4 else "float8send"
        kept = texts if type is types.FLOAT8 else [t for t in texts if float(t) < 3e38]
        rows = database.rows(f"SELECT {name}(v::{type.name}) FROM unnest(%s::text[]) AS v", (kept,))
        raw = b"".join(bytes(row[0]) for row in rows)
        expected = np.frombuffer(raw, ">f4" if type is types.FLOAT4 else ">f8").tolist()
        assert from_text(type, Column.of("s", kept)).to_list() == expected


@pytest.mark.parametrize(
    ("type", "text"),
    [
        *((types.INT8, t) for t in ("", "-", "9223372036854775808", "-9223372036854775809", "1a")),
        (types.INT8, "99999999999999999999"),
        (types.INT2, "32768"),
        (types.INT4, "-2147483649"),
        *((fixed(12, 2), t) for t in ("", ".", "1.234", "1e5", "1.2.3", "10000000000000000")),
        *((types.BOOL, t) for t in ("", "x", "yes", "tru")),
        *((types.FLOAT8, t) for t in ("", "1e400", "abc", "1_0", "1e", "0x10", "--1")),
        *((types.FLOAT4, t) for t in ("1e39", "3.4028236e38")),
        *((types.DATE, t) for t in ("2023-02-29", "2023-13-01", "2023-1-1", "0000-01-01", "")),
        *((types.TIME, t) for t in ("24:00:00.1", "25:00:00", "10:00", "1:00:00")),
        *((types.TIMESTAMP, t) for t in ("2023-01-01", "2023-01-01 10:00:00+00")),
        *((types.TIMESTAMPTZ, t) for t in ("2023-01-01 10:00:00", "2023-01-01 10:00:00+0")),
    ],
)
def test_what_is_not_of_the_type_is_named(type: types.SqlType, text: str) -> None:
    good = {TypeKind.BOOL: "t", TypeKind.DATE: "2000-01-01", TypeKind.TIME: "00:00:00"}
    good |= {TypeKind.TIMESTAMP: "2000-01-01 00:00:00", TypeKind.TIMESTAMPTZ: "infinity"}
    texts = Column.of("s", [good.get(type.kind, "1"), None, text])
    with pytest.raises(ValueError, match="row 2") as raised:
        from_text(type, texts)
    assert f'"{text}"' in str(raised.value)
    assert type.name in str(raised.value)
