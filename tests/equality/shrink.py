"""Makes a failing case smaller: less query, then fewer rows and statements, then less schema.

Invariant: what is handed back has failed. All smaller queries of one step are tried together in
one history, so a step costs about as much as a single try.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import psycopg2

from connectors.postgres.embedded.server import EmbeddedPostgres
from dataflow.types import UTC
from storage.memory import MemoryStore
from tests.equality.case import RESTARTS, TOGETHER, ZONE, Case
from tests.equality.fuzz import Played, tried
from tests.equality.history import Asked, run_history
from tests.harness.changes import create, run_transaction
from tests.harness.compare import pin_session
from tests.harness.grammar import Query
from tests.harness.hostile import TYPES, Hostile, TableText
from tests.harness.maintained import Fault, Maintained
from tests.harness.moving_clock import at_clock, clock_text, set_clock
from tests.harness.postgres import Database, new_database
from tests.harness.together import Together

MAX_CANDIDATES = 60
EMPTY = "DROP SCHEMA public CASCADE; CREATE SCHEMA public"
Rows = dict[str, Counter[tuple[str, ...]]]


@dataclass(frozen=True)
class Failing:
    """A case in the making: rows as literals by table, one by one. clock: what it begins with."""

    tables: dict[str, TableText]
    rows: tuple[tuple[str, tuple[str, ...]], ...]
    statements: tuple[tuple[str, ...], ...]
    query: Query
    what: str
    clock: str
    head: tuple[str, ...] = ()

    def case(self, head: Sequence[str] = ()) -> Case:
        """As it is written down."""
        types = [s for s in TYPES.strip().replace("\n    ", " ").split(";\n") if s]
        used = " ".join(said for t in self.tables.values() for said in t.columns.values())
        text = f"{used} {self.query.text()}"
        kept = [s.removesuffix(";") for s in types if _is_named(s, text)]
        ddl = [s for name, table in self.tables.items() for s in table.ddl(name)]
        inserts = [f"INSERT INTO {t} VALUES ({', '.join(row)})" for t, row in self.rows]
        query = self.query.text()
        if at_clock(query) != query:
            inserts.insert(0, set_clock(self.clock))
        zone = self.query.time_zone
        head = (*head, *self.head, *((f"{ZONE} {zone}",) if zone != UTC else ()))
        return Case((*kept, *ddl), tuple(inserts), self.statements, query, self.what, head)


def _is_named(statement: str, text: str) -> bool:
    """Whether a type or function of a statement is in a text; product needs after_product."""
    name = statement.split()[2].split("(")[0]
    name = "product" if name == "after_product" else name
    return re.search(rf"\b{name}\b", text) is not None


def shrink(
    server: EmbeddedPostgres, played: Played, fault: Fault, *, budget_s: float
) -> Failing | None:
    """The smallest failing case found within the budget; None when it does not fail again."""
    until = time.monotonic() + budget_s
    query = played.queries[fault.query]
    with new_database(server) as database:
        for failing in _concrete(database, played, query, fault):
            what = _failure(database, failing)
            if what:
                break
        else:
            return None
        failing = _shrink_query(database, replace(failing, what=what), until)
        failing = _shrink_parts(database, failing, until)
        failing = _shrink_query(database, failing, until)
        return _shrink_schema(database, failing, until)


# --- rows instead of draws ---------------------------------------------------------------


def _concrete(database: Database, played: Played, query: Query, fault: Fault) -> list[Failing]:
    """The history in plain statements: its last transaction alone, then all of it."""
    hostile = played.hostile
    database.execute(EMPTY)
    connection = database.connect()
    pin_session(connection)
    create(connection, hostile.schema, played.outcome.history.seed)
    states, clocks = [_rows_of(connection, hostile)], [clock_text(connection)]
    for transaction in played.outcome.transactions[: fault.transaction]:
        run_transaction(connection, transaction)
        states.append(_rows_of(connection, hostile))
        clocks.append(clock_text(connection))
    connection.close()
    steps = [_steps(hostile, a, b) for a, b in pairwise(states)]
    for number, (before, after) in enumerate(pairwise(clocks)):
        steps[number] += (set_clock(after),) if after != before else ()
    head = (RESTARTS,) if played.outcome.history.restarts else ()
    head += (TOGETHER,) if played.together else ()
    tables = dict(hostile.tables)
    return [
        Failing(
            *(tables, _listed(states[first]), tuple(steps[first:]), query, ""),
            *(clocks[first], head),
        )
        for first in dict.fromkeys((fault.transaction, max(fault.transaction - 1, 0), 0))
    ]


def _rows_of(connection: Any, hostile: Hostile) -> Rows:
    found: Rows = {}
    with connection.cursor() as cursor:
        for name, table in hostile.tables.items():
            columns = ", ".join(f"quote_nullable({c}::text)" for c in table.columns)
            cursor.execute(f"SELECT {columns} FROM {name}")
            found[name] = Counter(cursor.fetchall())
    return found


def _listed(state: Rows) -> tuple[tuple[str, tuple[str, ...]], ...]:
    return tuple((t, row) for t, rows in state.items() for row in sorted(rows.elements()))


def _steps(hostile: Hostile, before: Rows, after: Rows) -> tuple[str, ...]:
    """Statements that lead from one state to the next."""
    found = []
    for spec in hostile.schema.tables:
        names = list(hostile.tables[spec.name].columns)
        gone = sorted((before[spec.name] - after[spec.name]).elements())
        come = sorted((after[spec.name] - before[spec.name]).elements())
        at = [names.index(c) for c in spec.key or names]
        for row in list(gone):
            match = [r for r in come if spec.key and [r[i] for i in at] == [row[i] for i in at]]
            where = " AND ".join(f"{names[i]}::text IS NOT DISTINCT FROM {row[i]}" for i in at)
            if match:
                come.remove(match[0])
                changed = [
                    (n, v) for n, v, old in zip(names, match[0], row, strict=True) if v != old
                ]
                said = ", ".join(f"{n} = {v}" for n, v in changed)
                found.append(f"UPDATE {spec.name} SET {said} WHERE {where}")
            else:
                some = f"SELECT min(ctid) FROM {spec.name} WHERE {where}"
                found.append(f"DELETE FROM {spec.name} WHERE ctid = ({some})")
        found += [f"INSERT INTO {spec.name} VALUES ({', '.join(row)})" for row in come]
    return tuple(found)


# --- smaller and smaller -----------------------------------------------------------------


def _failure(database: Database, failing: Failing) -> str:
    found = _faults(database, failing, [failing.query])
    return found[0].what if found else ""


def _faults(database: Database, failing: Failing, queries: Sequence[Query]) -> list[Fault]:
    """How queries fail in the history of a case; a case that cannot be played does not."""
    named = {f"q{i}": Asked(q.text(), q.time_zone) for i, q in enumerate(queries)}

    def taken(connection: Any) -> dict[str, Asked]:
        return {n: q for n, q in named.items() if not tried(connection, q.sql, q.time_zone)[1]}

    database.execute(EMPTY)
    try:
        maintained = Together if TOGETHER in failing.head else Maintained
        history = failing.case().history()
        outcome = run_history(database, MemoryStore(), history, taken, maintained)
    except psycopg2.Error:
        return []
    return [f for f in outcome.faults if f.query in named]


def _shrink_query(database: Database, failing: Failing, until: float) -> Failing:
    while time.monotonic() < until:
        candidates = failing.query.smaller()
        for begin in range(0, len(candidates), MAX_CANDIDATES):
            tried = candidates[begin : begin + MAX_CANDIDATES]
            found = _faults(database, failing, tried)
            if found:
                index, fault = min((int(f.query[1:]), f.what) for f in found)
                failing = replace(failing, query=tried[index], what=fault)
                break
        else:
            return failing
    return failing


def _shrink_parts(database: Database, failing: Failing, until: float) -> Failing:
    """Leave out rows of tables that the query does not read, then halves, down to single ones."""
    read = [(t, row) for t, row in failing.rows if re.search(rf"\b{t}\b", failing.query.text())]
    failing = _kept(database, failing, replace(failing, rows=tuple(read)))
    failing = _halved(database, failing, failing.rows, lambda f, kept: replace(f, rows=kept), until)
    for i in range(len(failing.statements)):

        def with_statements(f: Failing, kept: tuple[str, ...], at: int = i) -> Failing:
            return replace(f, statements=(*f.statements[:at], kept, *f.statements[at + 1 :]))

        failing = _halved(database, failing, failing.statements[i], with_statements, until)
    return _kept(
        database, failing, replace(failing, statements=tuple(s for s in failing.statements if s))
    )


def _halved(
    database: Database,
    failing: Failing,
    parts: tuple[Any, ...],
    with_parts: Callable[[Failing, tuple[Any, ...]], Failing],
    until: float,
) -> Failing:
    size = len(parts)
    while parts and size and time.monotonic() < until:
        start = 0
        while start < len(parts) and time.monotonic() < until:
            fewer = parts[:start] + parts[start + size :]
            smaller = _kept(database, failing, with_parts(failing, fewer))
            if smaller is failing:
                start += size
            else:
                failing, parts = smaller, fewer
        size //= 2
    return failing


def _shrink_schema(database: Database, failing: Failing, until: float) -> Failing:
    """Leave out tables and columns that nothing names."""
    text = failing.query.text() + " ".join(s for part in failing.statements for s in part)
    tables = {n: t for n, t in failing.tables.items() if re.search(rf"\b{n}\b", text)}
    rows = tuple(r for r in failing.rows if r[0] in tables)
    failing = _kept(database, failing, replace(failing, tables=tables, rows=rows))
    for name, table in list(failing.tables.items()):
        for column in list(table.columns):
            if time.monotonic() < until and not any(
                f"({column}" in s or f" {column})" in s for s in table.after
            ):
                failing = _kept(database, failing, _without(failing, name, column))
    return failing


def _without(failing: Failing, name: str, column: str) -> Failing:
    """The case without a column, where no statement says otherwise."""
    table = failing.tables[name]
    at = list(table.columns).index(column)
    columns = {c: said for c, said in table.columns.items() if c != column}
    rows = tuple(
        (t, row[:at] + row[at + 1 :]) if t == name else (t, row) for t, row in failing.rows
    )
    tables = {**failing.tables, name: TableText(columns, table.after)}
    begin = f"INSERT INTO {name} VALUES"
    if any(s.startswith(begin) for part in failing.statements for s in part):
        return failing
    return replace(failing, tables=tables, rows=rows)


def _kept(database: Database, failing: Failing, smaller: Failing) -> Failing:
    """The smaller case if it fails too."""
    if smaller == failing:
        return failing
    what = _failure(database, smaller)
    return replace(smaller, what=what) if what else failing
