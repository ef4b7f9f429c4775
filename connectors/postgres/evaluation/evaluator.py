"""Evaluation in PostgreSQL: one scalar expression over many rows in one round trip.

Columns travel as array literals of PostgreSQL's text, and the answer comes back as text, so a value
means the same here as everywhere else. Invariant: a failing row never hides or changes another
row's value. Errors that are not a row's fault (a lost session, a missing right) are never
attributed to one. Every call is a read-only transaction in the sandbox, rolled back, with the
rights of the view's creator or none. A pickled evaluator has only the DSN, settings and role. One
thread at a time.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import psycopg2
from psycopg2.extensions import UNICODE, string_types
from tidemark_native import replication

from connectors.postgres.evaluation import sandbox
from connectors.postgres.session.liveness_watchdog import Watched
from connectors.postgres.session.quoting import quote_text
from connectors.postgres.session.session import (
    LIMITS,
    PINNED_PATH,
    connect,
    is_temporary,
    to_error,
    translated,
)
from connectors.postgres.session.session_pool import LONG_IDLE_S, POOL
from dataflow.delta import KIND_BYTES, Column
from dataflow.errors import SourceError, TemporaryError, TidemarkError, ViewError
from dataflow.expressions.evaluator import RowErrors, TimeLimit
from dataflow.types import INT8, UTC, SqlType, TypeKind
from dataflow.values import from_text, to_text

BATCH_ROWS = 10_000
_BATCH_BYTES = 8 << 20
_MAX_PREPARED = 400
_APPLICATION = "tidemark evaluator"
_PAUSES_S = (0.0, 0.1, 0.5, 2.0)
_NO_MASK = np.empty(0, np.bool_)

_SETTINGS = {
    "default_transaction_read_only": "on",
    # The plan is a scan of unnest() for any values: plan it once.
    "plan_cache_mode": "force_generic_plan",
    "jit": "off",
    "standard_conforming_strings": "on",
}
# The prefix of our prepared statements and functions.
_OURS = "tidemark_call_"
# Rights, cancellation, server resources: not the row's fault.
_CANCELED = "57014"
_NOT_OF_A_ROW = {"42501", _CANCELED}
_NOT_OF_A_ROW_CLASSES = {"53", "58"}
_UNKNOWN_STATEMENT = "26000"


class _OutOfTimeError(psycopg2.Error):
    """A statement ran as long as any statement may; it would again, so it is no passing failure."""

    def __str__(self) -> str:
        return f"it takes longer than {LIMITS.statement_s:g} s (TIDEMARK_STATEMENT_TIMEOUT_S)"


@dataclass
class _Functions:
    """The functions of a session: name and body by statement. owner: the role that they run as."""

    owner: str
    by_statement: dict[Statement, tuple[str, str]] = field(default_factory=dict)


_functions: WeakKeyDictionary[Watched, _Functions] = WeakKeyDictionary()


class PostgresEvaluator:
    """dataflow.expressions.evaluator.Evaluator over sessions that the process's pool lends.

    Only evaluators of the same settings and role share a session, and nothing else runs in it.
    settings: more session settings; a search_path among them applies to the evaluated text. role:
    whose rights the evaluated text has; "" for none (`sandbox.QUERY_ROLE`). time_zone: in which it
    runs; its arguments and results are texts in UTC all the same. limit: a statement that it leaves
    no time is cancelled, and what it names raised; it is not pickled. One thread at a time.
    """

    def __init__(
        self,
        dsn: str,
        settings: Mapping[str, str] | None = None,
        role: str = "",
        time_zone: str = UTC,
        limit: TimeLimit | None = None,
    ) -> None:
        self._limit = limit
        self.dsn = dsn
        self.role = role
        self.time_zone = time_zone
        self._settings = dict(settings or {})
        self._key = ("evaluator", dsn, role, tuple(sorted(self._settings.items())))
        # Of the functions, which PostgreSQL shows in the context of errors.
        self._bodies: dict[Statement, str] = {}

    def __getstate__(self) -> dict[str, Any]:
        parts = {"dsn": self.dsn, "settings": self._settings, "role": self.role}
        return {**parts, "time_zone": self.time_zone}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["dsn"], state["settings"], state["role"], state["time_zone"])

    def evaluate(
        self,
        sql: str,
        types: Sequence[SqlType],
        columns: Sequence[Column],
        n: int,
        result: SqlType,
    ) -> tuple[Column, RowErrors]:
        """Return n values of `result`; see the contract.

        ViewError source.evaluation where the expression itself cannot run.
        """
        errors = RowErrors()
        if n == 0:
            return Column.empty(result.physical), errors
        statement = expression_statement(sql, types, result)
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
        """Return the rows of a query over groups; see the contract.

        ViewError source.evaluation where the query itself cannot run.
        """
        errors = RowErrors()
        order = np.argsort(groups, kind="stable")
        sorted_groups = groups[order]
        texts = [to_text(t, c).take(order) for t, c in zip(types, columns, strict=True)]
        texts.insert(0, to_text(INT8, Column(sorted_groups)))
        turns = np.flatnonzero(np.diff(sorted_groups)) + 1
        edges = np.concatenate([[0], turns, [len(order)]] if len(order) else [[]]).astype(np.int64)
        statement = groups_statement(sql, types, results)
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
        """Return ranges of edges, each of about a batch of rows or bytes, and of at least one
        group."""
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
        statement: Statement,
        sql: str,
        texts: Sequence[Column],
        edges: np.ndarray,
        out: tuple[list[tuple[str | None, ...]], RowErrors],
    ) -> None:
        """Evaluate the groups between edges; halve a batch that fails."""
        waiting = [edges]
        while waiting:
            edges = waiting.pop()
            start, stop = int(edges[0]), int(edges[-1])
            try:
                out[0].extend(self._rows(statement, [t.slice(start, stop) for t in texts]))
            except psycopg2.Error as error:
                state, text = _row_error(
                    error, (sql, self._body(statement)), is_one=len(edges) == 2
                )
                if len(edges) == 2:
                    group = texts[0].slice(start, start + 1).to_list()[0]
                    out[1].add(int(group), state, text)
                    continue
                middle = len(edges) // 2
                waiting += [edges[: middle + 1], edges[middle:]]

    def rank(self, type: SqlType, column: Column) -> np.ndarray:
        """Return int64[n]: dense_rank() of each value in the order of its type and collation."""
        if not len(column):
            return np.empty(0, np.int64)
        statement = ranks_statement(type)
        try:
            answers = self._run(statement, [to_text(type, column)])
        except psycopg2.Error as error:
            raise _cannot(error, f"values of type {type.name} cannot be ordered") from error
        return np.array(answers, np.int64)

    def close(self) -> None:
        """Close idle sessions; the next use opens a new one."""
        POOL.close(self._key)

    def _constant(
        self, statement: Statement, sql: str, n: int, errors: RowErrors
    ) -> list[str | None]:
        try:
            return self._run(statement, []) * n
        except psycopg2.Error as error:
            state, text = _row_error(error, (sql, self._body(statement)))
            for row in range(n):
                errors.add(row, state, text)
            return [None] * n

    def _answers(
        self, statement: Statement, sql: str, texts: list[Column], n: int, errors: RowErrors
    ) -> list[str | None]:
        """Evaluate batch after batch; halve a failing batch until the failing rows stand alone."""
        size_bytes = sum(int(t.values[-1] - t.values[0]) for t in texts)
        step = max(1, min(BATCH_ROWS, n * _BATCH_BYTES // max(size_bytes, 1)))
        answers: list[str | None] = [None] * n
        waiting = [(start, min(start + step, n)) for start in range(0, n, step)]
        while waiting:
            start, stop = waiting.pop()
            try:
                found = self._run(statement, [t.slice(start, stop) for t in texts])
            except psycopg2.Error as error:
                state, text = _row_error(
                    error, (sql, self._body(statement)), is_one=stop - start == 1
                )
                if stop - start == 1:
                    errors.add(start, state, text)
                    continue
                middle = (start + stop) // 2
                waiting += [(start, middle), (middle, stop)]
                continue
            answers[start:stop] = found
        return answers

    def _run(self, statement: Statement, texts: Sequence[Column]) -> list[Any]:
        """Return the statement's single column."""
        return [row[0] for row in self._rows(statement, texts)]

    def _rows(self, statement: Statement, texts: Sequence[Column]) -> list[tuple[Any, ...]]:
        """Return the statement's rows; retry on a new session when the session is lost."""
        call = b",".join(_literal(text) for text in texts)
        last: Exception = TemporaryError("source.unreachable", "the source cannot be reached")
        was_out_of_time = False
        run = lambda session: self._execute(session, statement, call)  # noqa: E731
        for pause_s in _PAUSES_S:
            time.sleep(pause_s)
            try:
                return POOL.run(self._key, self._open, run, LONG_IDLE_S)
            except TemporaryError as error:
                last = error
            except psycopg2.Error as error:
                if _is_internal(error):
                    raise _cannot(error, "an expression cannot be evaluated") from error
                if isinstance(error, _OutOfTimeError) and not was_out_of_time:
                    # A server that stood still for as long is not the statement's fault.
                    was_out_of_time, last = True, error
                    continue
                if not is_temporary(error):
                    raise
                last = to_error(error, "source", "the evaluating session was lost")
        raise last

    def _execute(
        self, session: Watched, statement: Statement, call: bytes
    ) -> list[tuple[Any, ...]]:
        """Return the statement's rows. A session that it cannot run in any more is closed, so that
        another one is tried."""
        functions = _functions[session]
        was_prepared = statement in functions.by_statement
        try:
            with session.cursor() as cursor:
                name, self._bodies[statement] = self._prepared(cursor, functions, statement)
                try:
                    return self._call(cursor, name, statement, call)
                finally:
                    # This undoes a function's session settings.
                    if not session.closed:
                        cursor.execute("ROLLBACK")
        except psycopg2.Error as error:
            # A function or type was replaced since: a newly prepared statement is not stale. After
            # an internal error the session's cached objects may be gone, such as a recreated type.
            is_stale = was_prepared and _is_stale_plan(error)
            if is_stale or _is_internal(error) or is_temporary(error):
                session.close()
            raise

    def _prepared(
        self, cursor: Any, functions: _Functions, statement: Statement
    ) -> tuple[str, str]:
        """Return the name and the body of a statement's function; create it if it is missing."""
        known = functions.by_statement
        if statement not in known:
            if len(known) >= _MAX_PREPARED:
                cursor.execute("DISCARD TEMP")
                known.clear()
                self._bodies.clear()
            name = f"{_OURS}{len(known)}"
            try:
                body = self._prepare(cursor, name, statement, functions.owner)
            except psycopg2.Error as error:
                if is_temporary(error) or _is_internal(error):
                    raise
                raise _cannot(error, "an expression cannot be evaluated") from error
            known[statement] = name, body
        return known[statement]

    def _body(self, statement: Statement) -> str:
        return self._bodies.get(statement, "")

    def _prepare(self, cursor: Any, name: str, statement: Statement, owner: str) -> str:
        """Create the statement's function, give it to its role, and return its body.

        Nothing in it is resolved before the first call.
        """
        try:
            cursor.execute("START TRANSACTION READ WRITE")
            path = self._settings.get("search_path") or sandbox.path_of(cursor, owner)
            cursor.execute("SELECT set_config('search_path', %s, true)", (path,))
            body = sandbox.as_login(cursor, statement.body, owner, path)
            cursor.execute(statement.as_function(name, body, self.time_zone))
            cursor.execute(f"SET LOCAL search_path TO {PINNED_PATH}")
            sandbox.give(cursor, f"pg_temp.{name}({statement.parameters})", owner)
            cursor.execute("COMMIT")
            return body
        except SourceError as error:
            # The source is unaffected: only views of this creator fail.
            raise ViewError(error.code, error.what, detail=error.detail, hint=error.hint) from None
        finally:
            if not cursor.connection.closed:
                cursor.execute("ROLLBACK")

    def _call(
        self, cursor: Any, name: str, statement: Statement, call: bytes
    ) -> list[tuple[Any, ...]]:
        """Return what a statement answers, within a transaction that is left open."""
        shown = ", ".join(f"v{i}" for i in range(len(statement.results)))
        limit = self._limit
        until_s = math.inf if limit is None else limit.seconds_left()
        if limit is not None and until_s <= 0:
            raise limit.exceeded()
        # The session's own limit stands if it is the lower one.
        until_ms = _milliseconds(until_s) if until_s < (LIMITS.statement_s or math.inf) else 0
        bound = f"SET LOCAL statement_timeout = {until_ms}; " if until_ms else ""
        started = time.monotonic()
        try:
            with nullcontext() if limit is None else limit.waiting():
                cursor.execute(
                    f"START TRANSACTION READ ONLY; {bound}"
                    f"SELECT {shown} FROM pg_temp.{name}(".encode()
                    + call
                    + b")"
                )
        except psycopg2.Error as error:
            if error.pgcode != _CANCELED:
                raise
            took_s = time.monotonic() - started
            if limit is not None and 1000 * took_s >= until_ms > 0:
                raise limit.exceeded() from error
            if took_s >= LIMITS.statement_s > 0:
                raise _OutOfTimeError() from error
            raise
        return cursor.fetchall()

    def _open(self) -> Watched:
        settings = {k: v for k, v in self._settings.items() if k != "search_path"}
        return connect(
            self.dsn,
            application_name=_APPLICATION,
            settings={**_SETTINGS, **settings},
            setup=self._set_up,
        )

    def _set_up(self, session: Watched) -> None:
        session.autocommit = True
        with (
            translated("source", "an evaluating session cannot be opened"),
            session.cursor() as cursor,
        ):
            query_role = sandbox.ready(cursor, self.dsn)
        _functions[session] = _Functions(self.role or query_role)
        for oid in string_types:
            # Return every type as the text that PostgreSQL prints.
            session.string_types[oid] = UNICODE


