"""A service in its source: replication slots, publications, and functions of `tidemark init`.

Invariant: a slot or a publication that another service has recorded, a slot of another database or
plugin, and a publication of another role are never dropped.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial

from psycopg2.extensions import parse_dsn

from connectors.postgres.analysis import time_functions
from connectors.postgres.embedded import function_tables
from connectors.postgres.evaluation.sandbox import EVENT_TRIGGER, check_event_triggers
from connectors.postgres.removal.dependents import NAMESPACE, require_none
from connectors.postgres.replication.publication import Publication
from connectors.postgres.replication.slot import PLUGIN, Slot, database_name, object_name
from connectors.postgres.schema.channels import DEFAULT_SERVICE
from connectors.postgres.session.quoting import quote_name, quote_text
from connectors.postgres.session.session import Session
from connectors.removal import Removal
from connectors.source import MAIN_SOURCE
from dataflow.errors import SourceError, TidemarkError
from storage.failpoints import failpoint

# A group's name is appended to those of the default group.
_SLOTS = r"""
SELECT slot_name, active_pid, (SELECT rolsuper OR rolreplication OR EXISTS (
        SELECT FROM pg_roles AS r WHERE r.rolname = 'rds_replication'
        AND pg_has_role(r.oid, 'MEMBER'))
    FROM pg_roles WHERE rolname = current_user)
FROM pg_replication_slots
WHERE database = current_database() AND plugin = %s AND NOT temporary
    AND slot_name ~ ('^(' || %s || ')(_[a-z][a-z0-9]*)?$') ORDER BY 1
"""
_PUBLICATIONS = r"""
SELECT pubname, pg_get_userbyid(pubowner), pg_has_role(pubowner, 'USAGE') AND NOT puballtables
FROM pg_publication WHERE pubname ~ ('^(' || %s || ')(_[a-z][a-z0-9]*)?$') ORDER BY 1
"""
_OTHERS = r"""
SELECT slot_name FROM pg_replication_slots WHERE database = current_database() AND plugin = %s
    AND NOT temporary AND slot_name ~ '_source(_[a-z][a-z0-9]*)?$' AND NOT slot_name = ANY (%s)
