"""Delta Lake tables as a source of batch runs (see the contract `connectors/<type>/source`).

A table's rows at one version, then the changes of each later one, are read in ranges. Nothing is
reached before the first use. The client library is an extra of the installation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from connectors.delta.ranges import DeltaRanges
from connectors.delta.table_log import TableLog
from connectors.delta.table_options import TableOptions, read_options
from connectors.feed_source import DeclaredRelation, FeedPositions, FeedStart, undeclared
from connectors.source import SourceBatch
from dataflow.schema import Relation


def declare(options: Mapping[str, Any]) -> Sequence[DeclaredRelation]:
    """Return the relations that the options declare."""
    return [relation.declared() for relation in read_options(options)]


def make(name: str, options: Mapping[str, Any], relations: Sequence[Relation]) -> DeltaSource:
    """Return the source, with its declared relations. SourceError source.bad_option."""
    return DeltaSource(name, options, relations)


class DeltaSource:
    """A RangedSource of tables. relations: from `declare`, with resolved types."""

    is_replayable = True

    def __init__(
        self, name: str, options: Mapping[str, Any], relations: Sequence[Relation]
    ) -> None:
        self.name = name
        self._relations = list(relations)
        self._options = {one.relation: one for one in read_options(options)}
        for relation in relations:
            if relation.name.name not in self._options:
                raise undeclared(name, relation)

    def relations(self) -> Sequence[Relation]:
        """Return the declared relations."""
        return self._relations

    def first_position(self, relation: Relation) -> FeedStart:
        """See BoundedSource: before the rows of the version at which the first run ends."""
        return FeedStart({})

    def current_end(self, relations: Sequence[Relation]) -> dict[str, int]:
        """See BoundedSource: the newest versions, by relation."""
        return {r.name.name: TableLog(r, self._own(r)).newest() for r in relations}

    def unranged(self, relation: Relation) -> str:
        """See RangedSource: all tables can be."""
        return ""

    def open_ranges(
        self,
        relations: Sequence[Relation],
        positions: FeedPositions,
        notes: Mapping[str, bytes],
        on_ready: Callable[[], None],
        end: Mapping[str, int],
    ) -> DeltaRanges:
        """See RangedSource."""
        tables = [(relation, self._own(relation)) for relation in relations]
        return DeltaRanges(self.name, tables, positions, end)

    def read_until(
        self,
        relations: Sequence[Relation],
        positions: FeedPositions,
        notes: Mapping[str, bytes],
        end: Mapping[str, int],
        max_rows: int,
    ) -> Iterator[SourceBatch]:
        """See BoundedSource: what the ranges have."""
        planner = self.open_ranges(relations, positions, notes, lambda: None, end)
        while ranges := planner.cut(1, max_rows):
            changes = [found for one in ranges for found in one.read()]
            batch = planner.join(ranges, [one.result() for one in ranges])
            batch.changes = changes
            yield batch

    def _own(self, relation: Relation) -> TableOptions:
        return self._options[relation.name.name]
