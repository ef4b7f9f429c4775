"""Oracle: the tables' own rows by a query; and for orders of changes, what was executed."""

from __future__ import annotations

import itertools
import random
import time

import pytest

from connectors.postgres.remote import source as remote
from tests.connectors.postgres_source.reading import (
    Held,
    error_of,
    follow,
    is_equal,
    made,
    options_of,
    source_of,
)
from tests.harness.postgres import Database, new_database
from tests.harness.proxy import Fault, Proxy
from tests.harness.tiers import count

SEED = 5
CUTS = count("TIDEMARK_TEST_FAULTS", 1, 20)
# How rows are identified -> (statement after CREATE TABLE, whether the relation has a key).
IDENTITIES = {
    "default": ("ALTER TABLE items ADD PRIMARY KEY (id)", True),
    "index": (
        "CREATE UNIQUE INDEX by_code ON items (code); "
        "ALTER TABLE items REPLICA IDENTITY USING INDEX by_code",
        True,
    ),
    "full": (
        "ALTER TABLE items ADD PRIMARY KEY (id); ALTER TABLE items REPLICA IDENTITY FULL",
        True,
    ),
    "full without a key": ("ALTER TABLE items REPLICA IDENTITY FULL", False),
}
GENERATED = "doubled int GENERATED ALWAYS AS (id * 2) STORED, "
ITEMS = (
    "CREATE TYPE mood AS ENUM ('sad', 'ok'); "
    "CREATE DOMAIN cents AS numeric(8,2) CHECK (value >= 0); "
    "CREATE TABLE items (id int NOT NULL, code text NOT NULL, price cents, feeling mood, "
    f"note text, {GENERATED}tags int[], at timestamptz);"
    "ALTER TABLE items ALTER note SET STORAGE EXTERNAL"
)
FILL = (
    "INSERT INTO items (id, code, price, feeling, note, tags, at) "
    "SELECT n, 'c' || n, n / 4.0, 'ok', repeat('x', 3000 * (n % 3)), ARRAY[n, NULL], "
    "'2024-01-01' FROM generate_series({0}, {1}) n"
)


@pytest.mark.parametrize("identity", IDENTITIES)
def test_every_kind_of_change(database: Database, identity: str) -> None:
    statement, has_key = IDENTITIES[identity]
    # PostgreSQL 18 lets nobody change such a table that has generated columns.
    items = ITEMS if "full" not in identity else ITEMS.replace(GENERATED, "")
    database.execute(f"{items}; {statement}; {FILL.format(1, 30)}")
    source = source_of(database, "public.items")
    (relation,) = source.relations()
    assert bool(relation.key) is has_key
    # Generated columns are not sent: they are not proposed.
    names = [f.name for f in relation.fields]
    assert names == ["id", "code", "price", "feeling", "note", "tags", "at"]
    held = Held(source).start()
    assert is_equal(held)
    database.execute(
        "UPDATE items SET price = price + 1 WHERE id % 2 = 0; "  # keeps values outside of the row
        "UPDATE items SET id = id + 100, code = 'd' || id WHERE id % 5 = 0; "
        "UPDATE items SET note = NULL, feeling = 'sad' WHERE id % 7 = 0; "
        "DELETE FROM items WHERE id IN (3, 105); "
        f"{FILL.format(200, 210)}"
    )
    follow(held, is_equal)
    database.execute(f"TRUNCATE items; {FILL.format(1, 3)}")
    database.execute("UPDATE items SET price = 9 WHERE id = 2")
    follow(held, is_equal)
    assert sum(held.rows["items"].values()) == 3


def test_transactions_come_whole_and_none_twice(database: Database) -> None:
    database.execute(f"{ITEMS}; ALTER TABLE items ADD PRIMARY KEY (id)")
    held = Held(source_of(database, "public.items")).start()
    connection = database.connect(autocommit=False)
    with connection.cursor() as cursor:
        cursor.execute(FILL.format(1, 3))
        cursor.execute("SAVEPOINT s")
        cursor.execute(FILL.format(4, 4))
        cursor.execute("ROLLBACK TO SAVEPOINT s")
        cursor.execute("UPDATE items SET price = 5 WHERE id = 1")
    connection.commit()
    connection.close()
    database.execute("DELETE FROM items WHERE id = 2")
    follow(held, is_equal, max_rows=1)
    sizes = [batch.rows for batch in held.batches if batch.rows]
    assert sizes == [4, 1]
    # Another feed from the same positions has nothing that was there before.
    before = len(held.batches)
    database.execute("DELETE FROM items WHERE id = 3")
    follow(held, is_equal)
    assert sum(batch.rows for batch in held.batches[before:]) == 1


