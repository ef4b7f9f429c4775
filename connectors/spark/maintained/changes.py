"""Changes of a base relation, cut into the buckets of its key, and their form as pages.

Old rows are looked up in the buckets (`dataflow.operators.tables.table`), each of which sees only
the changes of its own keys. An update that changes the key is therefore a delete and an insert, and
a truncation goes to every bucket. Invariant: the buckets' deltas add up to what one table would
have emitted for all changes, and what it would have refused is refused.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from connectors.feed_source import REJECTED_KINDS
from connectors.pages import decode_delta, encode_delta, page_parts
from dataflow.changes import Changes, Letter
from dataflow.delta import KIND_INT, Column, Delta
from dataflow.errors import InvariantError
from dataflow.operators.groups import columns_at, touch
from dataflow.operators.tables.table import is_keyed, neighbours, table_spec
from dataflow.schema import Relation
from storage.bulk import partition_positions, partition_rows, positions_by

_HEAD = struct.Struct("<HxxxxxxQ")  # columns with values that were not sent, bytes of the rows
_MASK = np.dtype("<i8")
_TEXTS = 5
_OLD = (Changes.OLD, Changes.OLD_KEY)

# Given a relation and keys, returns the stored rows of these keys, at most one of each.
Fetch = Callable[[Relation, Delta], Delta]


def encode_changes(changes: Changes) -> bytes:
    """Return changes as a page; their relation is not part of it."""
    masks = [Column(mask) for mask in changes.unchanged.values()]
    rows, size = page_parts(Delta([*changes.columns, *masks], changes.kinds.astype(np.int64)))
    indexes = np.array(list(changes.unchanged), _MASK).tobytes()
    letters = b""
    if changes.letters is not None:
        found = [(i, *letter) for i, letter in enumerate(changes.letters) if letter is not None]
        letters = encode_delta(Delta.of(KIND_INT + REJECTED_KINDS, found))
    return b"".join([_HEAD.pack(len(changes.unchanged), size), indexes, *rows, letters])


def decode_changes(relation: Relation, page: bytes) -> Changes:
    """Return the changes of a page. InvariantError backfill.page."""
    if len(page) < _HEAD.size:
        raise InvariantError("backfill.page", f"a page of changes has {len(page)} bytes")
    count, length = _HEAD.unpack_from(page)
    at = _HEAD.size + count * _MASK.itemsize
    indexes = np.frombuffer(page[_HEAD.size : at], _MASK).tolist()
    rows = decode_delta(bytearray(memoryview(page)[at : at + length]))
    width = len(relation.fields)
    masks = [column.values for column in rows.columns[width:]]
    letters = None
    if at + length < len(page):
        found: list[Letter | None] = [None] * len(rows)
        for row, _ in decode_delta(bytearray(page[at + length :])).rows():
            texts = [text.decode() for text in row[1 : 1 + _TEXTS]]
            found[row[0]] = (*texts, *row[1 + _TEXTS :])
        letters = tuple(found)
    return Changes(
        relation,
        rows.weights.astype(np.uint8),
        rows.columns[:width],
        dict(zip(indexes, masks, strict=True)),
        letters,
    )


def cut_changes(
    table: Relation, changes: Sequence[Changes], buckets: int, fetch: Fetch
) -> list[Changes]:
    """Return the changes of each bucket, in their order.

    table: the relation with only its stored columns. changes: in order, of any versions of the
    relation that have these columns. fetch: called for old rows from which an update that changes
    the key takes values that the source did not send.
    """
    together = join_changes(table, changes)
    truncates = np.flatnonzero(together.kinds == Changes.TRUNCATE)
    if len(truncates):
        together = _taken(together, np.arange(truncates[-1] + 1, len(together)))
    if is_keyed(table):
        together = _without_key_changes(table, together, fetch)
    elif not table.is_append:
        together = _with_whole_pairs(together)
    found = [_taken(together, rows) for rows in _rows_by_bucket(table, together, buckets)]
    return [_truncated(part) for part in found] if len(truncates) else found


def _rows_by_bucket(table: Relation, changes: Changes, buckets: int) -> list[np.ndarray]:
    if table.is_append:
        # They are not stored, so any bucket can have them.
        return np.array_split(np.arange(len(changes)), buckets)
    key = table_spec(table, range(len(table.fields)), "").key
    columns = [changes.columns[c] for c in key]
    found = dict(partition_positions(columns, len(changes), buckets))
    return [found.get(bucket, np.zeros(0, np.int64)) for bucket in range(buckets)]


def changes_of_keys(table: Relation, changes: Changes, keys: Delta) -> Changes:
    """Return the changes of these keys, and truncations. keys: columns of the relation's key."""
    n = len(changes)
    own = zip((changes.columns[c] for c in table.key), keys.columns, strict=True)
    found = touch([Column.concat([a, b]) for a, b in own], n + len(keys))
    is_key = np.zeros(found.count, np.bool_)
    is_key[found.group[n:]] = True
    is_own = is_key[found.group[:n]] | (changes.kinds == Changes.TRUNCATE)
    return _taken(changes, np.flatnonzero(is_own))


