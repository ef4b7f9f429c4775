"""The publication of a source: exactly the tables that views read, without harm to them.

Invariant: a table is added only if UPDATE and DELETE on it keep working for everybody, and if every
row and column that views need is sent. Never FOR ALL TABLES; partitioned tables are sent as their
root. One that an administrator made is in `given_publication`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from psycopg2 import sql

from connectors.postgres.evaluation.sandbox import EVENT_TRIGGER, check_event_triggers
from connectors.postgres.replication.slot_errors import REBUILD_HINT
from connectors.postgres.session.quoting import LEADS_TO_SUPERUSER, quote_name, quote_text
from connectors.postgres.session.session import Session
from dataflow.errors import SourceError
from dataflow.schema import Relation, RelationName

# The options of our publication, restored where someone changed them.
_OPTIONS = "publish = 'insert, update, delete, truncate', publish_via_partition_root = true"
_EACH_KIND = ("insert", "update", "delete", "truncate")
# From PostgreSQL 18 on: stored generated columns are computed here, as on older versions.
_GENERATED = ", publish_generated_columns = none"
GENERATED_VERSION = 180000
# A partition is read by its own name, so SELECT on the whole is not enough.
UNREADABLE_PART = """(SELECT quote_ident(o.nspname) || '.' || quote_ident(l.relname)
  FROM pg_partition_tree(c.oid) AS t JOIN pg_class AS l ON l.oid = t.relid
  JOIN pg_namespace AS o ON o.oid = l.relnamespace
  WHERE t.isleaf AND c.relkind = 'p' AND NOT (has_schema_privilege({0}, o.oid, 'USAGE')
    AND has_table_privilege({0}, l.oid, 'SELECT')) LIMIT 1)"""
_FACTS = f"""
SELECT c.oid, c.relkind, c.relreplident, c.relpersistence,
  EXISTS (SELECT FROM pg_index WHERE indrelid = c.oid AND indisprimary) AS has_key,
  c.relkind = 'r' AND EXISTS (SELECT FROM pg_inherits WHERE inhparent = c.oid) AS has_children,
  c.relispartition, pg_has_role(c.relowner, 'USAGE'), pg_get_userbyid(c.relowner), current_user,
  has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT'),
  c.relrowsecurity AND row_security_active(c.oid),
  (SELECT array_agg(DISTINCT l.relkind::text || l.relreplident::text)
     FROM pg_partition_tree(c.oid) t JOIN pg_class l ON l.oid = t.relid
     WHERE t.isleaf AND c.relkind = 'p'),
  (SELECT array_agg(a.relid::oid::bigint) FROM pg_partition_ancestors(c.oid) a
     WHERE a.relid <> c.oid),
  {LEADS_TO_SUPERUSER.format("c.relowner")}, {UNREADABLE_PART.format("current_user")}
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = %s
"""


# Publications of ours that a role may neither change nor drop; a group's has its name appended.
_PUBLICATIONS = """
SELECT p.pubname, o.rolname, o.rolsuper FROM pg_publication AS p JOIN pg_roles AS o
ON o.oid = p.pubowner WHERE p.pubname ~ ('^' || %s || '(_[a-z][a-z0-9]*)?$')
AND NOT pg_has_role(%s, o.oid, 'USAGE') ORDER BY 1
"""


@dataclass(frozen=True)
class TableFacts:
    """The facts that decide whether a table may be published, in the order of _FACTS."""

    oid: int
    kind: str
    identity: str
    persistence: str
    has_key: bool
    has_children: bool
    is_partition: bool
    is_owned: bool
    owner: str
    user: str
    is_readable: bool
    is_filtered: bool
    leaves: list[str] | None
    ancestors: list[int] | None
    leads_to_superuser: bool
    unreadable_part: str | None


# A number that changes with every change of publication p except `give_publication`.
VERSION_OF = """coalesce(substring(pg_catalog.obj_description(p.oid, 'pg_publication')
    FROM 'version ' || p.xmin || ' is version (\\d+) with another owner'), p.xmin::text)::bigint"""
# Under the lock nobody else alters it, so only the owner differs between the two versions.
_GIVE = f"""
DO $give$ DECLARE one oid; made bigint; given xid; BEGIN
LOCK TABLE pg_catalog.pg_publication IN SHARE ROW EXCLUSIVE MODE;
SELECT p.oid, {VERSION_OF} INTO STRICT one, made
FROM pg_catalog.pg_publication AS p WHERE p.pubname = {{0}};
ALTER PUBLICATION {{1}} OWNER TO {{2}};
SELECT p.xmin INTO STRICT given FROM pg_catalog.pg_publication AS p WHERE p.oid = one;
EXECUTE format('COMMENT ON PUBLICATION %I IS %L', {{0}},
    format('Tidemark: version %s is version %s with another owner', given, made));
