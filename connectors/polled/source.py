"""A FeedSource of relations that are read whole, by interval.

A connector supplies how a relation is read (`Fetch`). The snapshot of a relation is its first poll,
stored with the state. A source has no history, so it is not replayable: the state is synced before
the sink sees an epoch. Nothing is reached before the first use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

from connectors.feed_source import (
    REJECTED_KINDS,
    FeedPart,
    FeedPosition,
    FeedPositions,
    FeedStart,
    undeclared,
)
from connectors.pages import decode_delta
from connectors.polled.contents import (
    Contents,
    Fetched,
    PolledContents,
    lost_notes,
    required_at,
)
from connectors.polled.cursor import Below, CursorContents, CursorOptions
from connectors.polled.feed import Fetch, PolledFeed, SelectiveFetch, Watch, fetched
from connectors.polled.rows import RowOptions, RowReader
from connectors.polled.schedule import PollSchedule
from connectors.pushdown import PushdownRequirement, covers
from connectors.source import SourceBatch
from dataflow.delta import Delta
from dataflow.schema import Relation


@dataclass(frozen=True)
class Polled:
    """A relation as it is declared, and what reads it, given how its records become rows.

    cursor: of a relation to which rows are only added; below: returns what reads its older rows.
    is_selective: what reads it is a SelectiveFetch.
    """

    rows: RowOptions
    fetch: Callable[[RowReader], Fetch]
    cursor: CursorOptions | None = None
    below: Callable[[Relation], Below] | None = None
    is_selective: bool = False


class PolledSource:
    """See FeedSource. relations: with resolved types. SourceError source.bad_option."""

    is_replayable = False

    def __init__(self, name: str, relations: Sequence[Relation], polled: Sequence[Polled]) -> None:
        self.name = name
        self._relations = list(relations)
        declared = {one.rows.name: one for one in polled}
        self._fetches: dict[str, Fetch] = {}
        self._schedules: dict[str, PollSchedule] = {}
        self._polled = declared
        # What is required, and the feed that reads it, may be set while another thread polls.
        self._required: dict[str, PushdownRequirement] = {}
        self._feed: PolledFeed | None = None
        for relation in relations:
            own = declared.get(relation.name.name)
            if own is None:
                raise undeclared(name, relation)
            fetch = own.fetch(RowReader(own.rows, relation))
            if own.is_selective:
                fetch = partial(self._select, own.rows.name, cast(SelectiveFetch, fetch))
            self._fetches[own.rows.name] = fetch
            self._schedules[own.rows.name] = PollSchedule(own.rows.interval_s)

    def relations(self) -> Sequence[Relation]:
        """Return the declared relations."""
        return self._relations

    def require(self, required: Mapping[str, PushdownRequirement]) -> None:
        """Read only what is required of these relations; see SelectiveSource."""
        is_wider = False
        for name, new in required.items():
            if name in self._polled and self._polled[name].is_selective:
                old = self._required.get(name)
                self._required[name] = new
                if old is not None and not covers(old, new):
                    is_wider = True
                    self._schedules[name].hasten()
        if is_wider and self._feed is not None:
            self._feed.hasten()

    def covers(
        self,
        name: str,
        position: FeedPosition,
        note_of: Callable[[str], bytes | None],
        needed: PushdownRequirement,
    ) -> bool:
        """Return True if the polls have read what is needed; see SelectiveSource."""
        if not self._polled[name].is_selective:
            return True
        found = required_at(name, position, note_of)
        return found is None or covers(found, needed)

    def _select(self, name: str, fetch: SelectiveFetch, validators: Mapping[str, str]) -> Fetched:
        return fetch(validators, self._required.get(name))

    def check(self) -> None:
        """Read each relation once. SourceError, TemporaryError."""
        for relation in self._relations:
            fetched(self._watch(relation, self._new(relation.name.name)))

    def start_position(self, relation: Relation) -> FeedStart:
        """Read a relation; return the position with these rows."""
        watch = self._watch(relation, self._new(relation.name.name))
        contents = watch.contents.after(relation, fetched(watch)).contents
        return FeedStart(contents.position, contents.notes())

    def open_snapshot(
        self, relations: Sequence[Relation], positions: FeedPositions, notes: Mapping[str, bytes]
    ) -> PolledSnapshot:
        """Return the rows in the notes."""
        names = {relation.name.name for relation in relations}
        return PolledSnapshot(
            [relation for relation in self._relations if relation.name.name in names],
            {name: self._read(name, positions[name], notes) for name in names},
            {name: one.below for name, one in self._polled.items() if one.below is not None},
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
            contents = self._read(name, positions[name], notes)
            if isinstance(contents, Contents):
                contents = replace(contents, validators={})
            watches[name] = self._watch(relation, contents)
        owners = [(name, str(position["pin"])) for name, position in positions.items()]
        self._feed = PolledFeed(self.name, watches, lost_notes(notes, owners), on_ready)
        return self._feed

    def decode_again(self, relation: Relation, rows: Delta) -> SourceBatch:
        """Return no changes: each poll reads every record again, also the malformed ones.

        A record that is valid then, or gone, leaves the dead letters with that poll.
        """
        return SourceBatch(0, [], 0, 0, source=self.name)

    def _new(self, name: str) -> Contents | CursorContents:
        cursor = self._polled[name].cursor
        return Contents.new(name) if cursor is None else CursorContents.new(cursor, name)

    def _read(
        self, name: str, position: FeedPosition, notes: Mapping[str, bytes]
    ) -> Contents | CursorContents:
        cursor = self._polled[name].cursor
        if cursor is None:
            return Contents.read(name, position, notes)
        return CursorContents.read(cursor, name, position, notes)

    def _watch(self, relation: Relation, contents: PolledContents) -> Watch:
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
    """Relations as of the polls in the notes. declared: with all columns. below: of those with a
    cursor."""

    def __init__(
        self,
        declared: Sequence[Relation],
        contents: Mapping[str, Contents | CursorContents],
        below: Mapping[str, Callable[[Relation], Below]],
    ) -> None:
        self._declared = {r.name.name: r for r in declared}
        self._contents = contents
        self._below = below

    def parts(
        self,
        relation: Relation,
        columns: Sequence[int],
        count: int,
        known: Sequence[str] = (),
    ) -> Sequence[FeedPart]:
        """See FeedSnapshot; the position and its pages alone determine the parts."""
        found, declared = self._contents[relation.name.name], self._declared[relation.name.name]
        fields = [f.name for f in declared.fields]
        at_columns = tuple(fields.index(relation.fields[c].name) for c in columns)
        if isinstance(found, CursorContents):
            return self._above_and_below(found, declared, at_columns, max(1, count))
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

    def _above_and_below(
        self, found: CursorContents, declared: Relation, columns: tuple[int, ...], count: int
    ) -> list[FeedPart]:
        pages = (found.page,) if found.page else ()
        name = f"{found.relation}-{found.pin}-{found.poll}"
        parts: list[FeedPart] = [PolledPart(name, columns, pages, b"")]
        if found.low is not None:
            below = self._below[found.relation](declared)
            parts += [below(columns, found.low, number, count) for number in range(count)]
        return parts

    def close(self) -> None:
        """Do nothing: the snapshot holds nothing."""
