"""Oracle: PostgreSQL's own answer to each query of a form, after every change.

A file of `forms` has a schema with its first rows, changes, each a transaction, and queries. What a
version of PostgreSQL does not know is left out on it; all else must be maintained.
"""

from __future__ import annotations

import re
from pathlib import Path

import psycopg2
import pytest

from storage.memory import MemoryStore
from tests.equality.history import History, run_history
from tests.harness.changes import Statement, Transaction
from tests.harness.compare import columns_of_query
from tests.harness.postgres import Database
from tests.harness.schemas import TestSchema

FILES = sorted((Path(__file__).parent / "forms").glob("*.sql"))
PARTS = re.compile(r"^-- (?:schema|changes|queries)\n", re.MULTILINE)
UNKNOWN = (psycopg2.errors.UndefinedFunction, psycopg2.errors.SyntaxError)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_query_is_maintained(every_database: Database, path: Path) -> None:
    _, ddl, changes, queries = PARTS.split(path.read_text())
    made = [Transaction((Statement(change, True),)) for change in statements(changes)]
    schema = TestSchema(path.stem, ddl, ())
    history = History(schema, 0, singles=len(made), batches=0, chosen=tuple(made))
    wanted = {f"{path.stem} {i}": query for i, query in enumerate(statements(queries), 1)}
    known = lambda connection: accepted(connection, wanted)  # noqa: E731
    outcome = run_history(every_database, MemoryStore(), history, known)
    assert not outcome.refused, outcome.refused
    assert not outcome.faults, outcome.text(wanted, f"pytest {__file__} -k {path.stem}")
    assert len(outcome.first) > 0.8 * len(wanted)


def statements(text: str) -> list[str]:
    """The statements of a part, each ended by a semicolon at the end of a line."""
    return [part.strip() for part in text.strip().removesuffix(";").split(";\n")]


def accepted(connection, queries: dict[str, str]) -> dict[str, str]:
    """Those that the connection's version of PostgreSQL knows."""
    found = {}
    for name, query in queries.items():
        try:
            columns_of_query(connection, query)
        except UNKNOWN:
            continue
        found[name] = query
    return found
