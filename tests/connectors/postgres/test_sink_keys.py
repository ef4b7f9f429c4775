"""Oracle: a dictionary of rows by key; PostgreSQL compares what it holds with them by md5.

Keys wider than a B-tree takes: as first rows and as later ones, alone and among other columns,
beside what users have put on the table.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator

import pytest

from connectors.postgres.sink import apply_deltas
from connectors.postgres.sink.postgres_sink import PostgresSink
from connectors.sink import Progress, SinkEpoch, SinkRows, SinkTable, Swap, ViewChange, ViewDdl
from dataflow import types
from dataflow.delta import Delta
from dataflow.errors import InvariantError, SinkError
from dataflow.schema import Field
from tests.harness.postgres import Database

PAIR = SinkTable(
    "public",
    "pair",
    (
        Field("n", types.INT4, False),
        Field("we ird", types.TEXT, False),
        Field("v", types.INT8),
    ),
    (1, 0),
)
ONE = SinkTable("public", "one", (Field("k", types.TEXT, False),), (0,))
Key = tuple[int, str]


@pytest.fixture
def sink(every_database: Database) -> Iterator[PostgresSink]:
    sink = PostgresSink(every_database.dsn)
    yield sink
    sink.close()


def _text(pick: random.Random, size: int) -> str:
    """Not to be compressed, or PostgreSQL would make it narrow again."""
    return "".join(pick.choices("abcdefghijklmnopqrstuvwxyzäöü\\'", k=size))


def _write(
    sink: PostgresSink,
    number: int,
    *deltas: tuple[SinkTable, Delta],
    changes: tuple[ViewChange, ...] = (),
    swaps: tuple[SinkTable, ...] = (),
) -> None:
    ddl = ViewDdl(changes, tuple(map(Swap, swaps)))
    sink.write(SinkEpoch(Progress(number, {"source": number}), SinkRows(list(deltas)), ddl))


def _delta(rows: dict[Key, int], weight: int) -> Delta:
    return Delta.of("isi", [(n, k, v) for (n, k), v in rows.items()], [weight] * len(rows))


def _assert_held(database: Database, rows: dict[Key, int]) -> None:
    found = database.rows('SELECT n, md5("we ird"), v FROM pair ORDER BY 1, 2')
    wanted = ((n, hashlib.md5(k.encode()).hexdigest(), v) for (n, k), v in rows.items())
    assert found == sorted(wanted)


def _has_key(database: Database, name: str) -> bool:
    sql = "SELECT count(*) FROM pg_constraint WHERE contype = 'p' AND conrelid = %s::regclass"
    return database.rows(sql, (name,)) == [(1,)]


@pytest.mark.parametrize("copy_rows", [50_000, 3])
def test_rows_come_change_and_go_by_keys_of_any_size(
    every_database: Database,
    sink: PostgresSink,
    copy_rows: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From narrow keys on: 9 kB are more than any index entry, 3 kB than a B-tree's."""
    monkeypatch.setattr(apply_deltas, "COPY_ROWS", copy_rows)
    pick = random.Random(5)
    rows: dict[Key, int] = {(n, _text(pick, 5)): n for n in range(20)}
    sink.load(PAIR, [_delta(rows, 1)], Progress(0, {}))
    assert _has_key(every_database, "pair")
    every_database.execute("CREATE INDEX mine ON pair (v); CREATE PUBLICATION p FOR TABLE pair")
    for number in range(1, 9):
        old = dict(pick.sample(sorted(rows.items()), 6))
        kept = dict(pick.sample(sorted(old.items()), 3))
        new = {k: v + 1_000 for k, v in kept.items()}
        new |= {(n, _text(pick, pick.choice((3, 3_000, 9_000)))): n for n in range(4)}
        delta = Delta.concat([_delta(old, -1), _delta(new, 1)])
        _write(sink, number, (PAIR, delta))
        rows = {k: v for k, v in rows.items() if k not in old} | new
        _assert_held(every_database, rows)
    assert not _has_key(every_database, "pair")
    plan = every_database.rows(
        "SELECT indexrelid::regclass::text FROM pg_index WHERE indrelid = 'pair'::regclass"
    )
    assert len(plan) == 2


