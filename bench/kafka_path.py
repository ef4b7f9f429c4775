"""From a topic through views to their tables and topics: the service and its lower bounds.

A local broker has records of 200 bytes. Lower bounds of the same run are a consumer alone, the feed
with its decoding, and COPY of the same rows. The service then reads the same records, as a backfill
and as a stream, for each of the queries. CPU seconds are those of its pipeline and the pipeline's
children.
"""

from __future__ import annotations

import io
import json
import sys
import threading
import time
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
from confluent_kafka import Consumer, Producer, TopicPartition

from bench import kafka_clients as clients
from bench.measure import in_child, percentile
from bench.record import measuring
from bench.server import session
from bench.service_run import ServiceRun
from connectors.kafka.embedded import EmbeddedKafka, missing
from connectors.postgres.embedded.server import EmbeddedPostgres

PART = "kafka-path"
COLUMNS = {**clients.COLUMNS, "campaign": "text"}
PLACES = {"_partition": "int4", "_offset": "int8"}
# A filter that lets a twelfth pass, and one that lets all.
_FILTERED = (
    "SELECT {}id, url, duration_ms, price, at FROM bench.page_views "
    "WHERE country = 'AT' AND duration_ms % 3 = 0"
)
QUERIES = {
    "filter-project, multiset": _FILTERED.format(""),
    "filter-project, a key": _FILTERED.format("_partition, _offset, "),
    "group-by": "SELECT country, is_mobile, count(*) AS n, sum(price) AS total "
    "FROM bench.page_views GROUP BY country, is_mobile",
    "all rows": "SELECT _partition, _offset, id, url, price FROM bench.page_views",
}
FED = "all rows"
_DDL = (
    "CREATE TABLE copied (id int8, user_id int8, url text, country text, duration_ms int4, "
    "price numeric(12,2), is_mobile bool, at timestamptz, campaign text)"
)
_REACHED = (
    "SELECT coalesce(max((positions #>> '{bench,page_views,next,0}')::bigint), 0) "
    "FROM tidemark.progress"
)
TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Sizes:
    """records: initial records. streamed: records sent later for each query. rates: records a
    second, each for `seconds`. idle_s: how long the service is then left idle.
    """

    records: int = 300_000
    streamed: int = 300_000
    rates: tuple[int, ...] = (100, 1000)
    seconds: float = 10.0
    idle_s: float = 10.0


QUICK = Sizes(3_000, 2_000, (100,), 0.5, 0.5)


def run(folder: Path, *, is_quick: bool) -> None:
    """Measure; write one record."""
    sizes = QUICK if is_quick else Sizes()
    with measuring(PART, "service", asdict(sizes), folder) as record:
        reason = missing()
        if reason is not None:
            record.missing = reason
            return
        with (
            EmbeddedKafka() as broker,
            EmbeddedPostgres() as postgres,
            TemporaryDirectory(prefix="tidemark-bench-") as scratch,
        ):
            clients.make_topics(broker.bootstrap)
            written = Written(broker.bootstrap)
            written.write(sizes.records)
            record.figures["floors"] = floors(broker.bootstrap, postgres.dsn, sizes.records)
            with ServiceRun(postgres.dsn, Path(scratch)) as service, session(postgres.dsn) as sql:
                bench = _Bench(broker.bootstrap, postgres.dsn, service, sql, written, sizes)
                record.figures.update(bench.run())
    print(f"kafka path: {record.seconds:.0f} s", file=sys.stderr, flush=True)


def value_of(number: int) -> bytes:
    """Return a record of about 200 bytes and nine fields."""
    view = {**clients.page_view(number), "campaign": f"autumn-{number % 50}"}
    return json.dumps(view, separators=(",", ":")).encode()


class Written:
    """Writes records to the topic; each one contains its offset."""

    def __init__(self, bootstrap: str) -> None:
        settings = {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 0}
        self._producer = Producer(settings)
        self.count = 0

    def write(self, count: int) -> None:
        """Write so many more; all are acknowledged on return."""
        values = [value_of(n) for n in range(self.count, self.count + count)]
        for value in values:
            while True:
                try:
                    self._producer.produce(clients.TOPIC, value)
                    break
                except BufferError:
                    self._producer.poll(0.05)
        self._producer.flush()
        self.count += count

    def write_steadily(self, rate: int, seconds: float) -> dict[int, float]:
        """Return, by offset, the time at which each record was passed to the producer."""
        moments = {}
        began = time.perf_counter()
        for number in range(max(int(rate * seconds), 5)):
            pause = began + number / rate - time.perf_counter()
            if pause > 0:
                time.sleep(pause)
            moments[self.count] = time.perf_counter()
            self._producer.produce(clients.TOPIC, value_of(self.count))
            self._producer.poll(0)
            self.count += 1
        self._producer.flush()
        return moments


