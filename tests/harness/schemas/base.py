"""What a test schema is: tables with the draws of their columns, templates, and named queries.

Invariant: everything a schema does follows from a seed. Queries stand in
tests/harness/queries/<schema>.sql and <schema>_<subject>.sql, each under a line `-- name: ...`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.harness.draw import Draw

QUERIES = Path(__file__).parent.parent / "queries"

Template = Callable[[Random], list[str]]


@dataclass(frozen=True)
class TableSpec:
    """A table that changes: a draw for each column that is written.

    key: the primary key's columns; () when there is none. rows: how many to begin with. weight:
    how often it changes. Columns that are not drawn keep their defaults.
    """

    name: str
    columns: Mapping[str, Draw]
    key: tuple[str, ...] = ()
    rows: int = 30
    weight: float = 1.0


@dataclass(frozen=True)
class TestSchema:
    """Tables, and what happens to them.

    templates: whole groups of statements that belong together (a transfer, an order with its
    lines), taken beside single random statements. changes_rows is False when only templates may
    change rows, because random ones would break what the schema promises; inserts_rows is False
    when only they may add rows. truncates: lists of tables as TRUNCATE takes them. rows: SQL
    tuples to begin with, beside those that are drawn. has_storms: many of its transactions change
    whole tables: emptied, refilled, keys moved, nothing changed at all. clock: values of the clock,
    the first one and one a transaction; None without now().
    """

    __test__ = False

    name: str
    ddl: str
    tables: tuple[TableSpec, ...]
    templates: tuple[Template, ...] = ()
    changes_rows: bool = True
    inserts_rows: bool = True
    truncates: tuple[str, ...] = ()
    search_path: str = "public"
    rows: Mapping[str, list[str]] = field(default_factory=dict)
    has_storms: bool = False
    clock: Callable[[Random], Iterator[str]] | None = None

    def queries(self) -> dict[str, str]:
        """Return the queries by name: those of <schema>.sql, then of each
        <schema>_<subject>.sql."""
        queries = read_queries(QUERIES / f"{self.name}.sql")
        for path in sorted(QUERIES.glob(f"{self.name}_*.sql")):
            more = read_queries(path)
            twice = set(more) & set(queries)
            assert not twice, f"{path.name}: two queries are named {twice}"
            queries |= more
        return queries


def read_queries(path: Path) -> dict[str, str]:
    """Queries of a file, each under its line `-- name: ...`; a name twice is an error."""
    queries: dict[str, str] = {}
    name = ""
    for line in path.read_text().splitlines():
        if line.startswith("-- name:"):
            name = line.removeprefix("-- name:").strip()
            assert name not in queries, f"{path.name}: two queries are named {name}"
            queries[name] = ""
        elif name and not line.startswith("--"):
            queries[name] += line + "\n"
    return {name: text.strip().rstrip(";") for name, text in queries.items()}
