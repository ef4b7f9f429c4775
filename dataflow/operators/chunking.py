"""An operator's output, split into deltas of bounded size or joined again.

Invariant: the parts add up to the whole, and each is consolidated.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dataflow.delta import Delta

EVERY_ROW = 1 << 62


def in_chunks(deltas: Iterable[Delta], max_rows: int) -> Iterator[Delta]:
    """Merge consolidated deltas into sums of about max_rows rows."""
    held: list[Delta] = []
    rows = 0
    for delta in deltas:
        if held and rows + len(delta) > max_rows:
            yield _added_up(held)
            held, rows = [], 0
        if len(delta):
            held.append(delta)
            rows += len(delta)
    if held:
        yield _added_up(held)


def whole(deltas: Iterable[Delta], kinds: str) -> Delta:
    """Return the single delta that parts of EVERY_ROW rows consist of; an empty one of `kinds` if
    there is none."""
    found = list(deltas)
    return _added_up(found) if found else Delta.empty(kinds)


def _added_up(deltas: list[Delta]) -> Delta:
    return deltas[0] if len(deltas) == 1 else Delta.concat(deltas).consolidate()
