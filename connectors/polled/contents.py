"""The rows of a polled relation as of its last poll, and what the next poll changes.

The rows are cut by key into parts, each a page that is stored with the state as a note. A poll
replaces the pages of the parts that differ. Invariant: what was emitted is what the pages hold, so
a row is removed although the source no longer has it.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import orjson

from connectors.feed_source import REJECTED_KINDS, FeedPosition
from connectors.pages import decode_delta, encode_delta
from connectors.pushdown import PushdownRequirement
from dataflow.changes import Changes
from dataflow.delta import Column, Delta, group_rows
from dataflow.errors import InvariantError
from dataflow.schema import Relation
from storage.bulk import partition_positions

PARTS = 64
_REJECTED, _VALIDATORS, _REQUIRED = "rejected", "validators", "required"


@dataclass(frozen=True)
class Fetched:
    """The answer to a poll.

    rows: all rows of the relation with all its columns, of weight 1; of rows with one key the last
    one counts. None: nothing has changed since the answer with the same validators. bad: malformed
    records, rows of REJECTED_KINDS. skipped: malformed records that are not reported. validators:
    for the next poll. has_more: the next poll need not wait. required: what was read; None: all
    columns of all rows.
    """

    rows: Delta | None
    bad: Delta = field(default_factory=lambda: Delta.empty(REJECTED_KINDS))
    skipped: int = 0
    validators: Mapping[str, str] = field(default_factory=dict)
    has_more: bool = False
    required: PushdownRequirement | None = None


class PolledContents(Protocol):
    """What a relation held at a poll, as a feed needs it. pin: unique to this beginning."""

    @property
    def pin(self) -> str:
        """See above."""
        ...

    @property
    def poll(self) -> int:
        """The number of the last poll that has changed anything."""
        ...

    @property
    def position(self) -> dict[str, Any]:
        """The position of the relation."""
        ...

    @property
    def validators(self) -> Mapping[str, str]:
        """What the next poll is given."""
        ...

    def notes(self) -> dict[str, bytes]:
        """Return everything, to store with the state."""
        ...

    def after(self, relation: Relation, fetched: Fetched) -> Step:
        """Return what a poll changes; its contents are these if nothing did."""
        ...


@dataclass(frozen=True)
class Step:
    """What a poll changes. changes: None if no row has. rejected: of REJECTED_KINDS, weight -1 for
    records that are valid or gone now."""

    contents: PolledContents
    changes: Changes | None
    rejected: Delta
    notes: Mapping[str, bytes | None]


@dataclass(frozen=True)
class Contents:
    """What a relation held at a poll. pin: unique to this beginning of reading it.

    pages: by part, with all columns; those that were not read are NULL. bad, required: as in
    Fetched.
    """

    relation: str
    pin: str
    poll: int = 0
    pages: Mapping[int, bytes] = field(default_factory=dict)
    bad: bytes = b""
    validators: Mapping[str, str] = field(default_factory=dict)
    required: PushdownRequirement | None = None

    @classmethod
    def new(cls, relation: str) -> Contents:
        """Return contents without rows, before the first poll."""
        return cls(relation, uuid.uuid4().hex[:12])

    @classmethod
    def read(cls, relation: str, position: FeedPosition, notes: Mapping[str, bytes]) -> Contents:
        """Return what `notes` and `position` gave. InvariantError source.position."""
        found = cls(relation, str(position["pin"]), int(position["poll"]))
        own = {name: note for name, note in notes.items() if owner_of(name) == found._owner}
        pages = {int(at): note for name, note in own.items() if (at := _end(name)).isdigit()}
        validators = own.get(found._name(_VALIDATORS), b"{}")
        required = own.get(found._name(_REQUIRED))
        if found.poll and not own:
            raise InvariantError("source.position", f'"{relation}" has no notes of its rows')
        return replace(
            found,
            pages=pages,
            bad=own.get(found._name(_REJECTED), b""),
            validators=orjson.loads(validators),
            required=PushdownRequirement.of(orjson.loads(required)) if required else None,
        )

    @property
    def position(self) -> dict[str, Any]:
        """The position of the relation."""
        return {"pin": self.pin, "poll": self.poll}

    @property
    def rejected(self) -> Delta:
        """The malformed records of the last poll."""
        return decode_delta(self.bad) if self.bad else Delta.empty(REJECTED_KINDS)

    def notes(self) -> dict[str, bytes]:
        """Return everything, to store with the state."""
        found = {self._name(str(part)): page for part, page in self.pages.items()}
        found[self._name(_VALIDATORS)] = orjson.dumps(dict(self.validators))
        if self.required is not None:
            found[self._name(_REQUIRED)] = orjson.dumps(self.required.facts())
        return {**found, self._name(_REJECTED): self.bad} if self.bad else found

    def after(self, relation: Relation, fetched: Fetched) -> Step:
        """Return what a poll changes; its contents are these if nothing did."""
        rejected = Delta.empty(REJECTED_KINDS)
        if fetched.rows is None:
            return Step(self, None, rejected, {})
        upserts, removes, pages = self._compare(relation, fetched.rows)
        bad = fetched.bad.consolidate()
        rejected = Delta.concat([bad, self.rejected.negate()]).consolidate()
        is_other = bool(pages) or len(rejected) > 0 or fetched.validators != self.validators
        is_other |= fetched.required != self.required
        merged = {part: page for part, page in {**self.pages, **pages}.items() if page is not None}
        after = Contents(
            self.relation,
            self.pin,
            self.poll + is_other,
            merged,
            encode_delta(bad) if len(bad) else b"",
            dict(fetched.validators),
            fetched.required,
        )
        if not is_other:
            return Step(self, None, rejected, {})
        notes: dict[str, bytes | None] = {self._name(str(p)): page for p, page in pages.items()}
        notes[self._name(_VALIDATORS)] = orjson.dumps(dict(after.validators))
        if after.bad != self.bad:
            notes[self._name(_REJECTED)] = after.bad or None
        if after.required != self.required:
            stored = after.required and orjson.dumps(after.required.facts())
            notes[self._name(_REQUIRED)] = stored
        return Step(after, _changes(relation, upserts, removes), rejected, notes)

    def _compare(
        self, relation: Relation, rows: Delta
    ) -> tuple[list[Delta], list[Delta], dict[int, bytes | None]]:
        """Return rows that are new or other, old rows whose keys are gone, and changed pages."""
        rows = _last_by_key(relation, rows)
        by_part = dict(partition_positions(_key(relation, rows), len(rows), PARTS))
        upserts, removes, pages = [], [], dict[int, bytes | None]()
        for part in sorted(self.pages.keys() | by_part.keys()):
            new = rows.take(by_part[part]) if part in by_part else rows.slice(0, 0)
            page = self.pages.get(part)
            old = rows.slice(0, 0) if page is None else decode_delta(page)
            changed = Delta.concat([new, old.negate()]).consolidate()
            if not len(changed):
                continue
            upsert = changed.filter(changed.weights > 0)
            lost = changed.filter(changed.weights < 0)
            upserts.append(upsert)
            removes.append(without_keys_of(relation, lost, upsert))
            pages[part] = encode_delta(new) if len(new) else None
        return upserts, removes, pages

    @property
    def _owner(self) -> tuple[str, str]:
        return self.relation, self.pin

    def _name(self, what: str) -> str:
        return _note_name(self.relation, self.pin, what)


def required_at(
    relation: str, position: FeedPosition, note_of: Callable[[str], bytes | None]
) -> PushdownRequirement | None:
    """Return what the poll at a position has read; None: all columns and rows."""
    stored = note_of(_note_name(relation, str(position["pin"]), _REQUIRED))
    return None if stored is None else PushdownRequirement.of(orjson.loads(stored))


def _note_name(relation: str, pin: str, what: str) -> str:
    return f"{relation}/{pin}/{what}"


def owner_of(note: str) -> tuple[str, str]:
    """Return the relation and the pin of a note."""
    relation, pin, _ = note.rsplit("/", 2)
    return relation, pin


def _end(note: str) -> str:
    return note.rpartition("/")[2]


def _key(relation: Relation, rows: Delta) -> list[Column]:
    return [rows.columns[i] for i in relation.key]


def _last_by_key(relation: Relation, rows: Delta) -> Delta:
    n = len(rows)
    group, first = group_rows(_key(relation, rows), n)
    if len(first) == n:
        return rows
    last = np.zeros(len(first), np.int64)
    # Of several positions of one group the last one is written last.
    last[group] = np.arange(n)
    return rows.take(np.sort(last))


def without_keys_of(relation: Relation, rows: Delta, others: Delta) -> Delta:
    """Return the rows whose key none of the others has."""
    if not len(rows) or not len(others):
        return rows
    keys = [
        Column.concat([a, b])
        for a, b in zip(_key(relation, rows), _key(relation, others), strict=True)
    ]
    group, first = group_rows(keys, len(rows) + len(others))
    is_there = np.zeros(len(first), np.bool_)
    is_there[group[len(rows) :]] = True
    return rows.filter(~is_there[group[: len(rows)]])


def _changes(
    relation: Relation, upserts: Sequence[Delta], removes: Sequence[Delta]
) -> Changes | None:
    parts = [d for d in (*removes, *upserts) if len(d)]
    if not parts:
        return None
    gone = sum(map(len, removes))
    rows = Delta.concat(parts)
    kinds = np.full(len(rows), Changes.UPSERT, np.uint8)
    kinds[:gone] = Changes.REMOVE
    return Changes(relation, kinds, rows.columns)


def lost_notes(notes: Iterable[str], owners: Iterable[tuple[str, str]]) -> dict[str, None]:
    """Return the notes that belong to none of these relations and pins, to remove them."""
    known = set(owners)
    return {name: None for name in notes if owner_of(name) not in known}
