"""Oracle: PostgreSQL's answer with now() at each value that the clock might have had.

A clock moves only to the values that the search finds due. At each of them, and at every value that
it passed over, the view must be PostgreSQL's answer. Across both changes of the clock, month ends
and a leap day, forwards and backwards in local time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from connectors.postgres.analysis.analyzer import PostgresAnalyzer
from connectors.postgres.evaluation.evaluator import PostgresEvaluator
from connectors.sink import SinkTable
from connectors.source import SourceBatch
from connectors.spark.maintained.scheduler import InProcessScheduler
from connectors.spark.maintained.tasks import STATES
from dataflow.changes import Changes
from dataflow.delta import Column, Delta
from dataflow.schema import Field, Relation, RelationName
from dataflow.sql.moving_now import MovingNow
from dataflow.sql.planner import plan_view
from dataflow.types import INT4, TIMESTAMPTZ
from service.engine.bucket_engine import BucketEngine
from service.engine.bucket_views import BucketParts, BucketViews
from service.engine.engine import Engine, View, ViewDefinition
from storage.memory import MemoryStore
from storage.store import Store
from tests.harness.buckets import MemoryStorage
from tests.harness.compare import pin_session, rows_of_query, texts_of
from tests.harness.maintained import SOURCE
from tests.harness.postgres import Database
from tests.harness.tiers import some

CLOCK = Relation(
    RelationName("clock", "clock", "now"),
    7,
    (Field("id", INT4, False), Field("at", TIMESTAMPTZ)),
    (0,),
    is_single=True,
)
STEP_US = 600_000_000
DDL = "CREATE TABLE events (id int PRIMARY KEY, at timestamptz NOT NULL, n int NOT NULL)"
# Each with whether a tick without any change of the view would be a waste.
QUERIES = {
    "SELECT id FROM events WHERE at > now() - interval '1 day'": True,
    "SELECT id FROM events WHERE at > now() - interval '1 month'": True,
    "SELECT id FROM events WHERE at BETWEEN now() - interval '1 month 1 hour' AND now()": True,
    "SELECT n, count(*) AS c FROM events WHERE at >= date_trunc('day', now()) GROUP BY n": True,
    "SELECT id FROM events WHERE at::date < CURRENT_DATE": True,
    "SELECT n, max(at) AS m FROM events GROUP BY n HAVING max(at) < now() + '1 day'": True,
    "SELECT id, CURRENT_DATE AS today FROM events WHERE n = 1": True,
    "SELECT id FROM events WHERE at < now() OR n = 2": True,
    "SELECT id, NOT at < now() - interval '1 month' AS b FROM events": True,
    "SELECT n, count(*) FILTER (WHERE at > now() - interval '1 day') AS c, "
    "max(CASE WHEN at < now() THEN id END) AS m FROM events GROUP BY n": False,
    "SELECT n FROM events GROUP BY n HAVING max(at) < now() OR n = 1": True,
    "SELECT k.n, e.id FROM (SELECT DISTINCT n FROM events) k LEFT JOIN events e "
    "ON e.n = k.n AND e.at > now() - interval '1 day'": True,
    "SELECT id, at > now() - interval '1 month' AS a, CURRENT_DATE AS d FROM events "
    "WHERE at < now() OR at > now() + interval '3 hours'": False,
    "SELECT id, date_trunc('hour', now()) AS h FROM events WHERE at < now() AND n = 3": False,
    "SELECT count(*) AS c FROM events WHERE extract(hour FROM now()) > n": True,
}
# Where 24 hours of ten minutes begin: the clocks go back and forward, a month and a February end.
BEGINNINGS = {
    "America/New_York": ["2024-11-03 00:00+00", "2024-11-03 22:00+00"],
    "Europe/Berlin": ["2024-03-30 18:00+00", "2024-03-31 14:00+00"],
    "Australia/Lord_Howe": ["2024-04-06 05:00+00", "2024-02-28 20:00+00"],
    "UTC": ["2024-03-30 12:00+00", "2024-02-28 20:00+00"],
}


WHEN = [(zone, beginning) for zone, found in BEGINNINGS.items() for beginning in found]


@pytest.mark.parametrize("kind", ["one state", pytest.param("buckets", marks=pytest.mark.whole)])
@pytest.mark.parametrize(
    ("zone", "beginning"),
    [WHEN[0], *(pytest.param(*when, marks=pytest.mark.whole) for when in WHEN[1:])],
)
def test_nothing_changes_between_two_ticks(
    database: Database, zone: str, beginning: str, kind: str, tmp_path: Path
) -> None:
    database.execute(DDL)
    connection = database.connect()
    pin_session(connection)
    evaluator = PostgresEvaluator(database.dsn, time_zone=zone)
    try:
        _fill(database, beginning)
        queries = some(QUERIES, 3 if kind == "buckets" else 8)
        for number, (query, is_exact) in enumerate(queries.items()):
            make = _local if kind == "one state" else _in_buckets(tmp_path / str(number), zone)
            wasted = _follow(database, connection, evaluator, query, (zone, beginning), make)
            # In buckets a search follows a tick before which nothing else came.
            is_short = len(wasted) <= (kind == "buckets")
            assert is_short or not is_exact, (query, zone, wasted)
    finally:
        STATES.close()
        evaluator.close()
        connection.close()


Make = Callable[[Store, PostgresEvaluator, str], Engine]


def _local(store: Store, evaluator: PostgresEvaluator, dsn: str) -> Engine:
    return Engine(store, evaluator, SOURCE, evaluator_of=lambda role, time_zone: evaluator)


def _in_buckets(folder: Path, zone: str) -> Make:
    def make(store: Store, evaluator: PostgresEvaluator, dsn: str) -> Engine:
        parts = BucketParts(
            storage=lambda name: MemoryStorage(f"{folder}/{name}"),
            scheduler=InProcessScheduler(str(folder / "caches"), 2),
            evaluator=lambda _: partial(PostgresEvaluator, dsn, time_zone=zone),
            buckets=2,
            folder=folder / "moves",
        )
        return BucketEngine(
            store,
            evaluator,
            SOURCE,
            evaluator_of=lambda role, time_zone: evaluator,
            buckets=BucketViews(store, parts),
        )

    return make


def _fill(database: Database, beginning: str) -> None:
    """Events from two months ago until soon, some at one time, some on either side of a tick."""
    database.execute("TRUNCATE events")
    database.execute(
        f"INSERT INTO events SELECT i, timestamptz '{beginning}' + i % 24 * interval '61 minutes'"
        " - (i % 5) * interval '1 day' - (i % 3) * interval '1 month', i % 24"
        " FROM generate_series(1, 150) i"
    )


def _follow(
    database: Database,
    connection: Any,
    evaluator: PostgresEvaluator,
    query: str,
    when: tuple[str, str],
    make: Make,
) -> list[str]:
    """Let a view follow its clock for 24 hours; return the ticks that changed nothing."""
    zone, beginning = when
    answer, at = _answers(connection, query, zone, beginning)
    with PostgresAnalyzer(database.dsn, SOURCE, feeds=[CLOCK], time_zone=zone) as analyzer:
        plan = plan_view(query, MovingNow(analyzer, "clock.now"))
    definition = ViewDefinition("i", SinkTable("public", "v", plan.root.fields, plan.key), "", plan)
    store = MemoryStore()
    engine = make(store, evaluator, database.dsn)
    view = View(definition, store, evaluator)
    rows: Counter = Counter()
    _add(rows, view.dataflow.seed(), definition)
    for relation in definition.relations():
        whole = _clock_row(at[0]) if relation.name == CLOCK.name else _events(connection)
        home = next(h for h in view.locations if h.relation.name == relation.name)
        delta = whole.project(home.columns).consolidate()
        view.tables[relation.name].load(delta)
        _add(rows, view.step({relation.name: view.needed(relation.name, delta)}), definition)
    engine.positions.begin(SOURCE, 1)
    engine.add(view)
    store.commit()
    wasted, now = [], 0
    while True:
        found = engine.due_search("clock", at[now:]).first()
        for passed in range(now, min(now + found, len(at))):
            assert rows == answer[passed], (query, zone, passed, rows - answer[passed])
        if now + found >= len(at):
            return wasted
        now += found
        batch = _tick(int(at[now]), engine.epoch + 1)
        epoch = engine.step(batch)
        assert not engine.refused() and not (
            epoch.rows.errors is not None and len(epoch.rows.errors)
        )
        engine.commit(epoch, written=epoch.progress.epoch)
        if not epoch.rows.deltas:
            wasted.append(f"tick {now}")
        for _, delta in epoch.rows.deltas:
            _add(rows, delta, definition)


def _answers(
    connection: Any, query: str, zone: str, beginning: str
) -> tuple[list[Counter], np.ndarray]:
    """Return PostgreSQL's answer at each value of the clock, and the values since 2000."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT (extract(epoch FROM %s::timestamptz) * 1000000)::bigint - 946684800000000",
            (beginning,),
        )
        ((first,),) = cursor.fetchall()
    at = first + STEP_US * np.arange(145, dtype=np.int64)
    answers = []
    for number in range(len(at)):
        now = f"(timestamptz '{beginning}' + {number} * interval '10 minutes')"
        text = query.replace("now()", now).replace("CURRENT_DATE", f"{now}::date")
        answers.append(rows_of_query(connection, text, zone))
    return answers, at


def _add(rows: Counter, delta: Delta, definition: ViewDefinition) -> None:
    delta = delta.consolidate()
    for row, weight in zip(texts_of(delta, definition.table.fields), delta.weights, strict=True):
        rows[row] += int(weight)
        if not rows[row]:
            del rows[row]


def _clock_row(at: int) -> Delta:
    return Delta.of("ii", [(1, int(at))])


def _events(connection: Any) -> Delta:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT id, (extract(epoch FROM at) * 1000000)::bigint - 946684800000000, n FROM events"
        )
        return Delta.of("iii", cursor.fetchall())


def _tick(at: int, number: int) -> SourceBatch:
    columns = (Column(np.array([1], np.int64)), Column(np.array([at], np.int64)))
    changes = Changes(CLOCK, np.array([Changes.UPSERT], np.uint8), columns)
    return SourceBatch(number, [changes], 1, 1, source="clock", positions={"now": {"us": at}})
