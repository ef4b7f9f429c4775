"""Random schemas of the values that break engines.

Invariant: the seed alone names the schema. Equal values of one column print alike but for
numerics without scale, floats and intervals, for which `families.CANONICAL` has the way out.
Every table has two small integer columns that meet each other's, so that joins and graphs do.
The clock moves past a turn of calendar or local time, and many moments lie near that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from random import Random

from tests.harness import draw, turns
from tests.harness.draw import Draw
from tests.harness.schemas.base import TableSpec, TestSchema

TYPES = """
CREATE TYPE mood AS ENUM ('sad', 'fine', 'glad');
CREATE DOMAIN level AS integer CHECK (VALUE BETWEEN -5 AND 100);
CREATE DOMAIN word AS text;
CREATE TYPE pair AS (x integer, y text);
CREATE FUNCTION twice(x bigint) RETURNS bigint LANGUAGE plpgsql IMMUTABLE
    AS 'BEGIN RETURN 2 * (x % 1000000); END';
CREATE FUNCTION after_product(state bigint, x integer) RETURNS bigint LANGUAGE sql IMMUTABLE
    AS 'SELECT (coalesce(state, 1) * (coalesce(x, 3) % 7 + 10)) % 10007';
CREATE AGGREGATE product(integer) (sfunc = after_product, stype = bigint);
"""
_LONG = draw.mixed(draw.long_texts(2500), lambda rng: draw.quote("ab" * 1300))
_TEXTS = draw.choice(
    *(
        "",
        " ",
        "a",
        "a ",
        "A",
        "b",
        "ba",
        "é",
        "É",
        "e\u0301",
        "ß",
        "日本",
        "😀 x",
        "o'x",
        "a%_b\\",
    ),
    *("tab\there", "line\nfeed", "NULL", "null", "1", "1.50", "NaN", "zed", "Zed", '"q"', "{a,b}"),
)
_FLOATS = draw.raw("0", "'-0'", "0.5", "-1.25", "3", "1024.125", "'NaN'", "'Infinity'")
_WILD = draw.raw("1e300", "-1e300", "1e-300", "'-Infinity'", "'NaN'", "'-0'", "0.1")
_DAYS = draw.mixed(
    draw.choice("2023-06-15", "2024-02-29", "2024-03-01", "1999-12-31"),
    draw.dates(),
    draw.choice("infinity", "-infinity", "0044-03-15 BC", "9999-12-31", "0001-01-01"),
)
_INSTANTS = draw.mixed(
    draw.choice("2023-06-15 00:00:00", "2024-02-29 12:34:56.789"),
    draw.instants(),
    draw.choice("infinity", "-infinity", "0044-03-15 12:00:00 BC", "9999-12-31 23:59:59"),
)
_SMALL = draw.integers(0, 6)


def _documents(rng: Random) -> str:
    return rng.choice(
        (
            """'{"a": 1, "b": [1, 2, 3]}'""",
            """'{"a": null, "b": {"c": "x"}}'""",
            """'{"a": "1"}'""",
            "'{}'",
            "'[]'",
            "'[1, null, \"x\"]'",
            "'null'",
            "'7'",
            "'\"text\"'",
            """'{"a": 1}'""",
            """'{"b": [{"a": 2}], "é": "ü"}'""",
        )
    )


@dataclass(frozen=True)
class Kind:
    """A type of columns: its family and its values."""

    type: str
    family: str
    draw: Draw


KINDS = (
    Kind("smallint", "int", draw.mixed(_SMALL, draw.raw("32767", "-32768"))),
    Kind("integer", "int", draw.mixed(_SMALL, _SMALL, draw.raw("2147483647", "-2147483648"))),
    Kind("bigint", "int", draw.mixed(_SMALL, _SMALL, draw.raw("9223372036854775807", "-1"))),
    Kind("level", "int", draw.integers(-5, 8)),
    Kind("numeric", "num", draw.raw("1.5", "1.50", "0", "0.00", "-7", "'NaN'", "1e30", "1e-20")),
    Kind("numeric(10,2)", "num", draw.raw("1.5", "2.25", "-3", "0", "99999999.99", "'NaN'")),
    Kind("numeric(30,12)", "num", draw.raw("1.5", "123456789012345678.012345678901", "-0.5")),
    Kind("numeric(6,-2)", "num", draw.raw("100", "-300", "99999900")),
    Kind("double precision", "float", _FLOATS),
    Kind("real", "float", _FLOATS),
    Kind("double precision", "wild", _WILD),
    Kind("text", "text", _TEXTS),
    Kind("text", "text", draw.weighted([(5, _TEXTS), (1, _LONG)])),
    Kind('text COLLATE "C"', "text", _TEXTS),
    Kind('text COLLATE "en-x-icu"', "text", _TEXTS),
    Kind("varchar(12)", "text", _TEXTS),
    Kind("character(5)", "text", draw.choice("a", "a b", "", "é", "zzzzz", "A")),
    Kind("word", "text", _TEXTS),
    Kind("boolean", "bool", draw.booleans()),
    Kind("date", "date", _DAYS),
    Kind("timestamp", "time", _INSTANTS),
    Kind("timestamptz", "time", _INSTANTS),
    Kind("time", "clock", draw.choice("00:00", "24:00", "12:34:56.789", "23:59:59.999999")),
    Kind("interval", "span", draw.choice("1 day", "24:00:00", "-2 hours", "1 mon", "30 days")),
    Kind("uuid", "uuid", draw.uuids(4)),
    Kind("bytea", "bytes", draw.raw("'\\x00ff10'", "'\\x'", "'\\xdeadbeef'", "'\\x5c'")),
    Kind("mood", "mood", draw.choice("sad", "fine", "glad")),
    Kind("integer[]", "ints", draw.raw("'{}'", "'{1,2,NULL}'", "'{3}'", "'{3,3,1}'")),
    Kind("integer[]", "other", draw.raw("'{}'", "'{{1,2},{3,4}}'", "'[2:3]={5,6}'")),
    Kind("text[]", "texts", draw.raw("""'{}'""", """'{a,"",NULL}'""", """'{"x,y","\\\\"}'""")),
    Kind("jsonb", "json", _documents),
    Kind("json", "document", _documents),
    Kind("int4range", "range", draw.choice("[1,5)", "empty", "[3,)", "(,7]", "[2,3)")),
    Kind("pair", "other", draw.raw("'(1,a)'", "'(,)'", "'(2,\"x, y\")'")),
    Kind("inet", "other", draw.choice("10.0.0.1", "::1", "10.1.0.0/16")),
)
ESSENTIAL = ("int", "text", "num", "date", "bool", "time")
# Of the types of moments, the values near a turn.
_NEAR = {"date": turns.dates, "timestamp": turns.local_instants, "timestamptz": turns.instants}


@dataclass(frozen=True)
class TableText:
    """What CREATE TABLE says: declarations by column, and statements that follow."""

    columns: Mapping[str, str]
    after: tuple[str, ...]

    def ddl(self, name: str) -> list[str]:
        """Statements that make the table."""
        columns = ", ".join(f"{column} {said}" for column, said in self.columns.items())
        return [f"CREATE TABLE {name} ({columns})", *(s.format(name) for s in self.after)]


@dataclass(frozen=True)
class Hostile:
    """A schema, its tables, the families of their columns, and what tells their rows apart.

    turn: what its clock moves past.
    """

    schema: TestSchema
    tables: Mapping[str, TableText]
    families: Mapping[str, Mapping[str, str]]
    ties: Mapping[str, tuple[str, ...]]
    turn: turns.Turn


def schema_ddl(tables: Mapping[str, TableText]) -> str:
    """Types, functions and tables."""
    return TYPES + ";\n".join(s for n, t in tables.items() for s in t.ddl(n)) + ";\n"


def hostile_schema(seed: int | str) -> Hostile:
    """Three tables, or four."""
    rng = Random(f"hostile/{seed}")
    turn = turns.turn_of(rng)
    tables, specs, families, ties = {}, [], {}, {}
    for number in range(rng.choice((3, 3, 4))):
        name = f"t{number}"
        kinds = _columns(rng, turn)
        key, after = _key(rng, kinds)
        tables[name] = TableText(
            {c: k.type + " NOT NULL" * (c in key) for c, k in kinds.items()}, after
        )
        draws = {
            c: k.draw if c in key or rng.random() < 0.15 else draw.nullable(k.draw, 0.2)
            for c, k in kinds.items()
        }
        specs.append(TableSpec(name, draws, key, rng.choice((0, 4, 8, 8, 12, 12, 16))))
        families[name] = {c: k.family for c, k in kinds.items()}
        ties[name] = key or tuple(f"{c}::text" for c in kinds)
    schema = TestSchema(
        name=f"hostile{seed}",
        ddl=schema_ddl(tables),
        tables=tuple(specs),
        truncates=(*(s.name for s in specs), "t0, t1"),
        has_storms=True,
        clock=partial(turns.path, turn),
    )
    return Hostile(schema, tables, families, ties, turn)


def _columns(rng: Random, turn: turns.Turn) -> dict[str, Kind]:
    kinds = {
        "id": Kind("integer", "int", draw.integers(1, 30)),
        "a": Kind("integer", "int", _SMALL),
        "b": Kind(rng.choice(("integer", "bigint", "smallint")), "int", _SMALL),
    }
    drawn = [rng.choice([k for k in KINDS if k.family == family]) for family in ESSENTIAL[1:]]
    drawn += rng.sample(KINDS, rng.randint(2, 4))
    return kinds | {f"c{i}": _near(kind, turn) for i, kind in enumerate(drawn)}


def _near(kind: Kind, turn: turns.Turn) -> Kind:
    """The kind with values near the turn too, if it is one of moments."""
    near = _NEAR.get(kind.type)
    return kind if near is None else replace(kind, draw=turns.often(near(turn), kind.draw))


def _key(rng: Random, kinds: dict[str, Kind]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The key's columns, and what follows CREATE TABLE, with {} for the table."""
    choice = rng.random()
    if choice < 0.45:
        return ("id",), ("ALTER TABLE {} ADD PRIMARY KEY (id)",)
    if choice < 0.6:
        kinds["id"] = Kind("text", "text", draw.choice(*"abcdefghijklmno", "É", "a ", ""))
        return ("id",), ("ALTER TABLE {} ADD PRIMARY KEY (id)",)
    if choice < 0.75:
        return ("a", "id"), ("ALTER TABLE {} ADD PRIMARY KEY (a, id)",)
    if choice < 0.85:
        index = "CREATE UNIQUE INDEX {0}_identity ON {0} (id, b)"
        return ("id", "b"), (index, "ALTER TABLE {0} REPLICA IDENTITY USING INDEX {0}_identity")
    return (), ("ALTER TABLE {} REPLICA IDENTITY FULL",)
