"""The catalog's facts about tables that views read, and whether they have changed.

PostgreSQL sends no message for DDL, nor for changes of a partition as a whole. It does store a
version (xmin) of every catalog row. `digest` sums up those of the tables, and only a changed digest
causes a new read of the facts. A commit is in the WAL a moment before it is visible, but DDL holds
its lock until then. Invariant: the digest covers everything that committed before the call. Source:
PostgreSQL manual, "System Catalogs", "Explicit Locking"; CommitTransaction in xact.c. One thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import TypeVar
from weakref import WeakSet

import psycopg2
from psycopg2 import sql
from psycopg2.extensions import cursor as Cursor

from connectors.postgres.evaluation.restricted_source import RestrictedTable, is_foreign
from connectors.postgres.replication.publication import (
    VERSION_OF,
    membership_of,
    schemas_of,
    sent_as,
    sent_columns,
    withheld,
)
from connectors.postgres.replication.used_objects import (
    CATALOGS,
    VERSIONS,
    UsedObject,
    by_catalog,
    read_objects,
)
from connectors.postgres.session.liveness_watchdog import Watched
from connectors.postgres.session.lsn import parse_lsn
from connectors.postgres.session.session import Session, connect, translated
from connectors.postgres.types.column_types import ColumnTypes
from dataflow.schema import Field
from storage.backoff import Backoff

T = TypeVar("T")

# A row's version is xmin; hash_record_extended is the cheapest sum of several values.
_DIGEST = """
WITH RECURSIVE tree (root, oid, link) AS (
  SELECT o, o, '0'::xid FROM unnest($1::oid[]) AS o
  UNION ALL
  SELECT t.root, i.inhrelid, i.xmin FROM tree t JOIN pg_inherits i ON i.inhparent = t.oid
)
SELECT coalesce(sum(h), 0) FROM (
  SELECT hash_record_extended(ROW(t.root, t.oid, t.link, c.xmin, n.xmin, c.relfilenode), 0)
  FROM tree t JOIN pg_class c ON c.oid = t.oid JOIN pg_namespace n ON n.oid = c.relnamespace
  UNION ALL
  SELECT hash_record_extended(ROW(a.attrelid, a.attnum, a.xmin), 1)
  FROM pg_attribute a WHERE a.attrelid = ANY ($1::oid[]) AND a.attnum > 0
  UNION ALL
  SELECT hash_record_extended(ROW(i.indexrelid, i.xmin), 2)
  FROM pg_index i WHERE i.indrelid = ANY ($1::oid[])
  UNION ALL
  SELECT hash_record_extended(ROW(e.oid, e.xmin), 3)
  FROM pg_enum e WHERE e.enumtypid = ANY (
    ARRAY(SELECT a.atttypid FROM pg_attribute a WHERE a.attrelid = ANY ($1::oid[])))
  UNION ALL
  SELECT hash_record_extended(ROW(r.prrelid, r.xmin), 4)
  FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid AND p.pubname = $2
  WHERE r.prrelid = ANY ($1::oid[])
  UNION ALL
  SELECT hash_record_extended(ROW(p.oid, p.xmin), 5) FROM pg_publication p WHERE p.pubname = $2
{more}) AS versions (h)
"""
# What else changes how tables are published: schemas of the publication, tables above partitions.
# The server plans each digest again, so these are left out where nothing depends on them.
_MORE = """
  UNION ALL
  SELECT hash_record_extended(ROW(s.oid, s.version), 6)
  FROM ({schemas}) AS s (oid, version)
  UNION ALL
  SELECT hash_record_extended(ROW(c.oid, above.oid, above.relnamespace, r.xmin), 7)
  FROM pg_class c, pg_partition_ancestors(c.oid) AS a JOIN pg_class above ON above.oid = a.relid
  LEFT JOIN pg_publication_rel r ON r.prrelid = above.oid
    AND r.prpubid = (SELECT p.oid FROM pg_publication p WHERE p.pubname = $2)
  WHERE c.oid = ANY ($1::oid[]) AND c.relispartition AND above.oid <> c.oid
