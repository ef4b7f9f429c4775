"""A FeedSource of relations that are read whole, by interval.

A connector supplies how a relation is read (`Fetch`). The snapshot of a relation is its first poll,
stored with the state. A source has no history, so it is not replayable: the state is synced before
the sink sees an epoch. Nothing is reached before the first use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from connectors.feed_source import REJECTED_KINDS, FeedPositions, FeedStart
from connectors.pages import decode_delta
from connectors.polled.contents import Contents, lost_notes
from connectors.polled.feed import Fetch, PolledFeed, Watch, fetched
from connectors.polled.rows import RowOptions, RowReader
from connectors.polled.schedule import PollSchedule
from connectors.source import SourceBatch
from dataflow.delta import Delta
from dataflow.errors import SourceError
from dataflow.schema import Relation


@dataclass(frozen=True)
class Polled:
    """A relation as it is declared, and what reads it, given how its records become rows."""

    rows: RowOptions
    fetch: Callable[[RowReader], Fetch]


class PolledSource:
    """See FeedSource. relations: with resolved types. SourceError source.bad_option."""

    is_replayable = False

    def __init__(self, name: str, relations: Sequence[Relation], polled: Sequence[Polled]) -> None:
        self.name = name
        self._relations = list(relations)
        declared = {one.rows.name: one for one in polled}
        self._fetches: dict[str, Fetch] = {}
        self._schedules: dict[str, PollSchedule] = {}
        for relation in relations:
            own = declared.get(relation.name.name)
            if own is None:
                what = f'relation "{relation.name.name}" of source "{name}" is no longer declared'
                raise SourceError("source.bad_option", what, hint="declare it again")
            self._fetches[own.rows.name] = own.fetch(RowReader(own.rows, relation))
            self._schedules[own.rows.name] = PollSchedule(own.rows.interval_s)

    def relations(self) -> Sequence[Relation]:
        """Return the declared relations."""
        return self._relations

    def check(self) -> None:
        """Read each relation once. SourceError, TemporaryError."""
        for relation in self._relations:
            fetched(self._watch(relation, Contents.new(relation.name.name)))

    def start_position(self, relation: Relation) -> FeedStart:
        """Read a relation; return the position with these rows."""
        watch = self._watch(relation, Contents.new(relation.name.name))
        contents = watch.contents.after(relation, fetched(watch)).contents
        return FeedStart(contents.position, contents.notes())

    def open_snapshot(
        self, relations: Sequence[Relation], positions: FeedPositions, notes: Mapping[str, bytes]
    ) -> PolledSnapshot:
        """Return the rows in the notes."""
        names = {relation.name.name for relation in relations}
        return PolledSnapshot(
            [relation for relation in self._relations if relation.name.name in names],
            {name: Contents.read(name, positions[name], notes) for name in names},
        )

    def open_feed(
        self,
        relations: Sequence[Relation],
        positions: FeedPositions,
        notes: Mapping[str, bytes],
        on_ready: Callable[[], None],
    ) -> PolledFeed:
        """Return the changes since the polls in the notes."""
        watches = {}
        for relation in relations:
            name = relation.name.name
            # Read whole at first, since the options may be others than at the last poll.
            contents = replace(Contents.read(name, positions[name], notes), validators={})
            watches[name] = self._watch(relation, contents)
        owners = [(name, str(position["pin"])) for name, position in positions.items()]
        return PolledFeed(self.name, watches, lost_notes(notes, owners), on_ready)

    def decode_again(self, relation: Relation, rows: Delta) -> SourceBatch:
        """Return no changes: each poll reads every record again, also the malformed ones.

        A record that is valid then, or gone, leaves the dead letters with that poll.
        """
        return SourceBatch(0, [], 0, 0, source=self.name)

    def _watch(self, relation: Relation, contents: Contents) -> Watch:
        name = relation.name.name
        return Watch(relation, contents, self._fetches[name], self._schedules[name])


@dataclass
class PolledPart:
    """Some pages of a relation."""

    name: str
    columns: tuple[int, ...]
    pages: tuple[bytes, ...]
    bad: bytes

    def read(self) -> Iterator[Delta]:
        """See FeedPart."""
        for page in self.pages:
            yield decode_delta(page).project(self.columns)

    def rejected(self) -> Delta:
        """See FeedPart."""
        return decode_delta(self.bad) if self.bad else Delta.empty(REJECTED_KINDS)


class PolledSnapshot:
    """Relations as of the polls in the notes. declared: with all columns."""

    def __init__(self, declared: Sequence[Relation], contents: Mapping[str, Contents]) -> None:
        self._fields = {r.name.name: [f.name for f in r.fields] for r in declared}
        self._contents = contents

    def parts(
        self,
        relation: Relation,
        columns: Sequence[int],
        count: int,
        known: Sequence[str] = (),
    ) -> Sequence[PolledPart]:
        """See FeedSnapshot; the pages alone determine the parts."""
        found, fields = self._contents[relation.name.name], self._fields[relation.name.name]
        at_columns = tuple(fields.index(relation.fields[c].name) for c in columns)
        pages = [page for _, page in sorted(found.pages.items())]
        size = max(1, -(-len(pages) // max(1, count)))
        starts = range(0, len(pages), size) if pages else [0]
        name = f"{found.relation}-{found.pin}-{found.poll}-{size}"
        return [
            PolledPart(
                f"{name}-{at}",
                at_columns,
                tuple(pages[at : at + size]),
                b"" if at else found.bad,
            )
            for at in starts
        ]

    def close(self) -> None:
        """Do nothing: the snapshot holds nothing."""
