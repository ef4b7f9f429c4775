"""Random views for the sink's tests: rows as PostgreSQL texts, their oracle, and their deltas."""

from __future__ import annotations

import random
from collections import Counter

from connectors.sink import SinkTable
from dataflow import types
from dataflow.delta import Column, Delta
from dataflow.schema import Field
from dataflow.types import SqlType, fixed, sql_type
from dataflow.values import from_text

Row = tuple[str | None, ...]

SETUP = """
CREATE TYPE mood AS ENUM ('sad', 'so so', 'it''s "fine"');
CREATE TYPE pair AS (a int, b text);
CREATE DOMAIN positive AS int CHECK (VALUE > 0);
"""

# Each with texts exactly as PostgreSQL prints them.
TEXTS: dict[SqlType, list[str]] = {
    types.BOOL: ["t", "f"],
    types.INT2: ["-32768", "0", "7"],
    types.INT4: ["2147483647", "-1"],
    types.INT8: ["-9223372036854775808", "42"],
    types.FLOAT4: ["0.1", "1e+20", "-0", "NaN"],
    types.FLOAT8: ["0.30000000000000004", "-Infinity", "1e-05"],
    fixed(12, 2): ["0.10", "-9999999999.99", "NaN"],
    types.NUMERIC: ["1.500", "-0.00000000000000000001", "123456789012345678901234567890"],
    types.TEXT: ["", "NULL", "a\tb\nc\rd\\e", 'it\'s "{quoted}"', "\\N", "żółć 🌊", "\\x00", "{}"],
    sql_type("character varying(20)", 1043, 24): ["", " x ", ","],
    sql_type("character(5)", 1042, 9): ["ab   ", "     "],
    types.DATE: ["infinity", "0044-03-15 BC", "2024-02-29"],
    types.TIME: ["24:00:00", "12:34:56.789"],
    types.TIMESTAMP: ["-infinity", "1999-12-31 23:59:59.999999"],
    types.TIMESTAMPTZ: ["2026-01-01 00:00:01.5+00", "12345-01-01 00:00:00+00"],
    types.INTERVAL: ["1 year 2 mons -3 days +04:05:06.7", "00:00:00"],
    sql_type("uuid", 2950): ["123e4567-e89b-12d3-a456-426614174000"],
    sql_type("bytea", 17): ["\\x", "\\x00ff5c27"],
    sql_type("json", 114): ['{"a": "\\n\\\\"}', "null"],
    types.JSONB: ['{"a": [1, null, "\\""]}', "[]"],
    sql_type("integer[]", 1007): ["{}", "{1,NULL,3}", "{{1,2},{3,4}}"],
    sql_type("text[]", 1009): ['{"a,b",NULL,"NULL","\\"\\\\"}'],
    sql_type("public.mood", 99_999): ["sad", "so so", 'it\'s "fine"'],
    sql_type("public.pair", 99_998): ['(1,"a b")', "(,)"],
    sql_type("public.positive", 99_997): ["1", "77"],
    sql_type("inet", 869): ["10.0.0.0/8"],
    sql_type("int4range", 3904): ["[1,5)", "empty"],
}
KEY_FIELDS = (Field("region id", types.TEXT, False), Field("n", types.INT8, False))


def value_fields() -> tuple[Field, ...]:
    """One column of each type, with hostile names."""
    odd = ["select", 'q"uote', "it's", "%s", "{0}", "ünïcode", "__h", "__n", "u", "t", "c1", "a.b"]
    names = [*odd, *(f"column {k}" for k in range(len(TEXTS) - len(odd)))]
    return tuple(Field(n, t) for n, t in zip(names, TEXTS, strict=True))


def keyed_table(name: str = "keyed", schema: str = "public") -> SinkTable:
    """A view with a two-column key, which does not come first."""
    values = value_fields()
    return SinkTable(schema, name, (*values[:3], *KEY_FIELDS, *values[3:]), (3, 4))


def bag_table(name: str = "bag", schema: str = "public") -> SinkTable:
    """A view without a key."""
    return SinkTable(schema, name, value_fields(), ())


def delta_of(table: SinkTable, weights: Counter[Row]) -> Delta:
    """The delta of rows given as texts."""
    rows = [(row, w) for row, w in weights.items() if w]
    columns = [
        from_text(f.type, Column.of("s", [row[i] for row, _ in rows]))
        for i, f in enumerate(table.fields)
    ]
    return Delta(columns, Column.of("i", [w for _, w in rows]).values)


class Oracle:
    """What the view holds, and random changes of it."""

    def __init__(self, table: SinkTable, seed: int) -> None:
        self.table = table
        self.rows: Counter[Row] = Counter()
        self._draw = random.Random(seed)
        self._keys: dict[Row, Row] = {}

    def change(self, count: int) -> Delta:
        """Apply about `count` random changes; their consolidated delta."""
        weights: Counter[Row] = Counter()
        for _ in range(count):
            if self.table.key:
                self._change_keyed(weights)
            else:
                self._change_bag(weights)
        self.rows.update(weights)
        self.rows = Counter({row: w for row, w in self.rows.items() if w})
        return delta_of(self.table, weights)

    def _change_keyed(self, weights: Counter[Row]) -> None:
        draw = self._draw
        expected = draw.random()
        if expected < 0.4 or not self._keys:
            key: Row = (draw.choice(TEXTS[types.TEXT]), str(draw.randint(1, 100_000)))
        else:
            key = draw.choice(list(self._keys)[-50:])
        old = self._keys.pop(key, None)
        if old is not None:
            weights[old] -= 1
        if expected < 0.8:
            new = self._row(key)
            self._keys[key] = new
            weights[new] += 1

    def _change_bag(self, weights: Counter[Row]) -> None:
        draw = self._draw
        present = [r for r in list(self.rows)[:50] if self.rows[r] + weights[r] > 0]
        if draw.random() < 0.4 and present:
            row = draw.choice(present)
            weights[row] -= draw.randint(1, self.rows[row] + weights[row])
        else:
            row = draw.choice(present) if draw.random() < 0.3 and present else self._row(())
            weights[row] += draw.randint(1, 3)

    def _row(self, key: Row) -> Row:
        draw = self._draw
        cells: list[str | None] = []
        for index, column in enumerate(self.table.fields):
            if index in self.table.key:
                cells.append(key[self.table.key.index(index)])
            else:
                is_null = draw.random() < 0.2
                cells.append(None if is_null else draw.choice(TEXTS[column.type]))
        return tuple(cells)