def _milliseconds(seconds: float) -> int:
    return max(1, int(1000 * seconds))


def _is_stale_plan(error: psycopg2.Error) -> bool:
    """Return whether a prepared statement no longer matches its text.

    "cached plan must not change result type" shares its SQLSTATE with errors of rows, and its words
    are translated: only plancache.c raises it.
    """
    if error.pgcode == _UNKNOWN_STATEMENT:
        return True
    return error.pgcode == "0A000" and error.diag.source_function == "RevalidateCachedQuery"


def _is_internal(error: psycopg2.Error) -> bool:
    """Return whether the server reports an internal error (class XX), which no row causes.

    A function that raises such a state itself is a row's error.
    """
    is_raised = error.diag.source_function == "exec_stmt_raise"
    return (error.pgcode or "").startswith("XX") and not is_raised


def _cannot(error: psycopg2.Error, what: str) -> TidemarkError:
    """Return the error that fails the view whose expression cannot run; other errors as they
    are."""
    found = to_error(error, "source", what, code="source.evaluation")
    if found.code != "source.evaluation":
        return found
    hint = "restore the function or type that the detail names, then rebuild the view"
    return ViewError(found.code, found.what, detail=found.detail, hint=hint)


def _is_within_function(error: psycopg2.Error, body: str) -> bool:
    """Return whether an error comes from a function that the statement calls, not from itself."""
    lines = (error.diag.context or "").replace(body, _OURS).splitlines()
    return any(_OURS not in line for line in lines)


