"""Oracle: the table's own rows by a query; and for orders of changes, what was executed."""

from __future__ import annotations

import contextlib
import pickle
import random
import time
from collections import Counter
from typing import Any

import pymysql
import pytest

from connectors.mysql.positions import LogPosition
from connectors.mysql.rows import TableReader
from dataflow.errors import TemporaryError, TidemarkError
from tests.connectors.mysql.reading import (
    Held,
    error_of,
    follow,
    is_equal,
    rows_now,
    snapshot,
    source_of,
    starts,
)
from tests.harness.mariadb import MariaDb
from tests.harness.tiers import count

CUSTOMERS = "CREATE TABLE customers (id int PRIMARY KEY, name varchar(40), region char(2))"
VISITS = "CREATE TABLE visits (customer int, page varchar(40), cost decimal(8,2))"


@pytest.fixture
def shop(mariadb: MariaDb) -> MariaDb:
    mariadb.execute(CUSTOMERS)
    mariadb.execute(VISITS)
    return mariadb


def _gtids(positions: dict[str, Any]) -> dict[str, str]:
    return {name: position["gtids"] for name, position in positions.items()}


def test_transactions_come_whole_and_in_order(shop: MariaDb) -> None:
    source = source_of(shop.options("customers"))
    held = snapshot(source, starts(source))
    with shop.transaction():
        shop.execute("INSERT INTO customers VALUES (1, 'a', 'de'), (2, 'b', 'fr')")
        shop.execute("SAVEPOINT s")
        shop.execute("INSERT INTO customers VALUES (3, 'lost', 'xx')")
        shop.execute("ROLLBACK TO SAVEPOINT s")
        shop.execute("UPDATE customers SET name = 'B' WHERE id = 2")
    shop.session.begin()
    shop.execute("INSERT INTO customers VALUES (4, 'lost', 'xx')")
    shop.session.rollback()
    shop.execute("UPDATE customers SET id = 20 WHERE id = 2")
    shop.execute("DELETE FROM customers WHERE id = 1")
    follow(source, held, lambda h: 20 in {row[0] for row in h.rows["customers"]}, max_rows=1)
    follow(source, held, lambda h: len(h.rows["customers"]) == 1, max_rows=1)
    assert held.rows["customers"] == Counter({(20, b"B", b"fr"): 1})
    assert "".join(held.kinds) == "UUURUR"
    # One batch a transaction, since max_rows is reached by each.
    sizes = [batch.rows for batch in held.batches if batch.rows]
    assert sizes == [3, 2, 1]
    assert all(batch.transactions == 1 for batch in held.batches if batch.rows)


def test_a_large_transaction_comes_in_parts_of_one_batch(shop: MariaDb) -> None:
    source = source_of(shop.options("customers", buffer_bytes=1 << 16))
    held = snapshot(source, starts(source))
    values = ", ".join(f"({i}, 'name of {i}', 'de')" for i in range(30_000))
    with shop.transaction():
        shop.execute(f"INSERT INTO customers VALUES {values}")
        shop.execute("UPDATE customers SET region = 'fr' WHERE id % 2 = 0")
    follow(source, held, lambda h: len(h.rows.get("customers", ())) == 30_000)
    assert held.rows == rows_now(source)
    (batch,) = (one for one in held.batches if one.transactions)
    assert batch.rows == 60_000 and batch.later is not None


def test_a_table_without_a_key_is_a_multiset(shop: MariaDb) -> None:
    source = source_of(shop.options("visits"))
    shop.execute("INSERT INTO visits VALUES (1, 'a', 1.50), (1, 'a', 1.50), (2, NULL, NULL)")
    before = starts(source)
    shop.execute("INSERT INTO visits VALUES (1, 'a', 1.50), (3, 'c', 0)")
    shop.execute("UPDATE visits SET page = 'z' WHERE customer = 1 LIMIT 1")
    shop.execute("DELETE FROM visits WHERE customer = 2")
    held = snapshot(source, before)
    assert held.rows["visits"] == Counter({(1, b"a", 150): 2, (2, None, None): 1})
    follow(source, held, is_equal(rows_now(source)))
    assert set(held.kinds) == {"I", "O", "N", "D"}


