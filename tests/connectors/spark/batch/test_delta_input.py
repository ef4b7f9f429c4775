"""Oracle: the answer over the rows that Delta's own client reads of the newest version.

Views of a Delta table, and of one with files beside it: without Spark under faults, and by runs.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from deltalake import DeltaTable, write_deltalake

from connectors import netguard
from connectors.files.source import FilesSource
from connectors.files.source import declare as declare_files
from connectors.formats.declared import declared_type
from connectors.objects.folder_storage import FolderStorage
from connectors.spark.batch.planning import PlannedView
from connectors.spark.batch.view_run import Summary, ViewRun
from connectors.spark.maintained import driver as driver_module
from connectors.spark.maintained.layout import MaintainedView
from connectors.spark.maintained.scheduler import InProcessScheduler
from connectors.spark.maintained.tasks import STATES
from connectors.spark.session import LazySession
from dataflow.errors import SourceError, TidemarkError
from dataflow.expressions.evaluator import NoEvaluator
from dataflow.expressions.ir import ColumnRef
from dataflow.graph import needed_columns
from dataflow.plan.nodes import Aggregate, AggregateCall, Join, Scan
from dataflow.schema import Field, Relation, RelationName
from dataflow.sql.lower.lowering import lower
from dataflow.types import INT8, NUMERIC, TEXT
from storage.failpoints import set_failpoints
from tests.connectors.delta.table_source import COLUMNS, Orders, declared, rows_of, source_of
from tests.connectors.spark.batch.lake import Lake, lake_session, run_apart, run_here
from tests.harness.buckets import TableSink
from tests.harness.tiers import count

POINTS = (
    *("spark.range.read", "spark.epoch.read", "spark.epoch.fixed", "spark.epoch.computed"),
    *("spark.epoch.stored", "spark.epoch.committed", "batch.view.started"),
)
NAMES = {"north": "N", "south & <ü>": "S", "a/b %20": "AB"}


def write_names(folder: Path, names: dict[str, str]) -> None:
    """The file of the other input."""
    folder.mkdir(exist_ok=True)
    lines = [json.dumps({"region": region, "title": title}) for region, title in names.items()]
    (folder / "new").write_text("\n".join(lines))
    (folder / "new").rename(folder / "names.jsonl")


def files_source(folder: Path) -> FilesSource:
    """Titles of regions."""
    columns = declared({"region": "text", "title": "text"})
    own = {"path": f"{folder}/*.jsonl", "columns": columns, "settle_ms": 0}
    options = {"relations": {"names": own}}
    (found,) = declare_files(options)
    fields = tuple(Field(n, declared_type(t)[0], n not in found.key) for n, t in found.columns)
    key = tuple([f.name for f in fields].index(name) for name in found.key)
    name = RelationName("shop", "shop", "names")
    return FilesSource("shop", options, [Relation(name, 2, fields, key)])


def joined(orders: Relation, names: Relation) -> PlannedView:
    """SELECT title, count(*), sum(id) FROM orders JOIN names USING (region) GROUP BY title."""
    left, right = (Scan(r, tuple(range(len(r.fields))), r.fields) for r in (orders, names))
    width = len(left.fields)
    at = [f.name for f in right.fields].index
    keys = (ColumnRef(1, TEXT),), (ColumnRef(at("region"), TEXT),)
    both = Join("inner", left, right, *keys, None, left.fields + right.fields)
    calls = (
        AggregateCall("count", None, False, None, Field("n", INT8)),
        AggregateCall("sum", ColumnRef(0, INT8), False, None, Field("ids", NUMERIC)),
    )
    title = width + at("title")
    fields = (both.fields[title], *(call.field for call in calls))
    nodes = lower(Aggregate(both, (ColumnRef(title, TEXT),), calls, fields))
    view = MaintainedView("v", nodes, "v1", (orders, names), needed_columns(nodes), NoEvaluator)
    return PlannedView("v", "v", fields, (0,), view, ())


def answer(path: Path, names: dict[str, str]) -> Counter[Any]:
    """What the view is to have."""
    found: dict[bytes, list[int]] = {}
    for (id, region, *_), times in rows_of(path).items():
        title = names.get(region.decode()) if region is not None else None
        if title is not None:
            found.setdefault(title.encode(), []).extend([id] * times)
    return Counter((t, len(ids), str(sum(ids)).encode()) for t, ids in found.items())


class Runs:
    """Runs of the view, each a process of its own as far as its state goes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sources = {"lake": source_of(folder / "orders"), "shop": files_source(folder / "in")}
        (orders,), (*_, names) = (source.relations() for source in self.sources.values())
        self.view = joined(orders, names)
        self.sink: Any = TableSink()
        self.sink.failed_rows = 0
        self.started = 0

    def run(self, epoch_rows: int) -> Summary:
        """One run."""
        self.started += 1
        scheduler = InProcessScheduler(str(self.folder / f"local {self.started}"), 2)
        ends = {n: s.current_end(s.relations()) for n, s in self.sources.items()}
        try:
            started = ViewRun(self.view, self.sources, ends, epoch_rows)
            return started.run(FolderStorage(self.folder / "state"), scheduler, self.sink, 3)
        finally:
            STATES.close()


@pytest.fixture(autouse=True)
def _settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """However few rows there are, tasks read them."""
    monkeypatch.setattr(driver_module, "FEW_RECORDS", 0)
    before = netguard.installed()
    netguard.install(netguard.Guard(folders=("/",)))
    yield
    netguard.install(before)
    set_failpoints("")
    STATES.close()


