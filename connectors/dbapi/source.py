"""Queries of databases with a DB-API module as a source (see `connectors/<type>/source`).

Each poll opens a connection, runs the query, and closes it. Nothing is reached before the first
use. Invariant: a poll has all rows of the query or counts as failed.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

from connectors import netguard, secrets
from connectors.dbapi.options import QueryOptions, QueryRelation, read_options
from connectors.feed_source import DeclaredRelation
from connectors.outside.module_logins import LIBPQ, module_login
from connectors.polled.contents import Fetched
from connectors.polled.rows import SAMPLES, RowReader, declared_relation, with_columns
from connectors.polled.source import Polled, PolledSource
from connectors.polled.values import records_of
from connectors.postgres.session.foreign import is_known
from connectors.postgres.session.session import refuse_own
from dataflow.errors import SourceError, TemporaryError, TidemarkError
from dataflow.schema import Relation

FETCHED_ROWS = 10_000
_SHOWN = 300
# PEP 249: of the connection or the server, rather than of the query.
_OF_SERVER = ("OperationalError", "InterfaceError", "InternalError")


def declare(options: Mapping[str, Any]) -> Sequence[DeclaredRelation]:
    """Return the relations that the options declare."""
    return [declared_relation(relation.rows) for relation in read_options(options).relations]


def make(name: str, options: Mapping[str, Any], relations: Sequence[Relation]) -> PolledSource:
    """Return the source, with its declared relations. SourceError source.bad_option."""
    found = read_options(options)
    polled = [Polled(r.rows, partial(_Fetch, found, r)) for r in found.relations]
    return PolledSource(name, relations, polled)


def discover(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the options with columns proposed for each relation that has none."""
    found = read_options(options)
    declared = {relation.name: relation for relation in found.relations}
    sample = lambda name: _run(found, declared[name], SAMPLES)  # noqa: E731
    return with_columns(options, [relation.rows for relation in found.relations], sample)


@dataclass(frozen=True)
class _Fetch:
    """Reads one relation; see `connectors.polled.feed.Fetch`."""

    options: QueryOptions
    relation: QueryRelation
    reader: RowReader

    def __call__(self, validators: Mapping[str, str]) -> Fetched:
        """See Fetch."""
        return self.reader.read(_run(self.options, self.relation, None), {})


def _run(options: QueryOptions, relation: QueryRelation, count: int | None) -> list[bytes]:
    """Return the rows of a query as JSON, with `count` only so many.

    SourceError dbapi.*, module.forbidden; TemporaryError dbapi.unavailable.
    """
    netguard.check_module(options.module)
    module = _imported(options.module)
    try:
        with (
            closing(_connected(module, options)) as connection,
            closing(connection.cursor()) as cursor,
        ):
            cursor.execute(relation.query, *([relation.parameters] if relation.parameters else ()))
            if cursor.description is None:
                what = f'the query of relation "{relation.name}" returns no rows'
                raise SourceError("dbapi.refused", what, hint="write a SELECT")
            return _rows(cursor, options, relation, count)
    except TidemarkError:
        raise
    except Exception as error:
        raise _failure(module, relation, error) from None


def _connected(module: Any, options: QueryOptions) -> Any:
    """Return a connection. SourceError source.own_database, secret.missing; the module's errors."""
    connect = _resolved(options.connect)
    # Its libpq is the one that the service itself uses.
    more = [is_known] if options.module == "psycopg2" else []
    found = module.connect(**module_login(options.module, connect, *more))
    if options.module in LIBPQ:
        try:
            refuse_own(found, "source")
        except BaseException:
            found.close()
            raise
    return found


def _rows(
    cursor: Any, options: QueryOptions, relation: QueryRelation, count: int | None
) -> list[bytes]:
    names = [str(column[0]) for column in cursor.description]
    most = options.max_rows if count is None else count
    found: list[bytes] = []
    while rows := cursor.fetchmany(min(FETCHED_ROWS, most + 1)):
        found += records_of(names, rows)
        if len(found) > most:
            break
    if count is not None or len(found) <= most:
        return found[:most]
    raise SourceError(
        "dbapi.too_many_rows",
        f'the query of relation "{relation.name}" returns more than {most:,} rows',
        hint="ask for fewer rows, or raise max_rows",
    )


def _resolved(connect: Mapping[str, Any]) -> dict[str, Any]:
    return {n: secrets.resolve(v) if isinstance(v, str) else v for n, v in connect.items()}


def _imported(name: str) -> Any:
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        what = f'the Python module "{name}" cannot be imported by the service'
        hint = "install it where the service runs"
        raise SourceError("dbapi.module_missing", what, detail=str(error), hint=hint) from None
    if not callable(getattr(module, "connect", None)):
        what = f'the Python module "{name}" is none of the DB-API'
        hint = "it needs a function connect, as PEP 249 says"
        raise SourceError("dbapi.module_missing", what, hint=hint)
    return module


def _failure(module: Any, relation: QueryRelation, error: Exception) -> TidemarkError:
    """Return the error of a module by PEP 249's classes; a lost connection is temporary."""
    detail = secrets.hide(f"{type(error).__name__}: {error}")[:_SHOWN]
    kinds = tuple(found for name in _OF_SERVER if (found := getattr(module, name, None)))
    if isinstance(error, (*kinds, OSError)):
        what = f'the database of relation "{relation.name}" does not answer its query'
        hint = "check that it runs, and the query"
        return TemporaryError("dbapi.unavailable", what, detail=detail, hint=hint)
    what = f'the query of relation "{relation.name}" cannot be run'
    hint = "check the query, its parameters, and connect"
    return SourceError("dbapi.refused", what, detail=detail, hint=hint)
