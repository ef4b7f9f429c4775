"""Evaluation in PostgreSQL: one scalar expression over many rows in one round trip.

Columns travel as array literals of PostgreSQL's text, the answer comes back as text, so a value
means the same here as in every other place. Invariant: a row that fails never hides or changes
another row's value, and what is not a row's fault (a lost session, a missing right) is never
taken for one. Only the DSN and settings travel when an evaluator is pickled.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import psycopg2
from psycopg2.extensions import UNICODE, string_types
from psycopg2.extensions import connection as Connection

from connectors.postgres.copy_kernels import array_literal
from connectors.postgres.session import connect, is_temporary, to_error
from dataflow.delta import KIND_BYTES, Column
from dataflow.errors import SourceError, TemporaryError
from dataflow.expressions.evaluator import RowErrors
from dataflow.types import INT8, SqlType, TypeKind
from dataflow.values import from_text, to_text

BATCH_ROWS = 10_000
_BATCH_BYTES = 8 << 20
_MOST_PREPARED = 400
_PAUSES_S = (0.0, 0.1, 0.5, 2.0)
_NO_MASK = np.empty(0, np.bool_)

_SETTINGS = {
    "default_transaction_read_only": "on",
    # The plan is a scan of unnest() whatever the values are: plan it once.
    "plan_cache_mode": "force_generic_plan",
    "jit": "off",
    "standard_conforming_strings": "on",
}
# String literals and quoted names are passed over: a "$1" in them is no argument.
_TOKENS = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|\$(\d+)""")
_ROW = "tidemark_row"
# Rights, cancellation, resources of the server: no fault of the row at hand.
_NOT_OF_A_ROW = {"42501", "57014"}
_NOT_OF_A_ROW_CLASSES = {"53", "58"}
_UNKNOWN_STATEMENT = "26000"


