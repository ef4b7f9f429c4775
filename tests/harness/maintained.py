"""Views maintained in process over the real change stream of one database, beside its answers.

Invariant: one writer, whose transactions carry a number in table `marker`; a view reads that
table, so every state says which prefix of the history it stands for.
"""

from __future__ import annotations

import re
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg2

from connectors.postgres.analysis.analyzer import PostgresAnalyzer
from connectors.postgres.evaluation.evaluator import PostgresEvaluator
from connectors.postgres.source import PostgresSource
from connectors.sink import SinkTable
from connectors.source import SourceBatch
from dataflow.delta import Delta
from dataflow.errors import SourceError, SqlError
from dataflow.plan.nodes import ViewPlan
from dataflow.plan.properties.key_facts import Keys
from dataflow.plan.properties.unique_keys import keys_of
from dataflow.schema import Relation
from dataflow.sql.bind.analysis import Analyzer
from dataflow.sql.moving_now import MovingNow
from dataflow.sql.planner import plan_view
from dataflow.types import UTC
from service.engine.encoding.registered import decode, encode
from service.engine.engine import View, ViewDefinition
from storage.memory import MemoryStore
from storage.store import Store
from tests.harness.changes import Statement, Transaction, run_transaction
from tests.harness.compare import Answer, Row, difference, empty_answer, rows_of_query
from tests.harness.moving_clock import CLOCK_NAME, CLOCK_RELATION, MovingClock, at_clock, clock_text
from tests.harness.postgres import Database

MARKER = "marker"
MARKER_QUERY = f"SELECT max(id) AS id FROM public.{MARKER}"
BATCH_ROWS = 10_000
WAIT_S = 60.0
SOURCE = "source"
EXPLAINED = 3
_NOT_OF_ROWS = (psycopg2.errors.IndeterminateCollation, psycopg2.errors.QueryCanceled)


@dataclass(frozen=True)
class Fault:
    """A view that differs from PostgreSQL's answer: after which transaction, and how."""

    query: str
    transaction: int
    what: str


@dataclass
class Expected:
    """PostgreSQL's answers after one transaction, and why it refused to give one.

    A query may stand in both: then the rows are those that do not fail. unanswered: PostgreSQL
    finds only now that it has no plan or collation for the query, or it takes too long.
    """

    rows: dict[str, Counter[Row]] = field(default_factory=dict)
    refusals: dict[str, str] = field(default_factory=dict)
    unanswered: set[str] = field(default_factory=set)


@dataclass
class Plans:
    """Views by name; why others are refused (as told, and by code); what broke the planner."""

    plans: dict[str, ViewPlan] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)


def plan_each(
    database: Database,
    queries: Mapping[str, str],
    time_zone: str = UTC,
    *,
    is_moving: bool = False,
) -> Plans:
    """The plans of all queries, asked of one session. is_moving: now() is the clock's row."""
    found = Plans()
    feeds = [CLOCK_RELATION] if is_moving else []
    with PostgresAnalyzer(database.dsn, SOURCE, feeds=feeds, time_zone=time_zone) as analyzer:
        asked: Analyzer = MovingNow(analyzer, CLOCK_NAME) if is_moving else analyzer
        for name, query in queries.items():
            try:
                found.plans[name] = plan_view(query, asked)
            except (SqlError, SourceError) as error:
                found.refused[name] = f"{error} {error.detail}".strip()
                found.reasons[name] = f"{error.code}: {_general(error.what)}"
            except Exception:
                found.broken[name] = traceback.format_exc(limit=-6)
                analyzer.close()
    return found


def _general(what: str) -> str:
    """A reason without what belongs to one query alone."""
    return re.sub(r"\br?\d+\b", "N", re.sub(r'"[^"]*"', '"..."', what))


def plan_all(
    database: Database, queries: Mapping[str, str], time_zone: str = UTC
) -> tuple[dict[str, ViewPlan], dict[str, str]]:
    """The plans of all queries, and why those without a plan are refused."""
    found = plan_each(database, queries, time_zone)
    return found.plans, {**found.refused, **found.broken}