@pytest.mark.parametrize("seed", range(count("TIDEMARK_TEST_DELTA_RUNS", 1, 30)))
def test_runs_that_stop_anywhere_are_repeated(tmp_path: Path, seed: int) -> None:
    """Two inputs in one view."""
    random = Random(seed)
    names = dict(NAMES)
    write_names(tmp_path / "in", names)
    path = tmp_path / "orders"
    orders = Orders(path, random, is_partitioned=seed % 2 == 1, has_feed=seed % 3 != 2)
    runs = Runs(tmp_path)
    for _ in range(8):
        for _ in range(random.randrange(1, 4)):
            orders.change()
        if random.random() < 0.4:
            names["north"] = random.choice("ABCN")
            write_names(tmp_path / "in", names)
        set_failpoints(f"{random.choice(POINTS)}=error@{random.randrange(1, 4)}")
        try:
            runs.run(random.choice([2, 10, 1000]))
        except (OSError, TidemarkError) as error:
            assert "failpoint" in f"{error} {getattr(error, 'detail', '')}"
        finally:
            set_failpoints("")
        if random.random() < 0.5:
            runs.run(1000)
            assert runs.sink.rows == answer(path, names), f"seed {seed}"
    last = runs.run(1000)
    assert runs.sink.rows == answer(path, names), f"seed {seed}"
    assert last.read_by["lake.orders"] == "executors"
    assert runs.run(1000).epochs == 0


def test_versions_without_rows_move_the_position(tmp_path: Path) -> None:
    """After others, and alone."""
    write_names(tmp_path / "in", NAMES)
    path = tmp_path / "orders"
    orders = Orders(path, Random(2), is_partitioned=False, has_feed=True)
    runs = Runs(tmp_path)
    runs.run(1000)
    for rows in (4, 0):
        if rows:
            write_deltalake(path, orders.new_rows(rows).slice(0, rows), mode="append")
        changed = {"delta.logRetentionDuration": "interval 9 days"}
        DeltaTable(path).alter.set_table_properties(changed)
        last = runs.run(1000)
        assert last.positions["lake"]["orders"]["version"] == DeltaTable(path).version()
        assert runs.sink.rows == answer(path, NAMES)
    assert runs.run(1000).epochs == 0


def test_a_vacuumed_version_leaves_the_view_as_it_was(tmp_path: Path) -> None:
    """A new state reads a new snapshot."""
    write_names(tmp_path / "in", NAMES)
    path = tmp_path / "orders"
    orders = Orders(path, Random(1), is_partitioned=False, has_feed=True)
    runs = Runs(tmp_path)
    runs.run(1000)
    before = runs.sink.rows
    orders.append()
    orders.overwrite()
    log = path / "_delta_log" / f"{1:020}.json"
    log.rename(tmp_path / "log")
    with pytest.raises(SourceError, match=r"has a gap.*\[delta\.version_gone\]"):
        runs.run(1000)
    (tmp_path / "log").rename(log)
    DeltaTable(path).create_checkpoint()
    log.unlink()
    with pytest.raises(SourceError, match=r"delta\.version_gone"):
        runs.run(1000)
    assert runs.sink.rows == before
    shutil.rmtree(tmp_path / "state")
    again = Runs(tmp_path)
    again.started = runs.started
    again.run(1000)
    assert again.sink.rows == answer(path, NAMES)


SETTINGS = """
storage = "{folder}/state"
epoch_rows = 5

[spark]
buckets = 2

[catalogs.lake]
type = "hadoop"
warehouse = "{folder}/lake"

[sources.lakehouse]
type = "delta"

[sources.lakehouse.relations.orders]
path = "{folder}/orders"
columns = {columns}

[sources.shop]
type = "files"
settle_ms = 0

[sources.shop.relations.names]
path = "{folder}/in/*.jsonl"
columns = [{{name = "region", type = "text"}}, {{name = "title", type = "text"}}]

[views.titles]
query = '''SELECT n.title, count(*) AS orders, sum(o.id) AS ids
FROM lakehouse.orders o JOIN shop.names n ON n.region = o.region GROUP BY n.title'''
sink = {{type = "iceberg", catalog = "lake", table = "shop.titles"}}
"""


@pytest.fixture
def session() -> Iterator[LazySession]:
    with lake_session() as lazy:
        yield lazy


@pytest.mark.whole
@pytest.mark.timeout(1800)
@pytest.mark.skipif(shutil.which("java") is None, reason="no Java on this machine")
def test_runs_of_spark_that_are_killed_are_repeated(tmp_path: Path, session: LazySession) -> None:
    write_names(tmp_path / "in", NAMES)
    path = tmp_path / "orders"
    orders = Orders(path, Random(5), is_partitioned=True, has_feed=True)
    columns = ", ".join(f'{{name = "{name}", type = "{type}"}}' for name, type in COLUMNS.items())
    settings = tmp_path / "views.toml"
    settings.write_text(SETTINGS.format(folder=tmp_path, columns=f"[{columns}]"))
    lake = Lake(session.get(), tmp_path / "lake")
    for point in ("", "spark.epoch.read", "spark.epoch.stored", "batch.lake.committed"):
        for change in (orders.append, orders.merge, orders.update, orders.delete):
            change()
        if point:
            killed = run_apart(settings, f"{point}=kill@1")
            assert killed.returncode == -9, killed.stderr
            orders.update()
        summary = run_here(settings, session)["titles"]
        expected = Counter((t.decode(), str(n), ids.decode()) for t, n, ids in answer(path, NAMES))
        assert lake.rows("shop.titles") == expected
    assert summary.read_by["lakehouse.orders"] == "executors"