"""
# DDL on a table holds these locks until it is visible; for a partitioned table, so does adding
# partitions. A change of a publication holds no lock on it, but its transaction marks the row.
_HOLDERS = """
SELECT coalesce(array_agg(DISTINCT l.pid), '{{}}') FROM pg_locks l
WHERE l.granted AND l.pid <> pg_backend_pid()
  AND (l.locktype = 'relation'
       AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
       AND (l.mode = 'AccessExclusiveLock' AND l.relation = ANY ($1)
            OR l.mode IN ('ShareUpdateExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
               AND l.relation = ANY ($2))
       OR l.locktype = 'transactionid' AND l.transactionid IN (
         SELECT p.xmax FROM pg_publication p WHERE p.pubname = $3
         UNION ALL SELECT r.xmax FROM pg_publication_rel r
         JOIN pg_publication p ON p.oid = r.prpubid AND p.pubname = $3
         {more}))
"""
_MORE_HOLDERS = "UNION ALL SELECT s.changed_by FROM ({schemas}) AS s (oid, changed_by)"
# The last statement has the answers of the others too, so that all take one round trip; it sees
# what was committed before it began.
_HELD = "nullif(current_setting('tidemark.holders', true), '')::int[]"
_OBJECTS = f"""
SELECT set_config('tidemark.objects', coalesce(v.total, 0)::text, false),
  set_config('tidemark.holders', ({_HELD} || CASE WHEN v.changed_by IS NOT NULL THEN (
    SELECT array_agg(l.pid) FROM pg_locks l WHERE l.granted AND l.pid <> pg_backend_pid()
      AND l.locktype = 'transactionid' AND l.transactionid = ANY (v.changed_by)) END)::text, false)
FROM ({VERSIONS}) AS v (total, changed_by)
"""
_PREPARE_OBJECTS = "PREPARE tidemark_objects ({arrays}) AS {objects};"
_PREPARE = """
PREPARE tidemark_holders{wide} (oid[], oid[], name) AS
SELECT set_config('tidemark.holders', ({holders})::text, false),
  set_config('tidemark.objects', '0', false);
PREPARE tidemark_digest{wide} (oid[], name) AS
SELECT ({digest}) + current_setting('tidemark.objects', true)::numeric, {held};
"""
_WIDE = "_wide"
_COMMITTING = """
SELECT count(*) FROM pg_stat_activity WHERE pid = ANY (%s) AND wait_event = 'SyncRep'
"""
_TABLE = """
SELECT n.nspname, c.relname, c.relkind, c.relreplident, c.relfilenode::bigint,
  coalesce((SELECT k.oid::bigint FROM pg_constraint k
            WHERE k.conrelid = c.oid AND k.contype = 'p'), 0),
  {membership}, pg_snapshot_xmin(pg_current_snapshot())::text::bigint,
  coalesce(p.oid::bigint, 0), coalesce({version}, 0), to_jsonb(p),
  CASE WHEN r.oid::bigint = {membership} THEN to_jsonb(r) END, {sent_as}, c.relispartition
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_publication p ON p.pubname = %(publication)s
LEFT JOIN pg_publication_rel r ON r.prpubid = p.oid AND r.prrelid = c.oid
WHERE c.oid = %(oid)s
"""
_KEYS = """
SELECT i.indisprimary, i.indisreplident,
  (SELECT array_agg(k::int ORDER BY o) FROM unnest(i.indkey::int2[]) WITH ORDINALITY AS u(k, o)
   WHERE o <= i.indnkeyatts)
FROM pg_index i WHERE i.indrelid = %s AND (i.indisprimary OR i.indisreplident)
"""
_VERSIONS = """
SELECT a.attnum::int, a.xmin::text::bigint, a.attgenerated::text,
  (SELECT array_agg(e.enumlabel::text ORDER BY e.oid) FROM pg_enum e
   WHERE e.enumtypid = a.atttypid)
FROM pg_attribute a WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped
"""
_PARTS = """
WITH RECURSIVE tree (oid, parent, link, at) AS (
  SELECT inhrelid, inhparent, xmin, cmin FROM pg_inherits WHERE inhparent = %s
  UNION ALL
  SELECT i.inhrelid, i.inhparent, i.xmin, i.cmin
  FROM tree t JOIN pg_inherits i ON i.inhparent = t.oid
)
SELECT t.oid::bigint, t.parent::bigint, t.link::text, t.at::text, n.nspname, c.relname, c.relkind,
  c.relreplident, c.relfilenode::bigint, c.xmin::text::bigint, y.xmin::text
FROM tree t JOIN pg_class c ON c.oid = t.oid JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_type y ON y.oid = c.reltype
"""
# The size of a table that may not be read; NULL of any other.
_SIZE = """
SELECT CASE WHEN NOT has_table_privilege(c.oid, 'SELECT') THEN pg_relation_size(c.oid) END
FROM pg_class AS c WHERE c.oid = %s::bigint::oid
"""
_UNREADABLE = (psycopg2.errors.InsufficientPrivilege, psycopg2.errors.LockNotAvailable)
# Rows from before a table became a partition lie at its beginning, where there was space.
_FIRST_PAGES = "{at} < '(1000,0)'::tid"
_XID_MASK = (1 << 32) - 1
# What identifies a used object.
ObjectKey = tuple[str, int]
# How long a commit may take, without and with synchronous standbys.
_ENDS_S, _SYNCHRONOUS_S = 0.25, 30.0
_PAUSES_S = (0.001, 0.02)
_LOCK_TIMEOUT = "1s"
# Sessions of the pool that have our prepared statements.
_prepared: WeakSet[Watched] = WeakSet()


@dataclass(frozen=True)
class ColumnFacts:
    """A column. version: of its catalog row. labels: of an enum, in creation order."""

    field: Field
    version: int
    is_sent: bool
    labels: tuple[str, ...] = ()


@dataclass(frozen=True)
class PartFacts:
    """A partition, or a child of a table.

    link: the transaction that attached it. has_unreported: it may have rows that were never sent,
    or lack rows that it had, judged against the facts before. emptied_by: the transaction that
    caused this, if it was only a TRUNCATE.
    """

    title: str
    kind: str
    identity: str
    file: int
    link: str
    has_unreported: bool = False
    emptied_by: int = 0


@dataclass(frozen=True)
class TableFacts:
    """A table in the catalog at one moment.

    columns: by attnum, which is never reused. identity: the letter of relreplident; identity_key:
    the columns of the index that it names. key_id: the primary key's constraint. seen: all
    transactions below this number had ended.
    """

    oid: int
    schema: str
    name: str
    kind: str
    identity: str
    file: int
    key_id: int
    is_published: bool
    seen: int = field(compare=False)
    key: tuple[int, ...] = ()
    identity_key: tuple[int, ...] = ()
    columns: Mapping[int, ColumnFacts] = field(default_factory=dict)
    parts: Mapping[int, PartFacts] = field(default_factory=dict)
    # Changes each time that the table is published; 0 where that was not stored.
    membership: int = 0
    # Changes each time that the publication is created or altered, except for `tidemark init`
    # transferring it to another role; () where not stored.
    publication: tuple[int, ...] = ()
    # What the publication does not send although views need it, in words.
    withheld: str = ""

    @property
    def title(self) -> str:
        """Return schema.name, for messages."""
        return f"{self.schema}.{self.name}"

    def numbers(self, names: Sequence[str]) -> tuple[int, ...]:
        """Return the numbers of columns by their current names; 0 for a missing one."""
        found = {c.field.name: number for number, c in self.columns.items()}
        return tuple(found.get(name, 0) for name in names)


@dataclass(frozen=True)
class CatalogSnapshot:
    """The catalog's facts at one moment: tables by oid, and what queries rest on besides."""

    digest: int
    tables: Mapping[int, TableFacts]
    objects: Mapping[ObjectKey, UsedObject] = field(default_factory=dict)


class TableCatalog:
    """Reads the facts of one database's tables, and of objects that queries rest on, in sessions of
    the process's pool. One thread.

    given: the publication's name if an administrator made it, else "".
    """

    def __init__(self, dsn: str, publication: str, *, is_given: bool = False) -> None:
        self._session = Session(dsn)
        self._publication = publication
        self.given = publication if is_given else ""
        # Whether the digest has to cover _MORE; by the tables that were read last.
        self._is_wide = is_given
        self._has_partition = False
        # For which tables and objects, and the statements that return their holders and digest.
        self._known: tuple[object, bytes] = None, b""

    def digest(
        self, previous: Mapping[int, TableFacts], objects: Collection[ObjectKey] = ()
    ) -> int:
        """Return a number that differs when any fact of these tables or objects may differ.

        Waits briefly for sessions that are changing one of them: they may be committing.
        """
        tables = [*previous, *(part for facts in previous.values() for part in facts.parts)]
        above = [oid for oid, facts in previous.items() if facts.kind == "p"]
        oids = list(previous), tables, above
        return self._run(lambda cursor: self._digest_now(cursor, oids, objects))

    def read(
        self,
        oids: Sequence[int],
        before: Mapping[int, TableFacts],
        objects: Collection[ObjectKey] = (),
    ) -> CatalogSnapshot:
        """Return the existing ones of these tables and objects, at one moment.

        before: the previous facts, against which partitions are judged.
        """
        return self._run(lambda cursor: self._read(cursor, oids, before, objects))

    def _read(
        self,
        cursor: Cursor,
        oids: Sequence[int],
        before: Mapping[int, TableFacts],
        objects: Collection[ObjectKey],
    ) -> CatalogSnapshot:
        cursor.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        try:
            cursor.execute(
                f"SET LOCAL search_path = pg_temp; SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}'"
            )
            digest = self._digest(cursor, oids, objects)
            types = ColumnTypes(cursor)
            self._has_partition = False
            found = ((o, self._table(cursor, types, o, before.get(o))) for o in oids)
            tables = {oid: facts for oid, facts in found if facts is not None}
            if self._is_wide != (bool(self.given) or self._has_partition):
                # The next digest differs from this one, and everything is read once more.
                self._is_wide, self._known = not self._is_wide, (None, b"")
            return CatalogSnapshot(
                digest, tables, {o.key: o for o in read_objects(cursor, objects)}
            )
        finally:
            with suppress(psycopg2.Error):
                cursor.execute("ROLLBACK")

    def write_marker(self) -> int:
        """Write a marker to the WAL; return its position. Everything read so far lies before it."""

        def write(cursor: Cursor) -> str:
            cursor.execute("SELECT pg_logical_emit_message(true, 'tidemark', '')::text")
            return (cursor.fetchone() or ("0/0",))[0]

        return parse_lsn(self._run(write))

    def close(self) -> None:
        """End the idle sessions there; the next question opens another."""
        self._session.close()

    def _digest_now(
        self,
        cursor: Cursor,
        oids: tuple[list[int], list[int], list[int]],
        objects: Collection[ObjectKey],
    ) -> int:
        """Return the digest of tables once nobody may be committing a change of them.

        oids: the tables; these and their partitions; those that have partitions.
        """
        statements = self._statements(cursor, oids, objects)
        started, backoff = time.monotonic(), Backoff(*_PAUSES_S)
        while True:
            cursor.execute(statements)
            digest, holders = cursor.fetchone() or (0, [])
            waited = time.monotonic() - started
            if not holders:
                return int(digest)
            if waited > _ENDS_S:
                cursor.execute(_COMMITTING, (holders,))
                if waited > _SYNCHRONOUS_S or cursor.fetchone() == (0,):
                    # One that has committed since was seen as a holder.
                    return self._digest(cursor, oids[0], objects)
            time.sleep(backoff.next_s())

    def _statements(
        self,
        cursor: Cursor,
        oids: tuple[list[int], list[int], list[int]],
        objects: Collection[ObjectKey],
    ) -> bytes:
        """Return the statements for these tables and objects: mostly those of the last call."""
        if self._known[0] != (oids, objects):
            of, tables, above = map(_array, oids)
            publication = self._publication
            wide = _WIDE if self._is_wide else ""
            holders = cursor.mogrify(
                f"EXECUTE tidemark_holders{wide} (%s, %s, %s); ", (tables, above, publication)
            )
            digest = self._of_versions(cursor, of, objects)
            self._known = (oids, objects), holders + digest
        return self._known[1]

    def _of_versions(self, cursor: Cursor, tables: str, objects: Collection[ObjectKey]) -> bytes:
        """Return the statements of the digest. Most views use no objects: they are not asked."""
        versions = b""
        if objects:
            marks = ", ".join("%s" for _ in CATALOGS)
            arrays = tuple(map(_array, by_catalog(objects)))
            versions = cursor.mogrify(f"EXECUTE tidemark_objects ({marks}); ", arrays)
        statement = f"EXECUTE tidemark_digest{_WIDE if self._is_wide else ''} (%s, %s)"
        return versions + cursor.mogrify(statement, (tables, self._publication))

    def _run(self, act: Callable[[Cursor], T]) -> T:
        def prepared(session: Watched) -> T:
            with session.cursor() as cursor:
                if session not in _prepared:
                    cursor.execute(_prepare(session.server_version))
                    _prepared.add(session)
                return act(cursor)

        with translated("source", "cannot read the catalog about the tables of the views"):
            return self._session.run(prepared)

    def _digest(self, cursor: Cursor, oids: Sequence[int], objects: Collection[ObjectKey]) -> int:
        cursor.execute("SELECT set_config('tidemark.objects', '0', false)")
        cursor.execute(self._of_versions(cursor, _array(oids), objects))
        return int((cursor.fetchone() or (0,))[0])

    def _table(
        self, cursor: Cursor, types: ColumnTypes, oid: int, before: TableFacts | None
    ) -> TableFacts | None:
        query = _table_query(cursor.connection.server_version)
        cursor.execute(query, {"oid": oid, "publication": self._publication})
        row = cursor.fetchone()
        if row is None:
            return None
        schema, name, kind, identity, file, key_id, membership, seen = row[:8]
        publication, (options, member, sent_as_other, is_partition) = row[8:10], row[10:]
        self._has_partition |= is_partition
        cursor.execute(_KEYS, (oid,))
        key: tuple[int, ...] = ()
        identity_key: tuple[int, ...] = ()
        for is_primary, is_identity, numbers in cursor.fetchall():
            key = tuple(numbers) if is_primary else key
            identity_key = tuple(numbers) if is_identity else identity_key
        cursor.execute(_VERSIONS, (oid,))
        sent = sent_columns(options or {})
        versions = {n: (xmin, g in sent, tuple(e or ())) for n, xmin, g, e in cursor.fetchall()}
        columns = {
            number: ColumnFacts(f, *versions[number])
            for number, f in types.read_fields(oid).items()
        }
        parts = _parts(_Rows(cursor, self._session.dsn), oid, before)
        return TableFacts(
            *(oid, schema, name, kind, identity, file, key_id, membership != 0, seen),
            *(key, identity_key, columns, parts, membership, publication),
            withheld(
                options or {}, member or {}, is_partitioned=kind == "p", sent_as=sent_as_other
            ),
        )


@cache
def _prepare(version: int) -> str:
    """Return the statements that prepare a session of a server of this version."""
    arrays = ", ".join("oid[]" for _ in CATALOGS)
    objects = _PREPARE_OBJECTS.format(arrays=arrays, objects=_OBJECTS)
    holders = _MORE_HOLDERS.format(schemas=schemas_of(version, "$3", "xmax"))
    more = _MORE.format(schemas=schemas_of(version, "$2", "xmin"))
    return objects + "".join(
        _PREPARE.format(
            wide=_WIDE if is_wide else "",
            holders=_HOLDERS.format(more=holders if is_wide else ""),
            digest=_DIGEST.format(more=more if is_wide else ""),
            held=_HELD,
        )
        for is_wide in (False, True)
    )


@cache
def _table_query(version: int) -> str:
    return _TABLE.format(
        membership=membership_of(version), version=VERSION_OF, sent_as=sent_as(version)
    )


def _array(oids: Sequence[int]) -> str:
    return "{" + ",".join(map(str, sorted(oids))) + "}"


_Named = tuple[int, sql.Identifier]


class _Rows:
    """Tests whether tables have some rows, in the transaction of a cursor. dsn: of its session."""

    def __init__(self, cursor: Cursor, dsn: str) -> None:
        self.cursor = cursor
        self._dsn = dsn

    def exist(self, table: _Named, where: str, *, unknown: bool) -> bool:
        """Return whether a table has such a row; `unknown` if it is locked, or unreadable and not
        empty.

        where: over {at}, {xmin} and {cmin} of a row.
        """
        oid, name = table
        if unknown and self._is_unreadable_and_empty(oid):
            return False
        if is_foreign(self.cursor, oid):
            # In a separate session: the effects of foreign code outlive its transaction.
            self.cursor.execute("SELECT pg_export_snapshot()")
            ((snapshot_id,),) = self.cursor.fetchall()
            return _exist_restricted((self._dsn, snapshot_id), table, where, unknown=unknown)
        text = sql.SQL("SELECT EXISTS (SELECT FROM ONLY {} WHERE {})").format(
            name, sql.SQL(where.format(at="ctid", xmin="xmin", cmin="cmin"))
        )
        self.cursor.execute("SAVEPOINT look")
        try:
            self.cursor.execute(text)
            (found,) = self.cursor.fetchone() or (unknown,)
            self.cursor.execute("RELEASE SAVEPOINT look")
            return bool(found)
        except _UNREADABLE:
            self.cursor.execute("ROLLBACK TO SAVEPOINT look")
            return unknown

    def _is_unreadable_and_empty(self, oid: int) -> bool:
        self.cursor.execute("SAVEPOINT size")
        try:
            self.cursor.execute(_SIZE, (oid,))
            found = self.cursor.fetchall()
            self.cursor.execute("RELEASE SAVEPOINT size")
        except psycopg2.errors.LockNotAvailable:
            self.cursor.execute("ROLLBACK TO SAVEPOINT size")
            return False
        return found == [(0,)]


def _exist_restricted(
    session_facts: tuple[str, str], table: _Named, where: str, *, unknown: bool
) -> bool:
    """Do `_Rows.exist` for a table that other roles control. session_facts: dsn and snapshot."""
    oid, name = table
    dsn, snapshot_id = session_facts
    session = connect(dsn, settings={"lock_timeout": _LOCK_TIMEOUT, "jit": "off"})
    try:
        session.set_session(isolation_level="REPEATABLE READ")
        with session.cursor() as cursor:
            cursor.execute("SET TRANSACTION SNAPSHOT %s", (snapshot_id,))
            columns = [sql.SQL("t.xmin"), sql.SQL("t.cmin")]
            restricted = RestrictedTable(
                (session, dsn), oid, sql.SQL("ONLY {}").format(name), columns
            )
            where = where.format(at="t.at", xmin="t.c0", cmin="t.c1")
            function = restricted.function("", f"{where} LIMIT 1")
            restricted.close()
            cursor.execute(sql.SQL("SELECT EXISTS (SELECT FROM {}())").format(function))
            (found,) = cursor.fetchone() or (unknown,)
            return bool(found)
    except _UNREADABLE:
        return unknown
    finally:
        session.close()


def _parts(rows: _Rows, oid: int, before: TableFacts | None) -> dict[int, PartFacts]:
    rows.cursor.execute(_PARTS, (oid,))
    parts = {}
    for row in rows.cursor.fetchall():
        part, parent, link, at, schema, name, kind, identity, file, wrote, made = row
        previous = None if before is None else before.parts.get(part)
        table = (part, sql.Identifier(schema, name))
        has_unreported, emptied_by = False, 0
        if before is not None and kind != "p":
            if previous is None:
                is_old_parent = parent == oid or parent in before.parts
                is_made_inside = is_old_parent and link == made
                has_unreported = _came_with_rows(rows, table, link, at if is_made_inside else "")
            elif previous.link != link:
                has_unreported = True
            elif previous.file != file:
                has_unreported = not _preserved_rows(rows, table, before.seen)
                emptied_by = wrote if has_unreported else 0
        parts[part] = PartFacts(
            f"{schema}.{name}", kind, identity, file, link, has_unreported, emptied_by
        )
    return parts


def _came_with_rows(rows: _Rows, table: _Named, link: str, at: str) -> bool:
    """Return whether a new partition may have rows from before it was attached.

    at: for a table that the transaction `link` both created and attached, the attaching command.
    Only rows that the transaction inserted before that command are older. (Rows that a
    subtransaction inserted before it are not distinguished from later ones.)
    """
    where = _FIRST_PAGES if at else "true"
    if at:
        where += f" AND {{xmin}} = '{int(link)}'::xid AND {{cmin}}::text::bigint <= {int(at)}"
    return rows.exist(table, where, unknown=True)


def _preserved_rows(rows: _Rows, table: _Named, seen: int) -> bool:
    """Return whether a partition in a new file has a row from before the rewrite.

    TRUNCATE leaves none, VACUUM FULL and CLUSTER preserve rows with their transactions.
    """
    where = f"{_FIRST_PAGES} AND age({{xmin}}) > age('{seen & _XID_MASK}'::xid)"
    return rows.exist(table, where, unknown=False)
