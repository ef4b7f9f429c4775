"""Oracle: the same views each by itself, in a store of its own, with nothing shared.

Views with much in common are built, joined, dropped and opened again at random between changes.
Every delta and every error row of the engine must be those of the views alone, and its store must
hold what live views need and nothing else. A failure names the seed; to repeat one:
TIDEMARK_SEED=<seed> pytest tests/property/test_sharing.py -k <store>
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import TypeVar

from connectors.sink import SinkTable
from connectors.source import SourceBatch
from dataflow.changes import Changes
from dataflow.delta import Delta
from dataflow.expressions.evaluator import NoEvaluator
from dataflow.operators.chunking import EVERY_ROW
from dataflow.plan.nodes import Distinct, Plan, Project, Scan, UnionAll, ViewPlan
from dataflow.plan.walk import refs
from dataflow.schema import Relation
from service.engine.engine import Engine, View, ViewDefinition
from storage.memory import MemoryStore
from storage.pages import Tuning
from storage.rocks import RocksStore
from storage.store import Store
from tests.harness.oracle import exact
from tests.harness.reported_table import ReportedTable
from tests.harness.tiers import count
from tests.property.plans import CASES

ROUNDS = count("TIDEMARK_SHARING_ROUNDS", 9, 18)
STEPS = 40
TINY = Tuning(page_rows=16, memory_rows=60, fan=2)
SMALL_CASES = [name for name in CASES if name not in ("aggregate", "distinct", "top k")]

Played = TypeVar("Played", bound="Run")


@dataclass
class Alone:
    """A view that shares nothing, and the rows that it has given out."""

    view: View
    rows: Delta

    @staticmethod
    def made(definition: ViewDefinition) -> Alone:
        """One that has seen nothing yet."""
        view = View(definition, MemoryStore(), NoEvaluator())
        return Alone(view, view.dataflow.seed())

    def take(self, output: Delta) -> Delta:
        """Note what changed."""
        self.rows = Delta.concat([self.rows, output]).consolidate()
        return output


def bag(delta: Delta) -> Counter:
    """Rows with their weights."""
    return Counter({exact(row): weight for row, weight in delta.rows()})


def load(view: View, tables: Iterable[ReportedTable]) -> list[Delta]:
    """Take the tables' present rows in, as a backfill does."""
    outputs = []
    for table in tables:
        name = table.relation.name
        if name in view.tables:
            home = next(h for h in view.locations if h.relation.name == name)
            rows = table.delta(home.columns).consolidate()
            view.tables[name].load(rows)
            outputs.append(view.step({name: view.needed(name, rows)}))
    return outputs


