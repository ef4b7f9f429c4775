"""`python -m tests.equality.torture [queries]`: generated queries with fresh seeds.

Two workers play histories of random schemas; each wrong answer is made smaller and becomes a
file under tests/regressions/. A line a hundred queries says how it stands. Counts, refusals by
reason and what was found go to a JSON file, by which a run that was stopped goes on:
TIDEMARK_TEST_SEED names the run. Exit 0 when nothing was wrong.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from itertools import count, islice
from pathlib import Path
from random import Random
from typing import Any

from connectors.postgres.embedded.server import EmbeddedPostgres
from tests.equality.case import Case
from tests.equality.fuzz import Played, Tally, play
from tests.equality.history import opened_store
from tests.equality.shrink import shrink
from tests.harness.covering import deep, pairs, singles
from tests.harness.features.registry import FEATURES
from tests.harness.maintained import Fault
from tests.harness.postgres import SERVER_SETTINGS, versions_to_test

REGRESSIONS = Path(__file__).parent.parent / "regressions"
BENCH = Path(__file__).parent.parent.parent / "bench"
COUNTED = BENCH / "generated_queries.json"
COUNTED_TEMPORAL = BENCH / "generated_temporal_queries.json"
QUERIES = 10_000
A_HISTORY = 40
# Histories after which singles and pairs begin anew; what follows them in a cycle is deep.
CYCLE = 20
SHRINK_S = 90.0
SHRUNK_A_HISTORY = 3


@dataclass(frozen=True)
class HistoryPlan:
    """What one history is about: the run and its number name it.

    names: features to draw from. is_temporal: every query reads the clock.
    """

    run: int
    number: int
    names: tuple[str, ...] = tuple(FEATURES)
    is_temporal: bool = False

    @property
    def seed(self) -> str:
        """Of schema, rows, changes and queries."""
        return f"{self.run}/{self.number}"

    @property
    def restarts(self) -> bool:
        """Whether the operators are made again before each transaction."""
        return self.number % 2 == 1

    @property
    def together(self) -> bool:
        """Whether the queries are views of one engine."""
        return self.number // 2 % 2 == 1

    def lists(self) -> list[tuple[str, ...]]:
        """Features by query: singles, then pairs, then deep ones, as histories go on."""
        seed = f"{self.run}/{self.number // CYCLE}/lists"
        cycle = _cycle_of(seed, self.names, is_temporal=self.is_temporal)
        turn = self.number % CYCLE
        return cycle[turn * A_HISTORY : (turn + 1) * A_HISTORY]


@cache
def _cycle_of(seed: str, names: tuple[str, ...], *, is_temporal: bool) -> list[tuple[str, ...]]:
    rng = Random(seed)
    every = feature_lists(names, rng)
    return list(islice(with_temporal(every, rng) if is_temporal else every, CYCLE * A_HISTORY))


def feature_lists(names: Sequence[str], rng: Random) -> Iterator[tuple[str, ...]]:
    """Each feature alone, all pairs, then deep ones for ever."""
    yield from singles(names, rng)
    yield from pairs(names, rng, min(7, len(names)))
    yield from deep(names, rng)


def with_temporal(lists: Iterator[tuple[str, ...]], rng: Random) -> Iterator[tuple[str, ...]]:
    """Lists with a feature that reads the clock in each, added where there is none."""
    temporal = [name for name, feature in FEATURES.items() if feature.is_temporal]
    for names in lists:
        has_one = any(FEATURES[name].is_temporal for name in names)
        yield names if has_one else (*names, rng.choice(temporal))


@dataclass
class Result:
    """Of one history: counts, the cases found, and how long it took."""

    seed: str
    tally: Tally
    cases: list[tuple[str, str]] = field(default_factory=list)
    elapsed_s: float = 0.0


_servers: dict[int, EmbeddedPostgres] = {}


def server_of(number: int) -> EmbeddedPostgres:
    """This worker's server for a history: the versions take turns. It ends with the worker."""
    versions = versions_to_test()
    version = versions[number % len(versions)]
    if version not in _servers:
        _servers[version] = EmbeddedPostgres(version, SERVER_SETTINGS).start()
    return _servers[version]


def run_one(plan: HistoryPlan, shrink_s: float) -> Result:
    """Play one history on this worker's server."""
    started = time.monotonic()
    server = server_of(plan.number)
    kind = "rocks" if plan.number % 5 == 4 else "memory"
    with (
        tempfile.TemporaryDirectory() as folder,
        opened_store(kind, Path(folder)) as store,
    ):
        how = {"restarts": plan.restarts, "together": plan.together}
        played = play(server, plan.seed, plan.lists(), store, **how)
    result = Result(plan.seed, played.tally)
    for fault in played.outcome.faults[:SHRUNK_A_HISTORY]:
        result.cases.append(described(server, played, fault, plan, shrink_s))
    for fault in played.outcome.faults[SHRUNK_A_HISTORY:]:
        result.cases.append(("", told(played, fault, plan)))
    result.elapsed_s = time.monotonic() - started
    return result


