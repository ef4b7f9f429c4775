"""`python -m bench.beside_flink [--rows N]`: windows, sessions, joins in time and Nexmark's queries
with windows, maintained by us and by Flink, and run once by DuckDB.

All three get the same rows (bench/timed.py), and each answer is compared with DuckDB's. Ours takes
epochs of 10,000 rows, each a commit to RocksDB. Flink has two forms of most queries: by its
windows, whose results are final, and by groups and joins alone, whose results change as ours do.
Rates are over N rows in order; fewer rows show the answers when some come late or change.

Records go to bench/results: `time` by ours, by duckdb, and by flink.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import duckdb
import numpy as np

from bench.cells import measured, number, table
from bench.engine import Timer
from bench.measure import in_child
from bench.peers import environment
from bench.record import RESULTS, Record, measuring
from bench.server import session
from bench.streams import FLINKS
from bench.timed import (
    IN_ORDER,
    INPUTS,
    MOMENTS,
    TABLES,
    TIMED,
    Query,
    Stream,
    for_flink,
    in_duckdb,
    milliseconds,
    streams_of,
)
from connectors.postgres.analysis.analyzer import PostgresAnalyzer
from connectors.postgres.embedded.server import EmbeddedPostgres
from connectors.sink import SinkTable
from dataflow.delta import KIND_BYTES, Column, Delta
from dataflow.expressions.evaluator import NoEvaluator
from dataflow.plan.nodes import ViewPlan
from dataflow.sql.planner import plan_view
from dataflow.types import TIMESTAMP, SqlType
from dataflow.values import to_text
from service.engine.definition import View, ViewDefinition
from storage.rocks import RocksStore

PART = "time"
OURS, DUCKDB, FLINK = "ours", "duckdb", "flink"
EPOCH_ROWS = 10_000
CACHE_BYTES = 1 << 30
MISSING = -1
RUNS = 3
BACKENDS = ("flink-hashmap", "flink-rocksdb")
Streams = Mapping[str, Stream]


def main(arguments: list[str]) -> int:
    """Measure and write the records; return 1 if an answer of ours is wrong."""
    parser = argparse.ArgumentParser(prog="python -m bench.beside_flink", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--checked", type=int, default=50_000, help="rows of compared answers")
    parser.add_argument("--users", type=int, default=1_000)
    parser.add_argument("--only", default="", help="titles, separated by ;")
    parser.add_argument("--runners", default=f"{OURS},{DUCKDB},{FLINK}")
    parser.add_argument("--records", type=Path, default=RESULTS)
    given = parser.parse_args(arguments)
    titles = [t for t in TIMED if not given.only or t in given.only.split(";")]
    sizes = {"rows": given.rows, "checked": given.checked, "users": given.users}
    runs = {OURS: _run_ours, DUCKDB: _run_duckdb, FLINK: _run_flink}
    wrong = 0
    for runner in given.runners.split(","):
        with measuring(PART, runner, sizes, given.records) as record:
            try:
                record.figures = runs[runner](titles, sizes)
            except environment.PeerMissing as missing:
                record.missing = str(missing)
        if runner == OURS:
            wrong = sum(n for f in record.figures["queries"].values() for n in f["wrong"].values())
    return 1 if wrong else 0


def _inputs(sizes: Mapping[str, int]) -> Iterator[tuple[str, Streams]]:
    """Yield the small inputs by kind, one after another."""
    for kind in INPUTS:
        yield kind, streams_of(kind, sizes["checked"], sizes["users"])


def _run_ours(titles: Sequence[str], sizes: Mapping[str, int]) -> dict[str, Any]:
    with _planned(titles) as plans:
        found = {}
        for title, plan in plans.items():
            found[title] = in_child(_ours, title, plan, dict(sizes))
            print(f"{title}: ours, {found[title]}", file=sys.stderr, flush=True)
    return {"queries": found}


@contextmanager
def _planned(titles: Sequence[str]) -> Iterator[dict[str, ViewPlan]]:
    with EmbeddedPostgres(settings={"fsync": "off"}) as server:
        with session(server.dsn) as cursor:
            for name, columns in TABLES.items():
                types = (f"{c} {_type(c)} NOT NULL" for c in columns)
                cursor.execute(f"CREATE TABLE {name} ({', '.join(types)}, PRIMARY KEY (id))")
        with PostgresAnalyzer(server.dsn, "source") as analyzer:
            yield {title: plan_view(TIMED[title].text, analyzer) for title in titles}


def _type(column: str) -> str:
    return "timestamp" if column in MOMENTS else "bigint"


def _ours(title: str, plan: ViewPlan, sizes: Mapping[str, int]) -> dict[str, Any]:
    """Return the figures over all rows in order, and the number of wrong rows of each input."""
    query = TIMED[title]
    wrong, results = {}, {}
    for kind, streams in _inputs(sizes):
        answer, _ = _maintained(plan, query, streams)
        wrong[kind], results[kind] = differing(query, streams, answer), len(answer)
    streams = streams_of(IN_ORDER, sizes["rows"], sizes["users"])
    answer, figures = _maintained(plan, query, streams)
    wrong["all"] = differing(query, streams, answer)
    return {**figures, "results": results, "wrong": wrong}


def _maintained(
    plan: ViewPlan, query: Query, streams: Streams
) -> tuple[np.ndarray, dict[str, float]]:
    """Step through the streams; return the answer, and seconds and bytes."""
    fields, timer = plan.root.fields, Timer()
    definition = ViewDefinition(
        "bench", SinkTable("public", "maintained", fields, plan.key), "", plan
    )
    relations = {r.name.name: r.name for r in definition.relations()}
    total = sum(len(streams[t]) for t in query.tables)
    with TemporaryDirectory(prefix="tidemark-bench-") as folder:
        store = RocksStore(Path(folder), cache_bytes=CACHE_BYTES)
        view = View(definition, store, NoEvaluator())
        needed = view.dataflow.needed_columns()
        outputs = [view.dataflow.seed()]
        epochs = -(-total // EPOCH_ROWS)
        for epoch in range(epochs):
            inputs = {
                relations[t]: _delta(streams[t], needed[relations[t]], t, epoch, epochs)
                for t in query.tables
            }
            with timer:
                output = view.step(inputs)
                store.commit()
            outputs.append(output)
        state_bytes = sum(store.size(name)[1] for name in store.names())
        store.close()
    answer = Delta.concat(outputs).consolidate()
    columns = [_numbers(f.type, c) for f, c in zip(fields, answer.columns, strict=True)]
    figures = {"rows": total, "wall_s": timer.wall_s, "cpu_s": timer.cpu_s}
    rows = np.repeat(np.stack(columns, 1), answer.weights, axis=0)
    return rows, {**figures, "state_bytes": state_bytes}


def _numbers(of: SqlType, column: Column) -> np.ndarray:
    """Return int64: of moments, milliseconds since 1970; MISSING for NULL."""
    if column.kind == KIND_BYTES:
        texts = to_text(of, column).texts()
        return np.array([MISSING if t is None else int(t) for t in texts], np.int64)
    values = milliseconds(column.values) if of == TIMESTAMP else column.values
    return np.where(column.mask(), values, MISSING)


def _delta(stream: Stream, needed: Iterable[int], table: str, epoch: int, epochs: int) -> Delta:
    low, high = (round(len(stream) * at / epochs) for at in (epoch, epoch + 1))
    columns = [Column(stream.columns[TABLES[table][c]][low:high]) for c in needed]
    return Delta(columns, stream.weights[low:high]).consolidate()


def differing(query: Query, streams: Streams, answer: np.ndarray) -> int:
    """Return how many rows are in one answer and not in DuckDB's, or the reverse."""
    with duckdb.connect() as connection:
        in_duckdb(connection, {t: streams[t] for t in query.tables})
        return _differing_in(connection, query, answer)


