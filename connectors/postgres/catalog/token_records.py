"""The API tokens in the control tables, as hashes: only the holder has the token itself.

Invariant: rows are never deleted. So a revoked name differs from one that never existed, and an
empty table means that tokens were never required.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from datetime import datetime

from connectors.postgres.catalog.catalog import Control
from connectors.postgres.schema.stored_roles import current_name, current_oid
from dataflow.errors import SinkError

# The role that may create tokens.
FIRST_ROLE = "admin"


@dataclass(frozen=True)
class TokenRow:
    """A row of tidemark.tokens. id: unique and never used again, unlike the name.

    db_role: its name now, db_role_oid: its OID, None if it was dropped.
    """

    id: str
    name: str
    role: str
    hash: bytes
    db_role: str | None
    created_by: str
    created_at: datetime | None = None
    last_used_at: datetime | None = None
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    db_role_oid: int | None = None


_CURRENT = {
    "db_role": f"CASE WHEN db_role <> '' THEN {current_name('db_role', 'db_role_oid')} END",
    "db_role_oid": f"{current_oid('db_role', 'db_role_oid')}::bigint",
}
_COLUMNS = ", ".join(_CURRENT.get(f.name, f.name) for f in fields(TokenRow))


def insert_token(control: Control, row: TokenRow) -> None:
    """Store a new token. SinkError token.name_taken, token.first_not_admin.

    Two concurrent calls do not see each other; a first token that is not an admin's is refused
    anyway.
    """
    found = control.execute(
        "INSERT INTO tidemark.tokens"
        " (id, name, role, hash, db_role, created_by, expires_at, service)"
        " SELECT %s, %s, %s, %s, %s, %s, %s::timestamptz, %s"
        f" WHERE %s = '{FIRST_ROLE}' OR EXISTS (SELECT FROM tidemark.tokens WHERE service = %s)"
        " ON CONFLICT (service, name) WHERE revoked_at IS NULL DO NOTHING RETURNING 1",
        *(row.id, row.name, row.role, row.hash, row.db_role, row.created_by, row.expires_at),
        *(control.service, row.role, control.service),
    )
    if not found and row.role != FIRST_ROLE and not list_tokens(control):
        raise SinkError(
            "token.first_not_admin",
            f'token "{row.name}" has role {row.role}, but the first must have role {FIRST_ROLE}',
            detail="once a token exists every request needs one, and only an admin can create more",
            hint=f"run first: tidemark token create {FIRST_ROLE} --role {FIRST_ROLE}",
        )
    if not found:
        raise SinkError(
            "token.name_taken",
            f'token "{row.name}" exists already',
            hint="choose another name, or revoke it first",
        )


def list_tokens(control: Control) -> list[TokenRow]:
    """Return all tokens of the service ever created, oldest first."""
    sql = f"SELECT {_COLUMNS} FROM tidemark.tokens WHERE service = %s ORDER BY created_at, id"
    found = control.execute(sql, control.service)
    return [replace(row, hash=bytes(row.hash)) for row in (TokenRow(*facts) for facts in found)]


def revoke_token(control: Control, name: str) -> bool:
    """Revoke a token permanently; return False when there is none of this name."""
    sql = (
        "UPDATE tidemark.tokens SET revoked_at = now() "
        "WHERE (service, name) = (%s, %s) AND revoked_at IS NULL RETURNING 1"
    )
    return bool(control.execute(sql, control.service, name))


def mark_used(control: Control, ids: list[str]) -> None:
    """Record that tokens were used just now."""
    sql = "UPDATE tidemark.tokens SET last_used_at = now() WHERE id = ANY (%s) RETURNING 1"
    control.execute(sql, ids)
