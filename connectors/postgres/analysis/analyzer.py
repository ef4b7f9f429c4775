"""PostgreSQL as the analyzer of queries: it answers names, types, coercions and constants.

Everything runs in one transaction under pinned settings and a statement timeout, and is always
rolled back. Invariant: the user's text is never executed. It is only the body of a temporary view,
after `dataflow.lexer.one_query` proved that it is one query. Parsing alone can run the conditions
of domains, so it happens in the sandbox, with the rights of the view's creator or none. Constants
are computed there too, read-only. One thread at a time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import psycopg2
from psycopg2 import errorcodes
from psycopg2.extensions import connection as Connection
from psycopg2.extensions import new_type, string_types

from connectors.postgres.analysis import foreign_code, time_functions
from connectors.postgres.analysis.rights import check_rights
from connectors.postgres.analysis.stub_relations import StubRelations, quoted
from connectors.postgres.analysis.table_lookup import (
    FoundRelation,
    find_relation,
    look_up,
    outdated_values,
)
from connectors.postgres.analysis.table_names import KnownNames, read_named, read_names
from connectors.postgres.evaluation import sandbox
from connectors.postgres.replication.used_objects import UsedObject, read_objects, read_used
from connectors.postgres.session.session import connect, is_temporary, to_error
from connectors.postgres.types.column_types import ColumnTypes, check_type_name
from dataflow.errors import Position, SinkError, SourceError, SqlError, TidemarkError
from dataflow.expressions.ir import Literal
from dataflow.lexer import find_words, one_query, position_of
from dataflow.mismatched_types import mismatch_of
from dataflow.schema import VIEW_SOURCE, Field, Relation
from dataflow.sql.bind.analysis import Analysis, Routine, Table
from dataflow.types import UTC, SqlType, TypeKind

_VIEW = "tidemark_analysis"
_CREATE = f"CREATE TEMP VIEW {_VIEW} AS "
_SETTINGS = {
    "statement_timeout": "30s",
    "lock_timeout": "10s",
    "idle_in_transaction_session_timeout": "120s",
    "standard_conforming_strings": "on",
    "default_transaction_read_only": "off",
    "quote_all_identifiers": "off",
}
_MAX_COLUMNS = 1500
# SQLSTATEs of a function and a schema that do not exist.
_UNKNOWN = ("42883", "3F000")
# What stands for all columns of a table.
_OPEN = re.compile(r"[*]|\b(?:table|natural)\b", re.IGNORECASE)
_FULL_JOIN = "FULL JOIN "
_CALLS = re.compile(r":(?:funcid|opfuncid|aggfnoid|winfnoid) (\d+)")
_ROW_NAMES = re.compile(r":eref \{ALIAS :aliasname (\S+) :colnames \(((?:\\.|[^()\\])*)\)\}")
_ROW_NAME = re.compile(r'"((?:\\.|[^\s\\])*)"(?=\s|$)')
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_SESSION_VALUES = re.compile(r"\{(?:SQLVALUEFUNCTION) :op (\d+)")
# Anonymous rows, and their column names.
_ROWS = re.compile(r':row_typeid 2249 :row_format \d :colnames \(((?:"(?:[^"\\]|\\.)*"\s?)+)\)')
_SESSION_VALUE_NAMES = (
    *("current_date", "current_time", "current_time", "current_timestamp", "current_timestamp"),
    *("localtime", "localtime", "localtimestamp", "localtimestamp", "current_role"),
    *("current_user", "user", "session_user", "current_catalog", "current_schema"),
)
_IS_MADE = """
SELECT FROM tidemark.tables
WHERE coalesce(view_oid, table_oid) = to_regclass(%s) AND (schema, name) = (%s, %s)
    AND NOT is_staged
"""
_TIME_ZONE = """
SELECT (SELECT min(name) FROM pg_timezone_names WHERE lower(name) = lower(%(name)s)),
    EXISTS (SELECT FROM pg_timezone_abbrevs WHERE abbrev = upper(%(name)s))
