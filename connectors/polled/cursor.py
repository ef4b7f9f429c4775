"""Relations to which rows are only added, read above the newest value of a cursor column.

The rows at the newest value, and `overlap` below it, are the window: they are stored with the state
and read again by each poll, and only those that are not in it yet are added. So rows that come
later with the newest value are not lost, and none is added twice. Invariant: the rows below the
window, which the source has, and the window are what was emitted.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import orjson

from connectors.feed_source import REJECTED_KINDS, FeedPart, FeedPosition
from connectors.pages import decode_delta, encode_delta
from connectors.polled.contents import Fetched, Step, owner_of
from dataflow.changes import Changes
from dataflow.delta import Delta
from dataflow.errors import InvariantError
from dataflow.schema import Relation

# What a poll is given in place of an answer's validators, as JSON.
WINDOW = "window"
# Rows that a poll reads beyond the window, at most.
CHUNK_ROWS = 100_000


@dataclass(frozen=True)
class Window:
    """What a poll reads. low: the least value, None for the first rows. rows: that are known.

    is_first: the relation's first poll, which begins with the newest value there is.
    """

    low: int | None
    rows: int
    is_first: bool

    @classmethod
    def of(cls, validators: Mapping[str, str]) -> Window:
        """Return what `CursorContents` gives a poll."""
        return cls(*orjson.loads(validators[WINDOW]))


@dataclass(frozen=True)
class CursorOptions:
    """column: the cursor's name, of a column of whole numbers, dates or times. overlap: how far
    below the newest value rows may still come, in the column's own physical unit.
    """

    column: str
    overlap: int


# A snapshot's rows below the window: (columns, below this value, number, of how many parts).
Below = Callable[[tuple[int, ...], int, int, int], FeedPart]


@dataclass(frozen=True)
class CursorContents:
    """Where reading of a relation stands; see Contents. newest: value of the cursor, None if the
    relation has no row. page: the window.
    """

    options: CursorOptions
    relation: str
    pin: str
    poll: int = 0
    newest: int | None = None
    page: bytes = b""

    @classmethod
    def new(cls, options: CursorOptions, relation: str) -> CursorContents:
        """Return contents before the first poll."""
        return cls(options, relation, uuid.uuid4().hex[:12])

    @classmethod
    def read(
        cls,
        options: CursorOptions,
        relation: str,
        position: FeedPosition,
        notes: Mapping[str, bytes],
    ) -> CursorContents:
        """Return what `notes` and `position` gave. InvariantError source.position."""
        pin, newest = str(position["pin"]), position["newest"]
        found = cls(options, relation, pin, int(position["poll"]), newest)
        own = {name: note for name, note in notes.items() if owner_of(name) == (relation, pin)}
        page = own.get(found._name, b"")
        if newest is not None and not page:
            raise InvariantError("source.position", f'"{relation}" has no notes of its rows')
        return replace(found, page=page)

    @property
    def position(self) -> dict[str, Any]:
        """The position of the relation."""
        return {"pin": self.pin, "poll": self.poll, "newest": self.newest}

    @property
    def low(self) -> int | None:
        """The least value of the window; None without any row."""
        return None if self.newest is None else self.newest - self.options.overlap

    @property
    def validators(self) -> dict[str, str]:
        """What the next poll reads."""
        rows = len(decode_delta(self.page)) if self.page else 0
        return {WINDOW: orjson.dumps([self.low, rows, self.poll == 0]).decode()}

    def notes(self) -> dict[str, bytes]:
        """Return everything, to store with the state."""
        return {self._name: self.page} if self.page else {}

    def after(self, relation: Relation, fetched: Fetched) -> Step:
        """Return what a poll adds; its contents are these if it adds nothing."""
        rows = fetched.rows
        assert rows is not None
        at = [f.name for f in relation.fields].index(self.options.column)
        before = decode_delta(self.page) if self.page else rows.slice(0, 0)
        found = Delta.concat([rows, before.negate()]).consolidate()
        found = found.filter(found.weights > 0)
        # Equal rows are as many rows.
        added = found.take(np.repeat(np.arange(len(found)), found.weights))
        added = added.weighted(np.ones(len(added), np.int64))
        rejected = Delta.empty(REJECTED_KINDS)
        if not len(added) and self.poll:
            return Step(self, None, rejected, {})
        newest = self.newest
        if len(added):
            above = int(added.columns[at].values.max())
            newest = above if newest is None else max(above, newest)
        after = replace(self, poll=self.poll + 1, newest=newest)
        window = Delta.concat([before, added])
        if after.low is not None:
            window = window.filter(window.columns[at].values >= after.low)
        after = replace(after, page=encode_delta(window) if len(window) else b"")
        changes = None
        if len(added):
            kinds = np.full(len(added), Changes.INSERT, np.uint8)
            changes = Changes(relation, kinds, tuple(added.columns))
        return Step(after, changes, rejected, dict(after.notes()))

    @property
    def _name(self) -> str:
        return f"{self.relation}/{self.pin}/{WINDOW}"
