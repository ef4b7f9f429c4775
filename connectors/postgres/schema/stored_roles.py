"""Roles in the control tables: by name and OID (0028_identities.sql).

Invariant: a role that is created under the name of a dropped one gets nothing that was the other's.
Whoever reads a stored name reads it by `current_name`, and compares roles by their OIDs.
"""

from __future__ import annotations

# No role can be given a name that begins like this.
DROPPED = "pg_dropped:"


def current_name(name: str, oid: str) -> str:
    """Return SQL for the name that a stored role has now; DROPPED and its last name without one.

    name, oid: the columns that store it.
    """
    return f"tidemark.role_title({name}, {oid})"


def current_oid(name: str, oid: str) -> str:
    """Return SQL for the OID of a stored role; NULL if it was dropped."""
    return f"tidemark.role_of({name}, {oid})"
