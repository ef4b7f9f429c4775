"""Oracle: DuckDB's answer to the same queries over all rows that the sources have."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import duckdb
import pytest
import yaml
from kafka import TopicPartition

from connectors.feed_source import REJECTED_KINDS
from connectors.kafka.embedded import EmbeddedKafka
from connectors.spark.batch.iceberg_sink import IcebergSink
from connectors.spark.batch.planning import PlannedView
from connectors.spark.batch.program import main
from connectors.spark.batch.settings import read_settings
from connectors.spark.maintained.output import CommittedEpoch
from connectors.spark.session import LazySession
from dataflow.collect import ERROR_KINDS
from dataflow.delta import Delta
from dataflow.errors import SourceError, TidemarkError
from dataflow.schema import Field
from dataflow.types import INT8
from storage.failpoints import set_failpoints
from tests.connectors.spark.batch.lake import (
    ROOT,
    RUN_S,
    Lake,
    lake_session,
    pyiceberg_rows,
    run_apart,
    run_here,
)
from tests.harness.broker import Sent, admin_of, new_topic, send

pytestmark = pytest.mark.skipif(
    shutil.which("java") is None, reason="no Java on this machine, Spark needs it"
)
HEAD = ("id", "region", "amount", "placed")
REGIONS = ("north", "south", "", "grüße, <&>")
REVENUE = """
SELECT region, sum(amount) AS revenue, count(*) AS orders, max(placed) AS newest
FROM {orders} WHERE id % 7 <> 0 GROUP BY region
"""
AMOUNTS = "SELECT region, amount FROM {orders} WHERE amount > 2"
TOTAL = "SELECT count(*) AS orders FROM {orders}"
QUERIES = {"revenue": REVENUE, "amounts": AMOUNTS, "total": TOTAL}
SETTINGS = """
storage = "{folder}/state"
epoch_rows = {epoch_rows}

[spark]
buckets = 2

[catalogs.lake]
type = "hadoop"
warehouse = "{folder}/lake"

[sources.shop]
type = "files"
settle_ms = 0

[sources.shop.relations.orders]
path = "{folder}/in/*.csv"
columns = [
  {{name = "id", type = "bigint"}},
  {{name = "region", type = "text"}},
  {{name = "amount", type = "numeric(12,2)"}},
  {{name = "placed", type = "timestamp"}},
]
"""
VIEW = """
[views.{name}]
query = '''{query}'''
sink = {{type = "iceberg", catalog = "lake", table = "shop.{name}"}}
"""
JOIN = """
SELECT s.id, sum(s.qty * p.price)::bigint AS revenue
FROM shop.sales s JOIN shop.prices p ON p.id = s.id GROUP BY s.id
"""
TOPICS = """
[sources.shop]
type = "kafka"
bootstrap_servers = "{servers}"

[sources.shop.topics.prices]
topic = "{prices}"
format = "json"
mode = "upsert"
key = ["id"]
key_format = "json"
columns = [
  {{name = "id", type = "bigint", in = "key", path = "$"}},
  {{name = "price", type = "bigint"}},
]

[sources.shop.topics.sales]
topic = "{sales}"
format = "json"
columns = [{{name = "id", type = "bigint"}}, {{name = "qty", type = "bigint"}}]
"""
POINTS = (
    *("spark.epoch.fixed", "spark.epoch.computed", "spark.epoch.stored", "spark.epoch.committed"),
    *("batch.view.started", "batch.lake.written", "batch.lake.committed"),
    "batch.lake.compacted",
)


@pytest.fixture(scope="module")
def session() -> Iterator[LazySession]:
    with lake_session() as lazy:
        yield lazy


def write_settings(folder: Path, views: dict[str, str], epoch_rows: int = 200_000) -> Path:
    text = SETTINGS.format(folder=folder, epoch_rows=epoch_rows)
    for name, query in views.items():
        text += VIEW.format(name=name, query=query.format(orders="shop.orders"))
    path = folder / "views.toml"
    path.write_text(text)
    return path


def write_orders(folder: Path, name: str, random: Random, count: int) -> None:
    """A file of orders; one of that name is replaced."""
    (folder / "in").mkdir(exist_ok=True)
    with (folder / "in" / f"{name}.csv").open("w", newline="") as file:
        out = csv.writer(file, quoting=csv.QUOTE_ALL)
        out.writerow(HEAD)
        for _ in range(count):
            at = f"2026-11-{random.randrange(1, 29):02d} 10:00:00.{random.randrange(10**6):06d}"
            amount = f"{random.randrange(500) / 100:.2f}"
            out.writerow([random.randrange(1000), random.choice(REGIONS), amount, at])


def expected(folder: Path, query: str, is_multiset: bool = False) -> Counter[Any]:
    """DuckDB's answer as texts; of a multiset each row once, with its count."""
    types = (
        "{'id': 'BIGINT', 'region': 'VARCHAR', 'amount': 'DECIMAL(12,2)', 'placed': 'TIMESTAMP'}"
    )
    read = f"read_csv('{folder}/in/*.csv', header = true, columns = {types}, nullstr = 'NULL')"
    rows = duckdb.connect().execute(query.format(orders=read)).fetchall()
    found = Counter(tuple(map(_text, row)) for row in rows)
    if not is_multiset:
        return found
    return Counter((*row, str(count)) for row, count in found.items())