def described(
    server: EmbeddedPostgres, played: Played, fault: Fault, plan: HistoryPlan, budget_s: float
) -> tuple[str, str]:
    """(name of a file, its text) of a fault; without a name where it did not fail again."""
    failing = None
    if budget_s and fault.query in played.queries:
        failing = shrink(server, played, fault, budget_s=budget_s)
    if failing is None:
        return "", told(played, fault, plan)
    head = (f"seed {plan.seed}, {fault.query}: {', '.join(failing.query.features)}",)
    case: Case = failing.case(head)
    digest = hashlib.sha256(case.query.encode()).hexdigest()[:10]
    return f"generated_{digest}.sql", case.text()


def told(played: Played, fault: Fault, plan: HistoryPlan) -> str:
    """A fault for people."""
    query = played.queries.get(fault.query)
    text = "" if query is None else f"{', '.join(query.features)}\n{query.text()}"
    return f"seed {plan.seed}, {fault.query}, transaction {fault.transaction}: {text}\n{fault.what}"


def main(arguments: list[str]) -> int:
    """Run, print, write down."""
    parser = argparse.ArgumentParser(prog="python -m tests.equality.torture", description=__doc__)
    parser.add_argument("queries", type=int, nargs="?", default=QUERIES)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--features", default="", help="only these, separated by commas")
    parser.add_argument("--temporal", action="store_true", help="every query reads the clock")
    parser.add_argument("--shrink-s", type=float, default=SHRINK_S, help="a fault; 0: do not")
    parser.add_argument("--out", type=Path, help="where counts are kept")
    parser.add_argument("--cases", type=Path, default=REGRESSIONS, help="where failures are kept")
    options = parser.parse_args(arguments)
    run = int(os.environ.get("TIDEMARK_TEST_SEED") or time.time())
    names = tuple(options.features.split(",")) if options.features else tuple(FEATURES)
    out = options.out or (COUNTED_TEMPORAL if options.temporal else COUNTED)
    record = _Record(run, out, options.cases)
    print(f"run {run}, from history {record.done}: repeat by TIDEMARK_TEST_SEED={run}", flush=True)
    context = multiprocessing.get_context("spawn")
    plans = (
        (HistoryPlan(run, n, names, options.temporal), options.shrink_s) for n in count(record.done)
    )
    with context.Pool(options.workers) as pool:
        waiting = [pool.apply_async(run_one, plan) for plan in islice(plans, options.workers + 1)]
        while waiting and record.tally.queries < options.queries:
            record.add(waiting.pop(0).get())
            waiting.append(pool.apply_async(run_one, next(plans)))
    print(json.dumps(record.facts(), indent=1))
    return 1 if record.tally.wrong else 0


class _Record:
    """What is counted so far, kept in a file after every history."""

    def __init__(self, run: int, path: Path, cases: Path) -> None:
        self._run, self._path, self._cases = run, path, cases
        self._started = time.monotonic()
        self._before_s = 0.0
        self._printed = 0
        self.done = 0
        self.tally = Tally()
        self.found: list[str] = []
        kept = json.loads(path.read_text()) if path.exists() else {}
        if kept.get("seed") == run:
            self.done, self.found = kept["histories"], kept["found"]
            self._before_s = kept["elapsed_s"]
            for name, value in kept["counts"].items():
                setattr(self.tally, name, Counter(value) if isinstance(value, dict) else value)
            self._printed = self.tally.queries

    def add(self, result: Result) -> None:
        """Take over a history's result, write it down, and say so each hundred queries."""
        self.done += 1
        self.tally.add(result.tally)
        for name, text in result.cases:
            print(f"\nWRONG {name}\n{text}", flush=True)
            if name:
                (self._cases / name).write_text(text)
            self.found.append(name or text.split("\n", 1)[0])
        self._path.write_text(json.dumps(self.facts(), indent=1) + "\n")
        if self.tally.queries - self._printed >= 100:
            self._printed = self.tally.queries
            print(self._line(), flush=True)

    def _line(self) -> str:
        refused = sum(self.tally.refused.values())
        most = "; ".join(f"{n} {reason}" for reason, n in self.tally.refused.most_common(2))
        rate = self.tally.queries / max(self._elapsed_s(), 1e-9)
        return (
            f"{self.tally.queries} queries, {refused} refused ({most}), {self.tally.wrong} wrong, "
            f"{self.tally.moved} moved, {rate:.1f} queries/s"
        )

    def _elapsed_s(self) -> float:
        return self._before_s + time.monotonic() - self._started

    def facts(self) -> dict[str, Any]:
        """As the file has it."""
        return {
            "seed": self._run,
            "date": datetime.now(UTC).strftime("%Y-%m-%d"),
            "histories": self.done,
            "elapsed_s": round(self._elapsed_s(), 1),
            "counts": self.tally.facts(),
            "found": self.found,
        }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