@pytest.mark.parametrize("is_by_gtid", [False, True])
def test_it_continues_by_file_or_by_gtid(shop: MariaDb, is_by_gtid: bool) -> None:
    source = source_of(shop.options("customers"))
    held = snapshot(source, starts(source))
    shop.execute("INSERT INTO customers VALUES (1, 'a', 'de')")
    follow(source, held, is_equal(rows_now(source)))
    assert _gtids(held.positions) == _gtids(starts(source))
    if is_by_gtid:
        # A promoted replica has other files, and the same GTIDs.
        held.positions["customers"] |= {"file": "old.000009", "offset": 4711, "server": "99"}
    shop.execute("FLUSH BINARY LOGS")
    shop.execute("UPDATE customers SET name = 'b'")
    follow(source, held, is_equal(rows_now(source)))
    assert held.kinds == ["U", "U"]
    # The end of the log may be behind an event of the server's own.
    assert _gtids(held.positions) == _gtids(starts(source))
    assert held.positions["customers"]["server"] == starts(source)["customers"]["server"]


def test_another_server_without_gtids_is_refused(shop: MariaDb) -> None:
    source = source_of(shop.options("customers"))
    held = snapshot(source, starts(source))
    held.positions["customers"] |= {"gtids": "", "server": "99"}
    assert error_of(source, held).code == "mysql.other_server"


def test_relations_at_different_positions_share_the_log(shop: MariaDb) -> None:
    both = source_of(shop.options("customers", "visits"))
    held = snapshot(both, starts(both))
    early = dict(held.positions)
    shop.execute("INSERT INTO customers VALUES (1, 'a', 'de')")
    shop.execute("INSERT INTO visits VALUES (1, 'x', 1)")
    follow(both, held, is_equal(rows_now(both)))
    # The second one is at the end, the first one is not.
    again = snapshot(both, {**held.positions, "customers": early["customers"]})
    follow(both, again, is_equal(rows_now(both)))
    assert again.rows == held.rows
    assert again.kinds == ["U"]


def test_a_large_transaction_before_all_relations_are_at_one_position(shop: MariaDb) -> None:
    both = source_of(shop.options("customers", "visits", buffer_bytes=1 << 16))
    held = snapshot(both, starts(both))
    shop.execute("INSERT INTO customers VALUES (100000, 'a', 'de')")
    rows = "SELECT seq, 'a name of some length', 'de' FROM seq_1_to_5000"
    shop.execute(f"INSERT INTO customers {rows}")
    shop.execute("INSERT INTO customers VALUES (100001, 'a', 'de')")
    late = starts(both)
    shop.execute("INSERT INTO visits VALUES (1, 'x', 1)")
    again = snapshot(both, {"customers": held.positions["customers"], "visits": late["visits"]})
    follow(both, again, is_equal(rows_now(both)))
    assert [b.rows for b in again.batches if b.later is not None] == [5000]


def test_it_never_passes_until(shop: MariaDb) -> None:
    both = source_of(shop.options("customers", "visits"))
    held = snapshot(both, starts(both))
    for i in range(3):
        shop.execute(f"INSERT INTO customers VALUES ({i}, 'a', 'de')")
    middle = starts(both)
    shop.execute("INSERT INTO customers VALUES (9, 'a', 'de')")
    shop.execute("INSERT INTO visits VALUES (9, 'x', 1)")
    follow(both, held, lambda h: _gtids(h.positions) == _gtids(middle), until=middle)
    assert len(held.rows["customers"]) == 3 and not held.rows.get("visits")
    follow(both, held, is_equal(rows_now(both)))


def test_positions_move_with_changes_of_other_tables(shop: MariaDb) -> None:
    source = source_of(shop.options("customers"))
    held = snapshot(source, starts(source))
    shop.execute("INSERT INTO visits VALUES (1, 'a', 1)")
    end = starts(source)
    follow(source, held, lambda h: _gtids(h.positions) == _gtids(end))
    assert not held.kinds


