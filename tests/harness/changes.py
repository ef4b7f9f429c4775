"""A seeded generator of transactions that are true to a schema, and their way into PostgreSQL.

Invariant: the seed, the schema and the number of transactions name the history. A statement
finds its rows by a hash of the row and a salt, so statements need no model of the database:
whatever is left out of a history, the rest still runs and still means something.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from random import Random
from typing import Any

import psycopg2

from tests.harness.moving_clock import set_clock
from tests.harness.schemas.base import TableSpec, TestSchema

LINGUISTIC = "en-x-icu"  # not in servers built without ICU
SAVEPOINT_SHARE = 0.15
TEMPLATE_SHARE = 0.3
TRUNCATE_SHARE = 0.006
ABORT_SHARE = 0.05
STORM_SHARE = 0.25


@dataclass(frozen=True)
class Statement:
    """SQL; is_guarded: a violated constraint undoes it alone, by a savepoint."""

    sql: str
    is_guarded: bool = False


@dataclass(frozen=True)
class Transaction:
    """Statements that commit together, or are rolled back when is_aborted."""

    statements: tuple[Statement, ...]
    is_aborted: bool = False

    def text(self) -> str:
        """As a script for psql."""
        end = "ROLLBACK" if self.is_aborted else "COMMIT"
        return ";\n".join(["BEGIN", *(s.sql for s in self.statements), end]) + ";"


def initial_statements(schema: TestSchema, seed: int) -> list[str]:
    """Inserts of the rows to begin with; the order of tables respects their foreign keys."""
    rng = Random(f"{schema.name}/{seed}/rows")
    statements = []
    for table, rows in schema.rows.items():
        statements.append(f"INSERT INTO {table} VALUES {', '.join(rows)}")
    for table in schema.tables:
        for _ in range(table.rows if table.columns and table.name not in schema.rows else 0):
            statements.append(_insert(table, rng, 1).sql)
    return statements


def transactions(schema: TestSchema, seed: int) -> Iterator[Transaction]:
    """The endless history of a schema under a seed."""
    rng = Random(f"{schema.name}/{seed}/changes")
    clock = clock_path(schema, seed)
    next(clock, None)
    while True:
        statements: list[Statement] = []
        for _ in range(rng.choice((1, 1, 1, 2, 3, 5))):
            block = _block(schema, rng)
            if rng.random() < SAVEPOINT_SHARE:
                block = [Statement("SAVEPOINT dropped"), *block]
                block.append(Statement("ROLLBACK TO SAVEPOINT dropped"))
            statements += block
        statements += [Statement(set_clock(at)) for at in islice(clock, 1)]
        yield Transaction(tuple(statements), rng.random() < ABORT_SHARE)


def clock_path(schema: TestSchema, seed: int) -> Iterator[str]:
    """The values of a schema's clock, endless; none if it has no clock."""
    if schema.clock is not None:
        yield from schema.clock(Random(f"{schema.name}/{seed}/clock"))


def _block(schema: TestSchema, rng: Random) -> list[Statement]:
    if schema.has_storms and rng.random() < STORM_SHARE:
        return _storm(schema, rng)
    if schema.truncates and rng.random() < TRUNCATE_SHARE:
        return [Statement(f"TRUNCATE {rng.choice(schema.truncates)}")]
    if schema.templates and (not schema.changes_rows or rng.random() < TEMPLATE_SHARE):
        return [Statement(sql, True) for sql in rng.choice(schema.templates)(rng)]
    weights = [t.weight for t in schema.tables]
    table = rng.choices(schema.tables, weights)[0]
    action = rng.random()
    if not schema.inserts_rows:
        return [_delete(table, rng) if action < 0.03 else _update(table, rng)]
    if action < 0.5:
        return [_insert(table, rng, rng.choice((1, 1, 2, 4)))]
    return [_update(table, rng) if action < 0.83 else _delete(table, rng)]


def _insert(table: TableSpec, rng: Random, count: int) -> Statement:
    columns = ", ".join(table.columns)
    rows = ", ".join(
        "(" + ", ".join(draw(rng) for draw in table.columns.values()) + ")" for _ in range(count)
    )
    sql = f"INSERT INTO {table.name} ({columns}) VALUES {rows}"
    if table.key:
        sql += " ON CONFLICT DO NOTHING"
    return Statement(sql, True)