def _differing_in(connection: duckdb.DuckDBPyConnection, query: Query, answer: np.ndarray) -> int:
    described = connection.execute(f"DESCRIBE {query.batch or query.text}").fetchall()
    shown = [
        f"coalesce({f'epoch_ms({name})' if kind == 'TIMESTAMP' else name}, {MISSING})::bigint"
        for name, kind, *_ in described
    ]
    expected = f"SELECT {', '.join(shown)} FROM ({query.batch or query.text}) q"
    connection.execute(f"CREATE OR REPLACE TEMP TABLE expected AS {expected}")
    connection.register("found", {f"c{i}": answer[:, i] for i in range(len(described))})
    counted = connection.execute(
        "SELECT count(*) FROM ((FROM expected EXCEPT ALL FROM found) UNION ALL "
        "(FROM found EXCEPT ALL FROM expected))"
    ).fetchall()
    return int(counted[0][0])


def _run_duckdb(titles: Sequence[str], sizes: Mapping[str, int]) -> dict[str, Any]:
    streams, found = streams_of(IN_ORDER, sizes["rows"], sizes["users"]), {}
    with duckdb.connect() as connection:
        in_duckdb(connection, streams)
        for title in titles:
            query, spent = TIMED[title], []
            made = f"CREATE OR REPLACE TEMP TABLE answer AS {query.batch or query.text}"
            for _ in range(RUNS):
                timer = Timer()
                with timer:
                    connection.execute(made)
                spent.append({"wall_s": timer.wall_s, "cpu_s": timer.cpu_s})
            rows = sum(len(streams[t]) for t in query.tables)
            found[title] = {"rows": rows, **min(spent, key=lambda run: run["cpu_s"])}
    return {"version": duckdb.__version__, "queries": found}