def test_a_bad_row_stops_before_its_transaction_or_is_left_out(shop: MariaDb) -> None:
    shop.execute("INSERT INTO customers VALUES (1, 'a', 'de'), (2, 'b', 'de'), (3, 'c', 'de')")
    strict = source_of(shop.options("customers"), id="smallint")
    lenient = source_of(shop.options("customers", on_error="dead_letter"), name="jsonb")
    held = snapshot(strict, starts(strict))
    letters = snapshot(lenient, starts(lenient))
    assert len(letters.rejected) == 3
    shop.execute("INSERT INTO customers VALUES (4, '{}', 'de')")
    with shop.transaction():
        shop.execute("INSERT INTO customers VALUES (5, '[]', 'de')")
        shop.execute("INSERT INTO customers VALUES (70000, '[]', 'de')")
    error = error_of(strict, held)
    assert error.code == "source.bad_record" and "out of range" in error.detail
    assert 4 in {row[0] for row in held.rows["customers"]}
    assert 5 not in {row[0] for row in held.rows["customers"]}
    follow(lenient, letters, lambda h: len(h.rows.get("customers", ())) == 3)
    shop.execute("UPDATE customers SET name = 'no json' WHERE id = 5")
    follow(lenient, letters, lambda h: len(h.rejected) == 4)
    assert letters.rows == rows_now(lenient)
    # A repaired row comes back with its dead letter's retry, another one stays.
    shop.execute("UPDATE customers SET name = '1' WHERE id = 1")
    (relation,) = lenient.relations()
    rejected = snapshot(lenient, starts(lenient))
    batch = lenient.decode_again(relation, _letters(letters))
    letters.add(batch)
    assert {row[0] for row in letters.rows["customers"]} == {1, 4, 70000}
    assert len(rejected.rejected) == 3


def _letters(held: Held) -> Any:
    from connectors.feed_source import REJECTED_KINDS
    from dataflow.delta import Delta

    return Delta.of(REJECTED_KINDS, held.rejected, 1)


def test_compressed_events_are_read(shop: MariaDb) -> None:
    source = source_of(shop.options("customers"))
    held = snapshot(source, starts(source))
    shop.execute("SET GLOBAL log_bin_compress = ON")
    try:
        values = ", ".join(f"({i}, 'the same name', 'de')" for i in range(200))
        shop.execute(f"INSERT INTO customers VALUES {values}")
        shop.execute("UPDATE customers SET name = 'another name of the same length'")
        shop.execute(f"ALTER TABLE customers ADD COLUMN x int COMMENT '{'x' * 500}'")
        shop.execute("DELETE FROM customers WHERE id > 100")
    finally:
        shop.execute("SET GLOBAL log_bin_compress = OFF")
    follow(source, held, is_equal(rows_now(source)))
    assert len(held.kinds) == 200 + 200 + 99


def test_a_reader_that_the_server_ends_is_temporary(shop: MariaDb) -> None:
    source = source_of(shop.options("customers"))
    held = snapshot(source, starts(source))
    shop.execute("INSERT INTO customers VALUES (1, 'a', 'de')")
    feed = source.open_feed(source.relations(), dict(held.positions), {}, lambda: None)
    deadline = time.monotonic() + 60
    try:
        with pytest.raises(TemporaryError) as raised:
            while time.monotonic() < deadline:
                feed.poll(10)
                for number, command in shop.rows(
                    "SELECT ID, COMMAND FROM information_schema.PROCESSLIST"
                ):
                    if command == "Binlog Dump":
                        with contextlib.suppress(pymysql.Error):
                            shop.execute(f"KILL {number}")
                time.sleep(0.02)
    finally:
        feed.close()
    assert raised.value.code == "source.unreachable"


def test_a_log_that_was_purged_is_refused(shop: MariaDb) -> None:
    source = source_of(shop.options("customers"))
    held = snapshot(source, starts(source))
    shop.execute("INSERT INTO customers VALUES (1, 'a', 'de')")
    shop.execute("FLUSH BINARY LOGS")
    newest = shop.rows("SHOW MASTER STATUS")[0][0]
    shop.execute("INSERT INTO customers VALUES (2, 'a', 'de')")
    deadline = time.monotonic() + 60
    while shop.rows("SHOW BINARY LOGS")[0][0] != newest:
        # A file stays while the thread of an ended reader has not noticed that.
        assert time.monotonic() < deadline
        shop.execute(f"PURGE BINARY LOGS TO '{newest}'")
        time.sleep(0.05)
    for gtids in (held.positions["customers"]["gtids"], ""):
        held.positions["customers"]["gtids"] = gtids
        error = error_of(source, held)
        assert (error.code, str(error.relation)) == ("mysql.log_gone", "shop.customers")
    with pytest.raises(TidemarkError) as raised:
        snapshot(source, held.positions)
    assert raised.value.code == "mysql.log_gone"