def floors(bootstrap: str, dsn: str, count: int) -> dict[str, Any]:
    """Return the lower bounds: {name: wall and CPU seconds}."""
    consumed = in_child(consuming, bootstrap, count)
    decoded = in_child(feeding, bootstrap, count)
    with session(dsn) as sql:
        sql.execute(_DDL + "; SELECT pg_backend_pid()")
        backend = psutil.Process(sql.fetchone()[0])
        rows = [json.loads(value_of(n)) for n in range(count)]
        text = io.StringIO("".join("\t".join(map(str, r.values())) + "\n" for r in rows))
        before, began = cpu_s(backend), time.monotonic()
        sql.copy_expert("COPY copied FROM STDIN", text)
        wall, used = time.monotonic() - began, cpu_s(backend) - before
        copied = asdict(clients.Timed(count, wall, used))
        sql.execute("DROP TABLE copied")
    return {"consumer alone": consumed, "feed alone": decoded, "COPY, the server": copied}


def consuming(bootstrap: str, count: int) -> dict[str, Any]:
    """Consume with the client alone; runs in a child process."""
    return clients.timed(clients.read_confluent(bootstrap, count))


def feeding(bootstrap: str, count: int) -> dict[str, Any]:
    """Consume and decode all columns, with compiled kernels; runs in a child process."""
    for _ in clients.read_ours(bootstrap, min(2_000, count), COLUMNS):
        continue
    return clients.timed(clients.read_ours(bootstrap, count, COLUMNS))


def cpu_s(process: psutil.Process) -> float:
    """Return the CPU seconds of a process and its descendants, ended ones included."""
    below = process.children(recursive=True)
    alive = [p.cpu_times() for p in (process, *below)]
    return sum(t.user + t.system + t.children_user + t.children_system for t in alive)


class _Bench:
    """One service with one source."""

    def __init__(
        self,
        bootstrap: str,
        dsn: str,
        service: ServiceRun,
        sql: Any,
        written: Written,
        sizes: Sizes,
    ) -> None:
        self._bootstrap, self._dsn = bootstrap, dsn
        self._service, self._sql = service, sql
        self._written, self._sizes = written, sizes

    def run(self) -> dict[str, Any]:
        """Measure all figures."""
        topic = {"topic": clients.TOPIC, "format": "json", "columns": {**COLUMNS, **PLACES}}
        options = {"bootstrap_servers": self._bootstrap, "topics": {clients.TOPIC: topic}}
        self._service.declare("bench", "kafka", options)
        self._service.create("warm", QUERIES["group-by"], "local")
        self._written.write(1000)
        self._await_all()
        self._service.drop("warm")
        found: dict[str, Any] = {"views": {}}
        for number, (name, query) in enumerate(QUERIES.items()):
            found["views"][name] = self._view(f"view_{number}", query, is_fed=name == FED)
        return found

    def _view(self, view: str, query: str, *, is_fed: bool) -> dict[str, Any]:
        count, figures = self._written.count, {}
        with self._timing(count) as backfill:
            self._service.create(view, query, "local")
        figures["backfill"] = asdict(backfill.used)
        if is_fed:
            chosen = {"bootstrap_servers": self._bootstrap, "topic": view, "initial": "changes"}
            self._service.create_sink(view, "bench", chosen)
        reader = _TopicReader(self._bootstrap, view) if is_fed else None
        try:
            with self._timing(self._sizes.streamed) as stream:
                self._written.write(self._sizes.streamed)
                self._await_all()
                if reader is not None:
                    reader.await_count(self._sizes.streamed)
            figures["stream"] = asdict(stream.used)
            for rate in self._sizes.rates:
                figures[f"latency {rate}"] = self._latency(rate, reader)
        finally:
            if reader is not None:
                reader.close()
        with self._timing(0) as idle:
            time.sleep(self._sizes.idle_s)
        figures["idle_cores"] = idle.used.cpu_s / idle.used.wall_s
        self._check(view, query)
        self._service.drop(view)
        return figures

    def _timing(self, records: int) -> _Timing:
        return _Timing(psutil.Process(self._service.pipeline_pid()), records)

    def _await_all(self) -> None:
        """Wait until everything written is in the views' tables."""
        deadline = time.monotonic() + TIMEOUT_S
        while self._reached() < self._written.count:
            if time.monotonic() > deadline:
                raise RuntimeError(f"the views do not follow\n{self._service.log_tail()}")
            time.sleep(0.005)

    def _reached(self) -> int:
        self._sql.execute(_REACHED)
        return self._sql.fetchone()[0]

    def _latency(self, rate: int, reader: _TopicReader | None) -> dict[str, Any]:
        watch = _Watch(self._dsn, self._reached())
        try:
            with self._timing(0) as timing:
                moments = self._written.write_steadily(rate, self._sizes.seconds)
                self._await_all()
            found = {"records": len(moments), "cpu_s": timing.used.cpu_s}
            found.update(_spread({n: watch.seen_beyond(n) - at for n, at in moments.items()}))
        finally:
            watch.close()
        if reader is not None:
            reader.await_offset(max(moments))
            found["topic"] = _spread({n: reader.seen[n] - at for n, at in moments.items()})
        return found

    def _check(self, view: str, query: str) -> None:
        """Check that the view has the expected number of rows; for a group-by, the sum of its
        counts.
        """
        n = self._written.count
        is_grouped = "GROUP BY" in query
        counted = f"SELECT {'sum(n)' if is_grouped else 'count(*)'} FROM {view}"
        self._sql.execute(counted)
        found = int(self._sql.fetchone()[0])
        # country AT: multiples of 4; 30,000 is divisible by 3, so that is number % 12 = 0.
        expected = (n + 11) // 12 if "WHERE" in query else n
        if found != expected:
            raise RuntimeError(f"{view} has {found} rows instead of {expected}")


