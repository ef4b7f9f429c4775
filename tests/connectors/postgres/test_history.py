"""Oracle: the rows of each epoch, recorded in a dictionary beside the sink; read back at random."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator

import psycopg2
import pytest

from connectors.postgres.catalog.catalog import Control, ViewRow
from connectors.postgres.query.history_rows import read_changes, read_difference
from connectors.postgres.query.view_rows import PageRequest, Past, read_page
from connectors.postgres.sink import apply_deltas
from connectors.postgres.sink.postgres_sink import PostgresSink
from connectors.postgres.sink.view_tables import ViewTables
from connectors.sink import (
    Handover,
    Progress,
    SinkEpoch,
    SinkRepair,
    SinkRows,
    SinkTable,
    Swap,
    ViewChange,
    ViewDdl,
)
from dataflow import types
from dataflow.delta import Delta
from dataflow.errors import SinkError, TidemarkError
from dataflow.schema import Field
from tests.harness.postgres import Database
from tests.harness.sink_rows import SETUP, Oracle, bag_table, delta_of, keyed_table

SMALL = SinkTable("public", "small", (Field("id", types.INT4, False), Field("v", types.TEXT)), (0,))
BAG = SinkTable("public", "lots", (Field("v", types.TEXT),), ())


@pytest.fixture
def sink(every_database: Database) -> Iterator[PostgresSink]:
    every_database.execute(SETUP)
    sink = PostgresSink(every_database.dsn)
    sink.prepare()
    yield sink
    sink.close()


def _want(database: Database, table: SinkTable, period: str | None = "1 hour") -> None:
    control = Control(database.dsn)
    options = {"history": period}
    control.insert_view(ViewRow(table.schema, table.name, "SELECT 1", table.name, options=options))
    control.close()


def _epoch(
    number: int,
    *deltas: tuple[SinkTable, Delta],
    changes: tuple[ViewChange, ...] = (),
    swaps: tuple[SinkTable, ...] = (),
    **more,
) -> SinkEpoch:
    ddl = ViewDdl(changes, tuple(Swap(table, "t") for table in swaps))
    return SinkEpoch(Progress(number, {"source": number * 10}), SinkRows(list(deltas)), ddl, **more)


def _begin(sink: PostgresSink, number: int, table: SinkTable, rows: Delta) -> SinkEpoch:
    sink.stage(table, [rows], "t")
    return _epoch(number, swaps=(table,))


def _rows_at(database: Database, table: SinkTable, point: str) -> tuple[int, Counter]:
    names = tuple(f.name for f in table.fields)
    order = ()
    rows: Counter = Counter()
    after: tuple[str | None, ...] = ()
    while True:
        request = PageRequest(table, names, (), order, 7_000, after)
        page = read_page(database.dsn, "tidemark", request, 30, Past(point))
        assert page.progress is not None
        if page.rows is not None:
            rows.update(_counted(page.rows))
        if not page.after:
            return page.progress.epoch, rows
        after = page.after


def _counted(delta: Delta) -> Counter:
    """Rows by their representation: NaN equals itself there."""
    counted: Counter = Counter()
    for row, weight in delta.rows():
        counted[repr(row)] += weight
    return counted


def _small(*rows: tuple) -> Counter:
    return Counter(map(repr, rows))


def _code(database: Database, point: str, table: SinkTable = SMALL) -> str:
    with pytest.raises(TidemarkError) as caught:
        _rows_at(database, table, point)
    return caught.value.code


def _table(database: Database) -> str:
    """The table of the rows of SMALL's history."""
    [(name,)] = database.rows(
        "SELECT table_oid::regclass::text FROM tidemark.histories WHERE name = 'small'"
    )
    return name


