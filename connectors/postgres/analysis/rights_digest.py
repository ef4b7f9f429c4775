"""Digests of the rights that decide who may run a query, to learn that they changed.

A few index lookups for any number of queries, while `rights.check_rights` analyzes each of them.
Invariant: whatever that check reads changes a digest: roles and their attributes, membership,
owners and grants of schemas, relations, columns and functions, and row security.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# Whatever the query: who is who, and what was taken from all of PostgreSQL's own functions.
_ROLES = """
SELECT md5(string_agg(part, ',' ORDER BY part)) FROM (
    SELECT concat_ws(' ', 'role', oid, rolname, rolsuper, rolinherit, rolbypassrls) FROM pg_roles
    UNION ALL SELECT concat_ws(' ', 'member', to_jsonb(m)) FROM pg_auth_members AS m
    UNION ALL SELECT concat_ws(' ', 'schema', oid, nspname, nspowner, nspacl) FROM pg_namespace
        WHERE left(nspname, 8) NOT IN ('pg_temp_', 'pg_toast')
    UNION ALL SELECT concat_ws(' ', 'function', oid, proacl) FROM pg_proc
        WHERE oid < 16384 AND proacl IS NOT NULL
) AS parts (part)
"""
_OF_RELATION = """md5(concat_ws(' ', c.oid, c.relowner, c.relacl, c.relrowsecurity,
    c.relforcerowsecurity, c.reloptions,
    (SELECT string_agg(concat_ws(' ', a.attnum, a.attacl), ',' ORDER BY a.attnum)
        FROM pg_attribute AS a WHERE a.attrelid = c.oid AND a.attacl IS NOT NULL)))"""
_NAMED = f"""
SELECT n.nspname, c.relname, {_OF_RELATION}
FROM unnest(%s::text[], %s::text[]) AS g (schema, name)
JOIN pg_namespace AS n ON n.nspname = g.schema
JOIN pg_class AS c ON c.relnamespace = n.oid AND c.relname = g.name
"""
_OBJECTS = f"""
SELECT 'pg_proc', p.oid::bigint, md5(concat_ws(' ', p.proowner, p.proacl)) FROM pg_proc AS p
WHERE p.oid = ANY (%s::oid[])
UNION ALL
SELECT 'pg_class', c.oid::bigint, {_OF_RELATION} FROM pg_class AS c WHERE c.oid = ANY (%s::oid[])
"""

Run = Callable[..., Sequence[tuple[Any, ...]]]


@dataclass(frozen=True)
class Subjects:
    """What a query reads and calls: objects by catalog (pg_class, pg_proc) and oid, others by
    (schema, name)."""

    objects: frozenset[tuple[str, int]]
    named: frozenset[tuple[str, str]] = frozenset()


def read_digests(run: Run, queries: Mapping[str, Subjects]) -> dict[str, str]:
    """Return a digest for each query, by its key, of one database.

    run: executes a statement with parameters, and returns its rows.
    """
    named = sorted(set[tuple[str, str]]().union(*(q.named for q in queries.values())))
    objects = set[tuple[str, int]]().union(*(q.objects for q in queries.values()))
    schemas, names = [s for s, _ in named], [n for _, n in named]
    functions, relations = ([i for c, i in objects if c == of] for of in ("pg_proc", "pg_class"))
    ((roles,),) = run(_ROLES)
    found: dict[tuple[str, Any], str] = {
        (first, second): digest
        for sql, parameters in ((_NAMED, (schemas, names)), (_OBJECTS, (functions, relations)))
        for first, second, digest in run(sql, *parameters)
    }
    return {
        key: _joined([roles, *(found.get(s, "") for s in (*sorted(q.objects), *sorted(q.named)))])
        for key, q in queries.items()
    }


def _joined(parts: Iterable[str]) -> str:
    return hashlib.md5(" ".join(parts).encode(), usedforsecurity=False).hexdigest()