class Run:
    """One engine, and every view of it alone."""

    steps = STEPS

    def __init__(self, seed: int, reopen: Callable[[Store | None], Store]) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.reopen = reopen
        self.store = reopen(None)
        self.engine = self.opened()
        self.alone: dict[str, Alone] = {}
        self.builds: dict[str, View] = {}
        self.tables = [
            ReportedTable(name, 6, self.random, is_full=name == "b") for name in ("a", "b", "c")
        ]
        self.made = 0
        self.shared_most = 0

    def opened(self) -> Engine:
        """An engine over the state."""
        return Engine(self.store, NoEvaluator(), "source")

    def step(self) -> None:
        """Something happens to views, and then to tables."""
        draw = self.random.random()
        if draw < 0.35 and len(self.alone) < 7:
            self.begin()
        elif draw < 0.55 and self.builds:
            self.join(self.random.choice(list(self.builds)))
        elif draw < 0.68:
            self.drop()
        elif draw < 0.74:
            self.restart()
        self.change()

    def begin(self) -> None:
        """Build a view, beside the live ones."""
        self.made += 1
        name = f"v{self.made}"
        plan = self.plan()
        table = SinkTable("public", name, plan.fields, ())
        definition = ViewDefinition(name, table, "", ViewPlan(plan, ()))
        live = [read for d in self.engine.views.values() for read in d.reads()]
        live += [read for v in self.builds.values() for read in v.definition.reads()]
        kept = self.engine.columns_to_keep(definition, live)
        view = View(definition, self.store, NoEvaluator(), kept)
        alone = self.alone[name] = Alone.made(definition)
        outputs = [view.dataflow.seed(), *load(view, self.tables)]
        for output in load(alone.view, self.tables):
            alone.take(output)
        assert self.errors(view) == self.errors(alone.view)
        if not definition.parents():
            assert bag(Delta.concat(outputs).consolidate()) == bag(alone.rows)
        self.builds[name] = view

    def join(self, name: str) -> None:
        """Make a built view live; then it reads its parents' rows."""
        view = self.builds.pop(name)
        whole = {
            parent: self.alone[parent.name].rows
            for parent in view.definition.parents()
            if parent in self.engine.views
        }
        if len(whole) < len(view.definition.parents()):
            self.forget(name)
            return
        if whole:
            view.step(whole)
            alone = self.alone[name]
            alone.take(alone.view.step(whole))
            alone.view.errors.take()
        view.errors.take()
        self.engine.add(view)
        self.store.commit()
        self.check_state()

    def forget(self, name: str) -> None:
        """Give a build up."""
        self.store.drop(self.alone.pop(name).view.definition.scope + "/")
        self.builds.pop(name, None)

    def drop(self) -> None:
        """Drop a live view that no other one reads."""
        read = {p for a in self.alone.values() for p in a.view.definition.parents()}
        names = [n for n in self.engine.views if n not in read]
        if names:
            name = self.random.choice(names)
            del self.alone[name.name]
            self.engine.remove(name)
            self.store.commit()
            self.check_state()

    def restart(self) -> None:
        """Open the state again; what was being built is lost."""
        for name in list(self.builds):
            self.forget(name)
        self.store.commit()
        self.store = self.reopen(self.store)
        before = self.engine
        self.engine = self.opened()
        assert list(self.engine.views) == list(before.views)
        assert self.engine.dataflow.tables.locations == before.dataflow.tables.locations
        self.store.commit()
        self.check_state()

    def change(self) -> None:
        """One epoch."""
        changes = [t.change() for t in self.tables if self.random.random() < 0.6]
        changes = [c for c in changes if len(c)]
        self.engine.dataflow.part_rows = self.random.choice((1, 2, 5, EVERY_ROW))
        epoch = self.engine.step(SourceBatch(self.engine.epoch + 1, changes, 1, 1))
        self.engine.commit(epoch, written=epoch.progress.epoch)
        found = {table.name: bag(delta) for table, delta in epoch.rows.deltas}
        errors = bag(epoch.rows.errors) if epoch.rows.errors is not None else Counter()
        expected, failed = self.expect(changes)
        assert found == expected
        assert errors == failed
        for view in self.builds.values():
            inputs = view.resolve(changes)
            if inputs:
                view.step(inputs)

    def expect(self, changes: list[Changes]) -> tuple[dict[str, Counter], Counter]:
        """What the views alone give, and their error rows under their names."""
        outputs: dict[str, Delta] = {}
        expected, failed = {}, Counter()
        for name, alone in self.alone.items():
            inputs = alone.view.resolve(changes)
            for parent in alone.view.definition.parents():
                if parent.name in outputs and name not in self.builds:
                    inputs[parent] = outputs[parent.name]
            if inputs:
                output = alone.take(alone.view.step(inputs))
                errors = self.errors(alone.view)
                if name in self.builds:
                    continue
                outputs[name] = output
                if len(output):
                    expected[name] = bag(output)
                for row, weight in errors.items():
                    failed[f"public.{name}".encode(), *row] += weight
        return expected, failed

    def errors(self, view: View) -> Counter:
        """The error rows since the last call."""
        return bag(view.errors.take())

    def check_state(self) -> None:
        """The store holds the state of live nodes, tables and builds, and of nothing else."""
        dataflow = self.engine.dataflow
        prefixes = {h.prefix for v in dataflow.views.values() for h in v.locations if h}
        prefixes |= {home.prefix for home in dataflow.tables.locations}
        prefixes |= {view.definition.scope + "/" for view in self.builds.values()}
        names = self.store.names()
        assert not [n for n in names if not n.startswith(tuple(prefixes))]
        nodes = [node for v in dataflow.views.values() for node in v.nodes]
        self.shared_most = max(self.shared_most, len(nodes) - len(set(nodes)))

    def plan(self) -> Plan:
        """A plan over few columns, likely with parts that others have too."""
        views = [a.view.definition for a in self.alone.values()]
        views = [d for d in views if d.name in self.engine.views]
        if views and self.random.random() < 0.15:
            definition = self.random.choice(views)
            fields = definition.table.fields
            relation = Relation(definition.name, 0, fields)
            return Distinct(Scan(relation, tuple(range(len(fields))), fields))
        common = Random(self.random.randrange(4))
        a, b, c = (self.scan(common, table) for table in self.tables)
        case = CASES[common.choice(SMALL_CASES)]
        plan = case(common, a, *((b, c) if common.random() < 0.5 else (c, b)))
        above = self.random.randrange(4)
        if above == 0:
            return renamed(plan, self.made)
        if above == 1:
            return Distinct(renamed(plan, self.made))
        if above == 2:
            return UnionAll((plan, renamed(plan, self.made)), plan.fields)
        return plan

    def scan(self, common: Random, table: ReportedTable) -> Scan:
        """Three integers, one of them with luck another one than other views read, and the text."""
        columns = [*common.sample(range(5), 3), 5]
        if self.random.random() < 0.2:
            columns[:3] = self.random.sample(range(5), 3)
        fields = tuple(table.relation.fields[c] for c in columns)
        return Scan(table.relation, tuple(columns), fields)


