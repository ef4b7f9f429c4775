"""The statements of the evaluator: expressions and queries over columns passed as arrays.

Each is made a temporary function of the sandbox. Nothing is sent from here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from connectors.postgres.quoting import quote_text
from dataflow.types import SqlType, TypeKind

# String literals and quoted names are passed over: a "$1" in them is no argument.
_TOKENS = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|\$(\d+)""")
_ROW = "tidemark_row"


@dataclass(frozen=True)
class Statement:
    """A query over passed arrays $1, $2 ...: their types, its text, the types of its columns, ""
    for one that somebody made: it comes as its text, or its owner could not drop it while our
    session has a function that names it."""

    parameters: str
    select: str
    results: tuple[str, ...]

    @property
    def body(self) -> str:
        """What the function runs, as PostgreSQL shows it in an error's context.

        One column more keeps a single composite from being taken apart. The casts do nothing, but
        where a function was replaced by one of another type.
        """
        names = [f"c{i}" for i in range(len(self.results))]
        casts = [_result(f"q.{n}", type) for n, type in zip(names, self.results, strict=True)]
        return f"SELECT {', '.join(casts)}, true FROM ({self.select}) AS q({', '.join(names)})"

    def as_function(self, name: str, body: str) -> str:
        """What makes it a function that is to be given to a role, in which no other can be set.
        body: its own, as the session of the login would have it.

        Its plan is kept for the session. It parses its body under the search_path of now.
        """
        columns = [f"v{i} {type or 'text'}" for i, type in enumerate(self.results)]
        body = f"#variable_conflict use_column\nBEGIN RETURN QUERY {body}; END"
        return (
            f"CREATE FUNCTION pg_temp.{name}({self.parameters}) RETURNS"
            f" TABLE({', '.join(columns)}, is_row boolean) LANGUAGE plpgsql SECURITY DEFINER"
            f" SET search_path FROM CURRENT AS {quote_text(body)}"
        )


def _result(column: str, type: str) -> str:
    if type:
        return f"{column}::{type}"
    shown = f"pg_catalog.format('%s', {column})"
    return f"CASE WHEN pg_catalog.num_nonnulls({column}) > 0 THEN {shown} END"


def _named(type: SqlType) -> str:
    return "" if type.is_users else type.name


def expression_statement(sql: str, types: Sequence[SqlType], result: SqlType) -> Statement:
    """An expression over passed columns."""
    passed = [_passed(t, f"a{i}") for i, t in enumerate(types, 1)]

    def column(token: re.Match[str]) -> str:
        return token[0] if token[1] is None else f"{_ROW}.a{token[1]}"

    expression = _TOKENS.sub(column, sql)
    if not types:
        return Statement("", f"SELECT {expression} AS value", (_named(result),))
    arrays = ", ".join(f"${i}" for i in range(1, len(types) + 1))
    names = ", ".join(f"a{i}" for i in range(1, len(types) + 1))
    values = ", ".join(f"{value} AS a{i}" for i, (_, value) in enumerate(passed, 1))
    # A column of a subquery has its collation implicitly, as a table's column has: a COLLATE in
    # the expression still goes before it.
    return Statement(
        ", ".join(array for array, _ in passed),
        f"SELECT {expression} AS value FROM (SELECT {values}, position FROM unnest({arrays})"
        f" WITH ORDINALITY AS passed({names}, position)) AS {_ROW} ORDER BY position",
        (_named(result),),
    )


def groups_statement(sql: str, types: Sequence[SqlType], results: Sequence[SqlType]) -> Statement:
    """A query over groups of rows."""
    passed = [_passed(t, f"a{i}") for i, t in enumerate(types, 1)]

    def column(token: re.Match[str]) -> str:
        return token[0] if token[1] is None else f"{_ROW}.a{token[1]}"

    arrays = ", ".join(f"${i}" for i in range(1, len(types) + 2))
    names = ", ".join(["g", *(f"a{i}" for i in range(1, len(types) + 1))])
    values = ", ".join(["g", *(f"{value} AS a{i}" for i, (_, value) in enumerate(passed, 1))])
    return Statement(
        ", ".join(["bigint[]", *(array for array, _ in passed)]),
        f"WITH {_ROW} AS (SELECT {values} FROM unnest({arrays}) AS"
        f" passed({names})) {_TOKENS.sub(column, sql)}",
        ("bigint", *map(_named, results)),
    )


def _passed(type: SqlType, column: str) -> tuple[str, str]:
    """(type of the array parameter, the value in SQL).

    Types that we know go as arrays of themselves. Others may be arrays, or use another delimiter
    (box, PostGIS): they go as text and are read one by one. So do domains, whose conditions are to
    be computed inside of the function.
    """
    collate = f" COLLATE {_quoted(type.collation)}" if type.collation else ""
    if type.kind is TypeKind.OPAQUE or type.is_users:
        return "text[]", f"CAST({column} AS {type.name}){collate}"
    return f"{type.name}[]", column + collate


def ranks_statement(type: SqlType) -> Statement:
    """dense_rank() of each passed value in the order of its type and collation."""
    array, order = _passed(type, f"{_ROW}.a1")
    return Statement(
        array,
        f"SELECT rank FROM (SELECT dense_rank() OVER (ORDER BY {order}) AS rank,"
        f" position FROM unnest($1) WITH ORDINALITY AS {_ROW}(a1, position)) AS ranked"
        " ORDER BY position",
        ("bigint",),
    )


def _quoted(collation: str) -> str:
    if '"' in collation:
        return collation
    return ".".join(f'"{part}"' for part in collation.split("."))