"""
_ROUTINES = """
SELECT CASE WHEN n.nspname = 'pg_catalog' THEN '' ELSE n.nspname || '.' END || p.proname,
       p.prokind, coalesce(a.volatility, p.provolatile::text), p.proretset,
       coalesce((SELECT 'operator ' || min(o.oprname) FROM pg_operator o WHERE o.oprcode = p.oid),
           (SELECT 'cast to ' || min(format_type(c.casttarget, NULL)) FROM pg_cast c
               WHERE c.castfunc = p.oid), '')
FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
-- Every aggregate is immutable in pg_proc: its functions say what it is ('i' < 's' < 'v').
LEFT JOIN LATERAL (
    SELECT max(f.provolatile::text) AS volatility
    FROM pg_aggregate g JOIN pg_proc f ON f.oid IN (g.aggtransfn::oid, g.aggfinalfn::oid)
    WHERE g.aggfnoid = p.oid AND n.nspname <> 'pg_catalog'
) a ON true
WHERE p.oid = ANY (%s) ORDER BY 1
"""


class PostgresAnalyzer:
    """An `Analyzer` on one database, open from its first question until `close`.

    views: the maintained views, with tables in this database or, with has_stubs, in another. With
    has_stubs, and for feeds (relations of other sources), each relation that a query names appears
    here as an empty temporary table. The database's own names take precedence. requester: whose
    rights a query has, and who must be able to read its relations; "" for the session's own.
    keeps_rows: a table of ours is to store the query's rows. time_zone: see `Analyzer`.
    check_readers: raises if the requester may not read these feeds, which this query names.
    SourceError or TemporaryError when the database does not answer.
    """

    def __init__(
        self,
        dsn: str,
        source_name: str,
        views: Sequence[Relation] = (),
        *,
        has_stubs: bool = False,
        feeds: Sequence[Relation] = (),
        requester: str = "",
        keeps_rows: bool = True,
        time_zone: str = UTC,
        check_readers: Callable[[Sequence[Relation], str], None] | None = None,
    ) -> None:
        self.time_zone = time_zone
        self._dsn = dsn
        self._keeps_rows = keeps_rows
        self._requester = requester
        self._check_readers = check_readers
        self._is_bound = False
        self._sandbox: sandbox.Sandbox | None = None
        # The role whose rights apply, set by the first question; "" for the session's own.
        self.role = ""
        # The tables that the last analyzed query names itself.
        self.named = KnownNames()
        # Why what it answers may be wrong of generated columns that could not be checked in time.
        self.unchecked: SourceError | None = None
        self._source_name = source_name
        here = () if has_stubs else views
        self._views = {(v.name.schema, v.name.name): v for v in here}
        self._stubs = StubRelations([*(views if has_stubs else ()), *feeds])
        self._connection: Connection | None = None
        # The columns of queries of ours, the same all through a transaction.
        self._fields_of: dict[str, tuple[Field, ...]] = {}

    def __enter__(self) -> PostgresAnalyzer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Roll back and disconnect; the next question opens a new transaction."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
            self._sandbox = None
            self._stubs.forget()
            self._fields_of.clear()

    def analyze(self, query: str) -> Analysis:
        """Analyze a query; see `Analyzer`."""
        query = one_query(query)
        self._stubs.make(query, self._make_stub)
        body, moved = self._stubs.rename(query, self._exists)
        with self._step("the query cannot be analyzed", query, moved):
            self._make(body, is_users=True)
            found = self._described(f"pg_temp.{_VIEW}")
            self.named = self._named(found, query if body == query else "")
            if self._keeps_rows:
                foreign_code.check_outputs(self._cursor(), self._oid(f"pg_temp.{_VIEW}"))
            if self._requester:
                stubs = check_rights(self._cursor(), self._oid(f"pg_temp.{_VIEW}"), self._requester)
                self._check_feeds(stubs, query)
            if _FULL_JOIN in found.text:
                self._check_plan(find_words(query, ["full"]))
        return self._expanded(found)

    def _check_feeds(self, stubs: Sequence[str], query: str) -> None:
        """Require that the requester may read the feeds that these stubs stand for."""
        found = [self._stubs.find("", name) for name in stubs]
        feeds = [r for r in found if r is not None and r.name.source != VIEW_SOURCE]
        if feeds and self._check_readers is not None:
            self._check_readers(feeds, query)

    def _check_plan(self, position: Position | None) -> None:
        """Refuse a FULL JOIN that PostgreSQL cannot plan; creating a view does not detect it.

        Call it last in a step: other errors here concern rows.
        """
        cursor = self._cursor()
        assert self._sandbox is not None
        try:
            self._sandbox.lend_tables(cursor, _VIEW)
            self._sandbox.explain(cursor, f"SELECT * FROM pg_temp.{_VIEW}")
        except psycopg2.errors.FeatureNotSupported as error:
            raise SqlError(
                "sql.feature_not_supported",
                str(error.diag.message_primary),
                hint="compare an expression of each side, as in a.x = 4 - b.x; or use a LEFT "
                "JOIN, and add the right side's unmatched rows with UNION ALL",
                position=position,
            ) from error
        except psycopg2.Error as error:
            if is_temporary(error):
                raise

    def _expanded(self, found: Analysis) -> Analysis:
        """Return the analysis with calls of our time functions replaced by their bodies.

        PostgreSQL analyzes the new text, so its form is canonical too.
        """
        called = time_functions.called_by([r.name for r in found.routines])
        if not called:
            return found
        with self._step("the query's time functions cannot be analyzed"):
            own = time_functions.installed(self._cursor())
            self._make(time_functions.expand(found.text, called & own))
            made = self._described(f"pg_temp.{_VIEW}")
        aliases = {alias for alias, _ in found.row_names}
        names = (*found.row_names, *(n for n in made.row_names if n[0] not in aliases))
        return replace(found, text=made.text, routines=made.routines, row_names=names)

    def _named(self, analyzed: Analysis, query: str) -> KnownNames:
        """Return what the query names and rests on, without maintained views, which track their
        own names.

        query: the user's text if it was analyzed as it is: the text that PostgreSQL makes of it is
        of use as long as it names tables alone.
        """
        cursor, view = self._cursor(), self._oid(f"pg_temp.{_VIEW}")
        found = read_named(cursor, view)
        tables = tuple(t for t in found.tables if (t.schema, t.name) not in self._views)
        text = analyzed.text if query and tables == found.tables else ""
        objects = read_used(cursor, view, self._views)
        types = [o for o in objects if o.catalog == "pg_type"]
        has_values = any(o.labels for o in types) and any(o.is_direct for o in types)
        return KnownNames(
            found.server,
            tables,
            listed=text if _OPEN.search(query) else "",
            objects=objects,
            text=text if has_values and not analyzed.named_rows else "",
        )

    def relation(self, schema: str, name: str) -> Table | Analysis:
        """Return a relation of the canonical text; see `Analyzer`."""
        maintained = self._views.get((schema, name))
        if maintained is not None:
            self._require_made(schema, name)
        maintained = maintained or self._stubs.find(schema, name)
        if maintained is not None:
            columns = tuple((f.name, i) for i, f in enumerate(maintained.fields))
            return Table(maintained, columns, has_row_type=False)
        with self._step(f'relation "{schema}.{name}" cannot be looked up'):
            cursor = self._cursor()
            cursor.execute("SET LOCAL search_path = pg_temp")
            found = find_relation(cursor, schema or "pg_catalog", name)
            if found.kind == "v":
                described = self._described(found.oid)
                if _FULL_JOIN in described.text:
                    self._make(f"SELECT * FROM {quoted(schema or 'pg_catalog')}.{quoted(name)}")
                    self._check_plan(None)
            else:
                table = look_up(cursor, found, self._source_name)
                self._check_generated(found)
                return table
        return self._expanded(described)

    def _check_generated(self, found: FoundRelation) -> None:
        """Require that stored generated columns have the values that their expressions give.

        PostgreSQL keeps the old values when a function in an expression is replaced, and no source
        sends them. Call it last in a step. SourceError source.generated_column.
        """
        cursor = self._cursor()
        used = [o.oid for o in self.named.objects or () if o.catalog == "pg_attrdef"]
        columns, question = outdated_values(cursor, found, used)
        if not columns:
            return
        assert self._sandbox is not None
        self._make(question)
        self._sandbox.lend_tables(cursor, _VIEW)
        why = "a function or type in its expression was replaced after they were stored"
        try:
            self._run_view(cursor)
            (answers,) = cursor.fetchall()
        except psycopg2.errors.QueryCanceled:
            self.unchecked = _outdated(found, columns[0], "they are too many to be compared")
            return
        for column, is_outdated in zip(columns, answers, strict=True):
            if is_outdated:
                raise _outdated(found, column, why)

    def _require_made(self, schema: str, name: str) -> None:
        """Require that the query read the view's table, not another relation of its name."""
        with self._step(f'view "{schema}.{name}" cannot be looked up'):
            cursor = self._cursor()
            cursor.execute(_IS_MADE, (f"{quoted(schema)}.{quoted(name)}", schema, name))
            if cursor.fetchone() is None:
                raise SinkError(
                    "sink.foreign_object",
                    f'"{schema}.{name}" is not the table that Tidemark created for the view',
                    hint="drop it, then rebuild the view; or rename the table",
                )

    def types(self, columns: Sequence[SqlType], expressions: Sequence[str]) -> tuple[SqlType, ...]:
        """Return the types of expressions over c1, c2 ...; see `Analyzer`."""
        types: list[SqlType] = []
        for begin in range(0, len(expressions), _MAX_COLUMNS):
            part = expressions[begin : begin + _MAX_COLUMNS]
            types += [f.type for f in self._fields(probe(columns, part))]
        return tuple(types)

    def check_collations(self, columns: Sequence[SqlType], expressions: Sequence[str]) -> None:
        """Compute each expression once, over plain values; see `Analyzer`."""
        for expression in expressions:
            try:
                with self._step("the collation of an expression cannot be determined"):
                    self._make(f"SELECT ({expression}) IS NULL AS v FROM {plain_row(columns)}")
                    self._run_view(self._cursor())
            except SqlError as error:
                # Other errors come from the sample values.
                if error.code == "sql.indeterminate_collation":
                    raise

    def columns(self, columns: Sequence[SqlType], function: str) -> tuple[Field, ...]:
        """Return the columns of a function in FROM over c1, c2 ...; see `Analyzer`."""
        before = f"{row_of_nulls(columns)}, " if columns else ""
        return self._fields(f"SELECT u.* FROM {before}LATERAL {function} AS u")

    def check_time_zone(self) -> None:
        """Require that the server knows the time zone by this name. SqlError sql.time_zone."""
        name = self.time_zone
        if name == UTC:
            return
        with self._step("the time zones cannot be read"):
            cursor = self._cursor()
            cursor.execute(_TIME_ZONE, {"name": name})
            ((known, is_abbreviation),) = cursor.fetchall()
            if known == name and not is_abbreviation:
                return
            what, hint = f'the time zone "{name}" is unknown', "SELECT name FROM pg_timezone_names"
            if known is not None and known != name:
                hint = f'write "{known}"'
            elif is_abbreviation:
                what = f'"{name}" is an abbreviation, which has two meanings in PostgreSQL'
                hint = 'write "UTC", or a region and a city, such as "Europe/Berlin"'
            raise SqlError("sql.time_zone", what, detail="options.time_zone", hint=hint)

    def has_schema(self, name: str) -> bool:
        """Return whether the database has a schema of this name."""
        with self._step("the catalog cannot be read"):
            cursor = self._cursor()
            cursor.execute("SELECT FROM pg_namespace WHERE nspname = %s", (name,))
            return cursor.fetchone() is not None
        raise AssertionError("a step neither finishes nor fails")

    def names(self, oids: Iterable[int]) -> KnownNames:
        """Return the current names of these tables; dropped ones are absent."""
        with self._step("the catalog cannot be read"):
            return read_names(self._cursor(), oids)
        raise AssertionError("a step neither finishes nor fails")

    def objects(self, keys: Iterable[tuple[str, int]]) -> tuple[UsedObject, ...]:
        """Return these objects as they are now; dropped ones are absent."""
        with self._step("the catalog cannot be read"):
            return read_objects(self._cursor(), keys)
        raise AssertionError("a step neither finishes nor fails")

    def declare(self, columns: Sequence[tuple[str, str]]) -> tuple[Field, ...]:
        """Return columns declared as (name, type), as PostgreSQL understands them. SqlError."""
        for name, type_name in columns:
            check_type_name(name, type_name)
        text = ", ".join(f"NULL::{type_name} AS {quoted(name)}" for name, type_name in columns)
        return self._fields(f"SELECT {text}")

    def _fields(self, text: str) -> tuple[Field, ...]:
        """Return the output columns of a query of ours; PostgreSQL is asked once for each text."""
        if text not in self._fields_of:
            self._fields_of[text] = self._read_fields(text)
        return self._fields_of[text]

    def _read_fields(self, text: str) -> tuple[Field, ...]:
        """Return the output columns of a query of ours.

        Runs under the query's own search_path: NULLIF, CASE x WHEN and IS DISTINCT FROM do not name
        their operator, so it is looked up again, as in the evaluator.
        """
        with self._step("the types of the query's expressions cannot be determined"):
            self._make(text)
            cursor = self._cursor()
            cursor.execute("SET LOCAL search_path = pg_temp")
            return tuple(ColumnTypes(cursor).read_fields(self._oid(f"pg_temp.{_VIEW}")).values())
        raise AssertionError("a step neither finishes nor fails")

    def routines(self, columns: Sequence[SqlType], expression: str) -> tuple[Routine, ...]:
        """Return what an expression over c1, c2 ... calls; see `Analyzer`."""
        with self._step("the query's expressions cannot be analyzed"):
            self._make(probe(columns, [expression]))
            return self._described(f"pg_temp.{_VIEW}").routines

    def constants(
        self, expressions: Sequence[str], types: Sequence[SqlType]
    ) -> tuple[Literal | None, ...]:
        """Return the values of expressions without columns; see `Analyzer`."""
        try:
            texts: list[str | None] = self._values(expressions)
        except SqlError:
            if len(expressions) == 1:
                return (None,)
            return tuple(
                self.constants([e], [t])[0] for e, t in zip(expressions, types, strict=True)
            )
        return tuple(Literal(x, t) for x, t in zip(texts, types, strict=True))

    def _values(self, expressions: Sequence[str]) -> list[str | None]:
        found: list[str | None] = []
        for begin in range(0, len(expressions), _MAX_COLUMNS):
            part = expressions[begin : begin + _MAX_COLUMNS]
            with self._step("a constant cannot be computed"):
                cursor = self._cursor()
                columns = ", ".join(f"{e} AS v{i}" for i, e in enumerate(part))
                self._make(f"SELECT {columns}")
                raw = new_type(tuple(string_types), "raw", lambda value, _: value)
                psycopg2.extensions.register_type(raw, cursor)
                self._run_view(cursor)
                found += cursor.fetchone() or ()
        return found

    def _run_view(self, cursor: Any) -> None:
        """Read the rows of our temporary view: the only place that calls functions."""
        assert self._sandbox is not None
        source = self._sandbox.confine(cursor, _VIEW)
        cursor.execute("SET LOCAL search_path = pg_temp; SET LOCAL transaction_read_only = on")
        cursor.execute(f"SELECT * FROM {source}")

    def _make(self, text: str, *, is_users: bool = False) -> None:
        """Create our temporary view of a text: the only place that parses a user's text."""
        cursor = self._cursor()
        assert self._sandbox is not None
        self._sandbox.make_view(cursor, _VIEW, text, is_users=is_users)

    def _described(self, view: str | int) -> Analysis:
        """Return text, fields and calls of a view; leaves the search_path at pg_temp."""
        cursor = self._cursor()
        cursor.execute("SET LOCAL search_path = pg_temp")
        oid = self._oid(view) if isinstance(view, str) else view
        cursor.execute("SELECT pg_get_viewdef(%s::oid)", (oid,))
        (text,) = cursor.fetchone() or ("",)
        fields: tuple[Field, ...] = tuple(ColumnTypes(cursor).read_fields(oid).values())
        cursor.execute("SELECT ev_action::text FROM pg_rewrite WHERE ev_class = %s", (oid,))
        (tree,) = cursor.fetchone() or ("",)
        called = sorted({int(oid) for oid in _CALLS.findall(tree)})
        foreign_code.check_trusted(cursor, oid, self.role)
        if self._is_bound:
            foreign_code.check_harmless(cursor, oid, called, self._requester)
        cursor.execute(_ROUTINES, (called,))
        routines = tuple(Routine(*row) for row in cursor.fetchall())
        if self._keeps_rows:
            foreign_code.check_routines(text, routines)
        values = {_SESSION_VALUE_NAMES[int(i)] for i in _SESSION_VALUES.findall(tree)}
        return Analysis(
            text.strip().removesuffix(";"),
            fields,
            routines,
            tuple(sorted(values)),
            row_names(tree),
            _named_rows(tree),
        )

    def _make_stub(self, relation: Relation, statement: str) -> None:
        with self._lasting_step(
            f'relation "{relation.name}" cannot be created as a temporary table at the source'
        ):
            self._cursor().execute(statement)

    def _exists(self, view: Relation) -> bool:
        with self._step("the catalog cannot be read"):
            qualified = f"{quoted(view.name.schema)}.{quoted(view.name.name)}"
            cursor = self._cursor()
            cursor.execute("SELECT to_regclass(%s) IS NOT NULL", (qualified,))
            return bool((cursor.fetchone() or (False,))[0])

    def _oid(self, name: str) -> int:
        cursor = self._cursor()
        cursor.execute("SELECT %s::regclass::oid", (name,))
        return int((cursor.fetchone() or (0,))[0])

    def _cursor(self) -> Any:
        if self._connection is None:
            connection = connect(
                self._dsn, application_name="tidemark analyzer", settings=_SETTINGS
            )
            try:
                cursor = connection.cursor()
                self.role, self._is_bound = sandbox.choose_role(cursor, self._requester)
                self._sandbox = sandbox.enter(cursor, self._dsn, self.role, self.time_zone)
            except psycopg2.Error as error:
                connection.close()
                raise to_error(error, "source", "the query cannot be analyzed") from error
            except TidemarkError:
                connection.close()
                raise
            self._connection = connection
        return self._connection.cursor()

    @contextmanager
    def _step(
        self, doing: str, query: str = "", moved: Sequence[tuple[int, int]] = ()
    ) -> Iterator[None]:
        """Run a query that leaves no objects. query: the text, after _CREATE, of error
        positions."""
        try:
            self._cursor().execute("SAVEPOINT step")
        except psycopg2.Error as error:
            raise _to_error(error, doing, "", ()) from error
        try:
            yield
        except psycopg2.Error as error:
            found = _to_error(error, doing, query, moved)
            if is_temporary(error):
                self.close()
            else:
                self._roll_back(doing)
            raise found from error
        except TidemarkError:
            self._roll_back(doing)
            raise
        self._roll_back(doing)

    def _roll_back(self, doing: str) -> None:
        """Roll back to the start of the step. TemporaryError when the session was lost."""
        if self._connection is None:
            return
        try:
            self._cursor().execute("ROLLBACK TO SAVEPOINT step")
        except psycopg2.Error as error:
            self.close()
            raise _to_error(error, doing, "", ()) from error

    @contextmanager
    def _lasting_step(self, doing: str) -> Iterator[None]:
        """Make a change that lasts until the transaction is rolled back."""
        try:
            yield
        except psycopg2.Error as error:
            found = _to_error(error, doing, "", ())
            self.close()
            raise found from error


