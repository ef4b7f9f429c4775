"""A state as an earlier version of the program leaves it: what is in it, and how it is made.

`python -m tests.recovery.older_state FOLDER` runs the service of whatever version this is, and
leaves in FOLDER a state that was killed with epochs that the sink does not have: `state.tar.xz`
and `facts.json`, what source and sink held then. What each version has left lies in
`tests/recovery/states`, made by the last commit that wrote it.
"""

from __future__ import annotations

import json
import shutil
import sys
import tarfile
import time
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from connectors.postgres.embedded.server import EmbeddedPostgres
from connectors.sink import (
    Progress,
    SinkEpoch,
    SinkPart,
    SinkRepair,
    SinkRows,
    SinkTable,
    Swap,
    ViewChange,
    ViewDdl,
)
from dataflow.delta import Delta
from dataflow.errors import Position, SinkError, TemporaryError
from dataflow.schema import Field
from dataflow.types import INT8, TEXT
from service.engine.outbox import Outbox
from storage.rocks import RocksStore
from tests.harness.postgres import SERVER_SETTINGS, Database, new_database, versions_to_test
from tests.harness.service import RunningService

SCHEMA = """
CREATE TABLE people (id int PRIMARY KEY, name text NOT NULL, boss int);
CREATE TABLE orders (id int PRIMARY KEY, person int NOT NULL, region text, amount int NOT NULL);
"""
FUNCTION = """
CREATE FUNCTION shout(text) RETURNS text LANGUAGE plpgsql IMMUTABLE
AS $$ BEGIN RETURN upper($1) || '!'; END $$;
"""
TOTALS = (
    "SELECT p.name, count(*) AS n, sum(o.amount) AS s, max(o.amount) AS most "
    "FROM people p JOIN orders o ON o.person = p.id GROUP BY p.name"
)
# In the order in which they are created.
VIEWS = {
    "joined": "SELECT o.id, p.name, o.amount FROM orders o LEFT JOIN people p ON p.id = o.person",
    "totals": TOTALS,
    "totals_again": TOTALS,
    "above": "SELECT name, s FROM totals WHERE n > 2",
    "ranked": "SELECT id, person, row_number() OVER (PARTITION BY person ORDER BY amount, id) AS r,"
    " sum(amount) OVER (PARTITION BY person ORDER BY id) AS so_far FROM orders",
    "chains": "WITH RECURSIVE c (id, top) AS (SELECT id, id FROM people WHERE boss IS NULL UNION"
    " SELECT p.id, c.top FROM people p JOIN c ON p.boss = c.id) SELECT id, top FROM c",
    "shouted": "SELECT id, shout(name) AS loud FROM people",
    "largest": "SELECT id, amount FROM orders ORDER BY amount DESC, id LIMIT 5",
    "regions": "SELECT DISTINCT region FROM orders WHERE person IN (SELECT id FROM people)"
    " UNION SELECT name FROM people WHERE id < 3 EXCEPT SELECT 'north'",
    "spread": "SELECT o.id, g AS step, CASE WHEN o.amount > 50 THEN 'much' ELSE 'little' END AS how"
    " FROM orders o, generate_series(1, 2) g WHERE o.amount % 7 = 0",
    "beside": "SELECT id, (SELECT max(amount) FROM orders WHERE person = p.id) AS most"
    " FROM people p"
    " WHERE NOT EXISTS (SELECT 1 FROM orders o WHERE o.person = p.id AND o.amount < 3)",
}
# One transaction each: the sink has none of them.
UNSENT = (
    "INSERT INTO orders SELECT i, i * 7 % 34, 'late', i * 37 % 101"
    " FROM generate_series(121, 140) i",
    "DELETE FROM orders WHERE id % 11 = 0",
    "UPDATE people SET boss = 3, name = 'name 1' WHERE id IN (9, 12)",
)
REGIONS = ("north", "south", "east", None)
RENAMED = {"ranked": "placed"}
# Of the state directory; the last one has the epochs that a stream of rows does not bring about.
KEPT = ("version.json", "store", "odd")


