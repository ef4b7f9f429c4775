"""A service in its sink: the tables of its views, and its rows of schema tidemark.

A view goes in one transaction with its catalog row, then what the service has besides, with the
schema if no other service is registered in it. So after a kill at any point the rest is found
again. Invariant: rows and tables of other services are never touched.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from psycopg2.extensions import connection as Connection

from connectors.postgres.removal import kept_tables
from connectors.postgres.removal.dependents import CLASS, NAMESPACE, TRIGGER, Root, require_none
from connectors.postgres.schema import schema_setup
from connectors.postgres.schema.lease import hold, holders
from connectors.postgres.session.session import connect, translated
from connectors.postgres.sink import sink_tables
from connectors.removal import Removal
from connectors.sink import SinkTable
from dataflow.errors import SinkError
from storage.failpoints import failpoint

APPLICATION = "tidemark uninstall"
# Others continue meanwhile: what they hold is not waited for longer.
_LOCK_TIMEOUT = "30s"
_SCHEMA = """
SELECT n.oid::bigint, o.rolname, pg_has_role(n.nspowner, 'USAGE'), current_user::text
FROM pg_namespace AS n JOIN pg_roles AS o ON o.oid = n.nspowner WHERE n.nspname = 'tidemark'
"""
# Of the last service also what no view has any more.
_VIEWS = """
SELECT v.identity, schema, name, t.is_staged, t.table_oid::bigint, t.view_oid::bigint,
    h.table_oid::bigint, h.view_oid::bigint
