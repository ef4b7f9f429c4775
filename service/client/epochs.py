"""Epochs of a view's changes, put together from the bytes of a stream of server-sent events.

Invariant: what comes out is whole: an epoch whose mark has not come is nowhere to be seen, and
forgotten when the connection is lost, since it is told again from the newest mark on.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from dataflow.errors import TidemarkError
from service.client.answers import Field, Problem
from service.client.rows import Row, read_rows
from service.client.values import parse_json

if TYPE_CHECKING:
    import pyarrow

WEIGHT = "_weight"
_ROWS = '"rows":['
_DECODER = json.JSONDecoder(parse_int=str)


@dataclass(frozen=True)
class Marker:
    """What closes an epoch. resume: the token to go on from."""

    epoch: int
    positions: Mapping[str, str]
    resume: str


class Epoch:
    """What one epoch has changed in a view, or with is_snapshot the view's rows as of it.

    number counts the service's epochs; not every one changes the view. positions: what the rows
    show now, by source. resume: the token to go on from behind it. fields, key: the view's columns
    and its primary key, () for a bag. `for row, weight in epoch` gives rows that it takes away
    (weight -1) and then those that it brings (1); in a bag a weight may be more than one.
    """

    def __init__(
        self, marker: Marker, columns: Columns, pages: Sequence[str], *, is_snapshot: bool
    ) -> None:
        self.number = marker.epoch
        self.positions = marker.positions
        self.resume = marker.resume
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
        # An epoch without rows is an epoch.
        return True

    @cached_property
    def _decoded(self) -> tuple[list[Row], list[int]]:
        rows: list[Row] = []
        weights: list[int] = []
        for page in self._pages:
            told = parse_json(page)
            rows += read_rows(self.fields, told["rows"])
            weights += told.get("weights") or [1] * len(told["rows"])
        return rows, weights

    @property
    def rows(self) -> list[Row]:
        """The rows that change, each once; of a snapshot all rows."""
        return self._decoded[0]

    @property
    def weights(self) -> list[int]:
        """How often each of `rows` comes (1 and more) or goes (-1 and less)."""
        return self._decoded[1]

    @property
    def inserted(self) -> list[Row]:
        """The rows that it brings, each as often as it does; of an update the new one."""
        return [row for row, weight in self for _ in range(weight)]

    @property
    def deleted(self) -> list[Row]:
        """The rows that it takes away, each as often as it does; of an update the old one."""
        return [row for row, weight in self for _ in range(-weight)]

    @property
    def identities(self) -> list[str]:
        """For each of `rows` its JSON as it came, which is the same for equal rows alone."""
        return [text for page in self._pages for text in _row_texts(page)]

    def to_arrow(self, types: Mapping[str, pyarrow.DataType] | None = None) -> pyarrow.Table:
        """The rows as an Arrow table with a column `_weight` (int64) behind the others.

        types, TidemarkError: as of `RowSet.to_arrow`.
        """
        from service.client.arrow import table_of

        return table_of(self.fields, self.rows, types or {}, (WEIGHT, self.weights))


@dataclass(frozen=True)
class Columns:
    """What a stream tells of its view."""

    fields: tuple[Field, ...] = ()
    key: tuple[str, ...] = ()


@dataclass
class Gathering:
    """One reader's stream. token: of the newest mark that has come."""

    token: str = ""
    _columns: Columns = field(default_factory=Columns)
    _pages: list[str] = field(default_factory=list)
    _is_snapshot: bool = False
    _rest: bytearray = field(default_factory=bytearray)

    def forget(self) -> None:
        """The connection was lost: what no mark has closed comes again."""
        self._pages, self._is_snapshot, self._rest = [], False, bytearray()

    def take(self, chunk: bytes) -> Iterator[Epoch | Marker | None]:
        """What some bytes of the stream complete: epochs, marks without any change, and None for
        a heartbeat. TidemarkError that the stream has ended with."""
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
                    told = json.loads(text)
                    fields = tuple(Field.of(f) for f in told["fields"])
                    self._columns = Columns(fields, tuple(told["key"]))
                case "snapshot" | "changes":
                    self._pages.append(text)
                    self._is_snapshot = name == "snapshot"
                # A later service sends `progress` for `mark`.
                case "mark" | "progress":
                    yield self._closed(json.loads(text))
                case "error":
                    raise Problem.of(json.loads(text)).error
                case "heartbeat":
                    yield None

    def unchanged(self, marker: Marker) -> Epoch:
        """An epoch that has left the view as it was."""
        return Epoch(marker, self._columns, (), is_snapshot=False)

    @property
    def is_amid(self) -> bool:
        """Whether some of an epoch has come."""
        return bool(self._pages or self._rest)

    def _closed(self, told: Mapping[str, Any]) -> Epoch | Marker:
        marker = Marker(told["epoch"], told["positions"], told["resume"])
        self.token = marker.resume
        if not self._pages:
            return marker
        if not self._columns.fields:
            raise TidemarkError("service.not_tidemark", "the stream does not tell its columns")
        epoch = Epoch(marker, self._columns, self._pages, is_snapshot=self._is_snapshot)
        self._pages, self._is_snapshot = [], False
        return epoch


def _row_texts(page: str) -> Iterator[str]:
    """The rows of a page, each as it stands in it.

    >>> list(_row_texts('{"epoch":1,"rows":[{"a":1.0},{"a":"]"}],"weights":[1,1]}'))
    ['{"a":1.0}', '{"a":"]"}']
    """
    at = page.index(_ROWS) + len(_ROWS)
    while page[at] != "]":
        _, end = _DECODER.raw_decode(page, at)
        yield page[at:end]
        at = end + 1 if page[end] == "," else end


def _event(block: bytes) -> tuple[str, str]:
    """(event, data) of the lines of one event; what else there is (ids, comments) is not needed.

    >>> _event(b"id: 7\\nevent: mark\\ndata: {}")
    ('mark', '{}')
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
