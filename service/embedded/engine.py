"""The whole product inside a script or a notebook.

    with tidemark.Engine() as engine:
        engine.register("users", read_users, key="id")
        view = engine.view("SELECT country, count(*) AS n FROM users GROUP BY country")
        engine.refresh("users")
        engine.wait()
        view.rows().to_list()

Everything runs on this machine: a private PostgreSQL (without a DSN) and the service, in processes
of their own that end with this one. docs/ENGINE.md is the tour.
"""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, Self, Unpack

from connectors.postgres.embedded import engine_query
from connectors.postgres.embedded.function_tables import SCHEMA
from connectors.postgres.session.session import Session, connect
from connectors.python.conditions import Requirement
from dataflow.errors import Position, TidemarkError
from service.client.answers import Field
from service.client.calls import Call
from service.client.clients import Client, View
from service.client.rows import RowSet, row_type
from service.client.values import base_type, parse_json, reader_of
from service.client.view_options import ViewOptions
from service.client.wire import Endpoint
from service.embedded.child import Child
from service.embedded.functions import Functions, FunctionState, Refreshed
from service.embedded.needs import functions_below, requirements_of
from service.embedded.ticker import Ticker
from service.runtime.view_names import parse_name

Parameters = Sequence[Any] | Mapping[str, Any]
_BUILD_S = 3600.0
# How the engine's own queries read PostgreSQL's texts; types beyond these as the client does.
_READERS: dict[str, Callable[[str], Any]] = {
    **dict.fromkeys(("smallint", "integer", "bigint"), int),
    **dict.fromkeys(("real", "double precision"), float),
    **dict.fromkeys(("json", "jsonb"), parse_json),
    "boolean": lambda text: text == "t",
}