@pytest.mark.parametrize("copy_rows", [5_000, 40])
def test_the_past_at_random_epochs(
    every_database: Database,
    sink: PostgresSink,
    copy_rows: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(apply_deltas, "COPY_ROWS", copy_rows)
    monkeypatch.setattr(apply_deltas, "COPIED_ROWS", copy_rows)
    draw = random.Random(copy_rows)
    oracles = [Oracle(keyed_table(), 3), Oracle(bag_table(), 4)]
    for oracle in oracles:
        _want(every_database, oracle.table)
    first = [o.change(60) for o in oracles]
    for oracle, rows in zip(oracles, first, strict=True):
        sink.stage(oracle.table, [rows], "t")
    tables = tuple(o.table for o in oracles)
    sink.write(_epoch(1, swaps=tables))
    shown = [{1: Counter(o.rows)} for o in oracles]
    for number in range(2, 22):
        size = draw.choice([1, 1, 2, 5, 17, 100, 300])
        changed = [o for o in oracles if draw.random() < 0.8]
        sink.write(_epoch(number, *[(o.table, o.change(size)) for o in changed]))
        for known, oracle in zip(shown, oracles, strict=True):
            known[number] = Counter(oracle.rows)
    for known, oracle in zip(shown, oracles, strict=True):
        pasts = {}
        for number, rows in known.items():
            _, found = _rows_at(every_database, oracle.table, str(number))
            pasts[number] = found
            assert found == _counted(delta_of(oracle.table, rows)), number
            position = f"0/{number * 10 + 3 * (number < 21):X}"
            _, by_position = _rows_at(every_database, oracle.table, position)
            assert by_position == found
        for _ in range(10):
            begin, end = sorted(draw.sample(range(1, 22), 2))
            _require_difference(every_database.dsn, oracle.table, pasts, (begin, end))
        begin = draw.randint(1, 15)
        for most in (3, 100):
            _require_changes(every_database.dsn, oracle.table, pasts, (begin, most))


def _require_difference(
    dsn: str, table: SinkTable, pasts: dict[int, Counter], points: tuple[int, int]
) -> None:
    """The difference of two epochs leads from the rows of one to those of the other."""
    begin, end = points
    page = read_difference(dsn, table, (str(begin), str(end)), (0, 100_000))
    moved = Counter(pasts[begin])
    if page.rows is not None:
        assert len(_counted(page.rows)) == len(page.rows)
        moved.update(_counted(page.rows))
    assert _left(moved) == pasts[end]


def _require_changes(
    dsn: str, table: SinkTable, pasts: dict[int, Counter], window: tuple[int, int]
) -> None:
    """The changes after an epoch lead to the rows of each later one. window: (epoch, epochs read
    at once)."""
    at, most = window
    rows = Counter(pasts[at])
    while at < max(pasts):
        before = at
        for number, positions, delta in read_changes(dsn, table, at, most):
            assert positions == {"source": number * 10}
            if number > at:
                assert _left(rows) == pasts[at]
            at = number
            if delta is not None:
                rows.update(_counted(delta))
        assert at > before
    assert _left(rows) == pasts[at]


def _left(rows: Counter) -> Counter:
    return Counter({row: n for row, n in rows.items() if n})


def test_sql_over_the_past(every_database: Database, sink: PostgresSink) -> None:
    for table in (SMALL, BAG):
        _want(every_database, table)
    sink.stage(SMALL, [Delta.of("is", [(1, b"a"), (2, b"b")])], "t")
    sink.stage(BAG, [Delta.of("s", [(b"x",)], 2)], "t")
    sink.write(_epoch(1, swaps=(SMALL, BAG)))
    at = 1_700_000_000_000_000
    small = SMALL, Delta.of("is", [(1, b"a"), (1, b"A")], [-1, 1])
    lots = BAG, Delta.of("s", [(b"x",), (b"y",)], [1, 1])
    sink.write(_epoch(2, small, lots, commit_time_us=at))
    sink.write(_epoch(3, (SMALL, Delta.of("is", [(2, b"b")], -1))))
    rows = every_database.rows
    assert sorted(rows("SELECT * FROM tidemark.as_of(NULL::small, '1')")) == [(1, "a"), (2, "b")]
    assert sorted(rows("SELECT * FROM tidemark.as_of(NULL::small, '0/14')")) == [(1, "A"), (2, "b")]
    assert rows("SELECT * FROM tidemark.as_of(NULL::small, now())") == [(1, "A")]
    assert sorted(rows("SELECT v FROM tidemark.as_of(NULL::lots, '1')")) == [("x",)] * 2
    assert sorted(rows("SELECT v FROM tidemark.as_of(NULL::lots, '3')")) == [("x",)] * 3 + [("y",)]
    found = rows(
        "SELECT id, v, from_epoch, to_epoch, to_positions FROM small_history ORDER BY 1, 2"
    )
    assert found == [
        (1, "A", 2, None, None),
        (1, "a", 0, 2, {"source": 20}),
        (2, "b", 0, 3, {"source": 30}),
    ]
    # A clock never goes back, also where the source's commit is older than the epoch before.
    clocks = [c for (c,) in rows("SELECT committed_at FROM tidemark.epochs ORDER BY epoch")]
    assert clocks == sorted(clocks)
    for wrong, state in (("9", "TM012"), ("1999-01-01", "TM011"), ("x", "TM013"), ("0", "TM011")):
        with pytest.raises(psycopg2.Error) as caught:
            rows("SELECT * FROM tidemark.as_of(NULL::small, %s)", (wrong,))
        assert caught.value.pgcode == state
    codes = [
        _code(every_database, p) for p in ("9", "2999-01-01", "0/FF", "0", "0/1", "1999-01-01")
    ]
    assert codes == ["history.not_reached"] * 3 + ["history.too_old"] * 3
    assert _code(every_database, "yesterdayish") == "history.bad_point"
    assert _code(every_database, "1", SinkTable("public", "none", SMALL.fields, (0,))) == (
        "history.none"
    )


def test_readers_need_a_grant(every_database: Database, sink: PostgresSink) -> None:
    _want(every_database, SMALL)
    sink.write(_begin(sink, 1, SMALL, Delta.of("is", [(1, b"a")])))
    every_database.execute("CREATE ROLE stranger")
    try:
        every_database.execute("GRANT SELECT ON small TO stranger")
        every_database.execute("GRANT USAGE ON SCHEMA tidemark TO stranger")
        asked = "SET ROLE stranger; SELECT * FROM tidemark.as_of(NULL::small, '1')"
        hidden = "SET ROLE stranger; SELECT * FROM tidemark.histories"
        table = every_database.rows(
            "SELECT relname FROM pg_class WHERE relname ~ '^history_[0-9a-f]{16}$'"
        )
        rows = f"SET ROLE stranger; SELECT * FROM tidemark.{table[0][0]}"
        for query, state in (
            (asked, "TM010"),
            (hidden, "42501"),
            (rows, "42501"),
            ("SET ROLE stranger; SELECT * FROM small_history", "42501"),
            ("SET ROLE stranger; SELECT tidemark.prune_histories('tidemark', 1)", "42501"),
        ):
            with pytest.raises(psycopg2.Error) as caught:
                every_database.rows(query)
            assert caught.value.pgcode == state, query
        seen = "SET ROLE stranger; SELECT count(*) FROM tidemark.history"
        assert every_database.rows(seen) == [(0,)]
        with pytest.raises(TidemarkError) as refused:
            request = PageRequest(SMALL, ("id",), (), (), 10)
            read_page(every_database.dsn, "tidemark", request, 30, Past("1", "stranger"))
        assert refused.value.code == "auth.rights"
        every_database.execute("GRANT SELECT ON small_history TO stranger")
        assert every_database.rows(asked) == [(1, "a")]
        read_page(every_database.dsn, "tidemark", request, 30, Past("1", "stranger"))
    finally:
        every_database.execute("DROP OWNED BY stranger")
        every_database.execute("DROP ROLE stranger")


def test_what_is_past_the_period_is_deleted(every_database: Database, sink: PostgresSink) -> None:
    _want(every_database, SMALL, "1 hour")
    sink.write(_begin(sink, 1, SMALL, Delta.of("is", [(1, b"1"), (2, b"old")])))
    for number in range(2, 9):
        rows = Delta.of("is", [(1, b"%d" % (number - 1)), (1, b"%d" % number)], [-1, 1])
        sink.write(_epoch(number, (SMALL, rows)))
    every_database.execute(
        "UPDATE tidemark.epochs SET committed_at = committed_at - interval '2 hours' "
        "WHERE epoch <= 5"
    )
    time.sleep(1.1)
    sink.write(_epoch(9))
    table = every_database.rows(
        "SELECT relname FROM pg_class WHERE relname ~ '^history_[0-9a-f]{16}$'"
    )
    ends = every_database.rows(
        f"SELECT id, v, to_epoch FROM tidemark.{table[0][0]} ORDER BY to_epoch, id"
    )
    open_ = 2**63 - 1
    expected = [(1, "5", 6), (1, "6", 7), (1, "7", 8), (1, "8", open_), (2, "old", open_)]
    assert ends == expected
    assert every_database.rows("SELECT min(epoch) FROM tidemark.epochs") == [(5,)]
    assert _code(every_database, "4") == "history.too_old"
    epoch, rows = _rows_at(every_database, SMALL, "5")
    assert (epoch, set(rows)) == (5, set(_small((1, b"5"), (2, b"old"))))
    # A point within the period whose epoch is older is read.
    [(between,)] = every_database.rows("SELECT (now() - interval '90 minutes')::text")
    assert _rows_at(every_database, SMALL, between)[0] == 5


def test_options_begin_and_end_a_history(every_database: Database, sink: PostgresSink) -> None:
    _want(every_database, SMALL, None)
    sink.write(_begin(sink, 1, SMALL, Delta.of("is", [(1, b"a")])))
    assert _code(every_database, "1") == "history.none"
    change = ViewChange(SMALL.name, SMALL, SMALL, {"options": {"history": "3 days"}})
    added = SMALL, Delta.of("is", [(2, b"b")])
    sink.write(_epoch(2, added, changes=(change,)))
    assert _rows_at(every_database, SMALL, "2") == (2, _small((1, b"a"), (2, b"b")))
    assert _code(every_database, "1") == "history.too_old"
    other = ViewChange(SMALL.name, SMALL, SMALL, {"options": {"history": "5 days"}})
    sink.write(_epoch(3, changes=(other,)))
    [(retained, begun)] = every_database.rows(
        "SELECT retained::text, begun_epoch FROM tidemark.history"
    )
    assert (retained, begun) == ("5 days", 2)
    every_database.execute("GRANT SELECT ON small_history TO PUBLIC")
    # A new table of the view begins a new history, for the same readers.
    sink.write(_begin(sink, 4, SMALL, Delta.of("is", [(7, b"g")])))
    assert _rows_at(every_database, SMALL, "4") == (4, _small((7, b"g")))
    assert _code(every_database, "3") == "history.too_old"
    [(acl,)] = every_database.rows(
        "SELECT has_table_privilege('pg_monitor', 'small_history', 'SELECT')"
    )
    assert acl
    moved = SinkTable("public", "tiny", SMALL.fields, (0,))
    sink.write(_epoch(5, changes=(ViewChange(SMALL.name, SMALL, moved, {}),)))
    assert _rows_at(every_database, moved, "4") == (4, _small((7, b"g")))
    sink.write(_epoch(6, (moved, Delta.of("is", [(7, b"g")], -1))))
    assert _rows_at(every_database, moved, "6") == (6, Counter())
    none = ViewChange(SMALL.name, moved, moved, {"options": {"history": "none"}})
    sink.write(_epoch(7, changes=(none,)))
    assert _code(every_database, "7", moved) == "history.none"
    left = "SELECT count(*) FROM pg_class WHERE relname ~ 'history_[0-9a-f]{16}$|_history$'"
    assert every_database.rows(left) == [(0,)]
    assert every_database.rows("SELECT count(*) FROM tidemark.epochs") == [(0,)]


def test_a_drop_takes_the_history(every_database: Database, sink: PostgresSink) -> None:
    _want(every_database, SMALL)
    sink.write(_begin(sink, 1, SMALL, Delta.of("is", [(1, b"a")])))
    every_database.execute("CREATE VIEW mine AS SELECT * FROM small_history")
    with pytest.raises(SinkError) as caught:
        sink.drop([SMALL])
    assert caught.value.code == "sink.dependents"
    every_database.execute("DROP VIEW mine")
    sink.drop([SMALL])
    left = "SELECT count(*) FROM pg_class WHERE relname ~ '^history_[0-9a-f]{16}$|^small'"
    assert every_database.rows(left) == [(0,)]


def test_names_that_are_taken(every_database: Database, sink: PostgresSink) -> None:
    _want(every_database, SMALL)
    every_database.execute("CREATE TABLE small_history (theirs int)")
    with pytest.raises(SinkError) as caught:
        ViewTables(every_database.dsn).check_history(SMALL)
    assert caught.value.code == "sink.name_taken"
    with pytest.raises(SinkError) as caught:
        sink.write(_begin(sink, 1, SMALL, Delta.of("is", [(1, b"a")])))
    assert (caught.value.code, caught.value.relation) == ("sink.name_taken", SMALL.relation)


def test_lost_epochs_are_not_guessed(every_database: Database, sink: PostgresSink) -> None:
    _want(every_database, SMALL)
    sink.write(_begin(sink, 1, SMALL, Delta.of("is", [(1, b"a")])))
    sink.write(_epoch(2, (SMALL, Delta.of("is", [(2, b"b")]))))
    # Epochs 3 to 5 were shown by the server that is gone.
    repair = _epoch(6, (SMALL, Delta.of("is", [(3, b"c")])))
    repair.repair = SinkRepair(2, frozenset({SMALL.name}), "default", is_default=True)
    sink.write(repair)
    assert _rows_at(every_database, SMALL, "2")[0] == 2
    assert _rows_at(every_database, SMALL, "6") == (6, _small((1, b"a"), (2, b"b"), (3, b"c")))
    assert [_code(every_database, p) for p in ("3", "5", "0/1E")] == ["history.lost"] * 3


def test_someone_who_changes_the_history_fails_that_view_alone(
    every_database: Database, sink: PostgresSink
) -> None:
    for table in (SMALL, BAG):
        _want(every_database, table)
    sink.stage(SMALL, [Delta.of("is", [(1, b"a")])], "t")
    sink.stage(BAG, [Delta.of("s", [(b"x",)])], "t")
    sink.write(_epoch(1, swaps=(SMALL, BAG)))
    name = _table(every_database)
    every_database.execute(f"DELETE FROM {name}")
    change = SMALL, Delta.of("is", [(1, b"a")], -1)
    other = BAG, Delta.of("s", [(b"x",)])
    with pytest.raises(TidemarkError) as caught:
        sink.write(_epoch(2, change, other))
    assert (caught.value.code, caught.value.relation) == ("sink.row_missing", SMALL.relation)
    # A rebuild of the failed view begins a new one.
    renewed = ViewChange(SMALL.name, SMALL, SMALL, {}, is_replaced=True)
    every_database.execute("UPDATE tidemark.views SET status = 'failed' WHERE name = 'small'")
    sink.write(_epoch(2, other, changes=(renewed,)))
    assert _rows_at(every_database, SMALL, "2") == (2, _small((1, b"a")))
    assert _code(every_database, "1") == "history.too_old"
    name = _table(every_database)
    every_database.execute(f"DROP TABLE {name} CASCADE")
    with pytest.raises(TidemarkError) as caught:
        sink.write(_epoch(3, other, change))
    assert (caught.value.code, caught.value.relation) == ("sink.table_missing", SMALL.relation)
    sink.write(_epoch(3, change, other, changes=(renewed,)))
    assert _rows_at(every_database, SMALL, "3") == (3, Counter())
    assert _rows_at(every_database, BAG, "3") == (3, _small((b"x",), (b"x",), (b"x",)))


def test_the_past_stays_readable_while_all_views_are_paused(
    sink: PostgresSink, every_database: Database
) -> None:
    """Its newest epoch is the progress that was removed, also one that changed no history."""
    _want(every_database, SMALL)
    sink.write(_begin(sink, 1, SMALL, delta_of(SMALL, Counter({("1", "a"): 1}))))
    sink.write(_epoch(2, (SMALL, delta_of(SMALL, Counter({("1", "a"): -1, ("1", "b"): 1})))))
    sink.write(_epoch(3))
    sink.forget_progress()
    assert every_database.rows("SELECT * FROM tidemark.progress") == []
    for _ in range(2):
        assert _rows_at_paused(every_database, "1") == [(1, "a")]
        assert _rows_at_paused(every_database, "3") == [(1, "b")]
        newest = "SELECT newest_epoch, newest_positions FROM tidemark.history"
        assert every_database.rows(newest) == [(3, {"source": 30})]
        with pytest.raises(psycopg2.Error, match="not reached"):
            _rows_at_paused(every_database, "4")
        # Forgetting twice, as after an answer that was lost, retains the same.
        sink.forget_progress()


def _rows_at_paused(database: Database, point: str) -> list[tuple]:
    return database.rows(f"SELECT * FROM tidemark.as_of(NULL::small, '{point}')")


def test_a_history_goes_to_another_group(every_database: Database, sink: PostgresSink) -> None:
    """Its rows, epochs and readers are the same in the group that has the view from then on."""
    for table in (SMALL, BAG):
        _want(every_database, table)
    sink.write(_begin(sink, 1, SMALL, Delta.of("is", [(1, b"a"), (2, b"b")])))
    sink.write(_begin(sink, 2, BAG, Delta.of("s", [(b"x",)], [2])))
    every_database.execute("GRANT SELECT ON small_history TO PUBLIC")
    every_database.execute("CREATE VIEW own AS SELECT * FROM small_history")
    sink.write(_epoch(3, (SMALL, Delta.of("is", [(1, b"a"), (1, b"c")], [-1, 1]))))
    handover = Handover("tidemark/b", 4, {"source": 40})
    facts = {"options": {"history": "1 hour", "group": "b"}}
    change = ViewChange("small", SMALL, SMALL, facts, hands_over=handover)
    sink.write(_epoch(4, changes=(change,)))
    other = PostgresSink(every_database.dsn, key="tidemark/b")
    other.write(_epoch(5, (SMALL, Delta.of("is", [(2, b"b"), (3, b"d")], [-1, 1]))))
    sink.write(_epoch(5, (BAG, Delta.of("s", [(b"x",)], [-1]))))
    other.write(_epoch(6, (SMALL, Delta.of("is", [(1, b"c")], [-1]))))
    expected = {
        1: _small((1, b"a"), (2, b"b")),
        3: _small((1, b"c"), (2, b"b")),
        4: _small((1, b"c"), (2, b"b")),
        5: _small((1, b"c"), (3, b"d")),
        6: _small((3, b"d")),
    }
    for number, rows in expected.items():
        assert _rows_at(every_database, SMALL, str(number))[1] == rows, number
    assert _rows_at(every_database, BAG, "5") == (5, _small((b"x",)))
    shown = every_database.rows(
        "SELECT id, v, from_epoch, to_epoch, from_positions->>'source', to_positions->>'source' "
        "FROM own WHERE from_epoch > 0 ORDER BY 3, 1"
    )
    assert shown == [(1, "c", 3, 6, "30", "60"), (3, "d", 5, None, "50", None)]
    granted = "SELECT has_table_privilege('public', 'small_history', 'SELECT')"
    assert every_database.rows(granted) == [(True,)]
    keys = "SELECT sink_key, array_agg(epoch ORDER BY epoch) FROM tidemark.epochs GROUP BY 1"
    assert dict(every_database.rows(keys)) == {
        "tidemark": [1, 2, 3, 4, 5],
        "tidemark/b": [1, 2, 3, 5, 6],
    }
    newest = "SELECT newest_epoch FROM tidemark.history WHERE name = 'small'"
    assert every_database.rows(newest) == [(6,)]
    # The last history that its first group had takes the epochs there along.
    handover = Handover("tidemark/c", 6, {"source": 60})
    facts = {"options": {"history": "1 hour", "group": "c"}}
    sink.write(_epoch(6, changes=(ViewChange("lots", BAG, BAG, facts, hands_over=handover),)))
    assert dict(every_database.rows(keys)).keys() == {"tidemark/b", "tidemark/c"}
    assert _rows_at(every_database, BAG, "4") == (4, _small((b"x",), (b"x",)))
    other.close()
