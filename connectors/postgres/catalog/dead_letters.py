"""Malformed records, in tidemark.dead_letters: stored whole, identified by their position.

Invariant: a record is stored once, however often it was read. It is deleted when it became a row or
was dropped, in the transaction of the epoch that resolves it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

from connectors.feed_source import REJECTED_COLUMNS, REJECTED_KINDS
from connectors.postgres.catalog.catalog import Control
from dataflow.delta import Delta
from dataflow.schema import RelationName

_COLUMNS = ", ".join(REJECTED_COLUMNS)
# Of this service's groups.
_OWN = "split_part(sink_key, '/', 1) = %s"


@dataclass(frozen=True)
class DeadLetter:
    """A row of tidemark.dead_letters. position: partition:offset, or path:line. sink_key: its
    reader's."""

    source: str
    relation: str
    position: str
    code: str
    reason: str
    key: bytes | None
    value: bytes | None
    desired: str | None
    first_seen: datetime
    sink_key: str


class DeadLetters:
    """Queries of REST, CLI and pipeline on the table."""

    def __init__(self, control: Control) -> None:
        self._control = control

    def read(
        self,
        source: str,
        relation: str,
        limit: int,
        after: str = "",
        *,
        among: Collection[tuple[str, str]] | None = None,
    ) -> list[DeadLetter]:
        """Return up to `limit` dead letters after a position, by position.

        source, relation: "" for any. among: restricts the answer to these (source, relation).
        """
        sources, relations = [s for s, _ in among or ()], [r for _, r in among or ()]
        sql = (
            f"SELECT {_COLUMNS}, desired, first_seen, sink_key FROM tidemark.dead_letters "
            f"WHERE {_OWN} AND (%s = '' OR source = %s) AND (%s = '' OR relation = %s) "
            "AND position > %s "
            "AND (%s OR (source, relation) IN (SELECT * FROM unnest(%s::text[], %s::text[]))) "
            "ORDER BY source, relation, position LIMIT %s"
        )
        chosen = (self._control.service, source, source, relation, relation, after)
        found = self._control.execute(sql, *chosen, among is None, sources, relations, limit)
        return [_letter(row) for row in found]

    def counts(self) -> dict[RelationName, int]:
        """Return the number by relation; relations without any are absent."""
        sql = (
            "SELECT source, relation, count(*) FROM tidemark.dead_letters "
            f"WHERE {_OWN} GROUP BY 1, 2"
        )
        found = self._control.execute(sql, self._control.service)
        return {RelationName(s, s, r): n for s, r, n in found}

    def mark(self, desired: str, source: str, relation: str, positions: Sequence[str]) -> int:
        """Request "retry" or "drop"; return the number of records. positions: of one relation, []
        for all.
        """
        sql = (
            f"UPDATE tidemark.dead_letters SET desired = %s WHERE {_OWN} AND source = %s "
            "AND (%s = '' OR relation = %s) AND (%s OR position = ANY (%s)) RETURNING 1"
        )
        chosen = list(positions)
        whose = (desired, self._control.service, source, relation, relation)
        found = self._control.execute(sql, *whose, not chosen, chosen)
        return len(found)

    def mark_gone(self, source: str) -> None:
        """Delete all records of a dropped source."""
        self._control.execute(
            f"DELETE FROM tidemark.dead_letters WHERE {_OWN} AND source = %s RETURNING 1",
            *(self._control.service, source),
        )

    def marked(self, sink_key: str, limit: int) -> list[DeadLetter]:
        """Return up to `limit` records of a reader with a request."""
        sql = (
            f"SELECT {_COLUMNS}, desired, first_seen, sink_key FROM tidemark.dead_letters "
            "WHERE sink_key = %s AND desired IS NOT NULL "
            "ORDER BY source, relation, desired, position LIMIT %s"
        )
        return [_letter(row) for row in self._control.execute(sql, sink_key, limit)]

    def unmark(self, sink_key: str, name: RelationName, positions: Sequence[str]) -> None:
        """Clear requests that are being carried out."""
        sql = (
            "UPDATE tidemark.dead_letters SET desired = NULL "
            "WHERE (sink_key, source, relation) = (%s, %s, %s) AND position = ANY (%s) RETURNING 1"
        )
        self._control.execute(sql, sink_key, name.source, name.name, list(positions))


def to_delta(letters: Sequence[DeadLetter]) -> Delta:
    """Return the rows as the sources reported them, with weight 1."""
    rows = [(x.source, x.relation, x.position, x.code, x.reason, x.key, x.value) for x in letters]
    return Delta.of(REJECTED_KINDS, rows, [1] * len(rows))


def _letter(row: Sequence[Any]) -> DeadLetter:
    facts = dict(zip((f.name for f in fields(DeadLetter)), row, strict=True))
    raw = {name: _bytes(facts[name]) for name in ("key", "value")}
    return DeadLetter(**{**facts, **raw})


def _bytes(value: memoryview | None) -> bytes | None:
    return None if value is None else bytes(value)