def _text(value: Any) -> str | None:
    if hasattr(value, "isoformat"):
        # As Java writes a LocalDateTime: of the fraction, groups of three digits.
        text = value.isoformat(timespec="microseconds")
        while text.endswith("000"):
            text = text[:-3]
        return text.removesuffix(".").removesuffix(":00") if "." not in text else text.rstrip(".")
    return None if value is None else str(value)


def check(lake: Lake, folder: Path) -> None:
    for name, query in QUERIES.items():
        found = lake.rows(f"shop.{name}")
        assert found == expected(folder, query, name == "amounts"), name


@pytest.mark.timeout(600)
def test_files_are_brought_into_the_lake_run_by_run(tmp_path: Path, session: LazySession) -> None:
    random = Random(3)
    path = write_settings(tmp_path, QUERIES, epoch_rows=40)
    lake = Lake(session.get(), tmp_path / "lake")
    write_orders(tmp_path, "a", random, 60)
    write_orders(tmp_path, "b", random, 60)
    first = run_here(path, session)
    check(lake, tmp_path)
    assert first["revenue"].epochs == 2
    write_orders(tmp_path, "a", random, 30)
    write_orders(tmp_path, "c", random, 1)
    (tmp_path / "in" / "b.csv").unlink()
    run_here(path, session)
    check(lake, tmp_path)
    before = lake.table("shop.revenue").currentSnapshot().snapshotId()
    again = run_here(path, session)
    assert [(one.epochs, one.rows) for one in again.values()] == [(0, 0)] * len(QUERIES)
    assert lake.table("shop.revenue").currentSnapshot().snapshotId() == before


@pytest.mark.whole
@pytest.mark.timeout(1800)
def test_a_run_that_stops_anywhere_is_repeated(tmp_path: Path, session: LazySession) -> None:
    random = Random(4)
    path = write_settings(tmp_path, QUERIES, epoch_rows=30)
    lake = Lake(session.get(), tmp_path / "lake")
    for number, point in enumerate(POINTS):
        write_orders(tmp_path, f"a{number}", random, 40)
        write_orders(tmp_path, f"b{number % 3}", random, 40)
        set_failpoints(f"{point}=error@{1 + number % 3}")
        try:
            with pytest.raises(TidemarkError):
                run_here(path, session)
        finally:
            set_failpoints("")
        run_here(path, session)
        check(lake, tmp_path)


@pytest.mark.whole
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "point",
    [
        *("spark.epoch.stored", "batch.lake.written", "batch.lake.committed"),
        "batch.lake.compacted",
    ],
)
def test_a_run_that_is_killed_is_repeated(tmp_path: Path, session: LazySession, point: str) -> None:
    random = Random(point)
    path = write_settings(tmp_path, {"revenue": REVENUE}, epoch_rows=50)
    write_orders(tmp_path, "a", random, 80)
    write_orders(tmp_path, "b", random, 80)
    killed = run_apart(path, f"{point}=kill@2")
    assert killed.returncode == -9, killed.stderr
    write_orders(tmp_path, "b", random, 70)
    done = run_apart(path)
    assert done.returncode == 0, done.stderr
    assert [json.loads(line)["view"] for line in done.stdout.splitlines()] == ["revenue"]
    lake = Lake(session.get(), tmp_path / "lake")
    assert lake.rows("shop.revenue") == expected(tmp_path, REVENUE)
    total = pyiceberg_rows(tmp_path / "lake", "shop.revenue").total()
    assert total == expected(tmp_path, REVENUE).total()