FROM tidemark.views AS v FULL JOIN tidemark.tables AS t USING (schema, name)
LEFT JOIN tidemark.histories AS h USING (schema, name, is_staged)
WHERE CASE WHEN v.identity IS NULL THEN %(is_last)s ELSE v.service = %(service)s END
ORDER BY schema, name, is_staged DESC NULLS LAST
"""
_KEYS = """
SELECT %(service)s UNION SELECT sink_key FROM tidemark.progress
WHERE split_part(sink_key, '/', 1) = %(service)s
UNION SELECT sink_key FROM tidemark.owners WHERE split_part(sink_key, '/', 1) = %(service)s
UNION SELECT %(service)s || '/' || (options ->> 'group') FROM tidemark.views
WHERE service = %(service)s AND coalesce(options ->> 'group', 'default') <> 'default' ORDER BY 1
"""
_NAMES = """
SELECT publication, slot FROM tidemark.sources WHERE type = 'postgres' AND (service = %s) = %s
"""
_LISTENERS = """
SELECT 'its API has session ' || a.pid || coalesce(' from ' || host(a.client_addr), '')
FROM tidemark.listeners AS l JOIN pg_stat_activity AS a ON a.pid = l.backend_pid
WHERE l.service = %s AND (a.backend_start IS NULL OR a.backend_start = l.backend_start)
"""
# Every table with rows of services says whose they are in one of these columns.
_OF_SERVICE = """
SELECT quote_ident(c.relname), a.attname FROM pg_class AS c
JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attname IN ('service', 'sink_key')
WHERE c.relnamespace = 'tidemark'::regnamespace AND c.relkind = 'r' ORDER BY 1
"""
_NAMES_OF_VIEWS = "SELECT schema, name FROM tidemark.views WHERE service = %s"
_GUARDS = """
SELECT g.oid::bigint FROM pg_trigger AS g WHERE g.tgfoid = to_regproc('tidemark.refuse_write')
"""


@dataclass(frozen=True)
class ViewRelations:
    """The relations of a view, by their oids. identity: of its row, None without one."""

    identity: str | None
    schema: str
    name: str
    is_staged: bool | None
    table: int | None
    shown: int | None
    history: int | None
    history_shown: int | None

    @property
    def title(self) -> str:
        """Return schema.name."""
        return f"{self.schema}.{self.name}"

    @property
    def of_users(self) -> list[int]:
        """Return those outside of schema tidemark."""
        return [oid for oid in (self.table, self.shown, self.history_shown) if oid is not None]


@dataclass(frozen=True)
class Found:
    """What a sink has of a service.

    oid, role: of schema tidemark, and its owner, the role of the service. others: the other
    services registered there. keys: of its progress, one for each group. names: (publication,
    slot) of its groups, and of other services.
    """

    oid: int
    role: str
    is_registered: bool
    others: tuple[str, ...]
    views: tuple[ViewRelations, ...]
    keys: tuple[str, ...]
    names: tuple[tuple[str, str], ...]
    others_names: frozenset[str]

    @property
    def groups(self) -> list[str]:
        """Return the groups besides the default one."""
        return [key.split("/", 1)[1] for key in self.keys if "/" in key]


def open_sink(dsn: str) -> Connection:
    """Return a session for all of a removal. TidemarkError as of `connect`."""
    settings = {"lock_timeout": _LOCK_TIMEOUT}
    return connect(dsn, side="sink", application_name=APPLICATION, settings=settings, is_long=True)


class SinkRemoval:
    """The service `service` in the sink of a session."""

    def __init__(self, session: Connection, service: str) -> None:
        self._session = session
        self._service = service

    def find(self) -> Found | None:
        """Return what there is; None without schema tidemark.

        SinkError sink.version, sink.privilege, sink.event_trigger.
        """
        with self._transaction("cannot read schema tidemark") as cursor:
            cursor.execute(_SCHEMA)
            schema = cursor.fetchone()
            if schema is None:
                return None
            oid, role, is_usable, user = schema
            if not is_usable:
                raise _denied(user, role)
            schema_setup.require_version(cursor)
            sink_tables.require_no_event_trigger(cursor)
            cursor.execute("SELECT name FROM tidemark.services ORDER BY name")
            services = [name for (name,) in cursor.fetchall()]
            others = tuple(name for name in services if name != self._service)
            given = {"service": self._service, "is_last": not others}
            cursor.execute(_VIEWS, given)
            views = tuple(ViewRelations(*row) for row in cursor.fetchall())
            cursor.execute(_KEYS, given)
            keys = tuple(key for (key,) in cursor.fetchall())
            cursor.execute(_NAMES, (self._service, True))
            names = tuple((p or "", s or "") for p, s in cursor.fetchall())
            cursor.execute(_NAMES, (self._service, False))
            theirs = frozenset(name for pair in cursor.fetchall() for name in pair if name)
        facts = (tuple(others), views, keys, names, theirs)
        return Found(oid, role, self._service in services, *facts)

    def running(self) -> list[str]:
        """Return where the service runs, in words."""
        with self._transaction("cannot find whether the service runs") as cursor:
            found = holders(cursor, self._service)
            cursor.execute(_LISTENERS, (self._service,))
            return found + [where for (where,) in cursor.fetchall()]

    def hold(self, found: Found) -> bool:
        """Keep the service from writing here until the session ends; False if it has started."""
        with self._transaction("cannot lock the sink") as cursor:
            return all(hold(cursor, key) for key in found.keys)

    def require_no_dependents(self, found: Found, *, keeps_tables: bool) -> None:
        """SinkError uninstall.dependents."""
        roots: list[Root] = [(NAMESPACE, found.oid)] if not found.others else []
        with self._transaction("cannot find what depends on the views") as cursor:
            if keeps_tables:
                cursor.execute(_GUARDS)
                roots += [(TRIGGER, oid) for (oid,) in cursor.fetchall()]
                shown = [v.history_shown for v in found.views if v.history_shown is not None]
                roots += [(CLASS, oid) for oid in shown]
            else:
                roots += [(CLASS, oid) for view in found.views for oid in view.of_users]
            require_none(cursor, roots, may_keep=not keeps_tables)

    def views(self, found: Found, *, keeps_tables: bool) -> list[Removal]:
        """Return the views, each with all that it has."""
        removals: list[Removal] = []
        for view in found.views:
            is_kept = keeps_tables and not view.is_staged and view.table is not None
            with self._transaction("cannot read the tables of views") as cursor:
                tables = kept_tables.read(cursor, view.of_users, found.role)
            staged = " (being built)" if view.is_staged else ""
            if not is_kept:
                shown = ", ".join(t.title for t in tables)
                what = f"view {view.title}{staged}{': ' if shown else ''}{shown}"
                removals.append(Removal("sink", what, partial(self._drop, view)))
                continue
            if view.history_shown is not None:
                # Its table takes the place of the view.
                tables[-1] = replace(tables[-1], word="TABLE")
            for table in tables:
                note = f"a plain {table.word.lower()} from now on, of role {table.new_owner}"
                removals.append(Removal("sink", table.title, note=note))
            what = f"view {view.title}: what Tidemark has added to its table, and its catalog row"
            removals.append(Removal("sink", what, partial(self._keep, view, found.role)))
            removals += [
                Removal("sink", f"owner of {t.title}", command=t.give_command)
                for t in tables
                if t.give_command
            ]
        return removals

    def rest(self, found: Found) -> list[Removal]:
        """Return what the service has besides its views."""
        if not found.others:
            what = "schema tidemark: catalog, functions and procedures"
            return [Removal("sink", what, self._drop_schema)]
        note = f"its other services: {', '.join(found.others)}"
        removals = [Removal("sink", "schema tidemark", note=note)]
        if found.is_registered:
            what = f'rows of service "{self._service}" in schema tidemark'
            removals.insert(0, Removal("sink", what, self._delete_rows))
        return removals

    def forget_sink(self, identity: str) -> None:
        """Delete the catalog row of an additional sink that was left."""
        with self._transaction("cannot delete an additional sink") as cursor:
            cursor.execute("DELETE FROM tidemark.sinks WHERE identity = %s", (identity,))

    # --- actions ---------------------------------------------------------------------------

    def _drop(self, view: ViewRelations) -> None:
        with self._transaction(f'cannot drop view "{view.title}"') as cursor:
            table = SinkTable(view.schema, view.name, (), ())
            sink_tables.drop(cursor, table, is_staged=bool(view.is_staged))
            self._forget(cursor, view)
        _view_done()

    def _keep(self, view: ViewRelations, role: str) -> None:
        with self._transaction(f'cannot leave the table of view "{view.title}"') as cursor:
            if view.history is not None and view.history_shown is not None:
                kept_tables.move_history(cursor, view.schema, view.history, view.history_shown)
            oids = [oid for oid in (view.table, view.shown, view.history) if oid is not None]
            kept_tables.leave(cursor, kept_tables.read(cursor, oids, role), role)
            for table in ("histories", "tables"):
                cursor.execute(
                    f"DELETE FROM tidemark.{table} WHERE (schema, name) = (%s, %s)",
                    (view.schema, view.name),
                )
            self._forget(cursor, view)
        _view_done()

    def _forget(self, cursor: Any, view: ViewRelations) -> None:
        """Delete the rows of a view, unless it is one version of two."""
        if view.is_staged:
            return
        sink_tables.forget_errors(cursor, [SinkTable(view.schema, view.name, (), ())])
        cursor.execute("DELETE FROM tidemark.sinks WHERE view_identity = %s", (view.identity,))
        cursor.execute("DELETE FROM tidemark.views WHERE identity = %s", (view.identity,))

    def _delete_rows(self) -> None:
        with self._transaction("cannot delete the rows of the service") as cursor:
            cursor.execute(_NAMES_OF_VIEWS, (self._service,))
            views = [SinkTable(schema, name, (), ()) for schema, name in cursor.fetchall()]
            sink_tables.forget_errors(cursor, views)
            cursor.execute(_OF_SERVICE)
            for table, column in cursor.fetchall():
                value = "service" if column == "service" else "split_part(sink_key, '/', 1)"
                cursor.execute(f"DELETE FROM tidemark.{table} WHERE {value} = %s", (self._service,))
            cursor.execute("DELETE FROM tidemark.services WHERE name = %s", (self._service,))
        _catalog_done()

    def _drop_schema(self) -> None:
        with self._transaction("cannot drop schema tidemark") as cursor:
            # A service that was started since registers first.
            cursor.execute("LOCK TABLE tidemark.services IN ACCESS EXCLUSIVE MODE")
            cursor.execute("SELECT name FROM tidemark.services WHERE name <> %s", (self._service,))
            if cursor.fetchone() is not None:
                raise SinkError(
                    "uninstall.changed",
                    "another service has registered in schema tidemark meanwhile",
                    hint="run tidemark uninstall again",
                )
            cursor.execute("DROP SCHEMA tidemark CASCADE")
        _catalog_done()

    @contextmanager
    def _transaction(self, doing: str) -> Iterator[Any]:
        with translated("sink", doing), self._session, self._session.cursor() as cursor:
            yield cursor


def _denied(user: str, owner: str) -> SinkError:
    return SinkError(
        "sink.privilege",
        f'role "{user}" may not drop schema "tidemark" of the sink',
        detail=f'it belongs to role "{owner}"',
        hint="pass the DSN of its owner or of an administrator to --sink",
    )


def _view_done() -> None:
    failpoint("uninstall.view.after")


def _catalog_done() -> None:
    failpoint("uninstall.catalog.after")