def _run_flink(titles: Sequence[str], sizes: Mapping[str, int]) -> dict[str, Any]:
    environment.install(environment.FLINK_TIME)
    found: dict[str, Any] = {}
    for title in titles:
        try:
            found[title] = in_child(_flink, title, dict(sizes))
        except environment.PeerMissing as missing:
            found[title] = {"missing": str(missing)}
        print(f"{title}: Flink, {found[title]}", file=sys.stderr, flush=True)
    cpu_s = sum(f.pop("orphan_cpu_s", 0.0) for f in found.values())
    package = environment.FLINK_TIME.package
    return {"version": package.rpartition("==")[2], "queries": found, "orphan_cpu_s": cpu_s}


def _flink(title: str, sizes: Mapping[str, int]) -> dict[str, Any]:
    """Return by form: seconds by backend, bytes, and by input the wrong rows or the refusal."""
    query = TIMED[title]
    forms = {"windows": query.windows, "updating": query.updating}
    with TemporaryDirectory(prefix="tidemark-bench-") as name:
        folder = Path(name)
        checked = dict(_inputs(sizes))
        whole = streams_of(IN_ORDER, sizes["rows"], sizes["users"])
        none = streams_of(IN_ORDER, 0, sizes["users"])
        job = {
            "forms": {form: text for form, text in forms.items() if text},
            "tables": query.tables,
            "checked": {k: for_flink(query, s, folder / k) for k, s in checked.items()},
            "timed": for_flink(query, whole, folder / "whole"),
            "empty": for_flink(query, none, folder / "none"),
            "backends": {b: asdict(FLINKS[b]) for b in BACKENDS},
            "folder": name,
        }
        found = environment.run(environment.FLINK_TIME, job)
        wrong: dict[str, dict[str, Any]] = {}
        for kind, by_form in found.pop("checked").items():
            for form, given in by_form.items():
                result = given.get("refused")
                if result is None:
                    result = differing(query, checked[kind], np.load(given["path"]))
                wrong.setdefault(form, {})[kind] = result
    rows = sum(len(whole[t]) for t in query.tables)
    return {**found, "rows": rows, "wrong": wrong}


def section(records: Sequence[Record], newest: str) -> list[str]:
    """Return the section of the page: each query by ours, Flink's forms and DuckDB."""
    by_runner = {r.runner: r for r in records}
    figures = {r.runner: r.figures.get("queries", {}) for r in records}
    sizes = records[0].sizes
    when = "; ".join(f"{runner} {measured(r, newest)}" for runner, r in by_runner.items())
    missing = [f"{runner}: {r.missing}." for runner, r in by_runner.items() if r.missing]
    rows, refused = [], {}
    for title in TIMED:
        for name, cells in _lines(title, figures, refused):
            rows.append([title, name, *cells])
    lines = [
        "## Time, beside Flink",
        "",
        _NOTE.format(**sizes) + f" Measured: {when}.",
        *missing,
        "",
        *table(_TITLES, rows),
    ]
    if refused:
        lines += ["", "Refused:", "", *(f"- {', '.join(t)}: {why}" for why, t in refused.items())]
    return lines


