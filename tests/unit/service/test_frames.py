"""Oracle: the epochs, parts and batches that went in, as Python values."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.sink import Progress, SinkEpoch, SinkPart, SinkRows, Swap, ViewDdl
from connectors.source import SourceBatch
from dataflow.changes import Changes
from dataflow.delta import Column, Delta
from dataflow.schema import Field, Relation, RelationName
from dataflow.types import BOOL, FLOAT8, INT4, TEXT
from service.engine.encoding import frames
from service.engine.encoding.frames import (
    Later,
    decode_batch,
    decode_epoch,
    decode_part,
    encode_batch,
    encode_epoch,
    encode_part,
)
from service.engine.encoding.object_graph import Record
from service.engine.encoding.registered import encode
from service.engine.outbox import Outbox
from storage.errors import StorageError
from storage.memory import MemoryStore
from tests.recovery.older_state import odd_epochs, odd_table, shown

CODES = {"state.corrupt", "state.unknown_type", "state.unknown_field"}
T = Relation(
    RelationName("source", "public", "t"),
    9,
    (Field("id", INT4, False), Field("f", FLOAT8), Field("b", BOOL), Field("t", TEXT)),
    (0,),
    numbers=(1, 2, 4, 7),
)
OTHER = dataclasses.replace(T, name=RelationName("source", "public", "u"), oid=10)
EPOCHS = odd_epochs()


def changes(relation: Relation, kinds: str, **more: Any) -> Changes:
    n = len(kinds)
    columns = (
        Column.of("i", range(n)),
        Column.of("f", [None if i % 3 else i / 7 for i in range(n)]),
        Column.of("b", [i % 2 == 0 for i in range(n)]),
        Column.of("s", [None if i % 4 == 1 else f"text {i}" for i in range(n)]),
    )
    return Changes(relation, np.frombuffer(kinds.encode(), np.uint8), columns, **more)


def shown_batch(batch: SourceBatch) -> dict[str, Any]:
    facts = {f.name: getattr(batch, f.name) for f in dataclasses.fields(batch)}
    facts["rejected"] = None if batch.rejected is None else batch.rejected.rows()
    facts["changes"] = [
        {
            "relation": (c.relation, c.relation.numbers),
            "kinds": bytes(c.kinds),
            "columns": [column.to_list() for column in c.columns],
            "unchanged": [(i, mask.tolist()) for i, mask in c.unchanged.items()],
            "letters": c.letters,
        }
        for c in batch.changes
    ]
    return facts


BATCHES = [
    SourceBatch(0, [], 0, 0),
    SourceBatch(2**63 - 1, [changes(T, "INOKDT")], 3, 6, 1 << 50, 77),
    SourceBatch(
        5,
        [changes(T, "I"), changes(OTHER, "NN"), changes(T, ""), changes(T, "E")],
        1,
        4,
        source="main",
    ),
    SourceBatch(
        0,
        [
            changes(T, "NN", unchanged={3: np.array([True, False]), 1: np.array([False, True])}),
            changes(T, "UR", letters=(None, ("s", "t", "0:1", "record.bad", "why", b"\xff", None))),
        ],
        1,
        2,
        source="topics",
        positions={"t": {"0": 5, "1": {"at": [1, None, "x"]}}, "u": {}},
        notes={"a": b"\0\xff", "gone": None},
        rejected=Delta.of("sssssss", [("s", "t", "0:1", "c", "r", b"k", None)], -1),
    ),
    # What JSON would change.
    SourceBatch(0, [], 0, 0, positions={"t": {"0": (1, 2), "1": 2**70}}),
]


@pytest.mark.parametrize("batch", BATCHES, ids=range(len(BATCHES)))
def test_batches_come_back(batch: SourceBatch) -> None:
    found = decode_batch(encode_batch(batch))
    assert shown_batch(found) == shown_batch(batch)
    for change in found.changes:
        assert change.kinds.dtype == np.uint8
        arrays = [c.values for c in change.columns] + list(change.unchanged.values())
        assert all(array.flags.writeable for array in (change.kinds, *arrays))


def without_later(epoch: SinkEpoch) -> SinkEpoch:
    return dataclasses.replace(epoch, rows=dataclasses.replace(epoch.rows, later=None))


@pytest.mark.parametrize("epoch", EPOCHS, ids=[e.progress.epoch for e in EPOCHS])
def test_epochs_come_back(epoch: SinkEpoch) -> None:
    epoch = without_later(epoch)
    found, later = decode_epoch(encode_epoch(epoch))
    assert shown(found) == shown(epoch)
    assert later is None
    for _, delta in found.rows.deltas:
        assert all(c.values.flags.writeable for c in delta.columns)


def test_every_field_of_an_epoch_and_a_batch_is_known_here() -> None:
    """One that is added has to be written, or it is lost in the outbox."""
    assert {f.name for f in dataclasses.fields(SinkEpoch)} == {
        *("progress", "rows", "ddl", "repair", "commit_time_us"),
    }
    plain = {"deltas", "errors", "rejected"}
    rare = {f.name for kind in (SinkRows, ViewDdl) for f in dataclasses.fields(kind)} - plain
    assert rare | {"returns", "tokens", "positions"} == frames._EPOCH_MORE
    assert {f.name for f in dataclasses.fields(Swap)} == {"table", "token"}
    assert {f.name for f in dataclasses.fields(SinkPart)} == {"deltas", "errors"}
    assert set(shown_batch(BATCHES[0])) == {f.name for f in dataclasses.fields(SourceBatch)}
    # Such batches are refused.
    kept = {f.name for f in dataclasses.fields(SourceBatch)} - {"later", "stored"}
    told = dict.fromkeys(kept, False)
    for batch in BATCHES:
        for name in kept:
            told[name] |= bool(getattr(batch, name))
    assert all(told.values()), told


def test_later_parts_are_decoded() -> None:
    one, two = odd_table("one"), odd_table("two")
    known = Later(3, 1 << 40, {one: 5, two: 7})
    found, later = decode_epoch(encode_epoch(SinkEpoch(Progress(1, {})), known))
    assert later == known and found.rows.later is None


def test_parts_come_back() -> None:
    rows = Delta.of("is", [(1, None)], [-3])
    for errors in (None, Delta.of("s", [("e",)])):
        part = SinkPart([(odd_table("one"), rows), (odd_table("two"), rows)], errors)
        found = decode_part(encode_part(part))
        assert [(t, d.rows()) for t, d in found.deltas] == [(t, d.rows()) for t, d in part.deltas]
        assert (found.errors is None) == (errors is None)
        assert found.errors is None or found.errors.rows() == [((b"e",), 1)]


def test_the_outbox_has_the_epochs_that_were_put_after_it_was_opened_again() -> None:
    store = MemoryStore()
    outbox = Outbox(store)
    for epoch in odd_epochs():
        outbox.put(epoch)
    again = Outbox(store)
    for epoch in odd_epochs():
        found = again.find(epoch.progress.epoch)
        assert found is not None and shown(found) == shown(epoch)
    assert again.nbytes(0) == outbox.nbytes(0) > 0
    again.clear()
    assert not list(store.items("outbox"))


def test_tables_and_relations_are_one_object_in_all_frames() -> None:
    table, rows = odd_table("one"), Delta.of("is", [(1, "a")])
    epochs = [
        decode_epoch(encode_epoch(SinkEpoch(Progress(n, {}), SinkRows([(table, rows)]))))[0]
        for n in (1, 2)
    ]
    assert epochs[0].rows.deltas[0][0] is epochs[1].rows.deltas[0][0]
    batches = [decode_batch(encode_batch(SourceBatch(n, [changes(T, "I")], 1, 1))) for n in (1, 2)]
    assert batches[0].changes[0].relation is batches[1].changes[0].relation


def test_relations_that_differ_in_what_is_not_compared_stay_apart() -> None:
    other = dataclasses.replace(T, numbers=(1, 2, 4, 8))
    assert other == T
    batch = SourceBatch(1, [changes(T, "I"), changes(other, "I")], 1, 2)
    found = decode_batch(encode_batch(batch))
    assert [c.relation.numbers for c in found.changes] == [T.numbers, other.numbers]


@given(st.dictionaries(st.text(), st.integers() | st.dictionaries(st.text(), st.integers())))
def test_positions_come_back_exactly(positions: dict[str, Any]) -> None:
    found, _ = decode_epoch(encode_epoch(SinkEpoch(Progress(3, positions))))
    assert found.progress == Progress(3, positions)


# --- damage -------------------------------------------------------------------------------------

WRITTEN = [
    (decode_epoch, encode_epoch(without_later(EPOCHS[1]))),
    (decode_epoch, encode_epoch(without_later(EPOCHS[2]))),
    (decode_part, encode_part(SinkPart([(odd_table("one"), Delta.of("is", [(1, "a")]))]))),
    (decode_batch, encode_batch(BATCHES[3])),
]


@pytest.mark.parametrize(("read", "stored"), WRITTEN, ids=range(len(WRITTEN)))
def test_what_was_changed_or_cut_is_refused(read: Any, stored: bytes) -> None:
    pick = random.Random(0)
    for length in range(len(stored)):
        refuse(read, stored[:length])
    refuse(read, stored + b"\0")
    for at in range(len(stored)):
        changed = bytearray(stored)
        changed[at] ^= 1 << pick.randrange(8)
        # Between a page's buffers lies what nobody reads, but the checksum has it.
        refuse(read, bytes(changed))
    for _ in range(200):
        changed = bytearray(stored)
        start = pick.randrange(len(stored))
        changed[start : start + 40] = pick.randbytes(len(changed[start : start + 40]))
        if changed != stored:
            refuse(read, bytes(changed))


def refuse(read: Any, stored: bytes) -> None:
    with pytest.raises(StorageError) as refused:
        read(stored)
    assert refused.value.code in CODES and refused.value.hint


def test_one_kind_is_not_taken_for_another() -> None:
    for read, stored in WRITTEN:
        for other in (decode_epoch, decode_part, decode_batch):
            if other is not read:
                refuse(other, stored)


def test_what_a_later_version_has_is_refused_by_name() -> None:
    facts = [1, {}, 0, False, False]
    for more, code in (
        ({"hue": 1}, "state.unknown_field"),
        ({"swaps": (1, 2), "hue": 1}, "state.unknown_field"),
    ):
        with pytest.raises(StorageError) as refused:
            decode_epoch(frames._frame(b"E", facts, [encode(more)], []))
        assert refused.value.code == code and "hue" in refused.value.detail
    changed = bytearray(WRITTEN[0][1])
    changed[4] = 2
    with pytest.raises(StorageError) as refused:
        decode_epoch(bytes(changed))
    assert refused.value.code == "state.unknown_type"


@pytest.mark.parametrize(
    "facts",
    [
        *([], None, [1, {}, 0, False], [1, {}, 0, True, False], [1, {}, 0, 5, -5], ["x"] * 5),
        [1, {}, 0, None, None],
    ],
    ids=str,
)
def test_facts_that_do_not_fit_are_refused(facts: Any) -> None:
    refuse(decode_epoch, frames._frame(b"E", facts, [], []))


def test_a_document_that_is_no_table_is_damage_all_the_same() -> None:
    page = frames.page_parts(Delta.of("is", [(1, "a")]))
    record = encode(Record("sql.field", {"name": "a"}))
    facts = [1, {}, 0, False, False]
    refuse(decode_epoch, frames._frame(b"E", facts, [record], [page]))
