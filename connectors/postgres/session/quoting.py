"""Names and strings as SQL text, for every statement that we generate."""

from __future__ import annotations

NAME_BYTES = 63
# Whether a role, given by SQL for its oid, is a superuser or a direct or indirect member of one. A
# new member of such a role can act as that superuser.
LEADS_TO_SUPERUSER = (
    "EXISTS (SELECT FROM pg_roles AS s WHERE s.rolsuper AND pg_has_role({}, s.oid, 'MEMBER'))"
)


def quote_name(name: str) -> str:
    """Return an SQL identifier.

    >>> print(quote_name('we "ird'))
    "we ""ird"
    """
    return '"' + name.replace('"', '""') + '"'


def quote_text(text: str) -> str:
    """Return an SQL string literal.

    >>> print(quote_text("it's"))
    'it''s'
    """
    return "'" + text.replace("'", "''") + "'"


def clip_name(name: str, size: int = NAME_BYTES) -> str:
    """Return as many whole characters of a name as fit into `size` bytes of UTF-8."""
    return name.encode()[:size].decode(errors="ignore")