def _literal(texts: Column) -> bytes:
    assert texts.data is not None
    mask = _NO_MASK if texts.valid is None else texts.valid
    return replication.array_literal(texts.values, texts.data, mask).tobytes()


def _row_error(
    error: psycopg2.Error, what_ran: tuple[str, str], *, is_one: bool = True
) -> tuple[str, str]:
    """Return (SQLSTATE, message) of a row's own error; raise anything else as what it is.

    is_one: of a single row. Several rows may only have taken too long together.
    """
    sql, body = what_ran
    state = error.pgcode or "XX000"
    if isinstance(error, _OutOfTimeError):
        return _CANCELED, str(error)
    if state == _CANCELED and not is_one:
        return state, ""
    if state in _NOT_OF_A_ROW or state[:2] in _NOT_OF_A_ROW_CLASSES:
        if state != "42501":
            what = "the source could not evaluate an expression"
            raise TemporaryError("source.busy", what, detail=f"{sql}: {error}") from error
        raise ViewError(
            "source.privilege",
            "the role has no privilege to evaluate an expression",
            detail=f"{sql}: {' '.join(str(error).split())}",
        ) from error
    if state[:2] == "42" and not _is_within_function(error, body):
        # Not from inside a function: the statement itself no longer fits, as after DROP FUNCTION.
        raise _cannot(error, "an expression can no longer be evaluated") from error
    return state, error.diag.message_primary or str(error)