def test_a_snapshot_is_of_its_position_whenever_it_is_read(shop: MariaDb) -> None:
    """Random changes between the position and the reading, of both kinds of tables."""
    seed = count("TIDEMARK_TEST_SEED", 7, random.randrange(10**6))
    pick = random.Random(seed)
    both = source_of(shop.options("customers", "visits"))
    shop.execute("INSERT INTO customers SELECT seq, concat('n', seq), 'de' FROM seq_1_to_300")
    shop.execute("INSERT INTO visits SELECT seq % 40, 'p', seq % 3 FROM seq_1_to_300")
    for _ in range(count("TIDEMARK_TEST_ROUNDS", 2, 12)):
        before, expected = starts(both), rows_now(both)
        for _ in range(pick.randint(1, 25)):
            _change(shop, pick)
        held = snapshot(both, before, count=pick.randint(1, 4))
        assert held.rows == expected, f"TIDEMARK_TEST_SEED={seed}"
        follow(both, held, is_equal(rows_now(both)))


@pytest.mark.parametrize("table", ["customers", "visits"])
def test_a_table_rebuilt_since_the_snapshot_is_read_again(
    shop: MariaDb, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    """A snapshot of the server does not show a table that was rebuilt after its begin."""
    source = source_of(shop.options(table))
    shop.execute("INSERT INTO customers VALUES (1, 'n', 'de'), (2, 'm', 'fr')")
    shop.execute("INSERT INTO visits VALUES (1, 'p', 3), (1, 'p', 3)")
    before, expected = starts(source), rows_now(source)
    scan = TableReader.scan

    def rebuilt(reader: TableReader, condition: str = "") -> Any:
        shop.execute(f"ALTER TABLE {table} FORCE")
        return scan(reader, condition)

    with monkeypatch.context() as patched, pytest.raises(TemporaryError) as raised:
        patched.setattr(TableReader, "scan", rebuilt)
        snapshot(source, before)
    assert raised.value.code == "source.busy" and "1412" in raised.value.detail
    assert snapshot(source, before).rows == expected


def test_a_large_table_is_read_by_ranges_of_its_key(
    shop: MariaDb, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("connectors.mysql.snapshot.PART_ROWS", 50)
    source = source_of(shop.options("customers"))
    shop.execute(
        "INSERT INTO customers SELECT cast(seq AS int) * 3 - 500, 'a', 'de' FROM seq_1_to_400"
    )
    shop.execute("ANALYZE TABLE customers")
    before, (relation,) = starts(source), source.relations()
    expected = rows_now(source)
    opened = source.open_snapshot(source.relations(), before, {})
    names = [part.name for part in opened.parts(relation, [0, 1, 2], 4)]
    assert len(names) == 4
    shop.execute("UPDATE customers SET id = id + 600 WHERE id % 2 = 0 ORDER BY id DESC")
    shop.execute("DELETE FROM customers WHERE id < 0")
    # Cut again as it was before, though the table is another now.
    again = opened.parts(relation, [0, 1, 2], 9, names)
    assert [part.name for part in again] == names
    held = Held()
    for part in again:
        # Another process reads it.
        for delta in pickle.loads(pickle.dumps(part)).read():
            held.add_snapshot(relation, delta)
    assert held.rows == expected


def _change(shop: MariaDb, pick: random.Random) -> None:
    id, other = pick.randint(1, 330), pick.randint(1, 330)
    shop.execute(
        pick.choice(
            (
                f"REPLACE INTO customers VALUES ({id}, 'r{other}', 'fr')",
                f"DELETE FROM customers WHERE id BETWEEN {id} AND {id + 3}",
                f"UPDATE customers SET name = 'u{other}' WHERE id BETWEEN {id} AND {id + 9}",
                f"UPDATE IGNORE customers SET id = {other} WHERE id = {id}",
                f"INSERT INTO visits VALUES ({id % 40}, 'p', {other % 3})",
                f"UPDATE visits SET cost = cost + 1 WHERE customer = {id % 40}",
                f"DELETE FROM visits WHERE customer = {id % 40} LIMIT 3",
            )
        )
    )


def test_offsets_order_positions_of_one_server() -> None:
    early, late = LogPosition("log.000009", 99), LogPosition("log.000010", 4)
    assert late.has(early, None) and not early.has(late, None)
