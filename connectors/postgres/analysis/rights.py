"""Check whether a role may read what a query reads: PostgreSQL's own rules, for another role.

The service reads tables with its own role, so queries of other roles are checked here. The input is
the permission entries that PostgreSQL stores with an analyzed query: which columns of which
relation, as whom. Invariant: views count as in PostgreSQL. The query inside a view is checked for
the view's owner, since anybody can define a view over tables that they may not read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from connectors.postgres.session.quoting import quote_name
from dataflow.errors import SourceError

# The permission entries of a rule's action, up to version 15 and since. Column n is bit n + 7, bit
# 7 is the whole row (nodes/parsenodes.h); 2 in requiredPerms is SELECT.
_ENTRIES = (
    re.compile(
        r":relid (\d+) (?:(?!:relid ).)*?:requiredPerms (\d+) :checkAsUser \d+"
        r" :selectedCols \(b([ \d]*)\)"
    ),
    re.compile(
        r"\{RTEPERMISSIONINFO :relid (\d+) :inh \w+ :requiredPerms (\d+) :checkAsUser \d+"
        r" :selectedCols \(b([ \d]*)\)"
    ),
)
_CALLS = re.compile(r":(?:funcid|opfuncid|aggfnoid|winfnoid) (\d+)")
_FIRST_BIT = 7
_SELECT = 2

_RELATION = """
SELECT n.nspname, c.relname, c.relkind, r.rolname, c.relpersistence = 't',
    has_schema_privilege(%(role)s, n.oid, 'USAGE'),
    has_table_privilege(%(role)s, c.oid, 'SELECT'),
    has_any_column_privilege(%(role)s, c.oid, 'SELECT'),
    c.relrowsecurity AND NOT (SELECT rolsuper OR rolbypassrls FROM pg_roles
        WHERE rolname = %(role)s)
        AND (c.relforcerowsecurity OR NOT pg_has_role(%(role)s, c.relowner, 'USAGE')),
    coalesce('security_invoker=true' = ANY (c.reloptions)
        OR 'security_invoker=on' = ANY (c.reloptions), false)
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
JOIN pg_roles AS r ON r.oid = c.relowner WHERE c.oid = %(oid)s
"""
_COLUMNS = """
SELECT quote_ident(attname) FROM pg_attribute
WHERE attrelid = %(oid)s AND attnum > 0 AND NOT attisdropped
    AND (attnum = ANY (%(columns)s) OR 0 = ANY (%(columns)s))
    AND NOT has_column_privilege(%(role)s, attrelid, attnum, 'SELECT') ORDER BY attnum
"""
_FUNCTIONS = """
SELECT p.oid::regprocedure::text FROM pg_proc AS p
WHERE p.oid = ANY (%s) AND NOT has_function_privilege(%s, p.oid, 'EXECUTE') ORDER BY 1
"""


@dataclass(frozen=True)
class _Relation:
    """The facts that decide whether a role may read a relation, in the order of _RELATION."""

    schema: str
    name: str
    kind: str
    owner: str
    is_temporary: bool
    may_use_schema: bool
    may_read: bool
    may_read_some: bool
    is_filtered: bool
    is_invokers: bool

    @property
    def sql(self) -> str:
        """Return the qualified name."""
        return f"{quote_name(self.schema)}.{quote_name(self.name)}"


def check_rights(cursor: Any, view: int, role: str) -> list[str]:
    """Require that `role` may run the query of the view with this oid.

    Return the names of the temporary tables that it reads: stubs of relations whose readers this
    database does not know. SourceError source.role_missing, source.privilege, source.row_security.
    """
    cursor.execute("SELECT FROM pg_roles WHERE rolname = %s", (role,))
    if cursor.fetchone() is None:
        raise SourceError(
            "source.role_missing",
            f'role "{role}" does not exist at the source',
            detail="its rights to read the tables cannot be checked",
            hint=f"at the source: CREATE ROLE {quote_name(role)}; and GRANT SELECT on the tables"
            " that the query reads",
        )
    stubs: list[str] = []
    _check_query(cursor, view, role, stubs, is_top=True, visited=set())
    return stubs


def _check_query(
    cursor: Any,
    view: int,
    role: str,
    stubs: list[str],
    *,
    is_top: bool,
    visited: set[tuple[int, str]],
) -> None:
    cursor.execute("SELECT ev_action::text FROM pg_rewrite WHERE ev_class = %s", (view,))
    (tree,) = cursor.fetchone() or ("",)
    cursor.execute(_FUNCTIONS, ([int(oid) for oid in set(_CALLS.findall(tree))], role))
    refused = cursor.fetchone()
    if refused is not None:
        raise SourceError(
            "source.privilege",
            f'role "{role}" may not call function {refused[0]}',
            hint=f"GRANT EXECUTE ON FUNCTION {refused[0]} TO {quote_name(role)};",
        )
    for oid, columns in _read(cursor, tree):
        cursor.execute(_RELATION, {"role": role, "oid": oid})
        relation = _Relation(*cursor.fetchone())
        if relation.is_temporary:
            stubs.append(relation.name)
        else:
            # Only the top query's names were resolved with the role's own schema rights.
            if is_top:
                _check_schema(relation, role)
            _check_relation(cursor, oid, relation, columns, role)
        if relation.kind == "v" and (oid, role) not in visited:
            visited.add((oid, role))
            inner = role if relation.is_invokers else relation.owner
            _check_query(cursor, oid, inner, stubs, is_top=False, visited=visited)


def _read(cursor: Any, tree: str) -> list[tuple[int, list[int]]]:
    """Return (relation, columns) of each entry that is selected from; column 0 is the whole row."""
    is_new = "{RTEPERMISSIONINFO" in tree
    found = []
    for oid, permissions, bits in _ENTRIES[is_new].findall(tree):
        if int(permissions) & _SELECT:
            found.append((int(oid), [int(bit) - _FIRST_BIT for bit in bits.split()]))
    return found


def _check_schema(relation: _Relation, role: str) -> None:
    if not relation.may_use_schema:
        raise SourceError(
            "source.privilege",
            f'role "{role}" may not use schema "{relation.schema}"',
            hint=f"GRANT USAGE ON SCHEMA {quote_name(relation.schema)} TO {quote_name(role)};",
        )


def _check_relation(
    cursor: Any, oid: int, relation: _Relation, columns: list[int], role: str
) -> None:
    if relation.is_filtered:
        raise SourceError(
            "source.row_security",
            f'row security of table "{relation.schema}.{relation.name}" hides rows from role'
            f' "{role}"',
            detail="the view would show these rows: it is computed once, for all readers",
            hint=f"ALTER ROLE {quote_name(role)} BYPASSRLS; or let another role create the view",
        )
    if relation.may_read:
        return
    cursor.execute(_COLUMNS, {"role": role, "oid": oid, "columns": columns})
    refused = [name for (name,) in cursor.fetchall()]
    if columns and not refused:
        return
    if not columns and relation.may_read_some:
        return
    only = f"({', '.join(refused)}) " if refused and relation.may_read_some else ""
    raise SourceError(
        "source.privilege",
        f'role "{role}" may not read table "{relation.schema}.{relation.name}"',
        detail=f"columns: {', '.join(refused)}" if only else "",
        hint=f"GRANT SELECT {only}ON {relation.sql} TO {quote_name(role)};",
    )