def _spread(took_s: dict[int, float]) -> dict[str, float]:
    values = [one * 1000 for one in took_s.values()]
    return {"p50_ms": percentile(values, 0.5), "p99_ms": percentile(values, 0.99)}


class _Timing:
    """`with` it: wall and CPU seconds of a process."""

    def __init__(self, process: psutil.Process, records: int) -> None:
        self._process, self._records = process, records

    def __enter__(self) -> _Timing:
        self._before, self._began = cpu_s(self._process), time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        used, wall = cpu_s(self._process) - self._before, time.perf_counter() - self._began
        self.used = clients.Timed(self._records, wall, used)


class _Watch:
    """A session that polls the sink's progress continuously."""

    def __init__(self, dsn: str, reached: int) -> None:
        self._reached, self._moments = [reached], [time.perf_counter()]
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(dsn,), daemon=True)
        self._thread.start()

    def seen_beyond(self, offset: int) -> float:
        """Return the time at which the record with this offset was first seen in the sink."""
        deadline = time.monotonic() + TIMEOUT_S
        while self._reached[-1] <= offset:
            if time.monotonic() > deadline or not self._thread.is_alive():
                raise RuntimeError("the sink does not follow")
            time.sleep(0.001)
        return self._moments[bisect_left(self._reached, offset + 1)]

    def close(self) -> None:
        """Stop polling."""
        self._is_over.set()
        self._thread.join()

    def _run(self, dsn: str) -> None:
        with session(dsn) as sql:
            while not self._is_over.wait(0.001):
                sql.execute(_REACHED)
                reached = sql.fetchone()[0]
                if reached > self._reached[-1]:
                    self._moments.append(time.perf_counter())
                    self._reached.append(reached)


class _TopicReader:
    """A read_committed reader of a view's topic. seen: by source offset, the time of arrival."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.seen: dict[int, float] = {}
        settings = {"bootstrap.servers": bootstrap, "group.id": "bench-topic"}
        settings["isolation.level"] = "read_committed"
        self._consumer = Consumer({**settings, "fetch.wait.max.ms": 20})
        self._consumer.assign([TopicPartition(topic, 0, 0)])
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def await_count(self, count: int) -> None:
        """Wait for so many rows."""
        self._await(lambda: len(self.seen) >= count)

    def await_offset(self, offset: int) -> None:
        """Wait for the row of a record."""
        self._await(lambda: offset in self.seen)

    def close(self) -> None:
        """Stop reading."""
        self._is_over.set()
        self._thread.join()
        self._consumer.close()

    def _await(self, is_there: Any) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while not is_there():
            if time.monotonic() > deadline or not self._thread.is_alive():
                raise RuntimeError(f"the topic does not follow: {len(self.seen)} rows")
            time.sleep(0.005)

    def _run(self) -> None:
        while not self._is_over.is_set():
            for offset in self._offsets():
                self.seen[offset] = time.perf_counter()

    def _offsets(self) -> Iterator[int]:
        for record in self._consumer.consume(10_000, 0.005):
            value = record.value()
            if record.error() is None and value is not None:
                yield json.loads(value)["row"]["_offset"]
