"""Epochs and source batches as bytes, in a compact layout: they are written once per transaction.

A frame is a head, the lengths of its sections, and the sections: numbers as a JSON array, then
documents (`object_graph`), then pages of rows (`connectors.pages`). Tables and relations repeat
from frame to frame: each is encoded once, and decodes to one shared object. Rare fields are one
document at the end, by name. Invariant: a frame decodes to an equal object or fails. Its checksum
covers everything except the pages, which have their own.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

import numpy as np
import orjson
import xxhash

from connectors.pages import decode_delta, page_parts
from connectors.sink import (
    Progress,
    SinkEpoch,
    SinkPart,
    SinkRows,
    SinkTable,
    Swap,
    ViewDdl,
)
from connectors.source import SourceBatch
from dataflow.changes import Changes
from dataflow.delta import Column, Delta
from dataflow.errors import InvariantError
from dataflow.schema import Relation
from service.engine.encoding.object_graph import FAULTS, damaged, unknown_field, unknown_type
from service.engine.encoding.registered import decode, encode

_MAGIC = b"TMfr"
_VERSION = 1
_HEAD = struct.Struct("<4sHccIIQ")  # magic, version, kind, 0, documents, pages, checksum
_LENGTH_BYTES = 8
_EPOCH, _PART, _BATCH, _NOTHING = b"E", b"P", b"B", b"\0"
_MAX_CACHED = 1024
# Fields that most epochs, and most batches, do not have.
_EPOCH_MORE = frozenset(
    {"positions", "swaps", "refusals", "left_out", "changes", "returns", "tokens", "later"}
)
_BATCH_MORE = frozenset({"places", "notes", "letters"})
_T = TypeVar("_T")
# A page in parts, and its size in bytes.
_Page = tuple[list[Any], int]


class Later(NamedTuple):
    """The later parts of an epoch: how many, their bytes, and the rows of each view."""

    count: int
    nbytes: int
    rows: Mapping[SinkTable, int]


def encode_epoch(epoch: SinkEpoch, later: Later | None = None) -> bytes:
    """Return the frame of an epoch without its later parts, of which it stores only `later`."""
    rows, more = epoch.rows, _rare_fields(epoch)
    positions: Any = dict(epoch.progress.positions)
    if not _is_plain(positions):
        positions, more["positions"] = None, positions
    if later is not None:
        more["later"] = [later.count, later.nbytes, dict(later.rows)]
    facts = [
        epoch.progress.epoch,
        positions,
        epoch.commit_time_us,
        rows.errors is not None,
        rows.rejected is not None,
    ]
    documents = [_document(table) for table, _ in rows.deltas]
    pages = [page_parts(delta) for _, delta in rows.deltas]
    pages += [page_parts(found) for found in (rows.errors, rows.rejected) if found is not None]
    return _frame(_EPOCH, facts, [*documents, encode(more)] if more else documents, pages)


def _rare_fields(epoch: SinkEpoch) -> dict[str, Any]:
    """Return the fields that most epochs do not have, by their names in the state."""
    swaps = epoch.ddl.swaps
    found = {
        "swaps": tuple(swap.table for swap in swaps),
        "refusals": epoch.ddl.refusals,
        "left_out": epoch.rows.left_out,
        "changes": epoch.ddl.changes,
        "tokens": {swap.table.relation: swap.token for swap in swaps if swap.token},
        "returns": epoch.repair,
    }
    return {name: value for name, value in found.items() if value}


def epoch_of(
    progress: Progress, rows: SinkRows, commit_time_us: int, rare: Mapping[str, Any]
) -> SinkEpoch:
    """Return an epoch from its rows and its rare fields, by their names in the state."""
    tokens = rare.get("tokens", {})
    swaps = tuple(Swap(t, tokens.get(t.relation, "")) for t in rare.get("swaps", ()))
    rows.left_out = rare.get("left_out", frozenset())
    ddl = ViewDdl(rare.get("changes", ()), swaps, rare.get("refusals", ()))
    return SinkEpoch(progress, rows, ddl, rare.get("returns"), commit_time_us)


def decode_epoch(stored: bytes) -> tuple[SinkEpoch, Later | None]:
    """Return the encoded epoch.

    StorageError state.corrupt, state.unknown_type, state.unknown_field.
    """
    return _guarded("epoch", _read_epoch, stored)


def _read_epoch(stored: bytes) -> tuple[SinkEpoch, Later | None]:
    facts, documents, pages = _sections(_EPOCH, stored)
    number, positions, commit_time_us, has_errors, has_rejected = facts
    count = len(pages) - has_errors - has_rejected
    more = _more("epoch", documents[count:], _EPOCH_MORE)
    later = Later(*more.pop("later")) if "later" in more else None
    progress = Progress(number, more.pop("positions", positions))
    rest = list(pages[count:])
    rows = SinkRows(
        [(_table(d), p) for d, p in zip(documents[:count], pages[:count], strict=True)],
        errors=rest.pop(0) if has_errors else None,
        rejected=rest.pop(0) if has_rejected else None,
    )
    return epoch_of(progress, rows, commit_time_us, more), later


def encode_part(part: SinkPart) -> bytes:
    """Return the frame of a part of an epoch."""
    pages = [page_parts(delta) for _, delta in part.deltas]
    if part.errors is not None:
        pages.append(page_parts(part.errors))
    documents = [_document(table) for table, _ in part.deltas]
    return _frame(_PART, [part.errors is not None], documents, pages)


def decode_part(stored: bytes) -> SinkPart:
    """Return the encoded part. StorageError as `decode_epoch`."""
    return _guarded("part of an epoch", _read_part, stored)


def _read_part(stored: bytes) -> SinkPart:
    (has_errors,), documents, pages = _sections(_PART, stored)
    count = len(pages) - has_errors
    deltas = [(_table(d), p) for d, p in zip(documents, pages[:count], strict=True)]
    return SinkPart(deltas, pages[count] if has_errors else None)


def encode_batch(batch: SourceBatch) -> bytes:
    """Return the frame of a batch whose changes are all decoded."""
    assert batch.later is None, "a batch that is still being decoded cannot be stored"
    assert batch.stored is None, "changes that are stored elsewhere are not in the batch"
    more: dict[str, Any] = {}
    positions: Any = batch.positions
    if not _is_plain(positions):
        positions, more["places"] = None, positions
    if batch.notes:
        more["notes"] = dict(batch.notes)
    letters = {i: c.letters for i, c in enumerate(batch.changes) if c.letters is not None}
    if letters:
        more["letters"] = letters
    relations = {id(change.relation): change.relation for change in batch.changes}
    numbers = {identity: number for number, identity in enumerate(relations)}
    facts = [
        batch.position,
        batch.transactions,
        batch.rows,
        batch.commit_time_us,
        batch.last_commit,
        batch.source,
        positions,
        batch.rejected is not None,
        len(relations),
        [[numbers[id(c.relation)], *c.unchanged] for c in batch.changes],
    ]
    documents = [_document(relation) for relation in relations.values()]
    pages = [_changes_page(change) for change in batch.changes]
    if batch.rejected is not None:
        pages.append(page_parts(batch.rejected))
    return _frame(_BATCH, facts, [*documents, encode(more)] if more else documents, pages)


def decode_batch(stored: bytes) -> SourceBatch:
    """Return the encoded batch. StorageError as `decode_epoch`."""
    return _guarded("batch", _read_batch, stored)


def _read_batch(stored: bytes) -> SourceBatch:
    facts, documents, pages = _sections(_BATCH, stored)
    *numbers, commit_time_us, last_commit, source, positions, has_rejected, count, shapes = facts
    position, transactions, rows = numbers
    more = _more("batch", documents[count:], _BATCH_MORE)
    letters = more.pop("letters", {})
    relations = [_relation(document) for document in documents[:count]]
    changes = [
        _changes_of(relations[shape[0]], shape[1:], page)
        for shape, page in zip(shapes, pages[: len(shapes)], strict=True)
    ]
    for number, found in letters.items():
        changes[number] = replace(changes[number], letters=found)
    return SourceBatch(
        position,
        changes,
        transactions,
        rows,
        commit_time_us,
        last_commit,
        source=source,
        positions=more.get("places", positions),
        notes=more.get("notes", {}),
        rejected=pages[len(shapes)] if has_rejected else None,
    )


def _changes_page(change: Changes) -> _Page:
    """Return a page of the columns, the masks of unchanged values, and the kinds as weights."""
    masks = [Column(mask) for mask in change.unchanged.values()]
    return page_parts(Delta([*change.columns, *masks], change.kinds.astype(np.int64)))


def _changes_of(relation: Relation, unchanged: Sequence[int], page: Delta) -> Changes:
    width = len(relation.fields)
    masks = [column.values for column in page.columns[width:]]
    return Changes(
        relation,
        page.weights.astype(np.uint8),
        page.columns[:width],
        dict(zip(unchanged, masks, strict=True)),
    )


def _frame(
    kind: bytes, facts: list[Any], documents: Sequence[bytes], pages: Sequence[_Page]
) -> bytes:
    content = orjson.dumps(facts)
    lengths = [len(content), *map(len, documents), *(size for _, size in pages)]
    described = b"".join((struct.pack(f"<{len(lengths)}Q", *lengths), content, *documents))
    counts = len(documents), len(pages)
    check = xxhash.xxh3_64_intdigest(described, seed=_seed(kind, *counts))
    parts = [_HEAD.pack(_MAGIC, _VERSION, kind, _NOTHING, *counts, check), described]
    for page, _ in pages:
        parts += page
    return b"".join(parts)


def _sections(expected: bytes, stored: bytes) -> tuple[list[Any], list[bytes], list[Delta]]:
    """Return the facts, documents and pages of a frame of the expected kind."""
    magic, version, kind, rest, documents, pages, check = _HEAD.unpack_from(stored)
    if magic != _MAGIC or kind != expected or rest != _NOTHING:
        raise ValueError(f"the frame begins with {stored[:8]!r}")
    if version != _VERSION:
        raise unknown_type(f"frame {version}")
    count = 1 + documents + pages
    at = _HEAD.size + _LENGTH_BYTES * count
    if at > len(stored):
        raise ValueError(f"the frame has {len(stored)} bytes for {count} sections")
    lengths = struct.unpack_from(f"<{count}Q", stored, _HEAD.size)
    if at + sum(lengths) != len(stored):
        raise ValueError(f"the frame has {len(stored)} bytes, not {at + sum(lengths)}")
    view, seed = memoryview(stored), _seed(kind, documents, pages)
    described = view[_HEAD.size : at + sum(lengths[: 1 + documents])]
    if check != xxhash.xxh3_64_intdigest(described, seed=seed):
        raise ValueError("the frame fails its checksum")
    cut = []
    for length in lengths:
        cut.append(view[at : at + length])
        at += length
    # Copied, since a page may lie anywhere in what was read, and kernels want aligned arrays.
    rows = [decode_delta(bytearray(page)) for page in cut[1 + documents :]]
    return orjson.loads(cut[0]), [bytes(document) for document in cut[1 : 1 + documents]], rows


def _seed(kind: bytes, documents: int, pages: int) -> int:
    """Return the checksum's seed, which makes the head part of it."""
    return (kind[0] << 56) ^ (documents << 32) ^ pages


