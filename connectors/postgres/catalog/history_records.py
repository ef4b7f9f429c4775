"""The retained pasts of views and their named readers, in schema tidemark.

A reader (a subscription) is its name and the epoch that it has read; what comes after that is in
the history of its view. Invariant: an acknowledged epoch only moves forward.
"""

from __future__ import annotations

from dataclasses import dataclass

from connectors.postgres.catalog.catalog import Control

_STANDINGS = """
SELECT schema, name, history::text, extract(epoch FROM retained)::float8, begun_epoch,
    oldest_epoch, to_char(oldest_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
    newest_epoch
FROM tidemark.history
"""
_COLUMNS = """name, epoch, created_by, token_id,
    to_char(created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
    to_char(acknowledged_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')"""
_ADD = f"""
INSERT INTO tidemark.subscriptions (view_identity, name, epoch, created_by, token_id)
SELECT %s, %s, %s, %s, %s
WHERE (SELECT count(*) FROM tidemark.subscriptions WHERE view_identity = %s) < %s
ON CONFLICT DO NOTHING RETURNING {_COLUMNS}
"""


@dataclass(frozen=True)
class HistoryRow:
    """The retained past of a view. relation: what users read. retained_s: in seconds.

    oldest_at: the clock of the oldest readable epoch, as ISO 8601 in UTC.
    """

    relation: str
    retained_s: float
    begun_epoch: int
    oldest_epoch: int
    oldest_at: str
    newest_epoch: int


@dataclass(frozen=True)
class SubscriptionRow:
    """A named reader of a view, and the epoch that it has read. Times are ISO 8601 in UTC.

    created_by, token_id: name and id of the token that created it; only the id is compared.
    """

    name: str
    epoch: int
    created_by: str
    token_id: str | None
    created_at: str
    acknowledged_at: str


def histories(control: Control) -> dict[tuple[str, str], HistoryRow]:
    """Return the retained pasts by (schema, name) of their view."""
    return {(s, n): HistoryRow(*facts) for s, n, *facts in control.rows(_STANDINGS)}


def newest_epochs(control: Control) -> dict[tuple[str, str], int]:
    """Return the newest epoch of each retained past, by (schema, name) of its view."""
    found = control.rows("SELECT schema, name, newest_epoch FROM tidemark.history")
    return {(schema, name): epoch for schema, name, epoch in found}


def add_subscription(
    control: Control, identity: str, row: tuple[str, int, str, str], most: int
) -> SubscriptionRow | None:
    """Enter a reader of a view: (name, epoch, the creator's name and id);
    None if it exists or there are `most`."""
    found = control.rows(_ADD, identity, *row, identity, most)
    return SubscriptionRow(*found[0]) if found else None


def subscriptions(control: Control, identity: str) -> list[SubscriptionRow]:
    """Return the readers of a view, by name."""
    sql = f"SELECT {_COLUMNS} FROM tidemark.subscriptions WHERE view_identity = %s ORDER BY name"
    return [SubscriptionRow(*facts) for facts in control.rows(sql, identity)]


def acknowledge(control: Control, identity: str, name: str, epoch: int) -> None:
    """Move a reader on to an epoch, unless it has read more."""
    control.rows(
        "UPDATE tidemark.subscriptions SET epoch = %s, acknowledged_at = now() "
        "WHERE (view_identity, name) = (%s, %s) AND epoch <= %s RETURNING 1",
        epoch,
        identity,
        name,
        epoch,
    )


def drop_subscription(control: Control, identity: str, name: str) -> bool:
    """Remove a reader; return False if there is none."""
    return bool(
        control.rows(
            "DELETE FROM tidemark.subscriptions WHERE (view_identity, name) = (%s, %s) RETURNING 1",
            identity,
            name,
        )
    )