def test_first_rows_of_any_size_and_a_session_that_knows_nothing_of_them(
    every_database: Database, sink: PostgresSink
) -> None:
    pick = random.Random(6)
    rows: dict[Key, int] = {(n, _text(pick, 4_000)): n for n in range(20)}
    sink.load(PAIR, [_delta(rows, 1)], Progress(0, {}))
    _assert_held(every_database, rows)
    again = PostgresSink(every_database.dsn)
    first = dict([next(iter(rows.items()))])
    _write(again, 1, (PAIR, _delta(first, -1)))
    rows = {k: v for k, v in rows.items() if k not in first}
    _assert_held(every_database, rows)
    renamed = SinkTable("public", "renamed", PAIR.fields, PAIR.key)
    _write(again, 2, changes=(ViewChange("no such", PAIR, renamed, {}),))
    _write(again, 3, (renamed, _delta(rows, -1)))
    assert every_database.rows("SELECT count(*) FROM renamed") == [(0,)]
    # A version of the view with narrow keys takes its place, and has a primary key again.
    again.stage(renamed, [_delta({(1, "a"): 1}, 1)])
    _write(again, 4, (renamed, _delta({(2, "b"): 2}, 1)), swaps=(renamed,))
    assert _has_key(every_database, "renamed")
    assert every_database.rows("SELECT count(*) FROM renamed") == [(2,)]
    again.close()


def test_a_view_that_appears_with_a_wide_row(every_database: Database, sink: PostgresSink) -> None:
    wide = "".join(chr(0x4E00 + i) for i in range(5_000))
    sink.stage(ONE, [Delta.of("s", [("a",)], [1])])
    _write(sink, 1, (ONE, Delta.of("s", [(wide,)], [1])), swaps=(ONE,))
    assert every_database.rows("SELECT count(*), max(length(k)) FROM one") == [(2, 5_000)]
    _write(sink, 2, (ONE, Delta.of("s", [(wide,), ("a",)], [-1, -1])))
    assert every_database.rows("SELECT count(*) FROM one") == [(0,)]


def test_what_is_wrong_is_found_without_a_primary_key_too(
    every_database: Database, sink: PostgresSink
) -> None:
    pick = random.Random(7)
    rows: dict[Key, int] = {(n, _text(pick, 4_000)): n for n in range(5)}
    again = _delta(dict([next(iter(rows.items()))]), 1)
    for first_rows in ([_delta(rows, 1), again], [_delta(rows, 1), Delta.concat([again, again])]):
        with pytest.raises(InvariantError, match="does not hold"):
            sink.load(PAIR, first_rows, Progress(0, {}))
    sink.load(PAIR, [_delta(rows, 1)], Progress(0, {}))
    for weight in (1, -1):
        known = rows if weight > 0 else {(9, _text(pick, 4_000)): 9}
        with pytest.raises(InvariantError) as raised:
            _write(sink, 1, (PAIR, _delta(known, weight)))
        assert raised.value.code == "sink.row_missing"
        assert raised.value.relation == PAIR.relation
    _assert_held(every_database, rows)


def test_an_index_of_the_users_that_is_too_narrow_is_named(
    every_database: Database, sink: PostgresSink
) -> None:
    sink.load(PAIR, [_delta({(1, "a"): 1}, 1)], Progress(0, {}))
    every_database.execute('CREATE INDEX mine ON pair ("we ird")')
    row = _delta({(2, _text(random.Random(8), 4_000)): 2}, 1)
    with pytest.raises(SinkError) as raised:
        _write(sink, 1, (PAIR, row))
    assert raised.value.code == "sink.row_too_wide" and "mine" in str(raised.value.detail)
    assert raised.value.relation == PAIR.relation
    every_database.execute("DROP INDEX mine")
    _write(sink, 1, (PAIR, row))
    assert every_database.rows("SELECT count(*) FROM pair") == [(2,)]


def test_a_version_of_the_other_kind_takes_the_place_of_a_table(
    every_database: Database, sink: PostgresSink
) -> None:
    """From a plain table to a multiset and back, in the epoch that says so."""
    bag = SinkTable("public", "pair", PAIR.fields[1:], ())
    sink.load(PAIR, [_delta({(1, "a"): 1}, 1)], Progress(0, {}))
    sink.stage(bag, [Delta.of("si", [("b", 2)], [2])])
    change = ViewChange("no such", PAIR, bag, {}, is_replaced=True)
    _write(sink, 1, (bag, Delta.of("si", [("c", 3)], [1])), changes=(change,), swaps=(bag,))
    assert every_database.rows("SELECT v FROM pair ORDER BY v") == [(2,), (2,), (3,)]
    sink.stage(PAIR, [_delta({(1, "a"): 1}, 1)])
    change = ViewChange("no such", bag, PAIR, {}, is_replaced=True)
    _write(sink, 2, changes=(change,), swaps=(PAIR,))
    assert every_database.rows("SELECT n, v FROM pair") == [(1, 1)]
