"""Oracle: after which of the writer's transactions a view is, which its rows name at any moment;
and PostgreSQL's counters of reads, which say whether a table was read again.

The master is local[2], as in test_on_spark.py.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from connectors.kafka.embedded import EmbeddedKafka
from storage.failpoints import REACHED
from tests.harness.broker import new_topic, send
from tests.harness.failpoints import arm
from tests.harness.postgres import Database
from tests.harness.prefix_writer import (
    FULL,
    LARGEST,
    REGIONS,
    SCHEMA,
    PrefixReader,
    PrefixWriter,
)
from tests.harness.service import RunningService
from tests.harness.tiers import is_fast

pytestmark = [
    pytest.mark.skipif(shutil.which("java") is None, reason="no Java here, Spark needs it"),
    pytest.mark.timeout(600),
]
SETTINGS = {"spark": "local[2]", "spark_buckets": 2}
FURTHER = 5 if is_fast() else 15


def scans(database: Database) -> list[tuple]:
    """How often each table was read from its beginning."""
    database.rows("SELECT pg_stat_clear_snapshot()")
    return database.rows(
        "SELECT relname, seq_scan FROM pg_stat_user_tables"
        " WHERE relname IN ('orders', 'customers') ORDER BY 1"
    )


def move(service: RunningService, view: str, runtime: str) -> dict[str, Any]:
    """Change the runtime of a view, and wait until its new group has it."""
    answer = service.call("POST", f"/views/{view}/runtime?wait_s=120", {"runtime": runtime})
    assert answer.status_code == 200, f"{answer.text}\n{service.log_tail()}"
    found = answer.json()
    assert found["options"]["runtime"] == runtime and found["replacing"] is None, found
    return found


def groups_of(database: Database) -> tuple[set[str], set[str]]:
    """What slots and progress rows there are."""
    slots = database.rows(
        "SELECT slot_name FROM pg_replication_slots"
        " WHERE database = current_database() AND NOT temporary"
    )
    keys = database.rows("SELECT sink_key FROM tidemark.progress")
    return {name for (name,) in slots}, {key for (key,) in keys}


def require_only(service: RunningService, database: Database, *groups: str) -> None:
    """Wait until these groups, and nothing of others, are left."""
    wanted = {f"tidemark/{group}" for group in groups} | {"tidemark"}

    def are_only() -> bool:
        slots, keys = groups_of(database)
        folders = {p.name for p in (service.state / "groups").glob("*")}
        return len(slots) == len(keys) == len(wanted) and keys == wanted and folders == {*groups}

    service.await_so(are_only)
    assert not (service.state / "moves").exists()
    names = {name for (name,) in database.rows("SELECT name FROM tidemark.sources")}
    assert names == {"source", *(f"source/{group}" for group in groups)}
    owners = {key for (key,) in database.rows("SELECT sink_key FROM tidemark.owners")}
    assert owners <= wanted


@pytest.mark.parametrize(
    ("identity", "query"),
    [
        ("", REGIONS),
        pytest.param(FULL, REGIONS, marks=pytest.mark.whole),
        pytest.param("", LARGEST, marks=pytest.mark.whole),
    ],
    ids=["join", "full", "limit"],
)
def test_a_view_moves_there_and_back(
    identity: str, query: str, database: Database, tmp_path: Path
) -> None:
    database.execute(SCHEMA + identity)
    with RunningService(database.dsn, tmp_path, **SETTINGS) as service:
        service.create("other", "SELECT customer, count(*) AS n FROM orders GROUP BY customer")
        service.create("moved", query, backfill="local")
        with (
            PrefixWriter(database, 3) as writer,
            PrefixReader(database, writer, "moved", query) as reader,
        ):
            log = service.log_tail
            reader.await_prefix(FURTHER, 60, log)
            before = scans(database)
            made = move(service, "moved", "spark")
            assert made["group"].startswith("spark") and made["status"] == "live"
            reader.await_prefix(writer.number + FURTHER, 180, log)
            require_only(service, database, made["group"])
            nodes = service.call("GET", "/views/moved/dataflow").json()["nodes"]
            tables = [n["detail"] for n in nodes if n["what"] == "table"]
            assert tables and all(detail.endswith("in 2 buckets") for detail in tables), nodes
            back = move(service, "moved", "local")
            assert back["group"].startswith("local")
            reader.await_prefix(writer.number + FURTHER, 180, log)
            require_only(service, database, back["group"])
            assert scans(database) == before
        assert reader.states > FURTHER
        assert reader.longest_s < 5
        position = database.rows("SELECT pg_current_wal_flush_lsn()::text")[0][0]
        for name in ("moved", "other"):
            service.wait(name, position, timeout_s=60)
            answer = service.call("POST", f"/views/{name}/verify").json()
            assert answer["result"] == "equal", answer
        events = [e["event"] for e in service.events()]
        assert events.count("build.started") == 2
        assert events.count("handover.committed") == events.count("handover.opened") == 2
        service.drop("moved")
        require_only(service, database)


def refused(service: RunningService, view: str, runtime: str) -> str:
    """Return the code of a refusal, which begins nothing."""
    answer = service.call("POST", f"/views/{view}/runtime", {"runtime": runtime})
    assert answer.status_code >= 400, answer.text
    assert not service.call("GET", f"/views/{view}").json().get("replacing")
    return answer.json()["code"]


@pytest.mark.whole
def test_what_is_refused(database: Database, tmp_path: Path) -> None:
    """Everything by name, before anything begins; what has the runtime already stays as it is."""
    database.execute(SCHEMA)
    with RunningService(database.dsn, tmp_path, **SETTINGS) as service:
        service.create("base", REGIONS, backfill="local")
        service.create("above", "SELECT region, n FROM base")
        service.create("still", "SELECT count(*) AS n FROM customers", backfill="local")
        assert refused(service, "base", "spark") == "view.has_children"
        assert refused(service, "above", "spark") == "spark.reads_views"
        assert refused(service, "nosuch", "spark") == "view.not_found"
        assert refused(service, "base", "auto") == "request.invalid"
        same = service.call("POST", "/views/base/runtime?wait_s=5", {"runtime": "local"})
        assert (same.status_code, same.json()["group"]) == (200, "default")
        assert service.call("POST", "/views/still/pause?wait_s=30").status_code == 200
        assert refused(service, "still", "spark") == "view.not_live"
        assert not (service.state / "moves").exists()
        assert not (service.state / "groups").exists()


@pytest.mark.whole
def test_a_cancelled_move_leaves_nothing(database: Database, tmp_path: Path) -> None:
    """The slot of the new group waits for an open transaction; meanwhile nothing else does."""
    database.execute(SCHEMA)
    (points := tmp_path / "points").mkdir()
    with RunningService(database.dsn, tmp_path, failpoints_folder=points, **SETTINGS) as service:
        service.create("moved", REGIONS, backfill="local")
        blocking = database.connect(autocommit=False)
        with (
            PrefixWriter(database, 8) as writer,
            PrefixReader(database, writer, "moved", REGIONS) as reader,
        ):
            with blocking.cursor() as cursor:
                cursor.execute("CREATE TABLE blocking (id integer)")
            asked = service.call("POST", "/views/moved/runtime", {"runtime": "spark"})
            going = asked.json()["replacing"]
            assert asked.status_code == 202, asked.text
            assert (going["kind"], going["runtime"]) == ("move", "spark")
            service.await_so(lambda: (service.state / "moves" / going["group"]).exists())
            again = service.call("POST", "/views/moved/runtime", {"runtime": "spark"})
            assert again.json()["code"] == "view.busy", again.text
            reader.await_prefix(writer.number + FURTHER, 60, service.log_tail)
            # Killed while it is cleaned up, which begins once the attempt has ended.
            arm(points, "view.handover.discarded")
            cancelled = service.call("DELETE", "/views/moved/replace")
            assert cancelled.status_code == 200, cancelled.text
            assert cancelled.json()["replacing"]["status"] == "cancelled"
            blocking.rollback()
            service.await_so(lambda: is_reached(points, "view.handover.discarded"))
            service.await_so(lambda: not (service.state / "moves").exists())
            require_only(service, database)
            reader.await_prefix(writer.number + FURTHER, 60, service.log_tail)
        blocking.close()
        found = service.call("GET", "/views/moved").json()
        assert (found["group"], found["options"]["runtime"]) == ("default", "local")
        publications = database.rows("SELECT pubname FROM pg_publication")
        assert publications == [("tidemark_source",)]


AT_GIVER = tuple(f"view.handover.{what}" for what in ("marked", "prepared", "stored", "committed"))
AT_TAKER = ("view.handover.adopting", "view.handover.adopted")
# An export is an epoch of the driver; the next process finishes it.
AT_EXPORT = ("spark.epoch.fixed",)


@pytest.mark.whole
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "points",
    [AT_GIVER[:2], AT_GIVER[2:], AT_TAKER, AT_EXPORT],
    ids=["prepared", "stored", "taken", "exported"],
)
def test_killed_on_the_way(points: Sequence[str], database: Database, tmp_path: Path) -> None:
    """Whatever is killed on the way there and back: one group has the view, and it moves on."""
    folder = tmp_path / "points"
    folder.mkdir()
    database.execute(SCHEMA)
    with RunningService(database.dsn, tmp_path, failpoints_folder=folder, **SETTINGS) as service:
        service.create("other", LARGEST, backfill="local")
        service.create("moved", REGIONS, backfill="local")
        before = scans(database)
        with (
            PrefixWriter(database, 4) as writer,
            PrefixReader(database, writer, "moved", REGIONS) as reader,
        ):
            for point in points:
                for runtime in ("spark", "local"):
                    is_passed = point not in AT_EXPORT or runtime == "local"
                    if is_passed:
                        arm(folder, point)
                    group = moved_by_force(service, runtime)
                    if is_passed:
                        service.await_so(lambda p=point: is_reached(folder, p), 120)
                    reader.await_prefix(writer.number + FURTHER, 240, service.log_tail)
                    require_only(service, database, group)
            assert scans(database) == before
        events = [e["event"] for e in service.events()]
        assert events.count("build.started") == 2
        assert not {"view.state_lost", "view.failed", "handover.refused"} & {*events}
        answer = service.call("POST", "/views/moved/verify").json()
        assert answer["result"] == "equal", answer


def is_reached(folder: Path, point: str) -> bool:
    """Return whether a failpoint was reached since it was set."""
    path = folder / f"{point}{REACHED}"
    if path.exists():
        path.unlink()
        return True
    return False


def moved_by_force(service: RunningService, runtime: str) -> str:
    """Ask for a runtime until the view has it, whoever is killed; return the group."""
    service.call("POST", "/views/moved/runtime", {"runtime": runtime})

    def is_moved() -> bool:
        found = service.call("GET", "/views/moved").json()
        assert (found["replacing"] or {}).get("status") in (None, "in progress"), found
        return found["options"]["runtime"] == runtime

    service.await_so(is_moved, 240)
    return service.call("GET", "/views/moved").json()["group"]


@pytest.mark.whole
def test_a_topic_goes_along(database: Database, broker: EmbeddedKafka, tmp_path: Path) -> None:
    """Offsets of a topic, what it has sent, and its malformed records."""
    topic = new_topic(broker, partitions=2)
    columns = {"customer": "int4", "amount": "int4", "_partition": "int4", "_offset": "int8"}
    relation = {"topic": topic, "format": "json", "columns": columns, "on_error": "dead_letter"}
    options = {
        "bootstrap_servers": broker.bootstrap,
        "check_ms": 100,
        "topics": {"clicks": relation},
    }
    database.execute(SCHEMA)
    clicks = (
        "SELECT c.region, count(*) AS n, sum(k.amount) AS total FROM shop.clicks k"
        " JOIN customers c ON c.id = k.customer GROUP BY c.region"
    )
    sent: Counter[str] = Counter()

    def produce(count: int) -> None:
        records = [json.dumps({"customer": n % 30, "amount": 1}).encode() for n in range(count)]
        send(broker, topic, [(n % 2, None, r) for n, r in enumerate([*records, b"?"])])
        for n in range(count):
            sent[f"r{n % 30 % 5}"] += 1

    def is_shown() -> bool:
        rows = database.rows("SELECT region, n, total FROM clicked")
        return {(r, n, int(t)) for r, n, t in rows} == {(r, n, n) for r, n in sent.items()}

    with RunningService(database.dsn, tmp_path, **SETTINGS) as service:
        body = {"name": "shop", "type": "kafka", "options": options}
        declared = service.call("POST", "/sources", body)
        assert declared.status_code == 201, declared.text
        produce(100)
        service.create("clicked", clicks, backfill="local")
        letters = 1
        for runtime in ("spark", "local"):
            produce(70)
            service.await_so(is_shown, 180)
            letters += 1
            group = move(service, "clicked", runtime)["group"]
            found = "SELECT count(*) FROM tidemark.dead_letters WHERE sink_key = %s"
            assert database.rows(found, (f"tidemark/{group}",)) == [(letters,)]
            produce(50)
            letters += 1
            service.await_so(is_shown, 180)


@pytest.mark.whole
def test_a_clock_goes_along(database: Database, tmp_path: Path) -> None:
    """From Spark to one process; there rows are freed, which Spark can do without."""
    database.execute("CREATE TABLE seen (id integer PRIMARY KEY, at timestamptz)")
    recent = "SELECT id FROM seen WHERE at > now() - interval '1 minute'"

    def shown() -> list[tuple]:
        return database.rows("SELECT id FROM recent ORDER BY id")

    def stored() -> int:
        nodes = service.call("GET", "/views/recent/dataflow").json()["nodes"]
        return max(n["rows"] for n in nodes if n["what"] == "table" and "seen" in n["detail"])

    with RunningService(database.dsn, tmp_path, **SETTINGS) as service:
        service.create("recent", recent, wait_s=180, runtime="spark", backfill="local")
        database.execute("INSERT INTO seen VALUES (1, now() - interval '1 hour'), (2, now())")
        service.await_so(lambda: shown() == [(2,)], 120)
        assert move(service, "recent", "local")["group"].startswith("local")
        database.execute("INSERT INTO seen VALUES (3, now() + interval '1 hour')")
        # It leaves because time passes.
        service.await_so(lambda: shown() == [(3,)], 180)
        database.execute("UPDATE seen SET at = now() + interval '1 hour' WHERE id = 1")
        service.await_so(lambda: shown() == [(1,), (3,)])
        old = "SELECT n, now() - interval '59 seconds' FROM generate_series(10, 509) n"
        database.execute(f"INSERT INTO seen {old}")
        service.await_so(lambda: shown() == [(1,), (3,)] and stored() < 400, 120)
        assert move(service, "recent", "spark")["group"].startswith("spark")
        database.execute("UPDATE seen SET at = now() + interval '1 hour' WHERE id IN (10, 11)")
        database.execute("UPDATE seen SET id = -id WHERE id = 10")
        database.execute("DELETE FROM seen WHERE id BETWEEN 100 AND 400")
        database.execute("INSERT INTO seen VALUES (100, now() + interval '1 hour')")
        service.await_so(lambda: shown() == [(-10,), (1,), (3,), (11,), (100,)], 180)
        move(service, "recent", "local")
        database.execute("UPDATE seen SET at = now() + interval '1 hour' WHERE id IN (20, 100)")
        database.execute("DELETE FROM seen WHERE id IN (11, 30)")
        service.await_so(lambda: shown() == [(-10,), (1,), (3,), (20,), (100,)], 180)