# --- statements -----------------------------------------------------------------------------------

# Each becomes a temporary function of the sandbox. Nothing is sent from here.

# Skip string literals and quoted names: a "$1" in them is no argument.
_TOKENS = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|\$(\d+)""")
_ROW = "tidemark_row"


@dataclass(frozen=True)
class Statement:
    """A query over passed arrays $1, $2 ...: their types, its text, the types of its columns.

    A user-defined result type is "" and comes as its text. Otherwise its owner could not drop the
    type while our session has a function that names it.
    """

    parameters: str
    select: str
    results: tuple[str, ...]

    @property
    def body(self) -> str:
        """Return the body of the function, as PostgreSQL shows it in an error's context.

        An additional column keeps a single composite from being expanded. The casts do nothing,
        unless a function was replaced by one of another type.
        """
        names = [f"c{i}" for i in range(len(self.results))]
        casts = [_result(f"q.{n}", type) for n, type in zip(names, self.results, strict=True)]
        return f"SELECT {', '.join(casts)}, true FROM ({self.select}) AS q({', '.join(names)})"

    def as_function(self, name: str, body: str, time_zone: str = UTC) -> str:
        """Return the statement that creates the function, before it is given to a role.

        SET ROLE fails inside it. body: its own, as the login's session would have it. Its plan is
        cached for the session. It parses its body under the current search_path.
        """
        columns = [f"v{i} {type or 'text'}" for i, type in enumerate(self.results)]
        body = f"#variable_conflict use_column\nBEGIN RETURN QUERY {body}; END"
        return (
            f"CREATE FUNCTION pg_temp.{name}({self.parameters}) RETURNS"
            f" TABLE({', '.join(columns)}, is_row boolean) LANGUAGE plpgsql SECURITY DEFINER"
            f" SET search_path FROM CURRENT{sandbox.zone_clause(time_zone)} AS {quote_text(body)}"
        )


def _result(column: str, type: str) -> str:
    if type:
        return f"{column}::{type}"
    shown = f"pg_catalog.format('%s', {column})"
    return f"CASE WHEN pg_catalog.num_nonnulls({column}) > 0 THEN {shown} END"


def _named(type: SqlType) -> str:
    return "" if type.is_users else type.name


def expression_statement(sql: str, types: Sequence[SqlType], result: SqlType) -> Statement:
    """Return an expression over passed columns."""
    passed = [_passed(t, f"a{i}") for i, t in enumerate(types, 1)]

    def column(token: re.Match[str]) -> str:
        return token[0] if token[1] is None else f"{_ROW}.a{token[1]}"

    expression = _TOKENS.sub(column, sql)
    if not types:
        return Statement("", f"SELECT {expression} AS value", (_named(result),))
    arrays = ", ".join(f"${i}" for i in range(1, len(types) + 1))
    names = ", ".join(f"a{i}" for i in range(1, len(types) + 1))
    values = ", ".join(f"{value} AS a{i}" for i, (_, value) in enumerate(passed, 1))
    # A column of a subquery has an implicit collation, like a table's column: a COLLATE in the
    # expression takes precedence.
    return Statement(
        ", ".join(array for array, _ in passed),
        f"SELECT {expression} AS value FROM (SELECT {values}, position FROM unnest({arrays})"
        f" WITH ORDINALITY AS passed({names}, position)) AS {_ROW} ORDER BY position",
        (_named(result),),
    )


def groups_statement(sql: str, types: Sequence[SqlType], results: Sequence[SqlType]) -> Statement:
    """Return a query over groups of rows."""
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
    """Return (type of the array parameter, the value in SQL).

    Known types travel as arrays of themselves. Others may be arrays, or use another delimiter (box,
    PostGIS): they travel as text and are read one by one. So do domains, whose conditions must be
    computed inside the function.
    """
    collate = f" COLLATE {_quoted(type.collation)}" if type.collation else ""
    if type.kind is TypeKind.OPAQUE or type.is_users:
        return "text[]", f"CAST({column} AS {type.name}){collate}"
    return f"{type.name}[]", column + collate


def ranks_statement(type: SqlType) -> Statement:
    """Return dense_rank() of each passed value in the order of its type and collation."""
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