def _update(table: TableSpec, rng: Random) -> Statement:
    keys = [c for c in table.columns if c in table.key]
    others = [c for c in table.columns if c not in table.key]
    if keys and rng.random() < 0.2:
        chosen, most = [rng.choice(keys), *rng.sample(others, min(1, len(others)))], 1
    else:
        chosen, most = rng.sample(others or keys, min(len(others or keys), rng.randint(1, 3))), 4
    assignments = ", ".join(f"{c} = {table.columns[c](rng)}" for c in chosen)
    where = _some_rows(table, rng, rng.randint(1, most))
    return Statement(f"UPDATE {table.name} SET {assignments} WHERE {where}", True)


def _delete(table: TableSpec, rng: Random) -> Statement:
    return Statement(
        f"DELETE FROM {table.name} WHERE {_some_rows(table, rng, rng.randint(1, 3))}", True
    )


def _storm(schema: TestSchema, rng: Random) -> list[Statement]:
    """Statements that touch a whole table."""
    table = rng.choice(schema.tables)
    name, choice = table.name, rng.random()
    several = [_insert(table, rng, rng.randint(3, 8))]
    if choice < 0.2:
        return [
            Statement(f"TRUNCATE {rng.choice(schema.truncates)}"),
            *several[rng.randint(0, 1) :],
        ]
    if choice < 0.35:
        return [Statement(f"DELETE FROM {name}"), *several[rng.randint(0, 1) :]]
    if choice < 0.5:
        return [Statement(f"UPDATE {name} SET a = a")]
    if choice < 0.6:
        return [Statement(f"UPDATE {name} SET a = b, b = a", True)]
    if choice < 0.7:
        return [Statement(f"UPDATE {name} SET a = (a + 1) % 7", True)]
    if choice < 0.8 and not table.key:
        return [
            Statement(f"INSERT INTO {name} SELECT * FROM {name} WHERE {_some_rows(table, rng, 5)}")
        ]
    return several


def _some_rows(table: TableSpec, rng: Random, count: int) -> str:
    """A condition that holds for `count` rows, chosen by their content alone.

    By ctid, so that one of several equal rows can be meant; which of them does not matter.
    """
    salt = rng.randrange(10**6)
    return (
        f"ctid = ANY(ARRAY(SELECT x.ctid FROM {table.name} x "
        f"ORDER BY md5(x::text || '{salt}') LIMIT {count}))"
    )


def create(connection: Any, schema: TestSchema, seed: int) -> None:
    """Tables, their first rows and the clock; drawn rows that break a constraint are left out."""
    with connection.cursor() as cursor:
        cursor.execute(schema.ddl.replace(LINGUISTIC, linguistic_of(connection)))
        for at in islice(clock_path(schema, seed), 1):
            cursor.execute(set_clock(at))
    rows = tuple(Statement(sql, True) for sql in initial_statements(schema, seed))
    run_transaction(connection, Transaction(rows))


def linguistic_of(connection: Any) -> str:
    """LINGUISTIC, or C where the server does not have it."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1 FROM pg_collation WHERE collname = %s", (LINGUISTIC,))
        return "C" if cursor.fetchone() is None else LINGUISTIC


def run_transaction(connection: Any, transaction: Transaction) -> bool:
    """Run on an autocommit connection; True when it committed."""
    with connection.cursor() as cursor:
        cursor.execute("BEGIN")
        try:
            for statement in transaction.statements:
                _run(cursor, statement)
        except BaseException:
            cursor.execute("ROLLBACK")
            raise
        cursor.execute("ROLLBACK" if transaction.is_aborted else "COMMIT")
    return not transaction.is_aborted


def _run(cursor: Any, statement: Statement) -> None:
    if not statement.is_guarded:
        cursor.execute(statement.sql)
        return
    cursor.execute("SAVEPOINT guard")
    try:
        cursor.execute(statement.sql)
    except (psycopg2.IntegrityError, psycopg2.errors.UndefinedTable):
        cursor.execute("ROLLBACK TO SAVEPOINT guard")
    cursor.execute("RELEASE SAVEPOINT guard")
