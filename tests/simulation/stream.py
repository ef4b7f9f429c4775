"""The replication stream of a simulation: whole transactions, cut and told as PostgreSQL does it.

What is sent of an old row depends on the replica identity; values that are stored apart and did
not change are not sent; a transaction may come in several chunks, several in one batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from connectors.source import SourceBatch
from dataflow.changes import Changes
from dataflow.delta import Delta
from dataflow.errors import TemporaryError
from dataflow.schema import Relation
from tests.simulation.faults import Faults, Violation
from tests.simulation.server import Row, Server
from tests.simulation.shop import EVERY, Change, Commit


class SimStream:
    """As ReplicationStream: transactions after `start`, in order, each whole."""

    silent_s = 0.0

    def __init__(
        self, server: Server, faults: Faults, start: int, relations: Sequence[Relation]
    ) -> None:
        self._server = server
        self._faults = faults
        self._relations = {r.name.name: r for r in relations}
        self.position = start
        self._seen = start
        self._is_woken = False
        self._is_lost = False

    @property
    def received_position(self) -> int:
        return max(self.position, self._server.end)

    def poll(
        self, max_rows: int, timeout_s: float, *, until: int | None = None
    ) -> SourceBatch | None:
        self._faults.step("stream.poll")
        if self._is_lost or self._faults.happens("source.lost"):
            self._is_lost = True
            raise away()
        if not self._waiting(until) and self._idle(until) <= self.position:
            self._faults.pause(timeout_s, lambda: self._is_woken or bool(self._waiting(until)))
            self._is_woken = False
            if not self._waiting(until):
                return None
        taken, rows = [], 0
        for commit in self._waiting(until):
            size = max(1, len(commit.changes))
            if taken and (rows + size > max_rows or self._faults.random.random() < 0.3):
                break
            taken.append(commit)
            rows += size
        is_all = len(taken) == len(self._waiting(until))
        position = taken[-1].end if taken else self.position
        # Sometimes the server has told of WAL without changes for us behind the last commit.
        if not taken or (is_all and self._faults.random.random() < 0.5):
            position = max(position, self._idle(until))
        return self._batch(taken, position)

    def confirm(self, position: int) -> None:
        if position > self.position:
            raise Violation(f"{position} was confirmed before it was read")
        self._faults.step("stream.confirm")
        if not self._is_lost:
            self._server.confirm(position)

    def wake(self) -> None:
        self._is_woken = True

    def has_truncation(self, xid: int, oid: int, position: int) -> bool:
        return False

    def close(self) -> None:
        """The next stream has what this one has not handed out."""

    def _waiting(self, until: int | None) -> list[Commit]:
        most = self._server.end if until is None else until
        return [c for c in self._server.log if self.position < c.end <= most]

    def _idle(self, until: int | None) -> int:
        return self._server.end if until is None else min(until, self._server.end)

    def _batch(self, taken: list[Commit], position: int) -> SourceBatch:
        self.position = position
        changes = [c for commit in taken for c in self._sent(commit)]
        chunks = [self._decoded(part) for part in self._cut(changes)]
        first, rest = (chunks[0], chunks[1:]) if chunks else ([], [])
        return SourceBatch(
            position,
            first,
            len(taken),
            len(changes),
            taken[-1].at_us if taken else 0,
            taken[-1].end if taken else 0,
            iter(rest) if rest else None,
        )

    def _sent(self, commit: Commit) -> list[Change]:
        return [c for c in commit.changes if c[0] in self._relations and c[0] in commit.published]

    def _cut(self, changes: list[Change]) -> list[list[Change]]:
        """Chunks, none of which tears an update or shows a key twice."""
        if len(changes) < 4 or self._faults.random.random() < 0.5:
            return [changes] if changes else []
        at = self._faults.random.randint(1, len(changes) - 1)
        return [changes[:at], changes[at:]]

    def _decoded(self, changes: list[Change]) -> list[Changes]:
        """Neighbours of one relation together."""
        found: list[tuple[str, list[Change]]] = []
        for change in changes:
            if not found or found[-1][0] != change[0]:
                found.append((change[0], []))
            found[-1][1].append(change)
        return [self._changes(self._relations[name], part) for name, part in found]

    def _changes(self, relation: Relation, changes: list[Change]) -> Changes:
        full = EVERY[relation.name.name]
        offsets = [[f.name for f in full.fields].index(f.name) for f in relation.fields]
        kinds: list[int] = []
        rows: list[Row] = []
        unsent: list[set[int]] = []
        for _, kind, old, new in changes:
            for letter, row, is_key in _letters(relation, full, kind, old, new):
                shown = [None if row is None else row[c] for c in offsets]
                if is_key:
                    shown = [v if i in relation.key else None for i, v in enumerate(shown)]
                skipped = set()
                if letter == Changes.NEW and old is not None and not relation.is_full:
                    # A value that is stored apart and did not change is not sent.
                    skipped = {
                        i
                        for i, c in enumerate(offsets)
                        if full.fields[c].name == "note" and old[c] == row[c] and row[c]  # type: ignore[index]
                    }
                kinds.append(letter)
                rows.append(tuple(None if i in skipped else v for i, v in enumerate(shown)))
                unsent.append(skipped)
        physical = "".join(f.type.physical for f in relation.fields)
        masks = {
            i: np.array([i in skipped for skipped in unsent], np.bool_)
            for i in sorted(set().union(*unsent))
        }
        columns = Delta.of(physical, rows).columns
        return Changes(relation, np.array(kinds, np.uint8), tuple(columns), masks)


def _letters(
    relation: Relation, full: Relation, kind: str, old: Row | None, new: Row | None
) -> Iterator[tuple[int, Row | None, bool]]:
    """(letter, row, whether only its key is sent) as the replica identity has it."""
    if kind == "T":
        yield Changes.TRUNCATE, None, False
    elif kind == "I":
        yield Changes.INSERT, new, False
    elif kind == "D":
        is_full = relation.is_full
        yield (Changes.DELETE if is_full else Changes.DELETE_KEY), old, not is_full
    else:
        assert old is not None and new is not None
        if relation.is_full:
            yield Changes.OLD, old, False
        elif any(old[i] != new[i] for i in full.key):
            yield Changes.OLD_KEY, old, True
        yield Changes.NEW, new, False


def away() -> TemporaryError:
    """The connection was lost."""
    return TemporaryError("source.unreachable", "the simulated source cannot be reached")