class Maintained:
    """All plans over one stream and one store. Close it in any case.

    clock_us: what the clock begins with, for plans that read one.
    """

    def __init__(
        self,
        database: Database,
        plans: Mapping[str, ViewPlan],
        store: Store,
        clock_us: int | None = None,
    ) -> None:
        self._source = PostgresSource(database.dsn, SOURCE)
        zones = {plan.time_zone for plan in plans.values()}
        self._evaluators = {z: PostgresEvaluator(database.dsn, time_zone=z) for z in zones}
        self._store = store
        self._stream = None
        self._clock = None if clock_us is None else MovingClock(clock_us)
        self._errors: Counter[tuple[Any, ...]] = Counter()
        self.answers: dict[str, Answer] = {}
        self.faults: list[Fault] = []
        self._views: dict[str, View] = {}
        self._facts: dict[str, Keys] = {}
        self._source.ensure_slot()
        definitions = {name: _definition(name, plan) for name, plan in plans.items()}
        named = {r.name: r for d in definitions.values() for r in d.relations()}
        relations = [r for r in named.values() if r != CLOCK_RELATION]
        self._source.watch(relations)
        snapshot = self._source.open_snapshot(relations)
        try:
            for name, definition in definitions.items():
                try:
                    self._load(name, definition, snapshot)
                except Exception:
                    self.faults.append(Fault(name, 0, traceback.format_exc(limit=-6)))
        finally:
            snapshot.close()
        self._store.commit()
        if MARKER not in self.answers:
            raise AssertionError(f"the marker's view failed: {self.faults}")
        self._stream = self._source.stream(snapshot.position, relations)

    def _load(self, name: str, definition: ViewDefinition, snapshot: Any) -> None:
        view = View(definition, self._store, self._evaluators[definition.plan.time_zone])
        answer = empty_answer(definition.table.fields)
        answer.add(view.dataflow.seed(), definition.table.fields)
        needed = view.dataflow.needed_columns()
        for relation in definition.relations():
            table = view.tables[relation.name]
            for delta in self._rows(relation, needed[relation.name], snapshot):
                table.load(delta)
                output = view.step({relation.name: delta.consolidate()})
                answer.add(output, definition.table.fields)
        self._note_errors(name, view.errors.take())
        self._views[name] = view
        self._facts[name] = keys_of(definition.plan.root)
        self.answers[name] = answer

    def _rows(self, relation: Relation, columns: tuple[int, ...], snapshot: Any) -> Iterator[Delta]:
        if relation == CLOCK_RELATION:
            assert self._clock is not None, "a plan reads the clock, and there is none"
            yield from self._clock.rows(columns)
            return
        for part in snapshot.parts(relation, columns, 2):
            yield from part.read()

    def move_clock(self, us: int | None, number: int) -> None:
        """Step by the tick to a value of the clock; nothing if it has that value.

        number: of the last transaction, for faults.
        """
        batch = None if us is None or self._clock is None else self._clock.move(us)
        if batch is not None:
            self._step(batch, number)

    def follow(self, number: int, timeout_s: float = WAIT_S) -> None:
        """Step until the marker of transaction `number` is in the views."""
        deadline = time.monotonic() + timeout_s
        while self.answers[MARKER].rows != {(str(number),): 1}:
            if time.monotonic() > deadline:
                raise AssertionError(
                    f"transaction {number} did not arrive: {self.answers[MARKER].rows}"
                )
            batch = self._stream.poll(BATCH_ROWS, 0.05)
            if batch is not None:
                self._step(batch, number)

    def restart(self) -> None:
        """Make all operators again over the state that was committed, as after a restart."""
        for name, view in list(self._views.items()):
            definition = decode(encode(view.definition))
            try:
                self._views[name] = View(
                    definition, self._store, self._evaluators[definition.plan.time_zone]
                )
            except Exception:
                del self._views[name]
                self.faults.append(Fault(name, 0, traceback.format_exc(limit=-6)))

    def _step(self, batch: SourceBatch, number: int) -> None:
        """Step each view alone, so that one that breaks does not hide the others."""
        changes = batch.whole()
        for name, view in list(self._views.items()):
            try:
                inputs = view.resolve(changes)
                if inputs:
                    self.answers[name].add(view.step(inputs), view.definition.table.fields)
                    self._note_errors(name, view.errors.take())
            except Exception:
                del self._views[name]
                self.faults.append(Fault(name, number, traceback.format_exc(limit=-6)))
        self._store.commit()

    def compare(self, number: int, expected: Expected) -> list[Fault]:
        """What differs from PostgreSQL's answers; a fault is told once a query."""
        known = {fault.query for fault in self.faults}
        found = []
        for name, answer in self.answers.items():
            if name in known:
                continue
            what = self._difference(name, answer, expected) or self._broken_fact(name, answer)
            if what:
                found.append(Fault(name, number, what))
        self.faults += found
        return found

    def _broken_fact(self, name: str, answer: Answer) -> str:
        """What planning claims to know of the view's rows, and they do not keep."""
        known = self._facts[name]
        for key in known.keys:
            rows = Counter(tuple(row[i] for i in sorted(key)) for row in answer.rows.elements())
            if any(count > 1 for count in rows.values()):
                return f"rows agree on the key {sorted(key)}: {rows.most_common(1)}"
        for row in answer.rows:
            if any(row[i] is None for i in known.present):
                return f"NULL in a column of {sorted(known.present)} that has none: {row}"
            if any(row[a] != row[b] for a, b in known.equal):
                return f"columns differ that are equal, {known.equal}: {row}"
            if any(row[i] != text for i, text in known.constants):
                return f"a constant differs from {known.constants}: {row}"
        return ""

    def _difference(self, name: str, answer: Answer, expected: Expected) -> str:
        if name in expected.unanswered:
            return ""
        errors = [row for row in self._errors if row[0] == name]
        if name in expected.refusals and not errors:
            return f"PostgreSQL fails ({expected.refusals[name]}), the view has no error row"
        if name not in expected.refusals and errors:
            return f"error rows: {errors[:EXPLAINED]}"
        if name not in expected.rows:
            return ""
        return difference(Answer(answer.columns, expected.rows[name]), answer)

    def _note_errors(self, name: str, delta: Delta) -> None:
        for row, weight in delta.rows():
            key = (name, *row)
            self._errors[key] += weight
            if self._errors[key] == 0:
                del self._errors[key]

    def close(self) -> None:
        """End sessions and threads; drop the slot."""
        if self._stream is not None:
            self._stream.close()
        for evaluator in self._evaluators.values():
            evaluator.close()
        self._source.drop_slot()
        self._source.close()