def in_slices(table: Relation, changes: Changes, buckets: int, rows: int) -> Iterator[Changes]:
    """Yield the changes of one of so many buckets in slices of about so many, by ranges of the
    hashes of their keys; as one slice what a truncation is among.
    """
    count = -(-len(changes) // rows)
    if count < 2 or (changes.kinds == Changes.TRUNCATE).any():
        yield changes
        return
    if table.is_append:
        found = np.array_split(np.arange(len(changes)), count)
    else:
        spec = table_spec(table, range(len(table.fields)), "")
        key = [changes.columns[c] for c in spec.key]
        found = [at for _, at in slice_positions(key, len(changes), buckets, count)]
    for at in found:
        yield _taken(changes, at)


def slice_positions(
    key: Sequence[Column], n: int, buckets: int, count: int
) -> Iterator[tuple[int, np.ndarray]]:
    """Yield (slice, positions) of the rows of one of so many buckets: equal keys are in one of
    `count` slices, and a slice has a range of the hashes of the bucket.
    """
    yield from positions_by(partition_rows(key, n, buckets * count) % count)


def join_changes(table: Relation, changes: Sequence[Changes]) -> Changes:
    """Return the stored columns of all changes, as one. table, changes: as for `cut_changes`."""
    names = [f.name for f in table.fields]
    parts = []
    for change in changes:
        sent = [f.name for f in change.relation.fields]
        at = [sent.index(name) for name in names]
        masks = {i: change.unchanged[c] for i, c in enumerate(at) if c in change.unchanged}
        parts.append(
            Changes(
                table, change.kinds, tuple(change.columns[c] for c in at), masks, change.letters
            )
        )
    if len(parts) == 1:
        return parts[0]
    masked = sorted({i for part in parts for i in part.unchanged})
    letters = None
    if any(part.letters is not None for part in parts):
        letters = tuple(x for part in parts for x in part.letters or (None,) * len(part))
    return Changes(
        table,
        np.concatenate([part.kinds for part in parts]),
        tuple(Column.concat(same) for same in zip(*(p.columns for p in parts), strict=True)),
        {i: np.concatenate([_mask(p, i) for p in parts]) for i in masked},
        letters,
    )


def _mask(changes: Changes, index: int) -> np.ndarray:
    found = changes.unchanged.get(index)
    return np.zeros(len(changes), np.bool_) if found is None else found


def _taken(changes: Changes, rows: np.ndarray) -> Changes:
    masks = {i: mask[rows] for i, mask in changes.unchanged.items()}
    letters = changes.letters
    return Changes(
        changes.relation,
        changes.kinds[rows],
        tuple(c.take(rows) for c in changes.columns),
        {i: mask for i, mask in masks.items() if mask.any()},
        None if letters is None else tuple(letters[i] for i in rows.tolist()),
    )


def _truncated(changes: Changes) -> Changes:
    """Return the changes after a truncation."""
    kinds = np.concatenate([np.array([Changes.TRUNCATE], np.uint8), changes.kinds])
    columns = [Column.concat([Column.nulls(c.kind, 1), c]) for c in changes.columns]
    masks = {i: np.concatenate([[False], mask]) for i, mask in changes.unchanged.items()}
    letters = changes.letters
    return Changes(
        changes.relation,
        kinds,
        tuple(columns),
        masks,
        None if letters is None else (None, *letters),
    )


def _following(changes: Changes) -> np.ndarray:
    """Return the positions of new rows directly after their old ones."""
    kinds = changes.kinds
    return 1 + np.flatnonzero((kinds[1:] == Changes.NEW) & np.isin(kinds[:-1], _OLD))


def _apart(changes: Changes, new: np.ndarray) -> Changes:
    """Return updates as a delete and an insert each; new: the positions of their new rows."""
    kinds = changes.kinds.copy()
    kinds[new] = Changes.INSERT
    kinds[new - 1] = np.where(kinds[new - 1] == Changes.OLD_KEY, Changes.DELETE_KEY, Changes.DELETE)
    return replace(changes, kinds=kinds)


def _with_whole_pairs(changes: Changes) -> Changes:
    """Return changes whose old rows come whole, without updates.

    An update without its old row stays one, for the table to refuse.
    """
    new = _following(changes)
    columns, masks = list(changes.columns), dict(changes.unchanged)
    for i, mask in changes.unchanged.items():
        rows = new[mask[new]]
        source = np.arange(len(changes))
        source[rows] -= 1
        columns[i], masks[i] = columns[i].take(source), mask.copy()
        masks[i][rows] = False
    return _apart(replace(changes, columns=tuple(columns), unchanged=masks), new)


def _without_key_changes(table: Relation, changes: Changes, fetch: Fetch) -> Changes:
    """Return changes by key without updates that change it, which concern two buckets.

    Values that such an update omits are those of the row before it, by its old key.
    """
    new = _following(changes)
    omitted = np.zeros(len(changes), np.bool_)
    for mask in changes.unchanged.values():
        omitted |= mask
    if not omitted[new].any():
        return _apart(changes, new)
    n = len(changes)
    rows = Delta(changes.columns, np.ones(n, np.int64))
    touched = touch(columns_at(rows, table.key), n)
    past, _ = neighbours(touched.group, touched.count)
    past[new] = past[new - 1]
    # The row whose key finds the stored row: its own, or the old one before it.
    named = np.arange(n)
    named[new] = new - 1
    targets = new[omitted[new]]
    first = targets
    while (earlier := first[past[first] >= 0]).size:
        first = np.unique(np.concatenate([first[past[first] < 0], past[earlier]]))
    keys = rows.take(np.unique(named[first])).project(table.key).consolidate()
    stored = fetch(table, keys)
    found = touch(
        [
            Column.concat([a, b])
            for a, b in zip(columns_at(rows, table.key), columns_at(stored, table.key), strict=True)
        ],
        n + len(stored),
    ).group
    position = np.full(found.max() + 1, -1, np.int64)
    position[found[n:]] = n + np.arange(len(stored))
    columns, masks = list(changes.columns), dict(changes.unchanged)
    for i, mask in changes.unchanged.items():
        filled = targets[mask[targets]]
        source, at = np.arange(n), filled.copy()
        active = np.ones(len(at), np.bool_)
        while active.any():
            here = at[active]
            before = past[here]
            at[active] = np.where(before >= 0, before, position[found[named[here]]])
            active &= (at >= 0) & (at < n)
            active[active] = mask[at[active]]
        if (at < 0).any():
            raise InvariantError(
                "state.table_mismatch",
                f'changes of "{table.name}" do not fit the rows kept',
                detail="the old row of a change of the key is not in the state",
                hint="rebuild the views that read it",
                relation=table.name,
            )
        source[filled] = at
        columns[i] = Column.concat([columns[i], stored.columns[i]]).take(source)
        masks[i] = mask.copy()
        masks[i][filled] = False
    return _apart(replace(changes, columns=tuple(columns), unchanged=masks), new)