def first_rows() -> tuple[list[tuple], list[tuple]]:
    """People and orders before any view is created."""
    people = [(i, f"name {i % 9}", None if i % 5 == 0 else i // 2) for i in range(1, 31)]
    return people, [order(i) for i in range(1, 121)]


def order(number: int) -> tuple:
    """An order by its id."""
    return number, number * 7 % 34, REGIONS[number % 4], number * 37 % 101


def main(folder: Path) -> None:
    """Make the state of this version."""
    folder.mkdir(parents=True, exist_ok=True)
    server = EmbeddedPostgres(versions_to_test()[0], SERVER_SETTINGS)
    with server, new_database(server) as source, new_database(server) as sink:
        _make(source, sink, folder)


def _make(source: Database, sink: Database, folder: Path) -> None:
    people, orders = first_rows()
    source.execute(SCHEMA + FUNCTION)
    _insert(source, people, orders)
    service = RunningService(source.dsn, folder / "service", sink=sink.dsn)
    service.start()
    for name, query in VIEWS.items():
        service.create(name, query, backfill="local")
    source.execute("UPDATE orders SET amount = amount + 1 WHERE id < 20")
    position = source.rows("SELECT pg_current_wal_flush_lsn()::text")[0][0]
    for name in VIEWS:
        service.wait(name, position)
    service.call("POST", "/views/ranked/rename", {"name": "placed"})
    service.await_so(lambda: service.call("GET", "/views/placed").status_code == 200)
    service.await_so(lambda: "renamed" not in service.call("GET", "/views/placed").text)
    lock = sink.connect(autocommit=False)
    lock.cursor().execute("LOCK TABLE totals, joined IN EXCLUSIVE MODE")
    for sql in UNSENT:
        source.execute(sql)
        time.sleep(2)
    facts: dict[str, Any] = {
        "epoch": sink.rows("SELECT epoch FROM tidemark.progress")[0][0],
        "views": {
            RENAMED.get(name, name): sink.rows(f"TABLE {RENAMED.get(name, name)}") for name in VIEWS
        },
        "people": source.rows("TABLE people"),
        "orders": source.rows("TABLE orders"),
    }
    position = source.rows("SELECT pg_current_wal_flush_lsn() - '0/0'")[0][0]
    service.kill()
    lock.close()
    _check(service.state, folder / "copy", facts["epoch"], position)
    _add_odd_epochs(service.state / "odd")
    (folder / "facts.json").write_text(json.dumps(facts))
    with tarfile.open(folder / "state.tar.xz", "w:xz") as archive:
        archive.add(service.state, "state", filter=_plain)


def _check(state: Path, copy: Path, epoch: int, position: int) -> None:
    """What the source has committed is in the state, and the sink lacks all of it."""
    shutil.copytree(state, copy)
    store = RocksStore(copy / "store")
    progress = json.loads(store.get("progress") or b"")
    store.close()
    assert progress["epoch"] == epoch + len(UNSENT), progress
    assert 0 <= position - progress["positions"]["source"] < 1 << 20, progress


def _insert(database: Database, people: list[tuple], orders: list[tuple]) -> None:
    for table, rows in (("people", people), ("orders", orders)):
        for row in rows:
            places = ", ".join(["%s"] * len(row))
            database.execute(f"INSERT INTO {table} VALUES ({places})", row)


def _plain(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Only the version and the stores, without what is the machine's or written for people."""
    parts = Path(entry.name).parts[1:]
    if parts and (parts[0] not in KEPT or parts[-1].startswith("LOG")):
        return None
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


# --- epochs with all that one may have ------------------------------------------------------------


def odd_table(name: str) -> SinkTable:
    """A table of the epochs below."""
    return SinkTable("public", name, (Field("id", INT8, False), Field("t", TEXT)), (0,))


def odd_epochs() -> list[SinkEpoch]:
    """Epochs with everything that a stream of rows does not bring about."""
    one, two = odd_table("one"), odd_table("two")
    rows = Delta.of("is", [(1, "a"), (2, None)], [1, -1])
    errors = Delta.of("sssss", [("public.one", "03.project", "22012", "division by zero", "(1)")])
    rejected = Delta.of("sssssss", [("k", "t", "0:17", "record.bad", "why", b"\xff", None)], -1)
    refused = SinkError("sink.failed", "it is full", detail="d", hint="h", relation=one.relation)
    away = TemporaryError("sink.unreachable", "away", position=Position(3, 9))
    facts = {
        "live_at": datetime(2026, 11, 25, 18, 30, 1, 5, UTC),
        "key": ["id"],
        "plan": {"a": 1.5},
    }
    positions = {"source": 77, "topics": {"t": {"0": 12, "1": 3}}}
    parts = [SinkPart([(one, rows), (two, rows)], errors), SinkPart([(one, rows)])]
    return [
        SinkEpoch(Progress(1, {}), commit_time_us=5),
        SinkEpoch(
            Progress(2, positions),
            SinkRows([(one, rows)], errors, rejected),
            commit_time_us=1_764_000_000_000_000,
        ),
        SinkEpoch(
            Progress(3, positions),
            SinkRows(left_out=frozenset({two.relation})),
            ViewDdl(
                changes=(ViewChange("i", one, two, facts, True, "live", "c"),),
                swaps=(Swap(one, "token"), Swap(two)),
                refusals=((one, refused), (two, away)),
            ),
        ),
        SinkEpoch(Progress(4, positions), repair=SinkRepair(2, frozenset({"a", "b"}), "g", True)),
        SinkEpoch(Progress(5, positions), SinkRows([(two, rows)], later=_Parts(parts))),
    ]


class _Parts:
    """Parts that an epoch has later."""

    def __init__(self, parts: list[SinkPart]) -> None:
        self._parts = parts
        self.rows: dict[SinkTable, int] = {}
        for table, delta in (pair for part in parts for pair in part.deltas):
            self.rows[table] = self.rows.get(table, 0) + len(delta)

    def __iter__(self) -> Any:
        return iter(self._parts)

    def close(self) -> None:
        """Nothing to give back."""


def shown(epoch: SinkEpoch) -> dict[str, Any]:
    """An epoch in values that can be compared, with those of its later parts."""
    rows, ddl = epoch.rows, epoch.ddl
    parts = None if rows.later is None else [_shown_part(part) for part in rows.later]
    return {
        **{f.name: getattr(epoch, f.name) for f in fields(epoch) if f.name not in ("rows", "ddl")},
        "deltas": [(table, delta.rows()) for table, delta in rows.deltas],
        "errors": None if rows.errors is None else rows.errors.rows(),
        "rejected": None if rows.rejected is None else rows.rejected.rows(),
        "later": None if rows.later is None else (parts, dict(rows.later.rows)),
        "left_out": rows.left_out,
        "changes": ddl.changes,
        "swaps": ddl.swaps,
        "refusals": [(table, type(e), vars(e)) for table, e in ddl.refusals],
    }


def _shown_part(part: SinkPart) -> tuple[Any, Any]:
    errors = None if part.errors is None else part.errors.rows()
    return [(table, delta.rows()) for table, delta in part.deltas], errors


def _add_odd_epochs(path: Path) -> None:
    store = RocksStore(path / "store")
    outbox = Outbox(store)
    for epoch in odd_epochs():
        outbox.put(epoch)
        store.commit(sync=True)
    store.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
