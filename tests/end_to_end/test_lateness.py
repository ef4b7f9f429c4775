"""Oracle: PostgreSQL's answer over the rows that a view promises to have, by hand and by verify."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from connectors.kafka.embedded import EmbeddedKafka
from connectors.postgres.embedded.server import EmbeddedPostgres
from tests.harness.broker import drop_topic, new_topic, send
from tests.harness.postgres import Database, new_database
from tests.harness.service import RunningService
from tests.harness.tiers import is_fast

PER_MINUTE = (
    "SELECT date_bin('1 minute', at, 'epoch') AS minute, count(*) AS n, sum(amount) AS total"
    " FROM {table} GROUP BY 1"
)
LATENESS = "10 seconds"
# Three ends within a minute make every view degraded for as long.
KILLS = 1 if is_fast() else 3


@pytest.fixture(scope="module")
def database(postgres: EmbeddedPostgres) -> Iterator[Database]:
    with new_database(postgres) as made:
        yield made


@pytest.fixture(scope="module")
def service(
    database: Database, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningService]:
    with RunningService(database.dsn, tmp_path_factory.mktemp("service")) as started:
        yield started


def _table(database: Database, name: str) -> str:
    database.execute(
        f"CREATE TABLE {name} (id integer PRIMARY KEY, at timestamptz, amount integer NOT NULL)"
    )
    return name


def _insert(database: Database, table: str, *rows: tuple[int, str | None, int]) -> None:
    """rows: (id, "minute:second" of one hour of 2024, amount)."""
    for number, at, amount in rows:
        stamp = None if at is None else f"2024-05-01 12:{at}+00"
        database.execute(f"INSERT INTO {table} VALUES (%s, %s, %s)", (number, stamp, amount))


def _create(service: RunningService, table: str, **options: Any) -> None:
    lateness = {f"{table}.at": LATENESS}
    name = f"{table}_minutes"
    service.create(name, PER_MINUTE.format(table=table), lateness=lateness, **options)


def _mark(database: Database, table: str) -> str | None:
    """The watermark as "minute:second"."""
    sql = (
        "SELECT to_char(watermark AT TIME ZONE 'UTC', 'MI:SS') FROM tidemark.watermarks"
        " WHERE name = %s"
    )
    found = database.rows(sql, (f"{table}_minutes",))
    return found[0][0] if found else None


def _await_mark(service: RunningService, database: Database, table: str, mark: str) -> None:
    service.await_so(lambda: _mark(database, table) == mark)


def _late(database: Database, table: str) -> list[tuple[str, str, str, int]]:
    sql = (
        'SELECT "column", outcome, source_row, count::int FROM tidemark.late_rows'
        " WHERE name = %s ORDER BY source_row"
    )
    return database.rows(sql, (f"{table}_minutes",))


def _settle(service: RunningService, database: Database, table: str) -> None:
    position = database.rows("SELECT pg_current_wal_flush_lsn()::text")[0][0]
    service.wait(f"{table}_minutes", position)


def _verify(service: RunningService, table: str) -> dict[str, Any]:
    found = service.call("POST", f"/views/{table}_minutes/verify").json()
    assert found.get("result") == "equal", found
    return found


def test_applied_stays_postgresqls_answer(service: RunningService, database: Database) -> None:
    table = _table(database, "applied")
    _insert(database, table, (1, "00:30", 1), (2, "05:00", 2))
    _create(service, table)
    _await_mark(service, database, table, "04:50")
    # Not late: promised. Late: older than the watermark. Unknown: NULL.
    _insert(database, table, (3, "04:55", 4), (4, "00:40", 8), (5, None, 16))
    _settle(service, database, table)
    assert _late(database, table) == [
        ("applied.at", "applied", '(4,"2024-05-01 12:00:40+00",8)', 1)
    ]
    # New versions of old rows are not late, nor are deletions.
    database.execute("UPDATE applied SET amount = 32 WHERE id = 1")
    database.execute("DELETE FROM applied WHERE id = 4")
    _settle(service, database, table)
    assert len(_late(database, table)) == 1
    assert _verify(service, table)["left_out"] == 0


def test_dead_letter_leaves_late_rows_out(service: RunningService, database: Database) -> None:
    table = _table(database, "dead")
    _insert(database, table, (1, "00:30", 1), (2, "05:00", 2))
    _create(service, table, late="dead-letter")
    _await_mark(service, database, table, "04:50")
    _insert(database, table, (3, "04:55", 4), (4, "00:40", 8), (5, "01:00", 16), (6, "00:41", 32))
    database.execute("UPDATE dead SET amount = 64 WHERE id = 1")
    _settle(service, database, table)
    minutes = "SELECT to_char(minute AT TIME ZONE 'UTC', 'MI'), n::int, total::int"
    query = f"{minutes} FROM dead_minutes ORDER BY 1"
    assert database.rows(query) == [("00", 1, 64), ("04", 1, 4), ("05", 1, 2)]
    assert [row[1:3] for row in _late(database, table)] == [
        ("left out", '(4,"2024-05-01 12:00:40+00",8)'),
        ("left out", '(5,"2024-05-01 12:01:00+00",16)'),
        ("left out", '(6,"2024-05-01 12:00:41+00",32)'),
    ]
    assert _verify(service, table)["left_out"] == 3
    # A row left out may go, change its time so that it counts, or stay late.
    database.execute("DELETE FROM dead WHERE id = 4")
    database.execute("UPDATE dead SET at = '2024-05-01 12:05:10+00' WHERE id = 5")
    database.execute("UPDATE dead SET amount = 33 WHERE id = 6")
    _settle(service, database, table)
    assert [row[2] for row in _late(database, table)] == ['(6,"2024-05-01 12:00:41+00",33)']
    assert database.rows(query) == [("00", 1, 64), ("04", 1, 4), ("05", 2, 18)]
    assert _verify(service, table)["left_out"] == 1
    warnings = service.call("GET", "/views/dead_minutes").json()["warnings"]
    assert any("late rows are left out" in warning for warning in warnings), warnings


def test_error_fails_the_view_alone(service: RunningService, database: Database) -> None:
    table, other = _table(database, "failing"), _table(database, "beside")
    for name in (table, other):
        _insert(database, name, (1, "05:00", 1))
    _create(service, table, late="error")
    _create(service, other)
    _await_mark(service, database, table, "04:50")
    _await_mark(service, database, other, "04:50")
    for name in (table, other):
        _insert(database, name, (2, "00:00", 1))
    view = service.await_status("failing_minutes", "failed")
    assert view["error"]["code"] == "view.late_row"
    _settle(service, database, other)
    _verify(service, other)
    # A rebuild takes every row: the table is the truth.
    assert service.call("POST", "/views/failing_minutes/rebuild").status_code < 300
    service.await_status("failing_minutes")
    _verify(service, table)


@pytest.mark.parametrize("emptied", ["TRUNCATE {0}", "DELETE FROM {0}"])
def test_a_reloaded_table_has_no_late_rows(
    service: RunningService, database: Database, emptied: str
) -> None:
    """In one transaction, whose deletions and insertions come in several parts."""
    table = _table(database, "reloaded_" + emptied.split()[0].lower())
    rows = (
        "SELECT i, timestamptz '2024-05-01 12:00+00' + i * interval '1 second', 1"
        " FROM generate_series(1, 3000) i"
    )
    database.execute(f"INSERT INTO {table} {rows}")
    _create(service, table, late="error")
    _await_mark(service, database, table, "49:50")
    database.execute(f"{emptied.format(table)}; INSERT INTO {table} {rows}")
    _settle(service, database, table)
    assert _verify(service, table)["left_out"] == 0
    # What was never there is late all the same.
    _insert(database, table, (4000, "00:01", 1))
    service.await_status(f"{table}_minutes", "failed")


def test_the_watermark_never_goes_back(service: RunningService, database: Database) -> None:
    table = _table(database, "back")
    _insert(database, table, (1, "05:00", 1), (2, "03:00", 1))
    _create(service, table)
    _await_mark(service, database, table, "04:50")
    database.execute("DELETE FROM back WHERE id = 1")
    database.execute("INSERT INTO back VALUES (3, 'infinity', 1), (4, NULL, 1)")
    _settle(service, database, table)
    # From the future: it does not move the watermark beyond the clock.
    database.execute("INSERT INTO back VALUES (5, now() + interval '10 years', 1)")
    service.await_so(lambda: _mark(database, table) != "04:50")
    sql = "SELECT watermark < now() FROM tidemark.watermarks WHERE name = 'back_minutes'"
    assert database.rows(sql) == [(True,)]
    _verify(service, table)


def test_least_of_partitions_and_idle_time_out(service: RunningService, database: Database) -> None:
    database.execute("CREATE TABLE parts (id integer PRIMARY KEY, part text, at timestamptz)")

    def insert(number: int, part: str, at: str) -> None:
        sql = "INSERT INTO parts VALUES (%s, %s, %s)"
        database.execute(sql, (number, part, f"2024-05-01 12:{at}+00"))

    insert(1, "a", "05:00")
    insert(2, "b", "02:00")
    service.create(
        "parts_minutes",
        "SELECT part, count(*) AS n FROM parts GROUP BY part",
        lateness={"parts.at": LATENESS},
        lateness_by={"parts.at": "part"},
        idle_timeout_s=4,
    )
    _await_mark(service, database, "parts", "01:50")
    insert(3, "a", "06:00")
    # b is silent for longer than the time-out, while a continues.
    numbers = iter(range(10, 1000))

    def is_passed() -> bool:
        number = next(numbers)
        insert(number, "a", f"07:00.{number:03d}")
        return _mark(database, "parts") == "06:50"

    service.await_so(is_passed)
    _verify(service, "parts")


def test_a_restart_forgets_nothing(service: RunningService, database: Database) -> None:
    table = _table(database, "again")
    _insert(database, table, (1, "05:00", 1))
    _create(service, table, late="dead-letter")
    _await_mark(service, database, table, "04:50")
    for round_ in range(KILLS):
        first = 10 * (round_ + 1)
        _insert(database, table, (first, "01:00", 1), (first + 1, "05:30", 1))
        assert service.kill_child("pipeline")
        _insert(database, table, (first + 2, "01:30", 1))
        service.await_status("again_minutes")
        _settle(service, database, table)
        assert len(_late(database, table)) == 2 * (round_ + 1)
        _verify(service, table)
    _await_mark(service, database, table, "05:20")
    # A pipeline that has ended often makes every view degraded for a minute.
    service.await_status("again_minutes", timeout_s=120)


@pytest.mark.whole
def test_partitions_of_a_topic(
    broker: EmbeddedKafka, service: RunningService, database: Database
) -> None:
    """Of an append-only topic each partition has its own newest row, and the least counts."""
    topic, sent = new_topic(broker, partitions=3), []
    rows = "SELECT coalesce(sum(n), 0)::int FROM clicks_minutes"

    def produce(partition: int, *seconds: int) -> None:
        records = []
        for second in seconds:
            at = f"2024-05-01T12:{second // 60:02d}:{second % 60:02d}Z"
            sent.append((partition, second))
            record = {"n": len(sent), "at": at}
            records.append((partition, None, json.dumps(record).encode()))
        send(broker, topic, records)

    produce(0, 300)
    produce(1, 180, 170)
    columns = {"n": "int8", "at": "timestamptz", "_partition": "int4", "_offset": "int8"}
    topics = {"clicks": {"topic": topic, "format": "json", "columns": columns}}
    options = {"bootstrap_servers": broker.bootstrap, "check_ms": 100, "topics": topics}
    body = {"name": "feed", "type": "kafka", "options": options}
    assert service.call("POST", "/sources", body).status_code == 201
    service.create(
        "clicks_minutes",
        "SELECT date_bin('1 minute', at, 'epoch') AS minute, count(*) AS n, sum(n) AS total"
        " FROM feed.clicks GROUP BY 1",
        lateness={"feed.clicks.at": LATENESS},
        late="dead-letter",
    )
    _await_mark(service, database, "clicks", "02:50")
    for round_ in range(3):
        # Behind its own partition's newest, and behind the watermark; the other is ahead.
        produce(0, 310 + 100 * round_, 180 + 100 * round_)
        produce(1, 171 + 100 * round_, 20)
        left_out = round_ + 1
        total = len(sent) - left_out
        if round_ != 1 and KILLS > 1:
            assert service.kill_child("pipeline")
        service.await_so(lambda n=total: database.rows(rows) == [(n,)])
        assert [row[1] for row in _late(database, "clicks")] == ["left out"] * left_out
        produce(1, 280 + 100 * round_)
        seconds = 270 + 100 * round_
        mark = f"{seconds // 60:02d}:{seconds % 60:02d}"
        _await_mark(service, database, "clicks", mark)
    service.drop("clicks_minutes")
    drop_topic(broker, topic)


@pytest.mark.whole
def test_frozen_windows_stay(service: RunningService, database: Database) -> None:
    """Beyond lateness and retention a window keeps its row whatever becomes of its table."""
    table = _table(database, "frozen")
    _insert(database, table, (1, "00:30", 1), (2, "03:00", 2), (3, "05:00", 4))
    query = (
        "SELECT date_bin('1 minute', at, 'epoch') AS minute, count(*) AS n, sum(amount) AS total,"
        " min(amount) AS least, percentile_disc(0.5) WITHIN GROUP (ORDER BY amount) AS middle,"
        " array_agg(amount ORDER BY id) AS all, avg(amount::float8) AS mean"
        " FROM frozen GROUP BY 1"
    )
    options = {"lateness": {"frozen.at": LATENESS}, "window": {"minute": "1 minute"}}
    service.create("frozen_minutes", query, retain="1 minute", **options)
    _await_mark(service, database, table, "04:50")
    found = service.call("POST", "/views/frozen_minutes/verify").json()
    # The window of 12:02 ends at 12:03, and is frozen at 12:04.
    assert found["result"] == "equal", found
    assert found["retained_since"] == "2024-05-01T12:02:50+00:00", found
    minutes = "SELECT to_char(minute AT TIME ZONE 'UTC', 'MI'), n::int, total::int, least, middle"
    rows = f"{minutes} FROM frozen_minutes ORDER BY 1"
    before = database.rows(rows)
    database.execute("DELETE FROM frozen WHERE id = 1")
    _insert(database, table, (4, "00:40", 8), (5, "03:10", 16), (6, None, 32))
    database.execute("UPDATE frozen SET amount = 64 WHERE id = 2")
    _settle(service, database, table)
    after = [before[0], ("03", 2, 80, 16, 16), before[2], (None, 1, 32, 32, 32)]
    assert database.rows(rows) == after
    assert [row[1:3] for row in _late(database, table) if row[1] == "frozen"] != []
    _verify(service, table)
    # All of it is frozen; new windows continue.
    _insert(database, table, (7, "20:00", 1))
    _await_mark(service, database, table, "19:50")
    _insert(database, table, (8, "20:01", 1), (9, "03:30", 1))
    _settle(service, database, table)
    assert database.rows(rows) == [*after[:-1], ("20", 2, 2, 1, 1), after[-1]]
    _verify(service, table)
    assert service.kill_child("pipeline")
    service.await_status("frozen_minutes")
    database.execute("DELETE FROM frozen WHERE id IN (3, 8)")
    _settle(service, database, table)
    assert database.rows(rows) == [*after[:-1], ("20", 1, 1, 1, 1), after[-1]]
    _verify(service, table)
    service.create("over_frozen", "SELECT sum(n) AS n FROM frozen_minutes", wait_s=0)
    service.await_status("over_frozen", timeout_s=120)
    refused = service.call("POST", "/views/over_frozen/verify").json()
    assert refused["code"] == "verify.frozen", refused


BAD = {
    "unknown table": ({"lateness": {"nothing.at": "1 hour"}}, "lateness.unknown_column"),
    "unknown column": ({"lateness": {"refused.when": "1 hour"}}, "lateness.unknown_column"),
    "no time": ({"lateness": {"refused.amount": "1 hour"}}, "lateness.bad_type"),
    "no duration": ({"lateness": {"refused.at": "1 month"}}, "lateness.bad_option"),
    "late alone": ({"late": "error"}, "lateness.bad_option"),
    "emit without window": (
        {"lateness": {"refused.at": "1 h"}, "emit": "final"},
        "lateness.bad_option",
    ),
    "window of no column": (
        {"lateness": {"refused.at": "1 h"}, "emit": "final", "window": {"hour": "1 h"}},
        "lateness.unknown_column",
    ),
    "retain without window": (
        {"lateness": {"refused.at": "1 h"}, "retain": "1 day"},
        "lateness.bad_option",
    ),
    "retain of no group": (
        {"lateness": {"refused.at": "1 h"}, "retain": "1 day", "window": {"noon": "1 h"}},
        "lateness.not_retained",
    ),
    "window of a number": (
        {"lateness": {"refused.at": "1 h"}, "emit": "final", "window": {"n": "1 h"}},
        "lateness.bad_type",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_options_are_refused(service: RunningService, database: Database, case: str) -> None:
    options, code = BAD[case]
    database.execute(
        "CREATE TABLE IF NOT EXISTS refused"
        " (id integer PRIMARY KEY, at timestamptz, amount integer)"
    )
    query = PER_MINUTE.format(table="refused")
    query = query.replace("count(*) AS n", "count(*) AS n, max(at) AS noon")
    body = {"name": "bad", "query": query, "options": options}
    answer = service.call("POST", "/views", body)
    assert (answer.status_code, answer.json()["code"]) == (400, code), answer.text
    assert answer.json()["hint"]


@pytest.mark.whole
def test_an_idle_view_has_no_epochs(service: RunningService, database: Database) -> None:
    """Its clock moves when rows have come and while a partition falls silent, and then stands."""
    table = _table(database, "quiet")
    _insert(database, table, (1, "01:00", 1), (2, "02:00", 2))
    _create(service, table, idle_timeout_s=1, group="quiet")
    progress = "SELECT epoch FROM tidemark.progress WHERE sink_key LIKE '%/quiet'"

    def is_still() -> bool:
        before = database.rows(progress)
        time.sleep(2.5)
        return database.rows(progress) == before

    service.await_so(is_still)
    mark = "SELECT watermark::text FROM tidemark.watermarks WHERE name = 'quiet_minutes'"
    (before,) = database.rows(mark)
    _insert(database, table, (3, "09:00", 3))
    service.await_so(lambda: database.rows(mark) != [before])
    service.await_so(is_still)
