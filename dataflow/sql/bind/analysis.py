"""What the planner asks of the database that analyzes a query.

Types, names, overloads, coercions and constants are PostgreSQL's answers, never guesses here.
`connectors.postgres.analysis.analyzer` implements it; everything is asked inside one transaction
that is
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
    volatility: "i" immutable, "s" stable, "v" volatile. stands_for: the operator or cast that
    calls it, for people, "" for none.
    """

    name: str
    kind: str
    volatility: str
    returns_set: bool = False
    stands_for: str = ""


@dataclass(frozen=True)
class Analysis:
    """A query as PostgreSQL understood it.

    text: pg_get_viewdef's, with every relation, type and function outside pg_catalog qualified.
    fields: the output with its exact names and types. session_values: CURRENT_DATE and the like.
    row_names: relations in FROM, by alias, with the names of their columns, which the text makes
    different ones. named_rows: widths of the rows of a USING's alias, which stand in the text as
    ROW(...), without their names.
    """

    text: str
    fields: tuple[Field, ...]
    routines: tuple[Routine, ...] = ()
    session_values: tuple[str, ...] = ()
    row_names: tuple[tuple[str, tuple[str, ...]], ...] = ()
    named_rows: tuple[int, ...] = ()


@dataclass(frozen=True)
class Table:
    """A relation that changes arrive for, as a query sees it.

    columns: every column in order as (name, position in relation.fields), or (name, SQL over the
    table's other columns) for a generated column, which no source sends.
    has_row_type: whether its row type can be named, as that of a table of the database can.
    """

    relation: Relation
    columns: tuple[tuple[str, int | str], ...]
    has_row_type: bool = True


class Analyzer(Protocol):
    """A database with its catalog, in one transaction for all questions about one view."""

    def analyze(self, query: str) -> Analysis:
        """What a query means. SqlError, with PostgreSQL's words and the position in `query`."""
        ...

    def relation(self, schema: str, name: str) -> Table | Analysis:
        """A relation as the canonical text names it ("" when it does so without a schema).

        An ordinary view answers with its own query. SourceError for what cannot be followed.
        """
        ...

    def types(self, columns: Sequence[SqlType], expressions: Sequence[str]) -> tuple[SqlType, ...]:
        """The types of expressions over columns that stand in the texts as c1, c2 ...

        Either all or none of the expressions are aggregate calls.
        """
        ...

    def routines(self, columns: Sequence[SqlType], expression: str) -> tuple[Routine, ...]:
        """What an expression over c1, c2 ... calls, also beneath operators and casts."""
        ...

    def check_collations(self, columns: Sequence[SqlType], expressions: Sequence[str]) -> None:
        """SqlError for an expression over c1, c2 ... that PostgreSQL has no collation for.

        It says so only when it compares two texts, in the middle of a query.
        """
        ...

    def columns(self, columns: Sequence[SqlType], function: str) -> tuple[Field, ...]:
        """The columns of an entry of FROM that calls functions over c1, c2 ..."""
        ...

    def constants(
        self, expressions: Sequence[str], types: Sequence[SqlType]
    ) -> tuple[Literal | None, ...]:
        """The values of expressions without columns; None where the computation fails."""
        ...
