"""Apache Flink on a workload: `python -m bench.peers.flink JOB`, in PyFlink's own environment.

JOB is JSON: workload, paths and small_paths (of the inputs, by table), small (a folder), state
(hashmap or rocksdb), mini_batch (0 for none), checkpoint_s (0 for none), loaded (records that the
streamed table's source emits before the first change), load_rows, changes to be counted, is_smoke
(too short to tell the load from the changes). Flink SQL runs on a mini-cluster, parallelism 1.

First a small job whose changelog is collected and compared with the oracle's answer; it warms the
JVM up too. Then the whole into a sink that drops everything: what is loaded at first is not
counted, the sources' metrics say when it was through. Prints one line of JSON.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pyflink.common import RowKind
from pyflink.table import EnvironmentSettings, TableEnvironment

from bench.peers.own import children, cpu_s, peak_rss_mb
from bench.rows import Generated
from bench.workloads import WORKLOADS, Table, Workload, difference, fold

POLL_S = 0.05
# (moment, CPU seconds, {vertex: (status, records emitted)})
Sample = tuple[float, float, dict[str, tuple[str, int]]]
_STARTED = ("RUNNING", "FINISHED")
_TYPES = {"i": "BIGINT", "s": "STRING"}
_OUTPUTS = {
    "w1": "region STRING, segment STRING, n BIGINT, total BIGINT",
    "w2": "category BIGINT, average DOUBLE",
    "w2r": "category BIGINT, average DOUBLE",
    "q1": "auction BIGINT, bidder BIGINT, price DOUBLE, ts BIGINT",
    "q2": "auction BIGINT, price BIGINT",
    "q3": "name STRING, city STRING, state STRING, id BIGINT",
}


class Cluster:
    """A mini-cluster with one job's settings."""

    def __init__(self, job: dict[str, Any], checkpoints: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        self.tables = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
        settings = {
            "parallelism.default": "1",
            "table.exec.source.cdc-events-duplicate": "false",
            "taskmanager.memory.managed.size": "1g",
            "taskmanager.memory.network.max": "256m",
            "pipeline.object-reuse": "true",
            "rest.address": "127.0.0.1",
            "rest.bind-address": "127.0.0.1",
            "rest.port": str(self._port),
            "rest.bind-port": str(self._port),
            "metrics.fetcher.update-interval": "200",
            "execution.checkpointing.dir": f"file://{checkpoints}",
        }
        for name, value in settings.items():
            self.tables.get_config().set(name, value)
        self.configure(job)
        self.jvm = children(os.getpid())

    def configure(self, job: dict[str, Any]) -> None:
        """Choose how later jobs keep their state."""
        settings = {
            "state.backend.type": job["state"],
            "table.exec.mini-batch.enabled": "true" if job["mini_batch"] else "false",
            "table.exec.mini-batch.allow-latency": "200 ms",
            "table.exec.mini-batch.size": str(job["mini_batch"] or -1),
        }
        interval = "execution.checkpointing.interval"
        if job["checkpoint_s"]:
            settings[interval] = f"{round(1_000 * job['checkpoint_s'])} ms"
        else:
            self.tables.get_config().get_configuration().remove_config(interval)
        for name, value in settings.items():
            self.tables.get_config().set(name, value)

    def inputs(self, workload: Workload, paths: dict[str, str], prefix: str) -> str:
        """Make the tables over files; the query over them."""
        query = workload.query
        for table in workload.tables:
            path = paths[table.name]
            self.tables.execute_sql(_create(table, f"{prefix}{table.name}", path))
            self.tables.execute_sql(
                f"CREATE TEMPORARY VIEW {table.name} AS SELECT * FROM {prefix}{table.name}"
            )
        return _in_flink(query)

    def forget(self, workload: Workload) -> None:
        """Drop the names that `inputs` gave."""
        for table in workload.tables:
            self.tables.execute_sql(f"DROP TEMPORARY VIEW {table.name}")

    def watch(self, result: Any) -> list[Sample]:
        """Samples until the job has ended; the last one is of its end."""
        samples: list[Sample] = [(*self.now(), {})]

        def sample(url: str) -> None:
            # Not up yet, or gone already: no vertices.
            reported = self.ask(url) or {"vertices": []}
            vertices = {
                v["name"]: (v["status"], v["metrics"]["write-records"])
                for v in reported["vertices"]
            }
            samples.append((*self.now(), vertices))

        done = self.follow(result, sample)
        return [*samples, (*done, {})]

    def follow(self, result: Any, sample: Callable[[str], None]) -> tuple[float, float]:
        """Wait for a job, and call sample with its URL meanwhile; return when it ended, and after
        how much CPU.
        """
        identity = str(result.get_job_client().get_job_id())
        ended = threading.Event()

        def poll() -> None:
            while not ended.is_set():
                sample(f"http://127.0.0.1:{self._port}/jobs/{identity}")
                time.sleep(POLL_S)

        thread = threading.Thread(target=poll, daemon=True)
        thread.start()
        result.wait()
        done = self.now()
        ended.set()
        thread.join()
        return done

    def ask(self, url: str) -> dict[str, Any] | None:
        """Return what the cluster reports there; None while it is not up."""
        try:
            with urllib.request.urlopen(url, timeout=2) as answer:
                return json.load(answer)
        except OSError:
            return None

    def now(self) -> tuple[float, float]:
        """Return the moment, and the CPU seconds of the JVM."""
        return time.perf_counter(), self.cpu_s()

    def cpu_s(self) -> float:
        """CPU seconds of the JVM."""
        return sum(map(cpu_s, self.jvm))


def main(job: dict[str, Any]) -> dict[str, Any]:
    workload = WORKLOADS[job["workload"]]
    with tempfile.TemporaryDirectory(prefix="flink-") as folder:
        cluster = Cluster(job, folder)
        fault = _check(cluster, workload, job)
        measured = _measure(cluster, workload, job)
    return {
        "version": version("apache-flink"),
        **measured,
        "p50_ms": None,
        "p99_ms": None,
        "peak_rss_mb": sum(map(peak_rss_mb, cluster.jvm)),
        # It outlives this program, so nobody else can count it.
        "orphan_cpu_s": cluster.cpu_s(),
        "fault": fault,
    }


def _check(cluster: Cluster, workload: Workload, job: dict[str, Any]) -> str | None:
    """What is wrong with its answer over the small rows."""
    query = cluster.inputs(workload, job["small_paths"], "small_")
    rows = []
    with cluster.tables.execute_sql(query).collect() as collected:
        for row in collected:
            gone = row.get_row_kind() in (RowKind.DELETE, RowKind.UPDATE_BEFORE)
            rows.append((tuple(row), -1 if gone else 1))
    cluster.forget(workload)
    return difference(Generated(Path(job["small"])).answer(workload), fold(workload, rows))


def _measure(cluster: Cluster, workload: Workload, job: dict[str, Any]) -> dict[str, Any]:
    """Wall and CPU seconds of the changes, and of what is loaded before."""
    query = cluster.inputs(workload, job["paths"], "whole_")
    key = ", ".join(c.split()[0] for c in _OUTPUTS[workload.name].split(", ")[: workload.keys])
    primary = f", PRIMARY KEY ({key}) NOT ENFORCED" if key else ""
    cluster.tables.execute_sql(
        f"CREATE TABLE dropped ({_OUTPUTS[workload.name]}{primary}) "
        "WITH ('connector' = 'blackhole')"
    )
    samples = cluster.watch(cluster.tables.execute_sql(f"INSERT INTO dropped {query}"))
    done, done_cpu, _ = samples[-1]
    running, running_cpu = _running_since(samples)
    if not job["loaded"] or job["is_smoke"]:
        counted = {"wall_s": done - running, "cpu_s": done_cpu - running_cpu}
        return {"changes": job["changes"], **counted, "load_rows": 0, "load_s": 0.0}
    mark, mark_cpu = _moment_of(samples, workload.stream[-1].name, job["loaded"])
    return {
        "changes": job["changes"],
        "wall_s": done - mark,
        "cpu_s": done_cpu - mark_cpu,
        "load_rows": job["load_rows"],
        "load_s": mark - running,
    }


def _running_since(samples: list[Sample]) -> tuple[float, float]:
    """When, and after how much CPU, all vertices were running.

    A job of a few rows is over before it is seen: then since it was handed in.
    """
    for at, cpu, vertices in samples:
        if vertices and all(status in _STARTED for status, _ in vertices.values()):
            return at, cpu
    return samples[0][:2]


def _moment_of(samples: list[Sample], source: str, records: int) -> tuple[float, float]:
    """When, and after how much CPU, a source had emitted that many records."""
    before = (*_running_since(samples), 0)
    for at, cpu, vertices in samples:
        emitted = sum(n for name, (_, n) in vertices.items() if _is_source(name, source))
        if emitted >= records and vertices:
            share = (records - before[2]) / max(emitted - before[2], 1)
            return before[0] + (at - before[0]) * share, before[1] + (cpu - before[1]) * share
        if vertices:
            before = (at, cpu, emitted)
    raise RuntimeError(f"source {source} was never seen to have emitted {records} records")


def _is_source(vertex: str, table: str) -> bool:
    return vertex.startswith("Source:") and f"whole_{table}[" in vertex


def _create(table: Table, name: str, path: str) -> str:
    columns = ", ".join(f"{column} {_TYPES[kind]}" for column, kind in table.columns)
    is_changed = path.endswith(".jsonl")
    key = f", PRIMARY KEY ({table.names[0]}) NOT ENFORCED" if is_changed else ""
    form = "debezium-json" if is_changed else "csv"
    return (
        f"CREATE TABLE {name} ({columns}{key}) WITH "
        f"('connector' = 'filesystem', 'path' = 'file://{path}', 'format' = '{form}')"
    )


def _in_flink(query: str) -> str:
    """Flink's AVG of BIGINT is a BIGINT."""
    return query.replace("avg(final)", "AVG(CAST(final AS DOUBLE))")


if __name__ == "__main__":
    print("\n" + json.dumps(main(json.loads(sys.argv[1]))))