"""
_FUNCTIONS = """
SELECT p.oid::regprocedure::text, p.proname::text = ANY (%s), pg_has_role(n.nspowner, 'USAGE')
FROM pg_namespace AS n LEFT JOIN pg_proc AS p ON p.pronamespace = n.oid WHERE n.nspname = %s
"""
_FUNCTION_TABLES = """
SELECT n.oid::bigint, pg_has_role(n.nspowner, 'USAGE') FROM pg_namespace AS n
WHERE n.nspname = %s AND obj_description(n.oid, 'pg_namespace') = %s
"""


class SourceRemoval:
    """A service in the source of a session. names: (publication, slot) that it has recorded.

    others: names of slots and publications that other services have recorded. given: the
    publication that an administrator made, which stays; "" for none.
    """

    def __init__(
        self,
        session: Session,
        service: str,
        names: Sequence[tuple[str, str]],
        others: Collection[str],
        given: str = "",
    ) -> None:
        self._session = session
        self._service = service
        self._names = names
        self._others = others
        self._given = given

    def find(self) -> list[Removal]:
        """Return what there is, slots first: they retain WAL.

        SourceError source.event_trigger, uninstall.running; TemporaryError source.unreachable.
        """
        session = self._session
        check_event_triggers(session.rows(EVENT_TRIGGER))
        slots = self._slots()
        removals = [self._slot(name, may_drop) for name, may_drop in slots]
        removals += self._publications()
        others = session.rows(_OTHERS, (PLUGIN, [name for name, _ in slots]))
        removals += self._functions([name for (name,) in others])
        if self._service == DEFAULT_SERVICE:
            removals += self._function_tables()
        return removals

    def _slots(self) -> list[tuple[str, bool]]:
        database = self._session.rows("SELECT current_database()::text")[0][0]
        names = slot_names(self._service, database, self._names)
        found = self._session.rows(_SLOTS, (PLUGIN, "|".join(names)))
        own = [row for row in found if row[0] not in self._others]
        for name, pid, _ in own:
            if pid is not None:
                raise SourceError(
                    "uninstall.running",
                    f'replication slot "{name}" is being read',
                    detail=f"by a session of the source with pid {pid}",
                    hint="stop the service that reads it, then run tidemark uninstall again",
                )
        return [(name, bool(may_drop)) for name, _, may_drop in own]

    def _slot(self, name: str, may_drop: bool) -> Removal:
        command = f"SELECT pg_drop_replication_slot({quote_text(name)});"
        act = partial(self._drop_slot, name) if may_drop else None
        return Removal("source", f'replication slot "{name}"', act, command=command)

    def _drop_slot(self, name: str) -> None:
        Slot(self._session, name).drop()
        _source_done()

    def _publications(self) -> list[Removal]:
        base = [object_name(self._service, MAIN_SOURCE), *(p for p, _ in self._names if p)]
        found = self._session.rows(_PUBLICATIONS, ("|".join(dict.fromkeys(base)),))
        removals = []
        for name, owner, may_drop in found:
            if name in self._others or name == self._given:
                continue
            what, command = f'publication "{name}"', f"DROP PUBLICATION {quote_name(name)};"
            act = partial(self._drop_publication, name) if may_drop else None
            note = "" if may_drop else f'it belongs to role "{owner}"'
            removals.append(Removal("source", what, act, note, command))
        return removals

    def _drop_publication(self, name: str) -> None:
        Publication(self._session, name).drop()
        _source_done()

    def _functions(self, others: Sequence[str]) -> list[Removal]:
        """Return the time functions, which are of all services of the source."""
        schema = time_functions.SCHEMA
        found = self._session.rows(_FUNCTIONS, (list(time_functions.NAMES), schema))
        if not found:
            return []
        what = f"schema {schema} with its functions"
        if others:
            note = f"another service may read this database: slot {', '.join(others)}"
            return [Removal("source", what, note=note)]
        foreign = [name for name, is_ours, _ in found if name is not None and not is_ours]
        if foreign:
            return [Removal("source", what, note=f"others have put {foreign[0]} there")]
        names = [name for name, is_ours, _ in found if is_ours]
        sql = "; ".join(
            [*(f"DROP FUNCTION IF EXISTS {n}" for n in names), f"DROP SCHEMA IF EXISTS {schema}"]
        )
        act = partial(self._run, sql, f"cannot drop schema {schema}") if found[0][2] else None
        return [Removal("source", what, act, command=f"{sql};")]

    def _function_tables(self) -> list[Removal]:
        schema = function_tables.SCHEMA
        found = self._session.rows(_FUNCTION_TABLES, (schema, function_tables.TITLE))
        if not found:
            return []
        ((oid, may_drop),) = found

        def check(session: object) -> None:
            with session.cursor() as cursor:  # type: ignore[attr-defined]
                require_none(cursor, [(NAMESPACE, oid)], may_keep=False)

        self._session.run(check)
        sql = f"DROP SCHEMA IF EXISTS {schema} CASCADE"
        act = partial(self._run, sql, f"cannot drop schema {schema}") if may_drop else None
        what = f"schema {schema}: tables that Python functions have filled"
        return [Removal("source", what, act, command=f"{sql};")]

    def _run(self, sql: str, doing: str) -> None:
        self._session.execute(sql, doing=doing)
        _source_done()


def slot_names(service: str, database: str, names: Sequence[tuple[str, str]]) -> list[str]:
    """Return the names that slots of a service's default group may have, and recorded ones."""
    own = [database_name(service, database, MAIN_SOURCE), object_name(service, MAIN_SOURCE)]
    return list(dict.fromkeys([*own, *(slot for _, slot in names if slot)]))


def unreached(
    dsn: str, service: str, names: Sequence[tuple[str, str]], error: TidemarkError
) -> list[Removal]:
    """Return what has to be removed by hand from a source that cannot be reached."""
    database = str(parse_dsn(dsn).get("dbname") or "")
    pairs = [(p, s) for p, s in names if p and s]
    if not pairs:
        own = database_name(service, database, MAIN_SOURCE)
        pairs = [(object_name(service, MAIN_SOURCE), own)]
    why = f"the source does not answer ({error.code}); if it still exists"
    removals = []
    for publication, slot in pairs:
        drop_slot = f"SELECT pg_drop_replication_slot({quote_text(slot)});"
        drop = f"DROP PUBLICATION {quote_name(publication)};"
        removals.append(Removal("source", f'replication slot "{slot}"', None, why, drop_slot))
        removals.append(Removal("source", f'publication "{publication}"', None, why, drop))
    return removals


def _source_done() -> None:
    failpoint("uninstall.source.after")
