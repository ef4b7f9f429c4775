"""A snapshot of declared relations: one exported snapshot of their database, read in parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from connectors.feed_source import REJECTED_KINDS, FeedPart, FeedPosition
from connectors.postgres.snapshot.snapshot import PostgresSnapshot
from connectors.postgres.snapshot.snapshot_parts import PostgresSnapshotPart
from dataflow.delta import Delta
from dataflow.schema import Relation, RelationName


@dataclass
class RemotePart:
    """Some pages of a table, in one exported snapshot.

    name: with the snapshot's, since another one's parts have other rows.
    """

    name: str
    part: PostgresSnapshotPart

    def read(self) -> Iterator[Delta]:
        """See FeedPart."""
        yield from self.part.read()

    def rejected(self) -> Delta:
        """Return nothing: the columns have the types of the table."""
        return Delta.empty(REJECTED_KINDS)


class RemoteSnapshot:
    """A ChosenSnapshot. wires: the wire relations of those that were requested."""

    def __init__(
        self,
        snapshot: PostgresSnapshot,
        wires: Mapping[RelationName, Relation],
        position: FeedPosition,
    ) -> None:
        self.position = position
        self._snapshot = snapshot
        self._wires = wires

    def parts(
        self,
        relation: Relation,
        columns: Sequence[int],
        count: int,
        known: Sequence[str] = (),
    ) -> Sequence[FeedPart]:
        """See FeedSnapshot: ranges of pages. known: parts of earlier snapshots, which are gone."""
        parts = self._snapshot.parts(self._wires[relation.name], columns, count)
        return [RemotePart(f"{part.snapshot_id}:{part.name}", part) for part in parts]

    def close(self) -> None:
        """End the snapshot: parts that were not read can no longer be."""
        self._snapshot.close()