@pytest.mark.whole
@pytest.mark.timeout(600)
def test_a_table_of_another_query_is_refused(tmp_path: Path, session: LazySession) -> None:
    write_orders(tmp_path, "a", Random(1), 10)
    run_here(write_settings(tmp_path, {"total": TOTAL}), session)
    other = write_settings(tmp_path, {"total": f"{TOTAL} WHERE id > 3"})
    with pytest.raises(TidemarkError, match=r"batch\.other_view"):
        run_here(other, session)
    run_here(write_settings(tmp_path, {"total": TOTAL}), session)


@pytest.mark.whole
@pytest.mark.timeout(600)
def test_of_two_writers_of_an_epoch_one_fails(
    tmp_path: Path, session: LazySession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Oracle: the one row of the epoch."""
    unused: Any = None
    view = PlannedView("v", "of-this-test", (Field("a", INT8),), (0,), unused, ())
    catalog = {"type": "hadoop", "warehouse": str(tmp_path / "lake")}
    one, two = (IcebergSink(session.get(), catalog, "shop.v", view) for _ in range(2))
    nothing = Delta.empty(ERROR_KINDS), Delta.empty(REJECTED_KINDS)
    first = CommittedEpoch(Delta.of("i", [(5,)]), *nothing, epoch=1)
    second = CommittedEpoch(Delta.of("i", [(5,), (6,)], [-1, 1]), *nothing, epoch=2)
    change = two._change

    def late(*given: Any) -> Any:
        found = change(*given)
        one.apply(epoch)
        return found

    monkeypatch.setattr(two, "_change", late)
    for epoch, row in ((first, "5"), (second, "6")):
        with pytest.raises(TidemarkError, match=r"batch\.conflict"):
            two.apply(epoch)
        two.apply(epoch)
        assert Lake(session.get(), tmp_path / "lake").rows("shop.v") == {(row,): 1}


@pytest.mark.whole
@pytest.mark.timeout(600)
def test_values_have_the_lakes_types(tmp_path: Path, session: LazySession) -> None:
    """Oracle: the values as written here."""
    write_orders(tmp_path, "a", Random(1), 1)
    values = {
        "1::smallint": "1",
        "2.5::real": "2.5",
        "'NaN'::float8": "NaN",
        "1234567890123456789012.50::numeric(30,2)": "1234567890123456789012.50",
        "1.500::numeric": "1.500",
        "date '2024-02-29'": "2024-02-29",
        "timestamptz '2024-02-29 10:00:00.25+02'": "2024-02-29T08:00:00.250Z",
        "time '10:00'": "10:00:00",
        "'[1, true]'::jsonb": "[1, true]",
        "NULL::bigint": None,
        "true": "true",
    }
    columns = ", ".join(f"{text} AS c{n}" for n, text in enumerate(values))
    query = f"SELECT DISTINCT {columns} FROM shop.orders"
    run_here(write_settings(tmp_path, {"v": query}), session)
    ((row, count),) = Lake(session.get(), tmp_path / "lake").rows("shop.v").items()
    shown = [
        cell and cell.replace("+00:00", "Z").replace("08:00:00.25Z", "08:00:00.250Z")
        for cell in row
    ]
    wanted = list(values.values())
    assert ([c.lower() if c else c for c in shown[: len(wanted)]], count) == (
        [c.lower() if c else c for c in wanted],
        1,
    )
    bad = "SELECT id, timestamp 'infinity' AS placed FROM shop.orders"
    with pytest.raises(TidemarkError, match=r"batch\.value"):
        run_here(write_settings(tmp_path, {"bad": bad}), session)


@pytest.mark.whole
@pytest.mark.timeout(900)
def test_topics_are_brought_into_the_lake(
    tmp_path: Path, session: LazySession, broker: EmbeddedKafka
) -> None:
    """A join of an upsert topic with an append topic. Oracle: dictionaries."""
    random = Random(9)
    prices, sales = new_topic(broker, 2), new_topic(broker, 3)
    text = write_settings(tmp_path, {}, epoch_rows=20).read_text()
    text = text[: text.index("[sources.shop]")]
    text += TOPICS.format(servers=broker.bootstrap, prices=prices, sales=sales)
    text += VIEW.format(name="v", query=JOIN)
    path = tmp_path / "views.toml"
    path.write_text(text)
    lake = Lake(session.get(), tmp_path / "lake")
    held: dict[int, int] = {}
    sold: list[tuple[int, int]] = []
    for _ in range(3):
        of_prices: list[Sent] = []
        of_sales: list[Sent] = []
        for _ in range(40):
            id, price, qty = (random.randrange(n) for n in (6, 90, 9))
            if random.random() < 0.2:
                held.pop(id, None)
                of_prices.append((id % 2, b"%d" % id, None))
            else:
                held[id] = price
                record = json.dumps({"price": price}).encode()
                of_prices.append((id % 2, b"%d" % id, record))
            sold.append((id, qty))
            record = json.dumps({"id": id, "qty": qty}).encode()
            of_sales.append((qty % 3, None, record))
        send(broker, prices, of_prices)
        send(broker, sales, of_sales)
        summary = run_here(path, session)["v"]
        assert summary.epochs > 1
        assert summary.read_by == {"shop.prices": "executors", "shop.sales": "executors"}
        wanted: Counter[tuple[str, str]] = Counter()
        for id, price in held.items():
            own = [qty for other, qty in sold if other == id]
            if own:
                wanted[str(id), str(sum(own) * price)] += 1
        assert lake.rows("shop.v") == wanted
    assert run_here(path, session)["v"].epochs == 0
    before = lake.rows("shop.v")
    send(broker, sales, [(0, None, b'{"id": 1, "qty": 1}')] * 3)
    with admin_of(broker) as admin:
        ends = {TopicPartition(sales, 0): -1}
        admin.delete_records(ends)
    with pytest.raises(SourceError, match=r"source\.offsets_gone"):
        run_here(path, session)
    assert lake.rows("shop.v") == before


BAD = {
    "batch.settings": ("epoch_rows = 40", "epoch_rows = 0"),
    "batch.settings ": ('type = "files"', 'type = "ftp"'),
    "batch.settings  ": ("[catalogs.lake]", "[catalogs.other]"),
    "batch.settings   ": ("[spark]", "[spark"),
    "spark.connect": ("buckets = 2", 'master = "sc://host"'),
    "batch.database": ("buckets = 2", 'master = "spark://host:7077"'),
    "source.bad_option": ("settle_ms = 0", "settle = 0"),
    "sql.undefined_table": ("FROM shop.orders", "FROM shop.nothing"),
    "batch.moment": ("count(*)", "now()"),
}


@pytest.mark.parametrize("code", BAD)
def test_what_is_wrong_is_named(
    tmp_path: Path, code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Oracle: docs/ERRORS.md. Nothing is written."""
    path = write_settings(tmp_path, {"total": TOTAL}, epoch_rows=40)
    write_orders(tmp_path, "a", Random(1), 1)
    text = path.read_text()
    assert BAD[code][0] in text
    path.write_text(text.replace(*BAD[code]))
    assert main([str(path), "--once"]) == 1
    shown = capsys.readouterr().err
    assert f"[{code.strip()}]" in shown and "hint: " in shown
    assert not (tmp_path / "lake").exists()


@pytest.mark.whole
def test_spark_submit_starts_a_run(tmp_path: Path, session: LazySession) -> None:
    path = write_settings(tmp_path, {"total": TOTAL})
    write_orders(tmp_path, "a", Random(1), 30)
    ended = subprocess.run(
        [ROOT / "deploy" / "spark_submit.sh", path, "--conf", "spark.driver.memory=512m"],
        cwd=ROOT,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout.splitlines()[-1])["rows"] == 1
    assert Lake(session.get(), tmp_path / "lake").rows("shop.total") == {("30",): 1}


def test_settings_are_the_same_in_every_format(tmp_path: Path) -> None:
    path = write_settings(tmp_path, {"total": TOTAL})
    facts = tomllib.loads(path.read_text())
    for suffix, write in ((".json", json.dumps), (".yaml", yaml.safe_dump), (".yml", json.dumps)):
        other = tmp_path / f"views{suffix}"
        other.write_text(write(facts))
        assert read_settings(other) == read_settings(path)
        other.write_text("{")
        with pytest.raises(TidemarkError) as raised:
            read_settings(other)
        assert raised.value.code == "batch.settings" and str(other) in str(raised.value)
