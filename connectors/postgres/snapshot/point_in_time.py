"""Read a database's tables at a position that is known only after a snapshot was taken.

A running database gives a snapshot at a position that it chooses, not at a given one. So we retain
the slot that exported the snapshot. Its stream yields the changes up to the desired position, which
are laid over the snapshot's tables (`overlay`). This blocks nobody, neither the database's writers
nor other readers of its WAL; it ends with our sessions. One thread.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from psycopg2.extensions import connection as Connection

from connectors.postgres.snapshot.overlay import Overlay
from connectors.postgres.snapshot.snapshot import PostgresSnapshot
from dataflow.delta import Delta
from dataflow.errors import TemporaryError
from dataflow.schema import Relation, RelationName

# The most changed rows between snapshot and position; they become part of the query's text.
MAX_ROWS = 20_000
_WAIT_S = 30.0
_POLL_ROWS = 5_000


class PointInTimeRead:
    """Relations from `start` on; `resolve` fixes the position. Always close it."""

    def __init__(self, dsn: str, relations: Sequence[Relation], publication: str) -> None:
        self._relations = list(relations)
        self._publication = publication
        self._snapshot = PostgresSnapshot(dsn, relations, keeps_slot=True)
        self.start = self._snapshot.position
        self.overlays: dict[RelationName, Overlay] = {}

    def resolve(self, position: int) -> None:
        """Collect the differences at `position`, at or after `start`, in `overlays`.

        TemporaryError verify.too_much when there are more than a query can contain.
        """
        self.overlays = {r.name: Overlay(r) for r in self._relations}
        if position > self.start:
            self._read(position)
        for overlay in self.overlays.values():
            overlay.resolve(self._fetch)

    @property
    def snapshot_id(self) -> str:
        """Return the snapshot's name, for sessions that join it."""
        return self._snapshot.snapshot_id

    def open_session(self) -> Connection:
        """Open a read-only session in the snapshot; the caller closes it."""
        return self._snapshot.open_session()

    def close(self) -> None:
        """Release snapshot and slot."""
        self._snapshot.close()

    def _read(self, position: int) -> None:
        stream = self._snapshot.stream(self._relations, self._publication)
        deadline = time.monotonic() + _WAIT_S
        rows = 0
        try:
            while stream.position < position:
                batch = stream.poll(_POLL_ROWS, 0.2, until=position)
                for changes in () if batch is None else (c for k in batch.chunks() for c in k):
                    rows += len(changes)
                    if rows > MAX_ROWS:
                        break
                    self.overlays[changes.relation.name].add(changes)
                if rows > MAX_ROWS or time.monotonic() > deadline:
                    what = "too many rows changed while the view was being verified"
                    hint = "try again when the source has fewer writes"
                    raise TemporaryError("verify.too_much", what, hint=hint)
        finally:
            stream.close()

    def _fetch(self, relation: Relation, keys: Delta) -> Iterable[Delta]:
        columns = range(len(relation.fields))
        return self._snapshot.part_of_keys(relation, columns, keys).read()
