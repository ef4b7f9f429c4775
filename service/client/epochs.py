"""Epochs of a view's changes, assembled from the bytes of a server-sent event stream.

Invariant: only whole epochs are returned. An epoch without its marker is not visible; it is
discarded when the connection is lost, because the stream resumes from the newest marker.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any

from dataflow.errors import TidemarkError
from service.client.answers import Field, Problem
from service.client.rows import Row, read_rows
from service.client.table import Table
from service.client.tabular import Tabular
from service.client.values import parse_json

_ROWS = '"rows":['
_DECODER = json.JSONDecoder(parse_int=str)


@dataclass(frozen=True)
class Marker:
    """The progress marker that closes an epoch. resume: the token to resume from. committed_at: the
    clock of the epoch, of streams."""

    epoch: int
    positions: Mapping[str, str]
    resume: str
    committed_at: str = ""


@dataclass(frozen=True)
class StreamEnd:
    """A stream has reached its end."""


class Epoch(Tabular):
    """The changes of one epoch to a view; with is_snapshot, the view's rows as of that epoch.

    number: of the service's epochs, not all of which change the view. positions: those that the
    rows now show, by source. committed_at: the clock of an epoch of a stream, else "". resume: the
    token to resume after it. fields, key: the view's columns
    and primary key, () for a multiset view. `for row, weight in epoch` yields removed rows (weight
    -1), then added rows (1); in a multiset view a weight may exceed one.
    """

    def __init__(
        self, marker: Marker, columns: Columns, pages: Sequence[str], *, is_snapshot: bool
    ) -> None:
        self.number = marker.epoch
        self.positions = marker.positions
        self.resume = marker.resume
        self.committed_at = marker.committed_at
        self.is_snapshot = is_snapshot
        self.fields = columns.fields
        self.key = columns.key
        self._pages = tuple(pages)

    def __repr__(self) -> str:
        kind = "snapshot" if self.is_snapshot else "changes"
        return f"<Epoch {self.number}: {kind} of {len(self)} rows at {dict(self.positions)}>"

    def __iter__(self) -> Iterator[tuple[Row, int]]:
        return zip(self.rows, self.weights, strict=True)

    def __len__(self) -> int:
        return len(self.rows)

    def __bool__(self) -> bool:
        # Without this, an epoch without rows would be false.
        return True

    @cached_property
    def _decoded(self) -> tuple[list[Row], list[int]]:
        rows: list[Row] = []
        weights: list[int] = []
        for page in self._pages:
            facts = parse_json(page)
            rows += read_rows(self.fields, facts["rows"])
            if "undo" in facts:
                weights += [-1 if is_undone else 1 for is_undone in facts["undo"]]
            else:
                weights += facts.get("weights") or [1] * len(facts["rows"])
        return rows, weights

    @property
    def rows(self) -> list[Row]:
        """The changed rows, each once; of a snapshot all rows."""
        return self._decoded[0]

    @property
    def weights(self) -> list[int]:
        """How often each of `rows` is added (positive) or removed (negative)."""
        return self._decoded[1]

    @property
    def inserted(self) -> list[Row]:
        """The added rows, repeated by weight; of an update the new row."""
        return [row for row, weight in self for _ in range(weight)]

    @property
    def deleted(self) -> list[Row]:
        """The removed rows, repeated by weight; of an update the old row."""
        return [row for row, weight in self for _ in range(-weight)]

    @property
    def identities(self) -> list[str]:
        """The received JSON of each of `rows`; it is the same for equal rows only."""
        return [text for page in self._pages for text in _row_texts(page)]

    def _table(self) -> Table:
        return Table(self.fields, self.rows, self.weights)


@dataclass(frozen=True)
class Change:
    """One change of a view's table, from `View.stream`.

    undo: the row was removed; of an update, the old row. epoch: in which, with all others of the
    same transactions. committed_at: the clock of that epoch. positions: what its rows show, by
    source.
    """

    row: Row
    undo: bool
    epoch: int
    committed_at: datetime
    positions: Mapping[str, str]


def changes_of(epoch: Epoch) -> Iterator[Change]:
    """Yield the changes of an epoch of a stream, in their order."""
    committed_at = datetime.fromisoformat(epoch.committed_at)
    for row, weight in epoch:
        yield Change(row, weight < 0, epoch.number, committed_at, epoch.positions)


@dataclass(frozen=True)
class Columns:
    """The view's columns and key, from the begin of a stream."""

    fields: tuple[Field, ...] = ()
    key: tuple[str, ...] = ()