class Engine:
    """A private Tidemark. It is ready once the constructor returns, and ends with `close`, `with`,
    the interpreter or the process.

    dsn: libpq's string of a database to use (wal_level = logical); None starts a private
    PostgreSQL. state_dir: a folder to store everything between runs; None: everything is temporary.
    settings: of the service, see docs/OPERATING.md (memory="2GB").
    TidemarkError engine.*, and errors of the database.
    """

    def __init__(
        self, dsn: str | None = None, state_dir: str | Path | None = None, **settings: object
    ) -> None:
        child = Child(dsn or "", Path(state_dir) if state_dir else None, settings)
        self._child = child
        self.url = child.url
        self.dsn = child.dsn
        self.client: Client = _EngineClient(child.url, token="")
        self._functions = Functions(child.dsn)
        self._ticker = Ticker(self._functions, child.dsn)
        self._session = Session(child.dsn, application_name="tidemark engine")
        self._end = weakref.finalize(self, _end, child, self._ticker)

    def __repr__(self) -> str:
        state = "" if self._child.is_running and self._end.alive else ", closed"
        return f"<Engine at {self.url}{state}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("an engine cannot be copied to another process: pass engine.url or .dsn")

    def __enter__(self) -> Self:
        self._require_open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the service and the private PostgreSQL; idempotent."""
        self._end()
        self._functions.close()
        self._session.close()
        self.client.close()

    def _require_open(self) -> None:
        """TidemarkError engine.closed."""
        if not self._end.alive:
            raise _closed()

    # --- functions -----------------------------------------------------------------------------

    def register(
        self,
        name: str,
        source: Any = None,
        *,
        columns: Mapping[str, str] | Sequence[str] | None = None,
        key: str | Sequence[str] = (),
        refresh_every_s: float | None = None,
    ) -> Any:
        """Register a function, or any iterable, as a table of this name for queries and views.

        source: a function without arguments, a generator function, an async one, a list, an
        iterator or a table of pyarrow or pandas; without it, this is a decorator. columns: types by
        name, or the names of plain tuples' values, or None: inferred from a sample. key: columns
        that identify a row; without it, rows may repeat. A function with the parameter
        `dynamic_columns` or `dynamic_where` receives the columns and conditions that its readers
        need. Registering a name again replaces the function.
        Return the FunctionState; as a decorator, the function. TidemarkError function.*.
        """
        self._require_open()
        if source is None:
            return self._decorator(name, columns, key, refresh_every_s)
        keys = (key,) if isinstance(key, str) else tuple(key)
        state = self._functions.register(name, source, columns, keys, refresh_every_s)
        if refresh_every_s is not None or self._functions.of(name).is_narrow:
            self._ticker.start()
        return state

    def _decorator(self, name: str, columns: Any, key: Any, refresh_every_s: float | None) -> Any:
        def decorate(source: Callable[..., Any]) -> Callable[..., Any]:
            self.register(name, source, columns=columns, key=key, refresh_every_s=refresh_every_s)
            return source

        return decorate

    def unregister(self, name: str) -> None:
        """Remove a function and drop its table. TidemarkError function.in_use."""
        self._require_open()
        self._functions.unregister(name)

    def functions(self) -> dict[str, FunctionState]:
        """Return all registered functions with their state, by name."""
        self._require_open()
        return self._functions.states()

    def refresh(self, *names: str) -> dict[str, Refreshed]:
        """Call functions again (by default all) and write the differences in one transaction.

        Views show all differences at once. TidemarkError function.*
        """
        self._require_open()
        if not names:
            names = tuple(f.function.name for f in self._functions.all() if not f.is_spent)
        return self._functions.refresh(names)

    # --- queries -------------------------------------------------------------------------------

    def query(self, sql: str, parameters: Parameters | None = None) -> RowSet:
        """Return the answer of one SELECT over the current functions, views and tables.

        Functions that it reads, also through views, are called first; a narrow one receives the
        query's columns and conditions. parameters: for %s, or %(name)s. SqlError, TidemarkError
        request.invalid.
        """
        self._require_open()
        _require_texts(query=sql)
        if parameters is not None:
            sql = engine_query.with_parameters(self.dsn, sql, parameters)
        tables, width = engine_query.inspect(self.dsn, sql)
        registered = {one.function.name: one for one in self._functions.all()}
        direct = {name for schema, name in tables if schema == SCHEMA and name in registered}
        views = self._functions.views()
        below = functions_below(views, tables) & registered.keys()
        narrow = {name for name in direct - below if registered[name].is_narrow}
        is_both = {name for name in direct & below if registered[name].is_narrow}
        requirements = self._requirements(sql, width) if narrow or is_both else {}
        again = [n for n in sorted((direct | below) - narrow) if not registered[n].is_spent]
        wide = {
            n: requirements.get(n) or _everything(registered[n].table.columns)
            for n in sorted(is_both)
        }
        self._functions.refresh_for(again, wide)
        if any((v.schema, v.table) in tables for v in views):
            self.wait()
        stand_ins = [self._functions.stand_in(n, requirements.get(n)) for n in sorted(narrow)]
        try:
            return _row_set(engine_query.answer(self.dsn, sql, stand_ins, _flatten))
        finally:
            for stand_in in stand_ins:
                stand_in.lines.close()

    def view(
        self,
        sql: str,
        name: str | None = None,
        *,
        replace: bool = False,
        wait_s: float = _BUILD_S,
        **options: Unpack[ViewOptions],
    ) -> View:
        """Create a maintained view and return it, live unless wait_s was too short.

        name: `name` or `schema.name`; None derives it from the query, so that the same query gives
        the same view. options: those of every view (`ViewOptions`, docs/REST.md); backfill is
        "local" by default. An existing view with this name, query and these options is returned.
        With others it is refused (view.name_taken) or, with replace, changed while it stays
        readable. SqlError, TidemarkError view.*, request.invalid for an unknown option.
        """
        self._require_open()
        _require_texts(query=sql, name=name or "")
        with _positions_in(sql):
            return self._view(sql.strip().removesuffix(";"), name, replace, wait_s, options)

    def _view(
        self, sql: str, name: str | None, replace: bool, wait_s: float, options: ViewOptions
    ) -> View:
        name = name or "view_" + hashlib.blake2b(sql.encode(), digest_size=6).hexdigest()
        if parse_name(name)[1] in self._functions.states():
            raise TidemarkError(
                "function.name_taken",
                f'function "{name}" would be hidden by a view of this name',
                hint="choose another name for the view",
            )
        requirements = requirements_of(self.client.validate(sql, **options).raw["reads"])
        try:
            self._functions.widen(requirements)
            try:
                return self.client.create(
                    name, sql, wait_s=wait_s, **{"backfill": "local", **options}
                )
            except TidemarkError as error:
                if error.code != "view.name_taken":
                    raise
                return self._taken(name, sql, replace, wait_s, options=options, refusal=error)
        finally:
            self._functions.forget(requirements)

    def _taken(
        self,
        name: str,
        sql: str,
        replace: bool,
        wait_s: float,
        *,
        options: ViewOptions,
        refusal: TidemarkError,
    ) -> View:
        """The view that has the name, with this query and these options."""
        try:
            state = self.client.view(name).state()
        except TidemarkError as error:
            # It is no view that has the name.
            raise refusal from error
        view = self.client.view(state.path)
        others = _other_options(state.options, options)
        if replace and (state.query != sql or others):
            view.replace(sql, wait_s=wait_s, **options)
        elif state.query != sql:
            raise refusal
        elif others:
            raise TidemarkError(
                "view.name_taken",
                f'view "{name}" exists with this query and other options',
                detail=", ".join(others),
                hint="pass replace=True to change them, or another name",
            ) from refusal
        return view

    def wait(self, timeout_s: float = 60) -> str:
        """Wait until all views show everything that is committed by now; the position they show.

        TidemarkError view.wait_timeout.
        """
        self._require_open()
        try:
            found = self._session.rows(
                "SELECT tidemark.wait(%s * interval '1 second')::text", (timeout_s,)
            )
        except TidemarkError as error:
            raise TidemarkError(
                "view.wait_timeout",
                f"the views are not up to date after {timeout_s:g} s",
                detail=error.detail,
                hint="look at engine.client.views(), and at the console at engine.url",
            ) from error
        return found[0][0] or ""

    def settle(self, timeout_s: float = 60) -> str:
        """Wait, by the earlier name of `wait`; the next release removes it."""
        return self.wait(timeout_s)

    def execute(self, sql: str, parameters: Parameters | None = None) -> RowSet | int:
        """Run a statement in the database and commit it: its rows, or the number of rows that it
        has changed. SqlError."""
        self._require_open()
        _require_texts(statement=sql)
        found = engine_query.execute(self.dsn, sql, parameters)
        return found if isinstance(found, int) else _row_set(found)

    def connection(self) -> Any:
        """Return a new psycopg2 connection to the database, for your own transactions."""
        self._require_open()
        return connect(self.dsn, application_name="tidemark engine user", is_users=True)

    def _requirements(self, sql: str, width: int) -> dict[str, Requirement]:
        """Return what a query needs of each function; {} if it is not maintainable as a view."""
        try:
            return requirements_of(self.client.validate(sql).raw["reads"])
        except TidemarkError as error:
            if error.is_temporary:
                raise
            if error.code == "sql.duplicate_column":
                return self._requirements(engine_query.with_other_names(sql, width), 0)
            return {}


class _EngineClient(Client):
    """The client of an engine; unusable once the engine is closed."""

    def close(self) -> None:
        """Close the connections permanently."""
        super().close()
        self._endpoint = _ClosedEndpoint(self.url, "", "")


class _ClosedEndpoint(Endpoint):
    """The endpoint of a closed engine."""

    def request(self, call: Call[Any]) -> NoReturn:
        """TidemarkError engine.closed."""
        raise _closed()


def _closed() -> TidemarkError:
    return TidemarkError(
        "engine.closed", "the engine is closed", hint="create a new one: tidemark.Engine()"
    )


def _end(child: Child, ticker: Ticker) -> None:
    ticker.close()
    child.close()


def _flatten(text: str, replacement: Callable[[str, str], str | None]) -> str:
    # Imported only if there are narrow functions.
    from dataflow.sql.parse.flatten import flattened

    return flattened(text, replacement)


def _require_texts(**given: object) -> None:
    """TidemarkError request.invalid for what is not a text."""
    for name, value in given.items():
        if not isinstance(value, str):
            raise TidemarkError(
                "request.invalid",
                f"the {name} is not a text",
                detail=f"a value of type {type(value).__name__}",
                hint="pass a string",
            )


@contextmanager
def _positions_in(sql: str) -> Iterator[None]:
    """Let errors of the stripped query name positions in the text that the user wrote."""
    try:
        yield
    except TidemarkError as error:
        before = sql[: len(sql) - len(sql.lstrip())]
        if error.position is not None and before:
            line, column = error.position.line, error.position.column
            if line == 1:
                column += len(before) - (before.rfind("\n") + 1)
            error.position = Position(line + before.count("\n"), column)
        raise


def _other_options(present: Mapping[str, Any], given: Mapping[str, Any]) -> list[str]:
    """Return each given option that a view does not have, as text."""
    # How its first rows were computed no longer matters, and "auto" leaves the choice.
    return [
        f"{name} is {present.get(name)!r}, not {value!r}"
        for name, value in given.items()
        if name != "backfill" and value not in (None, "auto", present.get(name))
    ]


def _everything(columns: Sequence[tuple[str, str]]) -> Requirement:
    return Requirement(tuple(name for name, _ in columns))


def _row_set(answer: engine_query.Answer) -> RowSet:
    """Return an answer as rows with column names, of the same Python values as rows of views."""
    fields = [Field(name=name, type=type_name) for name, type_name in answer.fields]
    kind = row_type(tuple(f.name for f in fields))
    columns = zip(*answer.rows, strict=True) if answer.rows else ()
    read = [_read(f.type, column) for f, column in zip(fields, columns, strict=False)]
    rows = zip(*read, strict=True) if read else answer.rows
    return RowSet(fields, [kind(row) for row in rows])


def _read(type_name: str, texts: Sequence[str | None]) -> Sequence[Any]:
    reader = _READERS.get(base_type(type_name)) or reader_of(type_name)
    if reader is None:
        return texts
    return [None if text is None else reader(text) for text in texts]
