"""Tables of views that stay as plain tables, without anything of Tidemark.

The guard's trigger, the index that stands in for a wide key and the comments that are not a user's
go. A table of the service's own role goes to the owner of the database, so that the role can be
dropped; one of its creator stays the creator's. Grants stay. A history becomes a table of the name
that its view had, with the same grants. Every function works inside the caller's transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from connectors.postgres.schema import table_guard
from connectors.postgres.schema.sink_target import WIDE_INDEX
from connectors.postgres.session.quoting import quote_name
from connectors.postgres.sink import carry_over

# Also those of hidden tables (sink_tables.comment).
_OURS = (carry_over.OURS, "Rows of view ")
_READ = """
SELECT format('%%I.%%I', n.nspname, c.relname), c.relkind = 'v', o.rolname, d.rolname,
    o.rolname = %(role)s AND NOT o.rolsuper AND d.oid <> o.oid,
    me.rolsuper OR pg_has_role(me.oid, o.oid, 'USAGE') AND pg_has_role(me.oid, d.oid, %(member)s)
        AND has_schema_privilege(d.oid, n.oid, 'CREATE'),
    obj_description(c.oid, 'pg_class'),
    ARRAY(SELECT format('%%I.%%I', n.nspname, x.relname) FROM pg_index AS i
        JOIN pg_class AS x ON x.oid = i.indexrelid
        WHERE i.indrelid = c.oid AND starts_with(x.relname, %(wide)s))
FROM unnest(%(oids)s::bigint[]) WITH ORDINALITY AS given (oid, number)
JOIN pg_class AS c ON c.oid = given.oid::oid JOIN pg_namespace AS n ON n.oid = c.relnamespace
JOIN pg_roles AS o ON o.oid = c.relowner
CROSS JOIN (SELECT r.oid, r.rolname FROM pg_database AS b JOIN pg_roles AS r ON r.oid = b.datdba
    WHERE b.datname = current_database()) AS d
CROSS JOIN (SELECT * FROM pg_roles WHERE rolname = current_user) AS me
ORDER BY given.number
"""
_GRANTS = """
SELECT CASE WHEN a.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(r.rolname) END, a.is_grantable
FROM pg_class AS c CROSS JOIN aclexplode(c.relacl) AS a LEFT JOIN pg_roles AS r ON r.oid = a.grantee
WHERE c.oid = %s::oid AND a.privilege_type = 'SELECT' AND a.grantee <> c.relowner
    AND (a.grantee = 0 OR r.oid IS NOT NULL)
"""


@dataclass(frozen=True)
class KeptTable:
    """A table or view that stays. sql: its name. new_owner: whose it is from now on.

    is_given: the owner changes. may_give: this session may change it. comment: present one.
    indexes: those that only the service needs.
    """

    sql: str
    word: str
    owner: str
    new_owner: str
    is_given: bool
    may_give: bool
    comment: str
    indexes: tuple[str, ...]

    @property
    def title(self) -> str:
        """Return kind and name."""
        return f"{self.word.lower()} {self.sql}"

    @property
    def give_command(self) -> str:
        """Return what transfers it, if this session may not; "" if that is not needed."""
        return "" if self.may_give or not self.is_given else f"{self._give};"

    @property
    def _give(self) -> str:
        return f"ALTER {self.word} {self.sql} OWNER TO {quote_name(self.new_owner)}"

    def give(self, cursor: Any) -> None:
        """Transfer it, if it changes its owner and the session may do that."""
        if self.is_given and self.may_give:
            cursor.execute(self._give)


def read(cursor: Any, oids: Sequence[int], role: str) -> list[KeptTable]:
    """Return the relations that exist, in this order. role: the service's."""
    member = "SET" if cursor.connection.server_version >= 160000 else "MEMBER"
    given = {"oids": list(oids), "role": role, "wide": WIDE_INDEX, "member": member}
    cursor.execute(_READ, given)
    found = []
    for sql, is_view, owner, database_owner, is_given, may_give, comment, indexes in cursor:
        new_owner = database_owner if is_given else owner
        word = "VIEW" if is_view else "TABLE"
        facts = (sql, word, owner, new_owner, is_given, may_give, comment or "", tuple(indexes))
        found.append(KeptTable(*facts))
    return found


def leave(cursor: Any, tables: Sequence[KeptTable], role: str) -> None:
    """Remove what Tidemark has added, and give each to its new owner. role: the service's."""
    for table in tables:
        if table.word == "TABLE":
            name = quote_name(table_guard.NAME)
            cursor.execute(f"DROP TRIGGER IF EXISTS {name} ON {table.sql}")
        for index in table.indexes:
            cursor.execute(f"DROP INDEX {index}")
        if table.comment.startswith(_OURS):
            cursor.execute(f"COMMENT ON {table.word} {table.sql} IS NULL")
    # A view reads its table with its owner's rights.
    for table in tables:
        table.give(cursor)
        if table.owner != role:
            cursor.execute(f"REVOKE ALL ON {table.sql} FROM {quote_name(role)}")


def move_history(cursor: Any, schema: str, history: int, shown: int) -> None:
    """Put the table of a history in the place of the view that shows it, with its grants.

    history, shown: oids of table and view.
    """
    cursor.execute(_GRANTS, (shown,))
    grants = cursor.fetchall()
    cursor.execute("SELECT %s::oid::regclass::text, %s::oid::regclass::text", (history, shown))
    table, view = cursor.fetchone()
    cursor.execute("SELECT relname FROM pg_class WHERE oid = %s::oid", (shown,))
    (name,) = cursor.fetchone()
    cursor.execute(f"DROP VIEW {view}")
    cursor.execute(f"ALTER TABLE {table} SET SCHEMA {quote_name(schema)}")
    cursor.execute("SELECT %s::oid::regclass::text", (history,))
    (moved,) = cursor.fetchone()
    cursor.execute(f"ALTER TABLE {moved} RENAME TO {quote_name(name)}")
    final = f"{quote_name(schema)}.{quote_name(name)}"
    for grantee, is_grantable in grants:
        option = " WITH GRANT OPTION" if is_grantable and grantee != "PUBLIC" else ""
        cursor.execute(f"GRANT SELECT ON {final} TO {grantee}{option}")