@dataclass
class Gathering:
    """Parser of one reader's stream. token: of the newest received marker."""

    token: str = ""
    _columns: Columns = field(default_factory=Columns)
    _pages: list[str] = field(default_factory=list)
    _is_snapshot: bool = False
    _rest: bytearray = field(default_factory=bytearray)

    def forget(self) -> None:
        """Discard what no marker has closed; the service sends it again."""
        self._pages, self._is_snapshot, self._rest = [], False, bytearray()

    def take(self, chunk: bytes) -> Iterator[Epoch | Marker | StreamEnd | None]:
        """Yield what the bytes complete: an epoch, a marker without changes, the end of a stream,
        None for a heartbeat.

        Raise the TidemarkError with which the stream ended.
        """
        scanned = max(0, len(self._rest) - 1)
        self._rest += chunk
        end = self._rest.rfind(b"\n\n", scanned)
        if end < 0:
            return
        whole = bytes(self._rest[:end])
        del self._rest[: end + 2]
        for block in whole.split(b"\n\n"):
            name, text = _event(block)
            match name:
                case "begin":
                    facts = json.loads(text)
                    fields = tuple(Field.of(f) for f in facts["fields"])
                    self._columns = Columns(fields, tuple(facts["key"]))
                case "snapshot" | "changes":
                    self._pages.append(text)
                    self._is_snapshot = name == "snapshot"
                # An earlier service sends `mark` for `progress`.
                case "progress" | "mark":
                    yield self._closed(json.loads(text))
                case "error":
                    raise Problem.of(json.loads(text)).error
                case "heartbeat":
                    yield None
                case "end":
                    yield StreamEnd()

    def unchanged(self, marker: Marker) -> Epoch:
        """Return an epoch that does not change the view."""
        return Epoch(marker, self._columns, (), is_snapshot=False)

    @property
    def is_amid(self) -> bool:
        """Whether a part of an epoch has been received."""
        return bool(self._pages or self._rest)

    def _closed(self, facts: Mapping[str, Any]) -> Epoch | Marker:
        at = facts.get("committed_at", "")
        marker = Marker(facts["epoch"], facts["positions"], facts["resume"], at)
        self.token = marker.resume
        if not self._pages:
            return marker
        if not self._columns.fields:
            raise TidemarkError("service.not_tidemark", "the stream has no begin event")
        epoch = Epoch(marker, self._columns, self._pages, is_snapshot=self._is_snapshot)
        self._pages, self._is_snapshot = [], False
        return epoch


def _row_texts(page: str) -> Iterator[str]:
    """Yield the JSON text of each row of a page.

    >>> list(_row_texts('{"epoch":1,"rows":[{"a":1.0},{"a":"]"}],"weights":[1,1]}'))
    ['{"a":1.0}', '{"a":"]"}']
    """
    at = page.index(_ROWS) + len(_ROWS)
    while page[at] != "]":
        _, end = _DECODER.raw_decode(page, at)
        yield page[at:end]
        at = end + 1 if page[end] == "," else end


def _event(block: bytes) -> tuple[str, str]:
    """Return (event, data) from the lines of one event; ignore ids and comments.

    >>> _event(b"id: 7\\nevent: progress\\ndata: {}")
    ('progress', '{}')
    """
    name, texts = "message", []
    for line in block.split(b"\n"):
        word, _, text = line.partition(b":")
        text = text.removeprefix(b" ")
        if word == b"event":
            name = text.decode()
        elif word == b"data":
            texts.append(text.decode())
    return name, "\n".join(texts)
