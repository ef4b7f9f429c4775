"""The rows of a stream so far, as notes stored with the state.

A stream cannot be read again, so a view that comes later begins with these rows. They are pages in
the order of their messages; small ones are merged. Of a relation without a key the oldest pages go
once there are more than `retain_rows`; one with a key is compacted to the newest row of each key.
Invariant: the notes that an addition changes belong to the same epoch as its rows.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence

import numpy as np

from connectors.pages import decode_delta, encode_delta
from dataflow.delta import Column, Delta, group_rows
from dataflow.schema import Relation

PAGE_ROWS = 1024
PAGE_BYTES = 64 << 10
# Of a relation with a key: rows between two compactions, at least.
COMPACTED_ROWS = 8192
_PAGE, _REPAIRED = "p", "r"


class RowLog:
    """The pages of one relation. pin: of its beginning. pages: as `pages_of` returns them."""

    def __init__(
        self, relation: Relation, pin: str, pages: Mapping[str, bytes], retain_rows: int
    ) -> None:
        self.relation = relation
        self._name = relation.name.name
        self._pin = pin
        self._retain_rows = retain_rows
        self._sizes = {name: len(decode_delta(page)) for name, page in pages.items()}
        # The pages themselves are needed for compaction alone.
        self._pages = dict(pages) if relation.key else {}
        numbered = [name for name in pages if name.startswith(_PAGE)]
        self._number = max((int(name[1:], 16) for name in numbered), default=-1) + 1
        self._tail: Delta | None = None
        self._rows = sum(self._sizes.values())
        self._compacted_rows = 0

    def add(self, rows: Delta) -> dict[str, bytes | None]:
        """Append rows; return the notes that change. Weight -1: the row of that key is removed."""
        notes: dict[str, bytes | None] = {}
        if not len(rows):
            return notes
        rows = rows if self._tail is None else Delta.concat([self._tail, rows])
        added = len(rows) - (0 if self._tail is None else len(self._tail))
        page = encode_delta(rows)
        self._put(notes, self._number, page, len(rows))
        self._rows += added
        self._tail = rows
        if len(rows) >= PAGE_ROWS or len(page) >= PAGE_BYTES:
            self._tail = None
            self._number += 1
        if self.relation.key:
            if self._rows >= 2 * self._compacted_rows + COMPACTED_ROWS:
                self._compact(notes)
        else:
            self._drop_oldest(notes)
        return {note_of(self._name, self._pin, name): value for name, value in notes.items()}

    def _put(self, notes: dict[str, bytes | None], number: int, page: bytes, rows: int) -> None:
        name = f"{_PAGE}{number:012x}"
        notes[name] = page
        self._sizes[name] = rows
        if self.relation.key:
            self._pages[name] = page

    def _drop_oldest(self, notes: dict[str, bytes | None]) -> None:
        for name in sorted(self._sizes):
            if self._rows - self._sizes[name] < self._retain_rows:
                return
            self._rows -= self._sizes.pop(name)
            notes[name] = None

    def _compact(self, notes: dict[str, bytes | None]) -> None:
        rows = newest(self.relation, [decode_delta(page) for page in in_order(self._pages)])
        notes |= dict.fromkeys(self._pages)
        self._pages.clear()
        self._sizes.clear()
        self._tail = None
        self._number += 1
        for start in range(0, len(rows), PAGE_ROWS):
            part = rows.slice(start, min(start + PAGE_ROWS, len(rows)))
            self._put(notes, self._number, encode_delta(part), len(part))
            self._number += 1
        self._rows = self._compacted_rows = len(rows)


def note_of(relation: str, pin: str, name: str) -> str:
    """Return the name of a note. relation, pin: whose it is."""
    return f"{relation}/{pin}/{name}"


def owner_of(note: str) -> tuple[str, str]:
    """Return the relation and the pin of a note."""
    relation, pin, _ = note.rsplit("/", 2)
    return relation, pin


def pages_of(relation: str, pin: str, notes: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the pages of a relation by their names."""
    own = {n: page for n, page in notes.items() if owner_of(n) == (relation, pin)}
    return {name.rpartition("/")[2]: page for name, page in own.items()}


def in_order(pages: Mapping[str, bytes]) -> list[bytes]:
    """Return pages in the order of their messages; repaired rows last."""
    return [page for _, page in sorted(pages.items())]


def repaired_page(relation: str, pin: str, rows: Delta) -> dict[str, bytes]:
    """Return the note of rows that were malformed before, of a relation without a key."""
    name = f"{_REPAIRED}{uuid.uuid4().hex}"
    return {note_of(relation, pin, name): encode_delta(rows)}


def newest(relation: Relation, pages: Sequence[Delta]) -> Delta:
    """Return the newest row of each key, without the removed ones."""
    if not pages:
        return Delta.empty("")
    rows = Delta.concat(list(pages))
    keys: list[Column] = [rows.columns[i] for i in relation.key]
    group, first = group_rows(keys, len(rows))
    last = np.zeros(len(first), np.int64)
    # Of several positions of one group the last one is written last.
    last[group] = np.arange(len(rows))
    found = rows.take(np.sort(last))
    return found.filter(found.weights > 0)