def _outdated(found: FoundRelation, column: str, why: str) -> SourceError:
    return SourceError(
        "source.generated_column",
        f'generated column "{column}" of table "{found.title}" may have values that its expression'
        " does not give",
        detail=why,
        hint="have the values computed again: UPDATE the table's rows, setting a column that the"
        " expression uses to itself",
    )


def row_names(tree: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    r"""Return the relations in FROM anywhere in a PostgreSQL query tree: aliases and column names.

    >>> row_names(r':eref {ALIAS :aliasname z :colnames ("id" "q"u\ \(x\)" "id" "")}')
    (('z', ('id', 'q"u (x)', 'id', '')),)
    """
    unescaped = lambda text: _ESCAPED.sub(r"\1", text)  # noqa: E731
    found = [
        (unescaped(alias), tuple(map(unescaped, _ROW_NAME.findall(names))))
        for alias, names in _ROW_NAMES.findall(tree)
    ]
    return tuple(dict.fromkeys(found))


def _named_rows(tree: str) -> tuple[tuple[str, ...], ...]:
    """Return the column names of row values that the canonical text writes as ROW(...), without
    names; with them those of plain rows of the same width.

    >>> _named_rows(':row_typeid 2249 :row_format 2 :colnames ("id" "b") :location 9')
    (('id', 'b'),)
    >>> _named_rows(':row_typeid 2249 :row_format 2 :colnames ("f1") :location 9')
    ()
    """
    found = {
        tuple(_ESCAPED.sub(r"\1", name) for name in _ROW_NAME.findall(names))
        for names in _ROWS.findall(tree)
    }
    plain = {tuple(f"f{i + 1}" for i in range(len(names))) for names in found}
    widths = {len(names) for names in found - plain}
    return tuple(sorted(names for names in found if len(names) in widths))


def _to_error(
    error: psycopg2.Error, doing: str, query: str, moved: Sequence[tuple[int, int]]
) -> TidemarkError:
    """Return PostgreSQL's own message as an error, with the position in the user's text."""
    state, diagnostics = error.pgcode, error.diag
    if state is None or is_temporary(error):
        return to_error(error, "source", doing)
    position = offset = None
    # The position in the statement that ran inside of a frame.
    at = diagnostics.internal_position
    if query and at and (diagnostics.internal_query or "").startswith(_CREATE):
        offset = int(at) - 1 - len(_CREATE)
        shift = max((s for s in moved if s[0] <= offset), default=(0, 0))[1]
        offset = min(max(offset - shift, 0), len(query))
        position = position_of(query, offset)
    if state == "42501":
        found = to_error(
            error,
            "source",
            doing,
            hint="grant USAGE on the schemas that the query names, and TEMPORARY on the database,"
            " to the role that creates the view, or to tidemark_query for the service's own views",
        )
        found.position = position
        return found
    try:
        name = errorcodes.lookup(state).lower()
    except KeyError:
        name = "failed"
    hint = diagnostics.message_hint or ""
    if state in _UNKNOWN and time_functions.is_missing(diagnostics.message_primary or ""):
        hint = time_functions.MISSING_HINT
    message, detail = diagnostics.message_primary or doing, diagnostics.message_detail or ""
    if (mismatch := mismatch_of(message, query, offset)) is not None:
        detail, hint, offset = mismatch
        position = None if offset is None else position_of(query, offset)
    return SqlError(f"sql.{name}", message, detail=detail, hint=hint, position=position)


# --- probes over columns c1, c2 ... ---------------------------------------------------------------

# Queries of ours over columns of given types: the type of an expression. A column has its type's
# own collation, like a column of a table.

# A sample value per type; NULL would end the evaluation early.
_PLAIN = {
    **dict.fromkeys((TypeKind.INT2, TypeKind.INT4, TypeKind.INT8), "1"),
    **dict.fromkeys((TypeKind.FLOAT4, TypeKind.FLOAT8, TypeKind.FIXED, TypeKind.DECIMAL), "1"),
    **dict.fromkeys((TypeKind.TEXT, TypeKind.BPCHAR), "a"),
    **dict.fromkeys((TypeKind.DATE, TypeKind.TIMESTAMP, TypeKind.TIMESTAMPTZ), "2000-01-01"),
    TypeKind.BOOL: "t",
}


def probe(columns: Sequence[SqlType], expressions: Sequence[str]) -> str:
    """Return a query whose outputs are expressions over c1, c2 ... of the given types."""
    text = "SELECT " + ", ".join(f"{e} AS t{i}" for i, e in enumerate(expressions))
    return text + (f" FROM {row_of_nulls(columns)}" if columns else "")


def row_of_nulls(columns: Sequence[SqlType]) -> str:
    """Return a row of NULLs named c1, c2 ..."""
    return _row(columns, lambda type: None)


def plain_row(columns: Sequence[SqlType]) -> str:
    """Return a row of plain values named c1, c2 ..., on which most expressions succeed."""
    return _row(columns, lambda type: _PLAIN.get(type.kind))


def _row(columns: Sequence[SqlType], text_of: Callable[[SqlType], str | None]) -> str:
    """Return a row of constants named c1, c2 ..., each under the collation of its type."""
    values = []
    for i, type in enumerate(columns):
        text = text_of(type)
        value = f"{'NULL' if text is None else _literal(text)}::{type.name}"
        collate = f" COLLATE {type.collation}" if type.collation else ""
        values.append(f"({value}{collate}) AS c{i + 1}")
    return f"(SELECT {', '.join(values)}) AS tidemark_row"


def _literal(text: str) -> str:
    return "'" + text + "'"