class PostgresEvaluator:
    """dataflow.expressions.evaluator.Evaluator over one session, opened at the first use.

    settings: more session settings, such as search_path. One thread at a time.
    """

    def __init__(self, dsn: str, settings: Mapping[str, str] | None = None) -> None:
        self.dsn = dsn
        self._settings = dict(settings or {})
        self._connection: Connection | None = None
        self._prepared: dict[str, str] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"dsn": self.dsn, "settings": self._settings}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["dsn"], state["settings"])

    def evaluate(
        self,
        sql: str,
        types: Sequence[SqlType],
        columns: Sequence[Column],
        n: int,
        result: SqlType,
    ) -> tuple[Column, RowErrors]:
        """n values of `result`; see the contract.

        SourceError source.evaluation where the expression itself cannot be run.
        """
        errors = RowErrors()
        if n == 0:
            return Column.empty(result.physical), errors
        statement = _statement(sql, types)
        if not columns:
            answers = self._constant(statement, sql, n, errors)
        else:
            texts = [to_text(t, c) for t, c in zip(types, columns, strict=True)]
            answers = self._answers(statement, sql, texts, n, errors)
        return from_text(result, Column.of(KIND_BYTES, answers)), errors

    def evaluate_groups(
        self,
        sql: str,
        types: Sequence[SqlType],
        columns: Sequence[Column],
        groups: np.ndarray,
        results: Sequence[SqlType],
    ) -> tuple[np.ndarray, tuple[Column, ...], RowErrors]:
        """The rows of a query over groups; see the contract.

        SourceError source.evaluation where the query itself cannot be run.
        """
        errors = RowErrors()
        order = np.argsort(groups, kind="stable")
        sorted_groups = groups[order]
        texts = [to_text(t, c).take(order) for t, c in zip(types, columns, strict=True)]
        texts.insert(0, to_text(INT8, Column(sorted_groups)))
        turns = np.flatnonzero(np.diff(sorted_groups)) + 1
        edges = np.concatenate([[0], turns, [len(order)]] if len(order) else [[]]).astype(np.int64)
        statement = _groups_statement(sql, types)
        found: list[tuple[str | None, ...]] = []
        for first, last in self._cuts(texts, edges):
            self._of_groups(statement, sql, texts, edges[first : last + 1], (found, errors))
        parts = list(zip(*found, strict=True)) or [()] * (1 + len(results))
        answered = np.array([int(g or 0) for g in parts[0]], np.int64)
        out = tuple(
            from_text(t, Column.of(KIND_BYTES, part))
            for t, part in zip(results, parts[1:], strict=True)
        )
        return answered, out, errors

    def _cuts(self, texts: Sequence[Column], edges: np.ndarray) -> list[tuple[int, int]]:
        """Ranges of edges, each of about a batch of rows or bytes, and of one group at least."""
        size_bytes = sum(t.nbytes() for t in texts)
        n = int(edges[-1]) if len(edges) else 0
        step = max(1, min(BATCH_ROWS, n * _BATCH_BYTES // max(size_bytes, 1)))
        cuts, first = [], 0
        while first < len(edges) - 1:
            last = int(np.searchsorted(edges, edges[first] + step, side="right")) - 1
            last = max(last, first + 1)
            cuts.append((first, last))
            first = last
        return cuts

    def _of_groups(
        self,
        statement: str,
        sql: str,
        texts: Sequence[Column],
        edges: np.ndarray,
        out: tuple[list[tuple[str | None, ...]], RowErrors],
    ) -> None:
        """Rows of the groups between edges; a batch that fails is halved."""
        waiting = [edges]
        while waiting:
            edges = waiting.pop()
            start, stop = int(edges[0]), int(edges[-1])
            try:
                out[0].extend(self._rows(statement, [t.slice(start, stop) for t in texts]))
            except psycopg2.Error as error:
                state, text = _row_error(error, sql)
                if len(edges) == 2:
                    group = texts[0].slice(start, start + 1).to_list()[0]
                    out[1].add(int(group), state, text)
                    continue
                middle = len(edges) // 2
                waiting += [edges[: middle + 1], edges[middle:]]

    def rank(self, type: SqlType, column: Column) -> np.ndarray:
        """int64[n]: dense_rank() of each value in the order of its type and collation."""
        if not len(column):
            return np.empty(0, np.int64)
        array, order = _passed(type, f"{_ROW}.a1")
        statement = (
            f"({array}) AS SELECT rank FROM (SELECT dense_rank() OVER (ORDER BY {order}) AS rank,"
            f" position FROM unnest($1) WITH ORDINALITY AS {_ROW}(a1, position)) AS ranked"
            " ORDER BY position"
        )
        try:
            answers = self._run(statement, [to_text(type, column)])
        except psycopg2.Error as error:
            what = f"values of type {type.name} cannot be ordered"
            raise to_error(error, "source", what, code="source.evaluation") from error
        return np.array(answers, np.int64)

    def close(self) -> None:
        """Close the session; the next use opens a new one."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None
        self._prepared.clear()

    def _constant(self, statement: str, sql: str, n: int, errors: RowErrors) -> list[str | None]:
        try:
            return self._run(statement, []) * n
        except psycopg2.Error as error:
            state, text = _row_error(error, sql)
            for row in range(n):
                errors.add(row, state, text)
            return [None] * n

    def _answers(
        self, statement: str, sql: str, texts: list[Column], n: int, errors: RowErrors
    ) -> list[str | None]:
        """Batch after batch; a batch that fails is halved until the failing rows stand alone."""
        size_bytes = sum(int(t.values[-1] - t.values[0]) for t in texts)
        step = max(1, min(BATCH_ROWS, n * _BATCH_BYTES // max(size_bytes, 1)))
        answers: list[str | None] = [None] * n
        waiting = [(start, min(start + step, n)) for start in range(0, n, step)]
        while waiting:
            start, stop = waiting.pop()
            try:
                found = self._run(statement, [t.slice(start, stop) for t in texts])
            except psycopg2.Error as error:
                state, text = _row_error(error, sql)
                if stop - start == 1:
                    errors.add(start, state, text)
                    continue
                middle = (start + stop) // 2
                waiting += [(start, middle), (middle, stop)]
                continue
            answers[start:stop] = found
        return answers

    def _run(self, statement: str, texts: Sequence[Column]) -> list[Any]:
        """The statement's one column."""
        return [value for (value,) in self._rows(statement, texts)]

    def _rows(self, statement: str, texts: Sequence[Column]) -> list[tuple[Any, ...]]:
        """The statement's rows; tries again on a new session when the session is lost."""
        call = b",".join(_literal(text) for text in texts)
        last: Exception = TemporaryError("source.unreachable", "the source cannot be reached")
        was_prepared = statement in self._prepared
        for pause_s in _PAUSES_S:
            time.sleep(pause_s)
            try:
                return self._execute(statement, call)
            except TemporaryError as error:
                last = error
            except psycopg2.Error as error:
                if was_prepared and _is_stale_plan(error):
                    # A function or type was replaced since. What is prepared anew is not stale,
                    # so that this happens once a call.
                    self.close()
                    return self._rows(statement, texts)
                if is_temporary(error):
                    self.close()
                    last = to_error(error, "source", "the evaluating session was lost")
                else:
                    raise
        raise last

    def _execute(self, statement: str, call: bytes) -> list[tuple[Any, ...]]:
        if self._connection is None:
            self._connection = _open(self.dsn, self._settings)
        with self._connection.cursor() as cursor:
            name = self._prepared.get(statement)
            if name is None:
                if len(self._prepared) >= _MOST_PREPARED:
                    cursor.execute("DEALLOCATE ALL")
                    self._prepared.clear()
                name = f"tidemark_{len(self._prepared)}"
                try:
                    cursor.execute(f"PREPARE {name}{statement}")
                except psycopg2.Error as error:
                    if is_temporary(error):
                        raise
                    what = "an expression cannot be evaluated"
                    raise to_error(error, "source", what, code="source.evaluation") from error
                self._prepared[statement] = name
            arguments = b"(" + call + b")" if call else b""
            cursor.execute(b"EXECUTE " + name.encode() + arguments)
            return cursor.fetchall()


def _is_stale_plan(error: psycopg2.Error) -> bool:
    """Whether a prepared statement no longer stands for its text.

    "cached plan must not change result type" shares its SQLSTATE with errors of rows, and its
    words are translated: only plancache.c raises it.
    """
    if error.pgcode == _UNKNOWN_STATEMENT:
        return True
    return error.pgcode == "0A000" and error.diag.source_function == "RevalidateCachedQuery"


def _open(dsn: str, settings: Mapping[str, str]) -> Connection:
    connection = connect(dsn, settings={**_SETTINGS, **settings})
    connection.autocommit = True
    for oid in string_types:
        # Every known type comes as the text that PostgreSQL prints.
        connection.string_types[oid] = UNICODE
    return connection


def _statement(sql: str, types: Sequence[SqlType]) -> str:
    """What follows the name in PREPARE: parameter types and the query."""
    passed = [_passed(t, f"a{i}") for i, t in enumerate(types, 1)]

    def column(token: re.Match[str]) -> str:
        return token[0] if token[1] is None else f"{_ROW}.a{token[1]}"

    expression = _TOKENS.sub(column, sql)
    if not types:
        return f" AS SELECT {expression}"
    arrays = ", ".join(f"${i}" for i in range(1, len(types) + 1))
    names = ", ".join(f"a{i}" for i in range(1, len(types) + 1))
    values = ", ".join(f"{value} AS a{i}" for i, (_, value) in enumerate(passed, 1))
    # A column of a subquery has its collation implicitly, as a table's column has: a COLLATE in
    # the expression still goes before it.
    return (
        f"({', '.join(array for array, _ in passed)}) AS SELECT {expression}"
        f" FROM (SELECT {values}, position FROM unnest({arrays})"
        f" WITH ORDINALITY AS passed({names}, position)) AS {_ROW} ORDER BY position"
    )


def _groups_statement(sql: str, types: Sequence[SqlType]) -> str:
    """What follows the name in PREPARE for a query over groups of rows."""
    passed = [_passed(t, f"a{i}") for i, t in enumerate(types, 1)]

    def column(token: re.Match[str]) -> str:
        return token[0] if token[1] is None else f"{_ROW}.a{token[1]}"

    arrays = ", ".join(f"${i}" for i in range(1, len(types) + 2))
    names = ", ".join(["g", *(f"a{i}" for i in range(1, len(types) + 1))])
    values = ", ".join(["g", *(f"{value} AS a{i}" for i, (_, value) in enumerate(passed, 1))])
    parameters = ", ".join(["bigint[]", *(array for array, _ in passed)])
    return (
        f"({parameters}) AS WITH {_ROW} AS (SELECT {values} FROM unnest({arrays}) AS"
        f" passed({names})) {_TOKENS.sub(column, sql)}"
    )


def _passed(type: SqlType, column: str) -> tuple[str, str]:
    """(type of the array parameter, the value in SQL).

    Types that we know go as arrays of themselves. Others may be arrays, or use another delimiter
    (box, PostGIS): they go as text and are read one by one.
    """
    collate = f" COLLATE {_quoted(type.collation)}" if type.collation else ""
    if type.kind is TypeKind.OPAQUE:
        return "text[]", f"CAST({column} AS {type.name}){collate}"
    return f"{type.name}[]", column + collate


def _literal(texts: Column) -> bytes:
    assert texts.data is not None
    mask = _NO_MASK if texts.valid is None else texts.valid
    return array_literal(texts.values, texts.data, mask).tobytes()


def _row_error(error: psycopg2.Error, sql: str) -> tuple[str, str]:
    """(SQLSTATE, words) of a row's own error; anything else is raised as what it is."""
    state = error.pgcode or "XX000"
    if state in _NOT_OF_A_ROW or state[:2] in _NOT_OF_A_ROW_CLASSES:
        if state != "42501":
            what = "the source could not evaluate an expression"
            raise TemporaryError("source.busy", what, detail=f"{sql}: {error}") from error
        raise SourceError(
            "source.privilege",
            "the role may not evaluate an expression",
            detail=f"{sql}: {' '.join(str(error).split())}",
        ) from error
    if state[:2] == "42" and not error.diag.context:
        # Not from inside a function: the statement itself no longer fits, a function is gone.
        what = "an expression can no longer be evaluated"
        raise to_error(error, "source", what, code="source.evaluation") from error
    return state, error.diag.message_primary or str(error)


def _quoted(collation: str) -> str:
    if '"' in collation:
        return collation
    return ".".join(f'"{part}"' for part in collation.split("."))