END $give$;
"""


# From this version on, a publication may have whole schemas.
_SCHEMAS_VERSION = 150000
_BY_SCHEMA = """(SELECT s.oid FROM pg_publication_namespace AS s
    WHERE s.pnpubid = p.oid AND s.pnnspid = {0}.relnamespace)"""
_MEMBERSHIP = """coalesce(CASE WHEN p.puballtables THEN p.oid END, {1},
  (SELECT r.oid FROM pg_publication_rel AS r
    WHERE r.prpubid = p.oid AND r.prrelid = {0}.oid), 0::oid)::bigint"""
_SENT_AS = """(SELECT above.oid::regclass::text FROM pg_partition_ancestors(c.oid) AS a
  JOIN pg_class AS above ON above.oid = a.relid
  WHERE p.pubviaroot AND above.oid <> c.oid AND {0} <> 0 LIMIT 1)"""


def membership_of(version: int, table: str = "c") -> str:
    """Return, as SQL, what publishes a table in publication p; 0 for nothing.

    version: of the server, as server_version_num. table: the alias of its row of pg_class. The
    answer is an oid that is another one each time that the table is published: of the publication
    if it is FOR ALL TABLES, else of the membership of the table's schema, else of its own.
    """
    by_schema = _BY_SCHEMA if version >= _SCHEMAS_VERSION else "NULL"
    return _MEMBERSHIP.format(table, by_schema.format(table))


def sent_as(version: int) -> str:
    """Return, as SQL, the partitioned table as which publication p sends the changes of table c.

    NULL if they are sent as the table's own, or not at all.
    """
    return _SENT_AS.format(membership_of(version, "above"))


def schemas_of(version: int, name: str, column: str) -> str:
    """Return, as SQL, the oid and a system column of each schema's membership in a publication.

    name: an SQL expression of the publication's name.
    """
    if version < _SCHEMAS_VERSION:
        return "SELECT NULL::oid, NULL::xid WHERE false"
    return (
        f"SELECT s.oid, s.{column} FROM pg_publication_namespace AS s"
        f" JOIN pg_publication AS p ON p.oid = s.pnpubid WHERE p.pubname = {name}"
    )


class Publication:
    """One publication, owned by us."""

    def __init__(self, session: Session, name: str) -> None:
        self.name = name
        self._session = session

    def exists(self) -> bool:
        """Return whether the publication exists."""
        return self._row() is not None

    def _found(self) -> tuple[dict[str, Any], str, bool] | None:
        """Return its catalog row, its owner, and whether we may alter it."""
        found = self._session.rows(
            "SELECT to_jsonb(p), pg_get_userbyid(pubowner), pg_has_role(pubowner, 'USAGE')"
            " FROM pg_publication p WHERE pubname = %s",
            (self.name,),
        )
        return found[0] if found else None

    def _row(self) -> tuple[dict[str, Any], str, bool] | None:
        found = self._found()
        if found is not None and found[0]["puballtables"]:
            raise SourceError(
                "source.publication_foreign",
                f'publication "{self.name}" is FOR ALL TABLES',
                hint="drop it, or choose another --prefix: Tidemark publishes single tables",
            )
        return found

    def check(self) -> None:
        """Require that it is there or may be created, and change nothing.

        SourceError source.privilege.
        """
        if self.exists():
            return
        user, may_create, database = self._session.rows(
            "SELECT current_user::text, has_database_privilege(current_database(), 'CREATE'),"
            " current_database()"
        )[0]
        if not may_create:
            raise SourceError(
                "source.privilege",
                f'role "{user}" may not create a publication',
                hint=f'GRANT CREATE ON DATABASE "{database}" TO "{user}";',
            )

    def ensure(self) -> None:
        """Create the publication, or restore the options that it was created with."""
        found, name = self._row(), sql.Identifier(self.name)
        if found is None:
            self._change(
                sql.SQL("CREATE PUBLICATION {} WITH ({})").format(name, sql.SQL(_OPTIONS)),
                doing=f'cannot create publication "{self.name}"',
            )
            return
        wrong = withheld(found[0], {}, is_partitioned=True)
        if not (wrong or _GENERATES in sent_columns(found[0])):
            return
        options = _OPTIONS
        if self._session.server_version >= GENERATED_VERSION:
            options += _GENERATED
        self._require_owned(found, f"ALTER PUBLICATION {quote_name(self.name)} SET ({options});")
        self._change(
            sql.SQL("ALTER PUBLICATION {} SET ({})").format(name, sql.SQL(options)),
            doing=f'cannot alter publication "{self.name}"',
        )

    def _require_owned(self, found: tuple[dict[str, Any], str, bool] | None, todo: str) -> None:
        """Require that we may alter it. todo: the statement that is needed."""
        if found is None or found[2]:
            return
        user = self._session.rows("SELECT current_user::text")[0][0]
        raise SourceError(
            "source.publication_foreign",
            f'publication "{self.name}" belongs to role "{found[1]}"',
            detail=f'role "{user}" may not alter it, but needs to: {todo}',
            hint=f"ALTER PUBLICATION {quote_name(self.name)} OWNER TO {quote_name(user)};",
        )

    def tables(self) -> dict[int, RelationName]:
        """Return the published tables: oid -> name (its source left empty)."""
        found = self._session.rows(
            "SELECT c.oid::bigint, n.nspname, c.relname FROM pg_publication p"
            " JOIN pg_publication_rel r ON r.prpubid = p.oid JOIN pg_class c ON c.oid = r.prrelid"
            " JOIN pg_namespace n ON n.oid = c.relnamespace WHERE p.pubname = %s",
            (self.name,),
        )
        return {oid: RelationName("", schema, name) for oid, schema, name in found}

    def names_now(self, relations: Sequence[Relation]) -> list[RelationName]:
        """Return the current names of tables; the old name of one that is gone."""
        found = self._session.rows(
            "SELECT c.oid::bigint, n.nspname, c.relname FROM pg_class c"
            " JOIN pg_namespace n ON n.oid = c.relnamespace"
            " WHERE c.oid = ANY (%s::bigint[]::oid[])",
            ([r.oid for r in relations],),
        )
        now = {oid: RelationName("", schema, name) for oid, schema, name in found}
        return [now.get(r.oid, r.name) for r in relations]

    def add(self, names: Sequence[RelationName]) -> None:
        """Publish tables; leave those that are published already.

        SourceError source.table_missing, source.not_publishable, source.privilege,
        source.no_replica_identity, source.row_security, source.partition_overlap,
        source.publication_foreign.
        """
        self.ensure()
        published, partly = self.tables(), self._sent_in_part()
        tables = {name: self._facts(name) for name in names}
        for name, table in tables.items():
            check_table(name, table)
        everyone = published.keys() | {table.oid for table in tables.values()}
        for name, table in tables.items():
            self._check_overlap(name, table, everyone)
        for name, table in tables.items():
            if table.oid in published and table.oid not in partly:
                continue
            statement = self._alter("ADD", name)
            self._require_owned(self._row(), f'add "{name}"')
            if table.oid in published:
                # In one transaction: this removes a row filter or column list and misses no
                # change.
                statement = sql.SQL("{}; {}").format(self._alter("DROP", name), statement)
            self._change(statement, doing=f'cannot add table "{name}" to publication "{self.name}"')
            published[table.oid] = name
            partly.discard(table.oid)

    def check_tables(self, names: Sequence[RelationName]) -> None:
        """Require that tables can be published; errors as of `add`. Nothing is changed."""
        for name in names:
            check_table(name, self._facts(name))

    def _sent_in_part(self) -> set[int]:
        """Return tables of which not every row or column is sent."""
        found = self._session.rows(
            "SELECT r.prrelid::bigint, to_jsonb(r) FROM pg_publication_rel r"
            " JOIN pg_publication p ON p.oid = r.prpubid WHERE p.pubname = %s",
            (self.name,),
        )
        return {oid for oid, member in found if withheld({}, member, is_partitioned=False)}

    def remove(self, names: Sequence[RelationName]) -> None:
        """Remove tables; ignore those that are not published or do not exist."""
        published = {(n.schema, n.name) for n in self.tables().values()}
        for name in names:
            if (name.schema, name.name) in published:
                self._require_owned(self._row(), f'remove "{name}"')
                self._change(
                    self._alter("DROP", name),
                    doing=f'cannot remove table "{name}" from publication "{self.name}"',
                )
                published.discard((name.schema, name.name))

    def require(self, relations: Sequence[Relation]) -> None:
        """Require that every relation exists under its oid and is published.

        Otherwise changes would be missed. SourceError source.publication_missing,
        source.table_missing, source.not_published.
        """
        if relations and not self.exists():
            raise self._missing()
        published = self._published(relations)
        there = self._session.rows(
            "SELECT oid::bigint FROM pg_class WHERE oid = ANY(%s::bigint[]::oid[])",
            ([r.oid for r in relations],),
        )
        for relation in relations:
            if (relation.oid,) not in there:
                raise SourceError(
                    "source.table_missing",
                    f'table "{relation.name}" was dropped',
                    hint="drop the views that read it, or rebuild them if the table exists again",
                    relation=relation.name,
                )
            if relation.oid not in published:
                raise self._removed(relation)

    def _published(self, relations: Sequence[Relation]) -> Collection[int]:
        """Return the oids of those that are published."""
        return self.tables()

    def _missing(self) -> SourceError:
        what = f'publication "{self.name}" does not exist'
        return SourceError("source.publication_missing", what, hint=REBUILD_HINT)

    def _removed(self, relation: Relation) -> SourceError:
        return SourceError(
            "source.not_published",
            f'table "{relation.name}" is no longer in publication "{self.name}"',
            detail="someone removed it; its changes since then are lost",
            hint="rebuild the views that read it",
            relation=relation.name,
        )

    def drop(self) -> None:
        """Drop the publication if it exists; leave one that was given to another role."""
        found = self._session.rows(
            "SELECT pg_has_role(pubowner, 'USAGE') FROM pg_publication WHERE pubname = %s",
            (self.name,),
        )
        if not found or not found[0][0]:
            return
        self._session.execute(
            sql.SQL("DROP PUBLICATION IF EXISTS {}").format(sql.Identifier(self.name)),
            doing=f'cannot drop publication "{self.name}"',
        )

    def _change(self, statement: sql.Composed, *, doing: str) -> None:
        """Run a statement that fires event triggers."""
        check_event_triggers(self._session.rows(EVENT_TRIGGER))
        self._session.execute(statement, doing=doing)

    def _alter(self, verb: str, name: RelationName) -> sql.Composed:
        return sql.SQL("ALTER PUBLICATION {} {} TABLE {}").format(
            sql.Identifier(self.name), sql.SQL(verb), sql.Identifier(name.schema, name.name)
        )

    def _facts(self, name: RelationName) -> TableFacts:
        found = self._session.rows(_FACTS, (name.schema, name.name))
        if not found:
            what = f'table "{name}" does not exist'
            raise SourceError("source.table_missing", what, relation=name)
        return TableFacts(*found[0])

    def _check_overlap(self, name: RelationName, table: TableFacts, everyone: set[int]) -> None:
        published = self.tables()
        above = everyone.intersection(table.ancestors or [])
        below = []
        if table.kind == "p":
            inside = self._session.rows(
                "SELECT relid::oid::bigint FROM pg_partition_tree(%s::bigint::oid)", (table.oid,)
            )
            below = [oid for (oid,) in inside if oid != table.oid and oid in everyone]
        if above or below:
            other = next((str(published[o]) for o in [*above, *below] if o in published), "")
            raise SourceError(
                "source.partition_overlap",
                f'table "{name}" cannot be published together with its own parent or partition',
                detail=other and f'"{other}" is published already, and changes are sent only once',
                hint="let all views read the partitioned table, or all its partitions",
                relation=name,
            )


def withheld(
    options: Mapping[str, Any],
    member: Mapping[str, Any],
    *,
    is_partitioned: bool,
    sent_as: str | None = None,
) -> str:
    """Return what a table's changes lack that views need, in words; "" when nothing.

    options: the row of pg_publication; member: the table's of pg_publication_rel. sent_as: the
    partitioned table as whose changes its own are sent.
    """
    found = [f"its changes are sent as those of {sent_as}"] if sent_as else []
    kinds = [k for k in _EACH_KIND if not options.get(f"pub{k}", True)]
    if kinds:
        found.append(f"it does not publish {', '.join(kinds)}")
    if is_partitioned and not options.get("pubviaroot", True):
        found.append("publish_via_partition_root is off")
    if member.get("prqual") is not None:
        found.append("it has a row filter")
    if member.get("prattrs") is not None:
        found.append("it has a column list")
    return "; ".join(found)


_GENERATES = "s"


def sent_columns(options: Mapping[str, Any]) -> frozenset[str]:
    """Return the letters of attgenerated of the columns that are sent."""
    generated = _GENERATES if options.get("pubgencols") == _GENERATES else ""
    return frozenset({"", generated})


def others_publications(session: Session, name: str, role: str) -> list[tuple[str, str, bool]]:
    """Return (name, owner, whether a superuser) of a service's publications that another role owns.

    name: of the first; a group's name is appended to it.
    """
    return session.rows(_PUBLICATIONS, (name, role))


def give_publication(name: str, role: str) -> str:
    """Return the statement that transfers a publication to a role; for a superuser.

    It records that nothing else changed, so views on its tables continue.
    """
    return _GIVE.strip().format(quote_text(name), quote_name(name), quote_name(role))


_KINDS = {
    "v": "it is a view",
    "m": "it is a materialized view",
    "f": "it is a foreign table",
    "S": "it is a sequence",
}


def check_table(name: RelationName, table: TableFacts, *, is_given: bool = False) -> None:
    """Refuse a table that cannot be published, or that would suffer from it.

    is_given: an administrator publishes it, so its owner may be anybody.
    """
    if table.kind not in ("r", "p") or table.persistence != "p" or table.has_children:
        why = _KINDS.get(table.kind, "it is not a table")
        if table.persistence != "p":
            why = "it is unlogged" if table.persistence == "u" else "it is temporary"
        elif table.has_children:
            why = "other tables inherit from it, and their rows are not sent under its name"
        raise SourceError(
            "source.not_publishable",
            f'table "{name}" cannot be published',
            detail=why,
            hint="use permanent tables, ordinary or partitioned",
            relation=name,
        )
    if not table.is_readable:
        raise SourceError(
            "source.privilege",
            f'role "{table.user}" may not read table "{name}"',
            hint=f'GRANT USAGE ON SCHEMA "{name.schema}" TO "{table.user}";'
            f' GRANT SELECT ON "{name.schema}"."{name.name}" TO "{table.user}";',
            relation=name,
        )
    if table.unreadable_part is not None:
        raise SourceError(
            "source.privilege",
            f'role "{table.user}" may not read partition {table.unreadable_part} of table "{name}"',
            detail="partitions are read one by one, each with its own rights",
            hint=f'GRANT SELECT ON {table.unreadable_part} TO "{table.user}";',
            relation=name,
        )
    if not table.is_owned and not is_given:
        detail, hint = _ownership(name, table)
        raise SourceError(
            "source.privilege",
            f'role "{table.user}" may not publish table "{name}"',
            detail=detail,
            hint=hint,
            relation=name,
        )
    if table.is_filtered:
        raise SourceError(
            "source.row_security",
            f'row security of table "{name}" hides rows from role "{table.user}"',
            hint=f'ALTER ROLE "{table.user}" BYPASSRLS;',
            relation=name,
        )
    _check_identity(name, table)


def _ownership(name: RelationName, table: TableFacts) -> tuple[str, str]:
    """Return detail and hint for a table of another role. Never suggest membership in a
    superuser."""
    detail = "PostgreSQL lets only the owner of a table add it to a publication; one that the"
    detail += " owner makes is enough, named by TIDEMARK_PUBLICATION"
    user = quote_name(table.user)
    if not table.leads_to_superuser:
        return detail, f"GRANT {quote_name(table.owner)} TO {user};"
    why = f'membership in its owner "{table.owner}" would give a superuser\'s rights'
    other = "or transfer it to a separate role that is not a superuser, and grant that role"
    full = f"{quote_name(name.schema)}.{quote_name(name.name)}"
    return f"{detail}; {why}; {other}", f"ALTER TABLE {full} OWNER TO {user};"


def _check_identity(name: RelationName, table: TableFacts) -> None:
    """Refuse a table that, once published, would reject everybody's UPDATE and DELETE."""
    if table.identity == "n" or (table.identity == "d" and not table.has_key):
        full = f'ALTER TABLE "{name.schema}"."{name.name}" REPLICA IDENTITY FULL;'
        default = full.replace("FULL", "DEFAULT")
        ways = f"{default} or {full}" if table.has_key else f"add a PRIMARY KEY, or {full}"
        raise SourceError(
            "source.no_replica_identity",
            f'table "{name}" has no replica identity to identify updated and deleted rows',
            detail="" if table.is_owned else f'its owner is role "{table.owner}"',
            hint=ways,
            relation=name,
        )
    if table.leaves and set(table.leaves) != {f"r{table.identity}"}:
        raise SourceError(
            "source.no_replica_identity",
            f'table "{name}" has partitions that are foreign or differ in replica identity',
            detail="" if table.is_owned else f'its owner is role "{table.owner}"',
            hint="run ALTER TABLE ... REPLICA IDENTITY ... on each of them, as on the table itself",
            relation=name,
        )