def renamed(plan: Plan, number: int) -> Plan:
    """The same rows under other names."""
    fields = tuple(replace(f, name=f"n{number}_{i}") for i, f in enumerate(plan.fields))
    return Project(plan, refs(plan), fields)


def check(reopen: Callable[[Store | None], Store], name: str, seeds: Iterable[int]) -> int:
    command = f"pytest tests/property/test_sharing.py -k {name}"
    return sum(r.shared_most for r in played((Run(seed, reopen) for seed in seeds), command))


def played(runs: Iterable[Played], command: str) -> Iterator[Played]:
    """Play each run to its end, after which its store must be empty.

    command: what repeats a seed.
    """
    for run in runs:
        try:
            for _ in range(run.steps):
                run.step()
            for view in reversed(list(run.engine.views)):
                run.engine.remove(view)
            for build in list(run.builds):
                run.forget(build)
            run.store.commit()
            assert run.store.names() == []
        except Exception as error:
            repeat = f"TIDEMARK_SEED={run.seed} {command}"
            raise AssertionError(f"seed {run.seed}: {error}\n{repeat}") from error
        finally:
            run.store.close()
        yield run


def seeds(count: int) -> list[int]:
    if "TIDEMARK_SEED" in os.environ:
        return [int(os.environ["TIDEMARK_SEED"])]
    return list(range(1, count + 1))


def test_memory() -> None:
    found = check(lambda store: store or MemoryStore(), "memory", seeds(ROUNDS))
    assert found > ROUNDS or "TIDEMARK_SEED" in os.environ, "too little was shared to tell"


def rocks(folder: Path) -> Callable[[Store | None], Store]:
    """Return what opens a new store of the folder, or the given one again."""
    numbers = iter(range(1_000_000))

    def reopen(store: Store | None) -> Store:
        if store is None:
            return RocksStore(folder / str(next(numbers)), tuning=TINY)
        assert isinstance(store, RocksStore)
        store.close()
        return RocksStore(store.path, tuning=TINY)

    return reopen


def test_rocks(tmp_path: Path) -> None:
    check(rocks(tmp_path), "rocks", seeds(ROUNDS // 3))
