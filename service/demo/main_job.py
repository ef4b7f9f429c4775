"""`tidemark demo`: a live demo on a private PostgreSQL with continuous verification.

Verification: between two transactions of the writer, it opens a snapshot in which source and views
have the same position. There it compares each view with its query, as multisets, in both
directions. The exit code is 0 only if there was a comparison and all were equal.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from connectors.extras import extra_required
from connectors.loopback import free_port
from connectors.postgres.embedded.server import EmbeddedPostgres
from connectors.postgres.session.session import connect
from connectors.spark.java import check_spark
from dataflow.errors import TidemarkError
from service.demo.demo_shop import ON_SPARK, VIEWS, Shop
from service.runtime.settings import PREFIX
from service.views.lifecycle import ViewState

if TYPE_CHECKING:
    from service.demo.demo_clicks import Clicks

TRANSACTIONS_PER_S = 250
CLICKS_PER_S = 500
TOPIC = "its topic of deltas"
VERIFY_EVERY_S = 3.0
SCREEN_EVERY_S = 0.5
READY_S = 60.0
BUILD_S = 600.0


@dataclass(frozen=True)
class DemoSize:
    """Initial rows, duration in seconds (0: until Ctrl-C), and what builds the views.

    backfill: as the option of views, "" for Spark for one of them and automatic choice otherwise.
    """

    customers: int
    orders: int
    seconds: int
    backfill: str


@dataclass
class Verdict:
    """The results of comparing one view with its query."""

    equal: int = 0
    wrong: int = 0
    rows: int = 0

    def text(self) -> str:
        """Return the verdict for the screen."""
        if self.wrong:
            return f"[red]{self.wrong} times different[/]"
        return f"[green]equal, {self.equal} times[/]" if self.equal else "-"


@dataclass
class Rate:
    """Changes per second between two readings of a counter."""

    last: dict[str, tuple[float, int]] = field(default_factory=dict)

    def of(self, name: str, count: int) -> float:
        """Return the rate since the last call for this name."""
        now = time.monotonic()
        before = self.last.get(name, (now, count))
        self.last[name] = (now, count)
        return (count - before[1]) / (now - before[0]) if now > before[0] else 0.0


class Demo:
    """One run of the demo."""

    def __init__(self, size: DemoSize, console: Console, svg: Path | None) -> None:
        self._size = size
        self._console = console
        self._svg = svg
        self._views = dict(VIEWS)
        self._verdicts: dict[str, Verdict] = {}
        # What built each view.
        self._engines: dict[str, str] = {}
        self._clicks: Clicks | None = None
        self._rate = Rate()
        self._url = ""
        self._is_stopping = False

    def run(self) -> int:
        """Run the demo; return 0 if every comparison was equal."""
        signal.signal(signal.SIGTERM, self._on_signal)
        with (
            contextlib.suppress(KeyboardInterrupt),
            tempfile.TemporaryDirectory(prefix="tidemark-demo-") as folder,
            EmbeddedPostgres() as server,
            contextlib.ExitStack() as others,
        ):
            dsn = server.dsn
            shop = Shop(dsn, self._size.customers, self._size.orders)
            self._show(f"private PostgreSQL {server.version} on port {server.port}")
            self._show(f"filling {self._size.customers:,} customers, {self._size.orders:,} orders")
            shop.fill()
            self._clicks = self._open_clicks(others, Path(folder))
            self._verdicts = {name: Verdict() for name in self._views}
            with self._service(dsn, Path(folder)):
                self._create_views()
                shop.start_traffic(TRANSACTIONS_PER_S)
                if self._clicks is not None:
                    self._add_sink(self._clicks)
                    self._clicks.start_traffic(CLICKS_PER_S)
                try:
                    self._watch(shop, dsn)
                finally:
                    shop.stop()
                    if self._clicks is not None:
                        self._clicks.stop()
        return self._result()

    def _open_clicks(self, stack: contextlib.ExitStack, folder: Path) -> Clicks | None:
        """Start a broker and its clicks; return None if there is no broker."""
        try:
            with extra_required("its topic"):
                from connectors.kafka.embedded import EmbeddedKafka, missing
                from service.demo.demo_clicks import Clicks
            reason = missing()
        except TidemarkError as error:
            reason = f"{error.what}: {error.hint}"
        if reason is not None:
            self._show(f"[yellow]without Kafka: {escape(reason)}[/]")
            return None
        broker = stack.enter_context(EmbeddedKafka())
        self._show(f"private Kafka on {broker.bootstrap}, products in a Parquet file")
        (folder / "products").mkdir()
        clicks = Clicks(broker, folder / "products", self._size.customers)
        clicks.fill()
        self._views[Clicks.view] = Clicks.query
        return clicks

    def _on_signal(self, *_: object) -> None:
        self._is_stopping = True

    @contextlib.contextmanager
    def _service(self, dsn: str, folder: Path):
        environment = {**os.environ, PREFIX + "SOURCE": dsn, PREFIX + "LOG_LEVEL": "warning"}
        environment[PREFIX + "ALLOW_FOLDERS"] = str(folder / "products")
        port = free_port()
        self._url = f"http://127.0.0.1:{port}"
        command = [sys.executable, "-m", "service.cli.main", "serve", "--port", str(port)]
        command += ["--state", str(folder / "state")]
        log = (folder / "service.log").open("wb")
        service = subprocess.Popen(command, env=environment, stderr=log, stdin=subprocess.DEVNULL)
        try:
            self._await_service(service, folder / "service.log")
            self._show(f"the console: {self._url}/")
            yield
        finally:
            service.send_signal(signal.SIGTERM)
            service.wait(60)
            log.close()

    def _await_service(self, service: subprocess.Popen, log: Path) -> None:
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline and service.poll() is None:
            with contextlib.suppress(httpx.HTTPError):
                httpx.get(self._url + "/health", timeout=5)
                return
            time.sleep(0.1)
        raise RuntimeError(f"the service did not start:\n{log.read_text()[-3000:]}")

    def _create_views(self) -> None:
        for source in () if self._clicks is None else self._clicks.sources():
            httpx.post(self._url + "/sources", json=source, timeout=60).raise_for_status()
        for name, query in self._views.items():
            body = {"name": name, "query": query, "options": {"backfill": self._engine_of(name)}}
            httpx.post(self._url + "/views", json=body, timeout=60).raise_for_status()
        columns = (
            TextColumn("{task.description:22}"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
        )
        deadline = time.monotonic() + BUILD_S
        with Progress(*columns, console=self._console) as progress:
            tasks = {name: progress.add_task(name, note="") for name in self._views}
            while not progress.finished:
                if time.monotonic() > deadline or self._is_stopping:
                    raise RuntimeError("the views did not become live in time")
                for name, task in tasks.items():
                    view = self._get(f"/views/{name}")
                    if view["status"] == ViewState.FAILED:
                        raise RuntimeError(f"view {name} failed: {view['error']}")
                    engine = (view.get("backfill") or {}).get("engine")
                    self._engines[name] = engine or self._engines.get(name, "")
                    progress.update(task, **_bar(view, self._engines[name]))
                time.sleep(0.2)

    def _engine_of(self, view: str) -> str:
        """Return the option `backfill` of a view: Spark for one of them where it can start."""
        if self._size.backfill or view != ON_SPARK:
            return self._size.backfill or "auto"
        try:
            check_spark("local", "its engine")
        except TidemarkError as error:
            self._show(f"[yellow]without Spark: {escape(f'{error.what}: {error.hint}')}[/]")
            return "auto"
        self._show(f"{view} is built by Spark")
        return "spark"

    def _add_sink(self, clicks: Clicks) -> None:
        path = f"{self._url}/views/{clicks.view}/sinks"
        httpx.post(path, json=clicks.sink(), timeout=60).raise_for_status()
        self._verdicts[TOPIC] = Verdict()

    def _watch(self, shop: Shop, dsn: str) -> None:
        self._show("live traffic; each view is compared with its query every few seconds")
        ends_at = time.monotonic() + (self._size.seconds or float("inf"))
        verify_at = time.monotonic() + 1
        screen = Live(console=self._console, auto_refresh=False, transient=False)
        with screen:
            while time.monotonic() < ends_at and not self._is_stopping:
                failure = shop.failure or (self._clicks and self._clicks.failure)
                if failure is not None:
                    raise failure
                screen.update(self._screen(shop), refresh=True)
                if time.monotonic() >= verify_at:
                    self._verify(shop, dsn)
                    verify_at = time.monotonic() + VERIFY_EVERY_S
                time.sleep(SCREEN_EVERY_S)
            self._verify(shop, dsn)
            last = self._screen(shop)
            screen.update(last, refresh=True)
        if self._svg is not None:
            self._svg.write_text(_picture(last))

    def _verify(self, shop: Shop, dsn: str) -> None:
        connection = connect(dsn, is_long=True, is_users=True)
        try:
            with connection.cursor() as cursor:
                clicks = self._clicks
                with shop.hold(), contextlib.nullcontext() if clicks is None else clicks.hold():
                    cursor.execute("SELECT pg_current_wal_flush_lsn()::text")
                    (position,) = cursor.fetchone() or ("",)
                    connection.rollback()
                    for name in self._views:
                        self._get(f"/views/{name}/wait?position={position}&timeout_s=60")
                    if clicks is not None:
                        self._await_clicks(cursor, clicks)
                        connection.rollback()
                    cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                    cursor.execute("SELECT 1")
                    if clicks is not None:
                        clicks.load_tally(cursor)
                        self._compare_topic(cursor, clicks)
                for name, query in self._views.items():
                    if clicks is not None and name == clicks.view:
                        query = clicks.expected
                    self._compare(cursor, name, query)
            connection.rollback()
        finally:
            connection.close()

    def _await_clicks(self, cursor, clicks: Clicks) -> None:
        """Wait until all clicks are counted, or READY_S; the comparison finds the rest."""
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline:
            cursor.execute(f"SELECT coalesce(sum(clicks), 0) FROM {clicks.view}")
            if cursor.fetchone() == (clicks.sent,):
                return
            cursor.connection.rollback()
            time.sleep(0.02)

    def _compare_topic(self, cursor, clicks: Clicks) -> None:
        """Compare the sum of all deltas of the topic with the view's table."""
        added_up = clicks.read_deltas(READY_S)
        cursor.execute(f"SELECT category, region, clicks, value FROM {clicks.view}")
        rows = Counter(cursor.fetchall())
        self._judge(TOPIC, len(rows), sum(((rows - added_up) + (added_up - rows)).values()))

    def _compare(self, cursor, name: str, query: str) -> None:
        cursor.execute(
            f"SELECT (SELECT count(*) FROM ((TABLE {name} EXCEPT ALL ({query})) UNION ALL"
            f" (({query}) EXCEPT ALL TABLE {name})) AS d), (SELECT count(*) FROM {name})"
        )
        different, rows = cursor.fetchone()
        self._judge(name, rows, different)

    def _judge(self, name: str, rows: int, different: int) -> None:
        verdict = self._verdicts[name]
        verdict.rows = rows
        if different:
            verdict.wrong += 1
            self._show(f"[red]{name}: {different} rows differ[/]")
        else:
            verdict.equal += 1

    def _screen(self, shop: Shop) -> Group:
        figures = self._get("/health")["pipeline"] or {}
        heads = ("view", "kind", "built by", "rows", "changes/s", "compared with PostgreSQL")
        table = Table(*heads, box=None)
        for view in self._get("/views")["views"]:
            name = view["name"]
            counts = figures.get("views", {}).get(f"public.{name}", {"changes": 0})
            rate = self._rate.of(name, counts["changes"])
            verdict = self._verdicts[name]
            rows = f"{verdict.rows:,}" if verdict.rows else "-"
            engine = self._engines.get(name, "")
            table.add_row(name, view["kind"], engine, rows, f"{rate:,.0f}", verdict.text())
        if TOPIC in self._verdicts:
            sinks = figures.get("sinks", {}).values()
            rate = self._rate.of(TOPIC, sum(sink["rows_total"] for sink in sinks))
            verdict = self._verdicts[TOPIC]
            rows = f"{verdict.rows:,}" if verdict.rows else "-"
            table.add_row(TOPIC, "topic", "", rows, f"{rate:,.0f}", verdict.text())
        source = self._rate.of("", shop.changes)
        clicks = 0 if self._clicks is None else self._rate.of("clicks", self._clicks.sent)
        fresh = figures.get("freshness_ms", {"p50": 0.0, "p99": 0.0})
        memory = figures.get("rss_peak_bytes", 0) / 2**20
        return Group(
            Text(
                f"shop: {source:,.0f} changes/s, {shop.transactions:,} transactions so far; "
                f"clicks: {clicks:,.0f}/s\n"
            ),
            table,
            Text(
                f"\ncommit to visible: p50 {fresh['p50']:.1f} ms, p99 {fresh['p99']:.1f} ms; "
                f"pipeline memory {memory:,.0f} MiB"
            ),
        )

    def _get(self, path: str) -> dict:
        answer = httpx.get(self._url + path, timeout=90)
        if answer.status_code not in (200, 503):
            raise RuntimeError(f"{path}: {answer.status_code} {answer.text}")
        return answer.json()

    def _result(self) -> int:
        self._show("")
        wrong = sum(v.wrong for v in self._verdicts.values())
        equal = sum(v.equal for v in self._verdicts.values())
        self._show(f"{equal} comparisons equal, {wrong} different")
        return 0 if equal and not wrong else 1

    def _show(self, text: str) -> None:
        self._console.print(text, highlight=False)


def _picture(screen: Group) -> str:
    recorder = Console(record=True, width=96, file=io.StringIO())
    recorder.print(screen)
    picture = recorder.export_svg(title="tidemark demo")
    # Its fonts would be fetched from elsewhere; any monospaced one does.
    return re.sub(r"@font-face \{.*?\}", "", picture, flags=re.DOTALL)


def _bar(view: dict, engine: str) -> dict:
    state = view.get("backfill") or {}
    total = state.get("parts_total") or 1
    if view["status"] == ViewState.LIVE:
        return {"total": total, "completed": total, "note": f"{ViewState.LIVE.value}, by {engine}"}
    done = min(state.get("parts_done", 0), total * 0.99)
    note = f"{state.get('engine', '')} {state.get('phase', '')}"
    return {"total": total, "completed": done, "note": note}
