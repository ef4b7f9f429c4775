"""Run the workloads through our engine, plain dictionaries, dbsp, Flink and Pathway.

All runners get the same rows and report the same figures: changes, wall and CPU seconds, initial
rows, peak memory, and how the answer is wrong, if it is.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench import dictionaries, engine
from bench.engine import Job, Stage
from bench.generate import prepare
from bench.measure import in_child
from bench.peers import dbsp, environment, inputs
from bench.plans import DEFAULT, WHOLE, planned
from bench.record import measuring
from bench.rows import Generated
from bench.workloads import EPOCH, QUICK, WORKLOADS, Sizes, Workload

# The runs in small epochs: so many of each.
SMALL_EPOCHS = ((100, 1_000), (1, 5_000))
QUICK_EPOCHS = ((100, 20), (1, 100))
SINGLES = 400
MINI_BATCH = 5_000
CHECKPOINT_S = 10
OURS = "ours"


@dataclass(frozen=True)
class FlinkSettings:
    """One configuration of Flink."""

    state: str
    mini_batch: int = 0
    checkpoint_s: int = 0


# Each backend as it is fastest, by measurement; with checkpoints as one would run it.
FLINKS = {
    "flink-hashmap": FlinkSettings("hashmap"),
    "flink-rocksdb": FlinkSettings("rocksdb", MINI_BATCH),
    "flink-rocksdb-checkpoints": FlinkSettings("rocksdb", MINI_BATCH, CHECKPOINT_S),
}
RUNNERS: dict[str, tuple[str, ...]] = {
    OURS: tuple(WORKLOADS),
    "dictionaries": ("w1",),
    "dbsp": ("w1", "w2r"),
    "pathway": tuple(WORKLOADS),
    "flink-hashmap": tuple(WORKLOADS),
    "flink-rocksdb": ("w1", "w2", "w2r", "q3"),
    "flink-rocksdb-checkpoints": ("w1",),
}


def chosen(words: Iterable[str]) -> list[tuple[str, str]]:
    """Return the (workload, runner) pairs that the words name; a runner may be abbreviated."""
    words = list(words)
    workloads = [w for w in WORKLOADS if w in words] or list(WORKLOADS)
    runners = [r for r in RUNNERS if any(r == w or r.startswith(w + "-") for w in words)]
    return [(w, r) for w in workloads for r in runners or RUNNERS if w in RUNNERS[r]]


def run(pairs: list[tuple[str, str]], sizes: Sizes, folder: Path) -> None:
    """Measure each pair and write its record."""
    identities = [
        (WORKLOADS[w], i)
        for w, r in pairs
        if r == OURS
        for i in ((DEFAULT, WHOLE) if WORKLOADS[w].has_old_rows else (DEFAULT,))
    ]
    with planned(identities) as plans:
        for name, runner in pairs:
            workload = WORKLOADS[name]
            rows, small = prepare(workload.rows, sizes), prepare(workload.rows, QUICK)
            with measuring(name, runner, asdict(sizes), folder) as record:
                try:
                    if runner == OURS:
                        mine = {i: p for (w, i), p in plans.items() if w == name}
                        record.figures = _ours(workload, mine, rows, small)
                    else:
                        record.figures = _peer(runner)(runner, workload, rows, small)
                except environment.PeerMissing as missing:
                    record.missing = str(missing)
            result = record.missing or "measured"
            print(f"{name} {runner}: {result}, {record.seconds:.0f} s", file=sys.stderr, flush=True)


def _ours(
    workload: Workload, plans: dict[str, Any], rows: Generated, small: Generated
) -> dict[str, Any]:
    """Return the runs by identity."""
    figures: dict[str, Any] = {}
    for identity, plan in plans.items():
        is_full = identity == WHOLE
        runs = [
            asdict(engine.measure(Job(workload, plan, rows, small, stages, is_full=is_full)))
            for stages in _stages(workload, is_smoke=rows == small)
        ]
        figures[identity] = _together(runs)
    return figures


def _stages(workload: Workload, *, is_smoke: bool) -> list[tuple[Stage, ...]]:
    """Return the runs of an identity: epochs of 10,000, and small ones where it has them."""
    runs: list[tuple[Stage, ...]] = [(Stage(EPOCH),)]
    if workload.has_small_epochs:
        counts = QUICK_EPOCHS if is_smoke else SMALL_EPOCHS
        runs.append((*(Stage(*c) for c in counts), Stage(EPOCH)))
    return runs


def _together(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the first run with the stages of all by the size of their epochs, and any fault."""
    stages: dict[str, Any] = {}
    for run in runs:
        for stage in run["stages"]:
            stages.setdefault(str(stage["size"]), stage)
    fault = next((run["fault"] for run in runs if run["fault"]), None)
    return {**runs[0], "stages": stages, "fault": fault}


def _peer(runner: str) -> Callable[[str, Workload, Generated, Generated], dict[str, Any]]:
    return {"dictionaries": _dictionaries, "pathway": _pathway, "dbsp": _dbsp}.get(runner, _flink)


def _dbsp(runner: str, workload: Workload, rows: Generated, small: Generated) -> dict[str, Any]:
    """Return the runs by identity, of the same stages as ours."""
    program = dbsp.build()
    figures: dict[str, Any] = {"version": dbsp.version(), "runs": {}}
    for identity in (DEFAULT, WHOLE):
        runs = [
            dbsp.run(
                program,
                workload,
                rows,
                [(stage.size, stage.count) for stage in stages],
                has_old_rows=identity == WHOLE,
            )
            for stages in _stages(workload, is_smoke=rows == small)
        ]
        figures["runs"][identity] = _together(runs)
    return figures


def _dictionaries(
    runner: str, workload: Workload, rows: Generated, small: Generated
) -> dict[str, Any]:
    return asdict(in_child(dictionaries.run, rows))


def _pathway(runner: str, workload: Workload, rows: Generated, small: Generated) -> dict[str, Any]:
    """Run with one thread and, for W1, also with two; return the better run."""
    singles = SINGLES if workload.name == "w1" else 0
    job = {"workload": workload.name, "folder": str(rows.folder), "singles": singles}
    threads = ("1", "2") if workload.name == "w1" and rows != small else ("1",)
    runs = {
        t: environment.run(environment.PATHWAY, job, PATHWAY_THREADS=t, PATHWAY_PROCESSES="1")
        for t in threads
    }
    best = min(runs, key=lambda t: runs[t]["wall_s"])
    return {**runs[best], "threads": int(best)}


def _flink(runner: str, workload: Workload, rows: Generated, small: Generated) -> dict[str, Any]:
    environment.install(environment.FLINK)
    paths = in_child(inputs.flink_inputs, workload, rows)
    small_paths = in_child(inputs.flink_inputs, workload, small)
    facts: inputs.Facts = in_child(inputs.facts, workload, rows)
    copies = 1
    if len(workload.tables) == 1:
        # Too short to be timed once: the same rows several times.
        copies = inputs.COPIES
        table = workload.tables[0].name
        paths[table] = paths[f"{table}*{copies}"]
    job = {
        "workload": workload.name,
        "paths": paths,
        "small_paths": small_paths,
        "small": str(small.folder),
        **asdict(FLINKS[runner]),
        "loaded": facts.passing,
        "load_rows": facts.loaded,
        "changes": facts.changes * copies,
        "is_smoke": rows == small,
    }
    return environment.run(environment.FLINK, job)
