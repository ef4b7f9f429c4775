"""Oracle: the values written down beside their SQL: rows, pages, queries, snapshots and changes all
give exactly them, in value and type; conditions made of them find their rows again."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

import tidemark
from tests.harness.client_kinds import KINDS
from tests.harness.postgres import Database
from tests.harness.service import RunningService
from tidemark import View, col

# What does not fit its Arrow type.
MISFITS = ("far", "midnight", "never", "deep", "days")
NAMES = list(KINDS)
TABLES = f"""
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE DOMAIN small AS int CHECK (VALUE < 10);
CREATE TYPE pair AS (a int, b text);
CREATE TABLE kinds (id int PRIMARY KEY, {", ".join(f'"{n}" {k.type}' for n, k in KINDS.items())});
INSERT INTO kinds VALUES
    (1, {", ".join(k.literals[0] for k in KINDS.values())}),
    (2, {", ".join(k.literals[1] for k in KINDS.values())}),
    (3, {", ".join("NULL" for _ in KINDS)});
""".replace("%", "%%")
EXPECTED = [
    (1, *(k.values[0] for k in KINDS.values())),
    (2, *(k.values[1] for k in KINDS.values())),
    (3, *(None for _ in KINDS)),
]


@pytest.fixture(scope="module")
def view(place: Database, tmp_path_factory: pytest.TempPathFactory) -> Iterator[View]:
    with (
        RunningService(place.dsn, tmp_path_factory.mktemp("values")) as service,
        tidemark.connect(service.url) as client,
    ):
        yield client.create("all_kinds", "SELECT * FROM kinds", backfill="local")


def same(found: Any, expected: Any) -> None:
    """Equal in value, type and form, NaN with NaN too."""
    for row, wanted in zip(found, expected, strict=True):
        for name, value, want in zip(["id", *NAMES], row, wanted, strict=True):
            assert repr(value) == repr(want) and type(value) is type(want), name


def test_every_way_gives_the_same_values(view: View, place: Database) -> None:
    same(view.rows(), EXPECTED)
    same(view.rows(page_rows=1), EXPECTED)
    same([tuple(row.values()) for row in view.rows().dicts()], EXPECTED)
    same(view._client.query("SELECT * FROM all_kinds ORDER BY id"), EXPECTED)
    changes = view.changes(timeout_ms=20_000)
    with changes:
        first = next(changes)
        same(sorted(first.rows), EXPECTED)
        place.execute("UPDATE kinds SET id = id + 10")
        second = next(changes)
    moved = [(row[0] + 10, *row[1:]) for row in EXPECTED]
    same(sorted(second.inserted), moved)
    same(sorted(second.deleted), EXPECTED)
    place.execute("UPDATE kinds SET id = id - 10")
    position = place.rows("SELECT pg_current_wal_flush_lsn()::text")[0][0]
    same(view.rows(min_position=position), EXPECTED)


@pytest.mark.whole
def test_values_find_their_rows(view: View) -> None:
    for name, kind in KINDS.items():
        for number, value in enumerate(kind.values, start=1):
            if kind.is_found:
                ids = [row.id for row in view.rows(columns=["id"], where=col(name) == value)]
                assert number in ids, (name, value)
        assert [r.id for r in view.rows(columns=["id"], where={name: None})] == [3], name
    for name in ("pair", "ints", "range", "days", "raw"):
        ordered = [r.id for r in view.rows(columns=["id"], order=[col(name).asc()], page_rows=1)]
        values = view._client.query(f'SELECT id FROM all_kinds ORDER BY "{name}"')
        assert ordered == [row.id for row in values], name


def test_arrow_has_the_same_values(view: View) -> None:
    fitting = [name for name in NAMES if name not in MISFITS]
    rows = view.rows(columns=["id", *fitting])
    table = rows.to_arrow()
    for name in fitting:
        kind = KINDS[name]
        assert table.schema.field(name).type == kind.arrow, name
        found, wanted = table.column(name).to_pylist(), [*(kind.in_arrow or kind.values), None]
        assert found == wanted or repr(found) == repr(wanted), name
    epoch = view.snapshot()
    with pytest.raises(tidemark.TidemarkError) as caught:
        epoch.to_arrow()
    assert caught.value.code == "rows.not_in_arrow"
    whole = epoch.to_arrow({name: pa.string() for name in MISFITS})
    assert whole.column("far").to_pylist() == [r.far for r in epoch.rows]
    assert whole.column("_weight").to_pylist() == [1, 1, 1]
    assert sorted(whole.column("id").to_pylist()) == [1, 2, 3]


def test_arrow_takes_other_types(view: View) -> None:
    rows = view.rows(columns=["free", "int4", "fixed"], where={"id": 1})
    table = rows.to_arrow({"free": pa.decimal128(20, 3), "int4": pa.int64(), "fixed": pa.float64()})
    assert table.to_pylist() == [{"free": Decimal("1.100"), "int4": -(2**31), "fixed": 0.1}]
    with pytest.raises(tidemark.TidemarkError) as caught:
        rows.to_arrow({"nosuch": pa.int8()})
    assert caught.value.code == "rows.unknown_column"
    with pytest.raises(tidemark.TidemarkError) as caught:
        rows.to_arrow({"int4": pa.int8()})
    assert caught.value.code == "rows.not_in_arrow"
    empty = view.rows(where={"id": -1}).to_arrow()
    assert (empty.num_rows, empty.schema.field("day").type) == (0, pa.date32())
