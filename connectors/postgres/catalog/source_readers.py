"""Who may read the relations of declared sources: each source's declarer, and grants.

PostgreSQL decides, with the roles of the sink as they are at the moment of the question. Members of
the declarer's role, of a grantee or of the service's own role count (pg_has_role with USAGE).
Invariant: roles are stored by oid, so a role that was dropped and created again has no rights.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from connectors.postgres.catalog.catalog import Control
from connectors.postgres.session.quoting import quote_text
from dataflow.errors import SourceError
from dataflow.lexer import find_words
from dataflow.schema import RelationName

# The grantee that stands for every role; PostgreSQL reserves the name.
PUBLIC = "public"

_UNREADABLE = """
SELECT q.source, q.relation FROM unnest(%s::text[], %s::text[]) AS q (source, relation)
WHERE NOT coalesce((SELECT tidemark.reads_source(r.oid, %s, q.source, q.relation)
    FROM pg_roles AS r WHERE r.rolname = %s), false)
"""
_READABLE = """
SELECT s.name, o ->> 'name' FROM pg_roles AS r
CROSS JOIN tidemark.sources AS s CROSS JOIN LATERAL json_array_elements(s.relations) AS o
WHERE r.rolname = %s AND s.service = %s
    AND tidemark.reads_source(r.oid, s.service, s.name, o ->> 'name')
"""
_OWNS = "SELECT tidemark.owns_source(oid, %s, %s) FROM pg_roles WHERE rolname = %s"
# A role of the exact name comes first: "PUBLIC" can be one.
_GRANTEE = """
WITH request (service, source, relation, role) AS (VALUES (%s, %s, %s, %s)), grantee (oid) AS (
    SELECT oid FROM pg_roles WHERE rolname = (SELECT role FROM request)
    UNION ALL SELECT 0::oid FROM request WHERE lower(role) = 'public' LIMIT 1)
"""
_GRANT = f"""{_GRANTEE}, made AS (
    INSERT INTO tidemark.source_readers (service, source, relation, grantee, granted_by)
    SELECT q.service, q.source, q.relation, g.oid::regrole, %s
    FROM request AS q CROSS JOIN grantee AS g
    ON CONFLICT DO NOTHING)
SELECT FROM grantee
"""
_REVOKE = f"""{_GRANTEE}
DELETE FROM tidemark.source_readers AS r USING grantee AS g, request AS q
WHERE r.grantee = g.oid
    AND (r.service, r.source, r.relation) = (q.service, q.source, q.relation) RETURNING 1
"""
# Nobody can use what was granted to a role that was dropped.
_PURGE = """
DELETE FROM tidemark.source_readers AS r
WHERE r.grantee <> 0::oid AND NOT EXISTS (SELECT FROM pg_roles WHERE oid = r.grantee) RETURNING 1
"""
_GRANTS = """
SELECT r.source, r.relation, CASE WHEN r.grantee = 0::oid THEN %s ELSE g.rolname END,
    r.granted_by, r.granted_at
FROM tidemark.source_readers AS r LEFT JOIN pg_roles AS g ON g.oid = r.grantee
WHERE r.service = %s AND (r.grantee = 0::oid OR g.oid IS NOT NULL) ORDER BY 1, 2, 3
"""
_DIGEST = """
SELECT md5(string_agg(part, ',' ORDER BY part)) FROM (SELECT %s) AS q (title), LATERAL (
    SELECT concat_ws(' ', 'grant', source, relation, grantee::oid) FROM tidemark.source_readers
    WHERE service = q.title
    UNION ALL SELECT concat_ws(' ', 'source', name, declared_by::oid) FROM tidemark.sources
    WHERE service = q.title
) AS parts (part)
"""
_DECLARERS = """
SELECT s.name, r.rolname FROM tidemark.sources AS s JOIN pg_roles AS r ON r.oid = s.declared_by
WHERE s.service = %s
"""


@dataclass(frozen=True)
class SourceGrant:
    """A grant of a source, or of one relation ("": all). role: PUBLIC, or one of the sink."""

    source: str
    relation: str
    role: str
    granted_by: str
    granted_at: datetime


def unreadable(
    control: Control, role: str, relations: Iterable[tuple[str, str]]
) -> list[tuple[str, str]]:
    """Return those of the (source, relation) pairs that a role may not read now.

    A relation "" stands for all of its source. A role that does not exist may read none.
    """
    pairs = list(relations)
    if not pairs:
        return []
    sources, names = [source for source, _ in pairs], [name for _, name in pairs]
    return [(s, r) for s, r in control.rows(_UNREADABLE, sources, names, control.service, role)]


def readable(control: Control, role: str) -> set[tuple[str, str]]:
    """Return all (source, relation) pairs that a role may read now."""
    return set(control.rows(_READABLE, role, control.service))


def require_readable(
    control: Control, role: str, relations: Sequence[RelationName], query: str = ""
) -> None:
    """Require that a role may read relations that a query names. SourceError source.no_grant."""
    refused = unreadable(control, role, [(r.source, r.name) for r in relations])
    if refused:
        raise no_grant(f'role "{role}"', *refused[0], role=role, query=query)


def no_grant(
    who: str, source: str, relation: str = "", *, role: str = "ROLE", query: str = ""
) -> SourceError:
    """Return the error for a relation that somebody may not read. query: the text that names it."""
    title = f"{source}.{relation}" if relation else source
    what = f'relation "{title}"' if relation else f'source "{title}"'
    words = f"{shlex.quote(title)} TO {shlex.quote(role)}"
    return SourceError(
        "source.no_grant",
        f"{who} may not read {what}",
        detail="the rows of a source are for its declarer, the service, and granted roles",
        hint=f"its declarer or an operator runs: tidemark sources grant {words}; or in psql:"
        f" CALL tidemark.grant_source({quote_text(title)}, {quote_text(role)});",
        position=find_words(query, [relation]) if query and relation else None,
    )


def owns(control: Control, role: str, source: str) -> bool:
    """Return whether a role may grant a source: a member of its declarer, or of the service."""
    return control.rows(_OWNS, control.service, source, role) == [(True,)]


def grant(control: Control, source: str, relation: str, role: str, by: str) -> bool:
    """Let a role, or PUBLIC, read a relation, or with "" a source; return False without the role.

    A grant that exists stays as it is.
    """
    control.rows(_PURGE)
    return bool(control.rows(_GRANT, control.service, source, relation, role, by))


def revoke(control: Control, source: str, relation: str, role: str) -> bool:
    """Take one grant back; return False without the role or the grant."""
    control.rows(_PURGE)
    return bool(control.rows(_REVOKE, control.service, source, relation, role))


def grants(control: Control) -> list[SourceGrant]:
    """Return all grants to roles that exist, by source, relation and role."""
    return [SourceGrant(*facts) for facts in control.rows(_GRANTS, PUBLIC, control.service)]


def digest(control: Control) -> str:
    """Return a digest of all grants and declarers, to learn that one has changed."""
    return control.rows(_DIGEST, control.service)[0][0] or ""


def declarers(control: Control) -> dict[str, str]:
    """Return the role that declared each source; the service's own are absent."""
    return dict(control.rows(_DECLARERS, control.service))