def _guarded(what: str, read: Callable[[bytes], _T], stored: bytes) -> _T:
    try:
        return read(stored)
    except (*FAULTS, InvariantError) as error:
        raise damaged(f"a stored {what}: {type(error).__name__}: {error}"[:300]) from error


def _more(name: str, documents: Sequence[bytes], allowed: frozenset[str]) -> dict[str, Any]:
    """Return the rare fields, by name."""
    if not documents:
        return {}
    (document,) = documents
    found = decode(document)
    for each in found:
        if each not in allowed:
            raise unknown_field(name, each)
    return found


def _is_plain(value: Any) -> bool:
    """Return True if JSON represents the value exactly."""
    try:
        return orjson.loads(orjson.dumps(value)) == value
    except TypeError:
        return False


class _DocumentCache:
    """Encode each repeated object once.

    Equal objects may differ in fields that are not compared (`Relation.numbers`), so the key is the
    object's identity.
    """

    def __init__(self) -> None:
        self._found: dict[int, tuple[Any, bytes]] = {}

    def __call__(self, value: Any) -> bytes:
        found = self._found.get(id(value))
        if found is not None:
            return found[1]
        document = encode(value)
        if len(self._found) >= _MAX_CACHED:
            self._found = {}
        # Holding the object prevents another one from taking its identity.
        self._found[id(value)] = (value, document)
        return document


_document = _DocumentCache()


@lru_cache(maxsize=_MAX_CACHED)
def _table(document: bytes) -> SinkTable:
    return decode(document)


@lru_cache(maxsize=_MAX_CACHED)
def _relation(document: bytes) -> Relation:
    return decode(document)