def create_marker(connection: Any) -> None:
    """The table that numbers transactions; it begins with 0."""
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE TABLE public.{MARKER} (id bigint PRIMARY KEY)")
        cursor.execute(f"INSERT INTO public.{MARKER} VALUES (0)")


def run_numbered(connection: Any, transaction: Transaction, number: int) -> None:
    """Run a transaction that carries its number; an aborted one is followed by an empty one."""
    mark = Statement(f"INSERT INTO public.{MARKER} VALUES ({number})")
    if not run_transaction(
        connection, Transaction((*transaction.statements, mark), transaction.is_aborted)
    ):
        run_transaction(connection, Transaction((mark,)))


def ask(
    connection: Any,
    queries: Mapping[str, str],
    guarded: Mapping[str, str] | None = None,
    *,
    time_zone: str = UTC,
) -> Expected:
    """PostgreSQL's answers now, or at the session's clock, in a time zone and printed in UTC.

    guarded: for queries that may fail, the query without the rows that do.
    """
    expected, has_clock = Expected(), bool(clock_text(connection))
    for name, query in queries.items():
        try:
            text = at_clock(query) if has_clock else query
            expected.rows[name] = rows_of_query(connection, text, time_zone)
        except _NOT_OF_ROWS:
            expected.unanswered.add(name)
        except (psycopg2.DataError, psycopg2.errors.CardinalityViolation) as error:
            expected.refusals[name] = str(error).split("\n", 1)[0]
            if guarded is not None and name in guarded:
                expected.rows[name] = rows_of_query(connection, guarded[name])
    return expected


def _definition(name: str, plan: ViewPlan) -> ViewDefinition:
    table = SinkTable("public", name, plan.root.fields, plan.key)
    return ViewDefinition(name, table, "", plan)


def play(
    database: Database,
    connection: Any,
    queries: Mapping[str, str],
    changes: Sequence[str],
    *,
    time_zone: str = UTC,
) -> None:
    """Every query is maintained, and equals PostgreSQL's answer at first and after each change.

    connection: of a pinned session; closed in the end.
    """
    create_marker(connection)
    plans, refused = plan_all(database, {**queries, MARKER: MARKER_QUERY}, time_zone)
    assert not refused, {queries[name]: why for name, why in refused.items()}
    maintained = Maintained(database, plans, MemoryStore())
    try:
        maintained.compare(0, ask(connection, queries, time_zone=time_zone))
        for number, change in enumerate(changes, 1):
            run_numbered(connection, Transaction((Statement(change),)), number)
            maintained.follow(number)
            maintained.compare(number, ask(connection, queries, time_zone=time_zone))
        faults = maintained.faults
    finally:
        maintained.close()
        connection.close()
    assert not faults, "\n".join(f"{queries[f.query]}\n{f.transaction}: {f.what}" for f in faults)
