"""The contract of the database that analyzes a query for the planner.

Invariant: types, names, overloads, coercions and constants are PostgreSQL's answers, never guesses.
`connectors.postgres.analysis.analyzer` implements it; all queries run in one transaction that is
rolled back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from dataflow.expressions.ir import Literal
from dataflow.schema import Field, Relation
from dataflow.types import SqlType


@dataclass(frozen=True)
class Routine:
    """A function that a query calls, aggregates included, also beneath operators and casts.

    name carries its schema unless that is pg_catalog. kind: "f" plain, "a" aggregate, "w" window.
    volatility: "i" immutable, "s" stable, "v" volatile. stands_for: the operator or cast that calls
    it, for messages; "" for none.
    """

    name: str
    kind: str
    volatility: str
    returns_set: bool = False
    stands_for: str = ""


@dataclass(frozen=True)
class Analysis:
    """PostgreSQL's analysis of a query.

    text: pg_get_viewdef's, with every relation, type and function outside pg_catalog qualified.
    fields: the output with its exact names and types. session_values: CURRENT_DATE and the like.
    row_names: relations in FROM, by alias, with the original names of their columns, which the text
    renames. named_rows: the columns' names of the rows of USING's aliases, which the text writes as
    ROW(...), without names; those of plain rows too where one has the same width.
    """

    text: str
    fields: tuple[Field, ...]
    routines: tuple[Routine, ...] = ()
    session_values: tuple[str, ...] = ()
    row_names: tuple[tuple[str, tuple[str, ...]], ...] = ()
    named_rows: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True)
class Table:
    """A base relation as a query sees it.

    columns: every column in order as (name, position in relation.fields), or (name, SQL over the
    table's other columns) for a generated column, which no source sends. has_row_type: whether its
    row type has a name, as that of a database table.
    """

    relation: Relation
    columns: tuple[tuple[str, int | str], ...]
    has_row_type: bool = True


class Analyzer(Protocol):
    """A database with its catalog, in one transaction for all queries about one view.

    time_zone: in which a query is read and its constants are computed.
    """

    @property
    def time_zone(self) -> str:
        """Return the name of a time zone."""
        ...

    def analyze(self, query: str) -> Analysis:
        """Analyze a query. Raise SqlError with PostgreSQL's message and the position in `query`."""
        ...

    def relation(self, schema: str, name: str) -> Table | Analysis:
        """Return a relation by its name in the canonical text (schema "" if the text has none).

        An ordinary view returns its own query. Raise SourceError for a relation that cannot be
        replicated.
        """
        ...

    def types(self, columns: Sequence[SqlType], expressions: Sequence[str]) -> tuple[SqlType, ...]:
        """Return the types of expressions over columns named c1, c2 ... in the texts.

        Either all or none of the expressions are aggregate calls.
        """
        ...

    def routines(self, columns: Sequence[SqlType], expression: str) -> tuple[Routine, ...]:
        """Return the routines that an expression over c1, c2 ... calls, also inside operators and
        casts."""
        ...

    def check_collations(self, columns: Sequence[SqlType], expressions: Sequence[str]) -> None:
        """Raise SqlError for an expression over c1, c2 ... that PostgreSQL has no collation for.

        PostgreSQL itself reports it only at run time, when it compares two texts.
        """
        ...

    def columns(self, columns: Sequence[SqlType], function: str) -> tuple[Field, ...]:
        """Return the columns of an entry of FROM that calls functions over c1, c2 ..."""
        ...

    def constants(
        self, expressions: Sequence[str], types: Sequence[SqlType]
    ) -> tuple[Literal | None, ...]:
        """Return the values of expressions without columns; None where the computation fails."""
        ...
