"""What an epoch gives to the sink: a little in memory, more in files that tasks have stored.

Invariant: all parts of a committed epoch add up to its rows. A row may be removed in one part and
added in another, so a sink applies them in one transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from connectors.feed_source import REJECTED_KINDS
from connectors.pages import decode_delta, encode_delta
from connectors.spark.frame import Row
from connectors.spark.maintained.layout import ERRORS, FINAL, OUTPUT, REJECTED
from dataflow.collect import ERROR_KINDS
from dataflow.delta import Delta

# The kinds of rows that go to the sink.
SHOWN = (OUTPUT, ERRORS, FINAL, REJECTED)


@dataclass(frozen=True)
class ShownRows:
    """Rows for the sink; all deltas are consolidated.

    errors: of ERROR_KINDS. final: rows of the view that are final. rejected: of REJECTED_KINDS.
    """

    rows: Delta
    errors: Delta
    rejected: Delta
    final: Sequence[Delta] = ()


@dataclass(frozen=True)
class CommittedEpoch(ShownRows):
    """A committed epoch as the sink gets it: its first rows.

    commit: the digest of its manifest. later: each reads further ones, in the epoch in which they
    come only. is_move: it has only moved state, and has the positions of the epoch before.
    """

    epoch: int = 0
    commit: str = ""
    positions: Mapping[str, Any] = field(default_factory=dict)
    is_move: bool = False
    later: Sequence[Callable[[], ShownRows]] = ()

    def parts(self) -> Iterator[ShownRows]:
        """Yield all rows, in parts of bounded size."""
        yield self
        for read in self.later:
            yield read()

    def whole(self) -> ShownRows:
        """Return all rows at once, whatever memory they need."""
        parts = list(self.parts())
        return ShownRows(
            Delta.concat([part.rows for part in parts]).consolidate(),
            Delta.concat([part.errors for part in parts]).consolidate(),
            Delta.concat([part.rejected for part in parts]).consolidate(),
            [rows for part in parts for rows in part.final],
        )


def shown_rows(kinds: str, rows: Sequence[Row]) -> ShownRows:
    """Return the rows of pages. kinds: of the view's columns."""
    return ShownRows(
        _added_up(kinds, [page for slot, _, page in rows if slot == OUTPUT]),
        _added_up(ERROR_KINDS, [page for slot, _, page in rows if slot == ERRORS]),
        _added_up(REJECTED_KINDS, [page for slot, _, page in rows if slot == REJECTED]),
        [_added_up(kinds, [page]) for slot, _, page in rows if slot == FINAL],
    )


def parts_of(rows: Iterable[Row], nbytes: int) -> Iterator[list[Row]]:
    """Yield the same rows for the sink in parts of about so many bytes; pages may be cut."""
    held, size = list[Row](), 0
    for slot, tag, page in rows:
        for piece in _pieces(page, nbytes):
            if held and size + len(piece) > nbytes:
                yield held
                held, size = [], 0
            held.append((slot, tag, piece))
            size += len(piece)
    if held:
        yield held


def _pieces(page: bytes, nbytes: int) -> Iterator[bytes]:
    if len(page) <= nbytes:
        yield page
        return
    delta = decode_delta(bytearray(page))
    step = max(1, len(delta) * nbytes // len(page))
    for at in range(0, len(delta), step):
        yield encode_delta(delta.slice(at, min(at + step, len(delta))))


def _added_up(kinds: str, pages: Sequence[bytes]) -> Delta:
    found = [decode_delta(bytearray(page)) for page in pages]
    return Delta.concat([Delta.empty(kinds), *found]).consolidate()
