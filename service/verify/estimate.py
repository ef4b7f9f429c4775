"""What a view would cost before it is created: rows, state, time, and the effect of a change.

The rows of each plan part are PostgreSQL's estimate (EXPLAIN of the part as a query), corrected by
samples where a table was never analyzed. Constants turn rows into bytes, and in
`service.backfill.engine_choice` into seconds; `bench/estimate.py` measures them, and the accuracy
of estimates. Invariant: nothing is written, and
nothing takes longer than `BUDGET_S`.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict

import numpy as np

from connectors.postgres.analysis.planner_statistics import PlannerStatistics, TableFacts
from connectors.postgres.catalog.catalog import ViewRow
from connectors.source import MAIN_SOURCE
from dataflow.errors import SqlError, TidemarkError
from dataflow.graph import needed_columns
from dataflow.plan.nodes import Filter, Join, Scan
from dataflow.plan.properties.view_key import reason_without_key
from dataflow.schema import VIEW_SOURCE, Relation, RelationName
from dataflow.sql.lower.estimate_queries import groups_query, predicate_query, queries_of
from dataflow.sql.lower.footprint import (
    ROW_BYTES,
    Size,
    StoredRows,
    effects_of,
    groups_in,
    risks_of,
    stored_by,
    width_of,
)
from dataflow.sql.lower.lowering import Node, lower
from service.backfill.engine_choice import LOCAL, SPARK, EngineChoice, Work
from service.engine.engine import ViewDefinition
from service.factory.service_factory import ServiceFactory
from service.runtime.deep_stack import deeply
from service.runtime.log import log
from service.views.estimate_models import EffectModel, Estimate, RiskModel, StateModel

BUDGET_S = 5.0
# How long the creation of a view may wait for it.
SHORT_S = 1.0
_FEW_ROWS = 1_000
# Rows of one plan part: the limits for a warning and for an error.
WARNED_ROWS = 100_000_000
MAX_ROWS = 10_000_000_000
_ENDLESS = 1e15
# Measured by `python -m bench.estimate` on the machine of bench/RESULTS.md (see docs/ESTIMATE.md).
COMPRESSION = 1.33
# The self-test's time on that machine.
TEST_S = 0.015
_SPEEDS = (0.2, 5.0)
_BUILDS = 10


Choose = Callable[[Work], EngineChoice]


class Estimator:
    """The estimator of one definition. rows: the catalog, for the sizes of maintained views."""

    def __init__(self, dsn: str, definition: ViewDefinition, rows: Iterable[ViewRow]) -> None:
        self._dsn = dsn
        self._definition = definition
        self._views = {(r.schema, r.name): r.row_estimate or _FEW_ROWS for r in rows}
        self.nodes = lower(definition.plan.root)
        self.sizes: list[Size] = []
        self.notes: list[str] = []
        self._facts: dict[RelationName, TableFacts] = {}
        self._scale: dict[RelationName, float] = {}
        self._rows: dict[RelationName, float] = {}

    def estimate(
        self, choose: Choose, speeds: Mapping[str, float], budget_s: float = BUDGET_S
    ) -> Estimate:
        """Return the estimate. choose: the engine of the backfill for its work. speeds: of this
        machine with each engine; 2 is twice as fast.
        """
        deadline = time.monotonic() + budget_s
        relations = self._definition.relations()
        with PlannerStatistics(self._dsn, role=self._definition.role) as planner:
            self._facts = planner.tables(r for r in relations if r.name.source == MAIN_SOURCE)
            for relation in relations:
                self._rows[relation.name] = self._count(relation, planner)
            self._measure(planner, deadline)
        stored = [*self._tables(), *stored_by(self.nodes, self.sizes)]
        state_bytes = sum(k.raw_bytes for k in stored) * COMPRESSION
        work = self.work(state_bytes)
        choice = choose(work)
        output = self.sizes[-1]
        largest = max((s.rows, n.name) for n, s in zip(self.nodes, self.sizes, strict=True))
        return Estimate(
            source_rows=_whole(sum(self._rows.values())),
            output_rows=_whole(output.rows),
            largest_rows=_whole(largest[0]),
            largest_operator=largest[1],
            stepped_rows=_whole(work.stepped),
            state_bytes=_whole(state_bytes),
            state=[
                StateModel(
                    operator=k.node, rows=_whole(k.rows), bytes=_whole(k.raw_bytes * COMPRESSION)
                )
                for k in stored
            ],
            backfill_s=_seconds(choice.expected_s or 0.0),
            engine=choice.engine,
            road=choice.engine,
            engine_s={name: _seconds(s) for name, s in choice.seconds.items()},
            engine_reason=choice.reason,
            speed=round(speeds[choice.engine], 3),
            amplification={
                str(name): EffectModel(
                    rows_out=_short(e.rows_out), rows_touched=_short(e.rows_touched)
                )
                for name, e in effects_of(self.nodes, self.sizes).items()
            },
            risks=[RiskModel(**asdict(r)) for r in self._risks()],
            notes=self.notes,
        )

    def work(self, state_bytes: float = 0.0) -> Work:
        """Return the work of a backfill that leaves so many bytes of state."""
        stepped = sum(size.rows for size in self.sizes)
        return Work(sum(self._rows.values()), stepped, state_bytes)

    # --- rows --------------------------------------------------------------------------------

    def _count(self, relation: Relation, planner: PlannerStatistics) -> float:
        """Return the rows of a base relation; from a sample if it was never analyzed."""
        name, facts = relation.name, self._facts.get(relation.name)
        if relation.is_single:
            return 1
        if facts is None:
            self.notes.append(f"{name}: unknown size, assumed to be {_FEW_ROWS} rows")
            return _FEW_ROWS
        if facts.has_statistics:
            return float(facts.rows)
        sampled = planner.sampled_rows(relation, facts)
        self.notes.append(f"{name}: never analyzed, estimated from a sample; ANALYZE it")
        guessed = planner.guess(f'SELECT FROM "{_doubled(name.schema)}"."{_doubled(name.name)}"')
        if sampled is None or guessed is None:
            return float(facts.rows)
        self._scale[name] = max(sampled, 1.0) / max(guessed.rows, 1.0)
        return sampled

    def _measure(self, planner: PlannerStatistics, deadline: float) -> None:
        """Compute the size of each node, inputs first."""
        queries = queries_of(self.nodes, self._assumed_rows)
        groups = groups_in(self.nodes)
        scales: list[float] = []
        for i, (node, query) in enumerate(zip(self.nodes, queries, strict=True)):
            inputs = [self.sizes[j] for j in node.inputs]
            scale = self._scale_of(node, [scales[j] for j in node.inputs], planner)
            in_time = query is not None and time.monotonic() < deadline
            guess = planner.guess(query) if query is not None and in_time else None
            if guess is None:
                rows = max((s.rows for s in inputs), default=1.0)
                if _is_crossed(node):
                    rows = inputs[0].rows * inputs[1].rows
                size = Size(rows, width_of(node))
            else:
                size = Size(guess.rows * scale, guess.width)
            below = queries[node.inputs[0]] if i in groups else None
            if below is not None and time.monotonic() < deadline:
                factory = planner.guess(groups_query(below, groups[i]))
                size.groups = factory.rows if factory else 1.0
            scales.append(scale)
            self.sizes.append(size)

    def _scale_of(self, node: Node, inputs: Sequence[float], planner: PlannerStatistics) -> float:
        """Return the factor by which the planner is wrong below this node, according to samples."""
        scale = max(inputs, default=1.0)
        if isinstance(node.plan, Scan):
            return self._scale.get(node.plan.relation.name, 1.0)
        below = self.nodes[node.inputs[0]].plan if node.inputs else None
        if not (isinstance(node.plan, Filter) and isinstance(below, Scan)):
            return scale
        name = below.relation.name
        facts = self._facts.get(name)
        if facts is None or facts.has_statistics:
            return scale
        counts = planner.counts(predicate_query(below, node.plan.predicate, facts.sample_percent))
        guess = planner.guess(queries_of([*self._two(node)], self._assumed_rows)[-1] or "")
        if counts is None or guess is None or not counts[0]:
            return scale
        # Half a row if the sample has none.
        true_rows = self._rows[name] * max(counts[1], 0.5) / counts[0]
        return true_rows / max(guess.rows, 1.0)

    def _two(self, node: Node) -> tuple[Node, Node]:
        """Return a scan and the filter over it, on their own."""
        scan = self.nodes[node.inputs[0]]
        return scan, Node(node.name, node.plan, (0,), node.exchange)

    def _assumed_rows(self, relation: Relation) -> int | None:
        """Return the assumed row count of a relation outside the database; None inside it."""
        name = relation.name
        if name.source == VIEW_SOURCE:
            return self._views.get((name.schema, name.name), _FEW_ROWS)
        return None if name.source == MAIN_SOURCE else _FEW_ROWS

    # --- bytes -------------------------------------------------------------------------------

    def _tables(self) -> list[StoredRows]:
        """Return the state of base relations, in the columns that are read."""
        needed = needed_columns(self.nodes)
        found = []
        for relation in self._definition.relations():
            if relation.is_append:
                continue
            rows = self._rows[relation.name]
            width = _width(relation, needed[relation.name], self._widths())
            found.append(StoredRows(str(relation.name), rows, rows * (width + ROW_BYTES)))
        return found

    def _widths(self) -> Mapping[RelationName, float]:
        """Return the row width in bytes of the scanned columns."""
        pairs = zip(self.nodes, self.sizes, strict=True)
        return {n.plan.relation.name: s.width for n, s in pairs if isinstance(n.plan, Scan)}

    def _risks(self) -> list:
        return risks_of(self.nodes, self.sizes, reason_without_key(self._definition.plan.root))


def _is_crossed(node: Node) -> bool:
    """Return True for a cross join: every left row meets every right row."""
    plan = node.plan
    return isinstance(plan, Join) and not plan.left_keys and plan.residual is None


def check_rows(estimate: Estimate | None, max_rows: int | None) -> list[str]:
    """Return warnings for a view whose plan factory have very many rows.

    max_rows: the view's option, MAX_ROWS by default. SqlError sql.too_many_rows above it.
    """
    if estimate is None or estimate.largest_rows < WARNED_ROWS:
        return []
    what = f'"{estimate.largest_operator}" has about {estimate.largest_rows:.1e} rows'
    if estimate.largest_rows > (MAX_ROWS if max_rows is None else max_rows):
        raise SqlError(
            "sql.too_many_rows",
            "the view is too large to build",
            detail=f"{what} by PostgreSQL's estimate; the limit is "
            f"{MAX_ROWS if max_rows is None else max_rows:.1e}",
            hint="join on an equality, ANALYZE the tables, or raise the view's option max_rows",
        )
    return [f"{what}: building the view may take very long or never finish"]


def _width(
    relation: Relation, columns: Sequence[int], widths: Mapping[RelationName, float]
) -> float:
    return widths.get(relation.name, 8.0 * len(columns))


def _seconds(seconds: float) -> float:
    return round(min(seconds, _ENDLESS), 2)


def _short(number: float) -> float:
    return float(f"{number:.3g}")


def _doubled(name: str) -> str:
    return name.replace('"', '""')


def _whole(number: float) -> int:
    """Return an integer of bounded size."""
    return round(min(number, _ENDLESS))


def estimated(
    factory: ServiceFactory,
    definition: ViewDefinition,
    rows: Sequence[ViewRow],
    requested: str,
    budget_s: float = BUDGET_S,
) -> Estimate | None:
    """Return a view's cost; None if the source cannot be queried. requested: its option
    `backfill`.
    """
    try:
        speeds = {engine: speed_of(built_before(rows, engine)) for engine in (LOCAL, SPARK)}
        estimator = Estimator(factory.settings.source, definition, rows)

        def choose(work: Work) -> EngineChoice:
            return factory.choose_engine(work, requested, speeds)

        return deeply(lambda: estimator.estimate(choose, speeds, budget_s))
    except TidemarkError as error:
        log.warning("estimate.failed", code=error.code, why=error.what)
        return None


@functools.lru_cache(1)
def machine_speed() -> float:
    """Return this machine's speed relative to the one of the constants."""
    rows = np.arange(200_000, dtype=np.int64)[::-1] * 2_654_435_761 % 1_000_003
    best = float("inf")
    for _ in range(3):
        started = time.thread_time()
        order = np.argsort(rows, kind="stable")
        np.unique(rows[order] >> 3)
        best = min(best, time.thread_time() - started)
    return min(max(TEST_S / best, _SPEEDS[0]), _SPEEDS[1])


def built_before(rows: Iterable[ViewRow], engine: str) -> list[tuple[float, float]]:
    """Return (seconds estimated at speed 1, seconds taken) of live views' first builds by an
    engine.
    """
    found = []
    for row in rows:
        facts = (row.plan or {}).get("estimate") or {}
        if row.live_at and row.created_at and engine in (facts.get("engine"), facts.get("road")):
            took_s = (row.live_at - row.created_at).total_seconds()
            found.append((facts["backfill_s"] * facts["speed"], took_s))
    return found[-_BUILDS:]


def speed_of(builds: Iterable[tuple[float, float]]) -> float:
    """Return this machine's speed from earlier builds, (seconds estimated at speed 1, seconds
    taken).

    With fewer than three, use the self-test.
    """
    ratios = [estimated / took for estimated, took in builds if took > 0 and estimated > 0]
    if len(ratios) < 3:
        return machine_speed()
    return min(max(float(np.median(ratios)), _SPEEDS[0]), _SPEEDS[1])