_TITLES = (
    *("query", "by", "rows/s", "CPU µs a row", "RocksDB: rows/s", "CPU µs a row", "state, MB"),
    *("wrong rows: in order", "1 % late", "10 % changed"),
)
_NOTE = (
    "By `python -m bench.beside_flink`: {rows:,} events of {users:,} users, one each 0.6 s, as "
    "many of Nexmark's, 1,000 a second, and half as many trades and ticks of 1,000 symbols, 500 a "
    "second each. Rows arrive up to a second out of order, events a minute: Flink's watermark "
    "waits exactly as long. Ours: epochs of 10,000 rows, each a commit. Flink: parallelism 1, no "
    "checkpoints, reading CSV; from submission to end, without the time of a job that has no rows. "
    "`windows` are its table functions, joins of windows, temporal and interval joins: results are "
    "final, and state behind the watermark is freed. `updating` is the query by groups and joins "
    "alone: results change as ours do. Flink's state is the largest checkpoint of another run. "
    "DuckDB runs the query once over all rows. Wrong rows are in one answer but not in both, "
    "compared with DuckDB's over {checked:,} rows (ours also over all); beside them, the rows of "
    "the right answer. `1 % late` are 10 to 20 times as late as others; `10 % changed` are updated "
    "or deleted up to 20 times as late."
)


def _lines(
    title: str, figures: Mapping[str, Any], refused: dict[str, list[str]]
) -> Iterator[tuple[str, list[str]]]:
    ours, once = (figures.get(r, {}).get(title) for r in (OURS, DUCKDB))
    flink = figures.get(FLINK, {}).get(title)
    results = ours["results"] if ours else {}
    if ours:
        wrong = [_wrong(ours["wrong"][k], results[k]) for k in INPUTS]
        if ours["wrong"]["all"]:
            wrong[0] = f"{wrong[0]}, **{ours['wrong']['all']:,} of all**"
        yield "**ours**", ["", "", *_rates(ours), _mb(ours["state_bytes"]), *wrong]
    if flink and "missing" in flink:
        yield f"Flink: {flink['missing']}", [""] * (len(_TITLES) - 2)
    for form, timed in flink.get("timed", {}).items() if flink else ():
        cells = []
        for backend in BACKENDS:
            net = {k: timed[backend][k] - timed[backend]["start"][k] for k in ("wall_s", "cpu_s")}
            cells += _rates({"rows": flink["rows"], **net})
        wrong = []
        for kind, result in flink["wrong"][form].items():
            if isinstance(result, str):
                refused.setdefault(result, []).append(f"{title} ({form}, {kind})")
            wrong.append(
                "refused" if isinstance(result, str) else _wrong(result, results.get(kind))
            )
        yield f"Flink, {form}", [*cells, _mb(timed["state_bytes"]), *wrong]
    if once:
        yield "DuckDB, once", [*_rates(once), "", "", "", "", "", ""]


def _rates(figures: Mapping[str, float]) -> list[str]:
    """Return rows/s and CPU microseconds a row; of a run too short to be timed, nothing."""
    if min(figures["wall_s"], figures["cpu_s"]) <= 0:
        return ["", ""]
    by_wall, cpu_us = (
        figures["rows"] / figures["wall_s"],
        1e6 * figures["cpu_s"] / figures["rows"],
    )
    return [number(by_wall), f"{cpu_us:.2f}"]


def _mb(state_bytes: float) -> str:
    """Return megabytes; of a run too short for a checkpoint, nothing."""
    return f"{state_bytes / 1e6:,.2f}" if state_bytes else ""


def _wrong(wrong: int, right: int | None) -> str:
    shown = f"{wrong:,}" if right is None else f"{wrong:,} / {right:,}"
    return f"**{shown}**" if wrong else "0"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
