"""A database's tables at a position that is known only after a snapshot was taken.

Of a running database a snapshot can be had at a position that it chooses, not at a given one. So
the slot that gave the snapshot is kept: it tells what comes after, up to the wanted position, and
that is laid over the snapshot's tables (`overlay`). Nobody is stopped for it, neither the writers
of the database nor who else follows it; all of it ends with our sessions.
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

# What may happen between snapshot and position; it becomes part of the query's text.
MOST_ROWS = 20_000
_WAIT_S = 30.0
_POLL_ROWS = 5_000


class PointInTimeRead:
    """Relations from `start` on; `resolve` fixes the moment. Close it in any case."""

    def __init__(self, dsn: str, relations: Sequence[Relation], publication: str) -> None:
        self._relations = list(relations)
        self._publication = publication
        self._snapshot = PostgresSnapshot(dsn, relations, keeps_slot=True)
        self.start = self._snapshot.position
        self.overlays: dict[RelationName, Overlay] = {}

    def resolve(self, position: int) -> None:
        """Find out what is different at `position`, at or after `start`, in `overlays`.

        TemporaryError verify.too_much when more has happened than a query may hold.
        """
        self.overlays = {r.name: Overlay(r) for r in self._relations}
        if position > self.start:
            self._read(position)
        for overlay in self.overlays.values():
            overlay.resolve(self._fetch)

    @property
    def snapshot_id(self) -> str:
        """The snapshot's name, for sessions that join it."""
        return self._snapshot.snapshot_id

    def open_session(self) -> Connection:
        """A read-only session in the snapshot; the caller closes it."""
        return self._snapshot.open_session()

    def close(self) -> None:
        """Give snapshot and slot back."""
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
                    if rows > MOST_ROWS:
                        break
                    self.overlays[changes.relation.name].add(changes)
                if rows > MOST_ROWS or time.monotonic() > deadline:
                    what = "too much has changed while the view was being verified"
                    hint = "try again when less is written"
                    raise TemporaryError("verify.too_much", what, hint=hint)
        finally:
            stream.close()

    def _fetch(self, relation: Relation, keys: Delta) -> Iterable[Delta]:
        columns = range(len(relation.fields))
        return self._snapshot.part_of_keys(relation, columns, keys).read()