def test_a_large_transaction_comes_in_parts_of_one_batch(database: Database) -> None:
    database.execute(f"{ITEMS}; ALTER TABLE items ADD PRIMARY KEY (id)")
    source = source_of(database, "public.items", buffer_bytes=1 << 16)
    held = Held(source).start()
    database.execute(
        "INSERT INTO items (id, code) SELECT n, 'c' || n FROM generate_series(1, 25000) n"
    )
    follow(held, lambda h: sum(h.rows["items"].values()) == 25_000)
    (batch,) = (one for one in held.batches if one.transactions)
    assert batch.rows == 25_000 and batch.later is not None


def test_relations_begin_at_their_own_positions(database: Database) -> None:
    database.execute("CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY)")
    source = source_of(database, "public.a", "public.b")
    first, second = source.relations()
    held = Held(source)
    start = source.start_position(first)
    held.positions["a"], held.notes = start.position, {**start.notes}
    database.execute("INSERT INTO a VALUES (1); INSERT INTO b VALUES (1)")
    later = source.start_position(second)
    held.positions["b"] = later.position
    held.notes.update(later.notes)
    database.execute("INSERT INTO a VALUES (2); INSERT INTO b VALUES (2)")
    follow(held, lambda h: h.rows["a"] == {(1,): 1, (2,): 1} and h.rows["b"] == {(2,): 1})
    # No batch has changes from both sides of the later beginning.
    order = source.order_of(later.position)
    ends = [min(map(source.order_of, (b.positions or {}).values())) for b in held.batches]
    assert any(end <= order for end in ends)


def test_confirmed_only_what_is_durable(database: Database) -> None:
    database.execute("CREATE TABLE a (id int PRIMARY KEY)")
    source = source_of(database, "public.a")
    held = Held(source).start()
    confirmed = _confirmed(database)
    database.execute("INSERT INTO a VALUES (1)")
    follow(held, is_equal)
    assert _confirmed(database) == confirmed
    database.execute("INSERT INTO a VALUES (2)")
    follow(held, is_equal, is_durable=True)
    _await(lambda: _confirmed(database) != confirmed)
    # A write elsewhere on the server moves an idle source: nothing is retained for it.
    with new_database(database.server) as elsewhere:
        elsewhere.execute("CREATE TABLE busy AS SELECT generate_series(1, 1000) n")
        target = int(database.rows("SELECT pg_current_wal_lsn() - '0/0'")[0][0])
        follow(held, lambda h: h.order >= target, is_durable=True)
    # State that is older than what was confirmed is refused.
    held.positions["a"] = {**held.positions["a"], "lsn": confirmed}
    assert error_of(held).code == "source.slot_advanced"


def test_until_is_never_passed(database: Database) -> None:
    database.execute("CREATE TABLE a (id int PRIMARY KEY)")
    held = Held(source_of(database, "public.a")).start()
    for number in range(6):
        database.execute(f"INSERT INTO a VALUES ({number})")
    follow(held, lambda h: sum(h.rows["a"].values()) == 3, max_rows=1)
    again = Held(held.source)
    again.positions = {"a": _start_of(held)}
    again.notes = held.notes
    until = dict(held.positions)
    order = held.order
    follow(again, lambda h: h.order == order, until=until)
    assert again.order == order


def test_cut_connections(database: Database) -> None:
    pick = random.Random(SEED)
    database.execute(f"{ITEMS}; ALTER TABLE items ADD PRIMARY KEY (id)")
    with Proxy(database.server.port) as proxy:
        options = {**options_of(database, "public.items"), "port": proxy.port}
        source = made(database, remote.discover(options))
        held = Held(source).start()
        for number in range(CUTS):
            database.execute(FILL.format(100 * number, 100 * number + 50))
            database.execute(f"DELETE FROM items WHERE id % {pick.randint(2, 9)} = 0")
            proxy.begin(Fault.draw(pick, ("cut", "reset")))
            _follow_through(held, proxy)
        assert is_equal(held)


def _follow_through(held: Held, proxy: Proxy) -> None:
    """Follow with new feeds, as the service does, until the rows are equal; heal after a fault."""
    for attempt in itertools.count():
        try:
            follow(held, is_equal, is_durable=True)
            proxy.heal()
            return
        except Exception as error:
            if not getattr(error, "is_temporary", False) or attempt > 50:
                raise
            proxy.heal()


def _start_of(held: Held) -> dict[str, object]:
    return {**held.positions["a"], "lsn": _lsn_text(held.snapshot_order)}


def _lsn_text(order: int) -> str:
    return f"{order >> 32:X}/{order & 0xFFFFFFFF:X}"


def _confirmed(database: Database) -> str:
    ((found,),) = database.rows(
        "SELECT confirmed_flush_lsn::text FROM pg_replication_slots "
        "WHERE database = current_database() AND slot_type = 'logical' AND NOT temporary"
    )
    return found


def _await(is_done) -> None:
    deadline = time.monotonic() + 60
    while not is_done():
        assert time.monotonic() < deadline
        time.sleep(0.05)
