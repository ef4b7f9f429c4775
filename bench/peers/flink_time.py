"""Apache Flink on a query of time: `python -m bench.peers.flink_time JOB`, in PyFlink's own
environment.

JOB is JSON: forms (queries by name), tables, checked (by input, the statements that declare the
tables), empty and timed (the same, without rows and with all), backends (settings by name), folder.

The answers over the checked inputs are written to folder as arrays, for the caller to compare; they
also warm the JVM up. Then the whole runs into a sink that drops everything. A run is timed from its
submission to its end; one without rows shows what of that is the start. Last, a run that takes
checkpoints at short intervals: the largest shows the state. Prints one line of JSON.
"""

from __future__ import annotations

import gc
import json
import re
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from bench.peers.flink import Cluster
from bench.peers.own import peak_rss_mb

MISSING = -1
# Sinks of files publish at checkpoints.
PUBLISH_S = 1.0
CHECKPOINT_S = 0.1
_SETTINGS = {
    "table.local-time-zone": "UTC",
    # Statistics of checkpoints are otherwise up to three seconds old.
    "web.refresh-interval": "50",
    "web.checkpoints.history": "1000",
}
RUNS = 2


def main(job: dict[str, Any]) -> dict[str, Any]:
    # Released by another thread, an object would move this one to a thread of the JVM that knows
    # nothing of the planner.
    gc.disable()
    backends: dict[str, dict[str, Any]] = job["backends"]
    first = next(iter(backends.values()))
    with tempfile.TemporaryDirectory(prefix="flink-") as folder:
        cluster = Cluster(first, folder)
        for name, value in _SETTINGS.items():
            cluster.tables.get_config().set(name, value)
        runner = _Runner(cluster, job)
        cluster.configure({**first, "checkpoint_s": PUBLISH_S})
        checked = {
            kind: {form: runner.checked(kind, form) for form in job["forms"]}
            for kind in job["checked"]
        }
        timed: dict[str, dict[str, Any]] = {}
        for form in job["forms"]:
            for name, settings in backends.items():
                cluster.configure(settings)
                start, whole = (runner.least(given, form) for given in ("empty", "timed"))
                timed.setdefault(form, {})[name] = {**whole, "start": start}
            cluster.configure({**first, "checkpoint_s": CHECKPOINT_S})
            timed[form]["state_bytes"] = runner.timed("timed", form)["state_bytes"]
        return {
            "checked": checked,
            "timed": timed,
            "peak_rss_mb": sum(map(peak_rss_mb, cluster.jvm)),
            # It outlives this program, so nobody else can count it.
            "orphan_cpu_s": cluster.cpu_s(),
        }


class _Runner:
    """Runs a job's queries on a cluster, with the tables of one input at a time."""

    def __init__(self, cluster: Cluster, job: dict[str, Any]) -> None:
        self._cluster, self._job = cluster, job

    def checked(self, kind: str, form: str) -> dict[str, str]:
        """Return the file with the answer, or why there is none."""
        path = Path(self._job["folder"]) / f"{form}-{kind.replace(' ', '-')}"
        query = self._job["forms"][form]
        self._declare(self._job["checked"][kind])
        try:
            self._sink(query, f"'filesystem', 'path' = 'file://{path}', 'format' = 'debezium-json'")
            self._cluster.tables.execute_sql(f"INSERT INTO taken {query}").wait()
        # Whatever it is, it is Flink's answer to this query.
        except Exception as error:
            return {"refused": _reason(str(error))}
        finally:
            self._drop()
        found = path.with_suffix(".npy")
        np.save(found, np.array(_answer(path), np.int64))
        return {"path": str(found)}

    def least(self, given: str, form: str) -> dict[str, float]:
        """Return the least of several runs."""
        runs = [self.timed(given, form) for _ in range(RUNS)]
        return {key: min(run[key] for run in runs) for key in ("wall_s", "cpu_s")}

    def timed(self, given: str, form: str) -> dict[str, float]:
        """Return wall and CPU seconds from the submission, and the largest checkpoint."""
        self._declare(self._job[given])
        query = self._job["forms"][form]
        self._sink(query, "'blackhole'")
        before, found = self._cluster.now(), {"state_bytes": 0}

        def sample(url: str) -> None:
            reported = self._cluster.ask(f"{url}/checkpoints") or {"history": []}
            sizes = [c["state_size"] for c in reported["history"] if c["status"] == "COMPLETED"]
            found["state_bytes"] = max([found["state_bytes"], *sizes])

        submitted = self._cluster.tables.execute_sql(f"INSERT INTO taken {query}")
        at, cpu_s = self._cluster.follow(submitted, sample)
        self._drop()
        return {"wall_s": at - before[0], "cpu_s": cpu_s - before[1], **found}

    def _declare(self, statements: list[str]) -> None:
        for statement in statements:
            self._cluster.tables.execute_sql(statement)

    def _sink(self, query: str, connector: str) -> None:
        tables = self._cluster.tables
        width = tables.sql_query(query).get_schema().get_field_count()
        columns = ", ".join(f"c{i} BIGINT" for i in range(width))
        tables.execute_sql(
            f"CREATE TEMPORARY TABLE taken ({columns}) WITH ('connector' = {connector})"
        )

    def _drop(self) -> None:
        for name in (*self._job["tables"], "taken"):
            self._cluster.tables.execute_sql(f"DROP TEMPORARY TABLE IF EXISTS {name}")


def _answer(folder: Path) -> list[tuple[int, ...]]:
    """Return the rows that the changes in the folder's files add up to."""
    rows: Counter[tuple[int, ...]] = Counter()
    for path in folder.rglob("part-*"):
        for line in path.read_text().splitlines():
            change = json.loads(line)
            for side, weight in (("before", -1), ("after", 1)):
                if change[side] is not None:
                    rows[tuple(map(_number, change[side].values()))] += weight
    return list(rows.elements())


def _number(value: int | None) -> int:
    return MISSING if value is None else value


def _reason(message: str) -> str:
    """Return the innermost cause in one short line."""
    lines = [line.strip() for line in message.splitlines()]
    named = [line for line in lines if re.search(r"(Exception|Error): ", line)]
    causes = [line for line in named if line.startswith("Caused by: ")]
    line = (causes[-1:] or named[:1] or lines)[0]
    return re.sub(r"^.*?(Exception|Error): ", "", line)[:300]


if __name__ == "__main__":
    print("\n" + json.dumps(main(json.loads(sys.argv[1]))))
