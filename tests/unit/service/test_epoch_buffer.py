"""Oracle: a dictionary of row to weight for each view, to which the same deltas are added."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from connectors.sink import Progress, SinkEpoch, SinkPart, SinkRows, SinkTable
from dataflow.delta import Delta
from dataflow.errors import InvariantError, TemporaryError, ViewError
from dataflow.schema import Field
from dataflow.types import INT4, TEXT
from service.engine.epoch_buffer import EpochBuffer
from service.engine.outbox import Outbox
from storage.rocks import RocksStore, StoreBudget

FIELDS = (Field("id", INT4, False), Field("v", TEXT))
KEYED = SinkTable("public", "keyed", FIELDS, (0,))
BAG = SinkTable("public", "bag", FIELDS, ())


class Sums:
    """What all deltas come to, and deltas to add: some take back what came before."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.rows: dict[tuple[SinkTable, bool], Counter] = {
            (KEYED, False): Counter(),
            (BAG, False): Counter(),
            (BAG, True): Counter(),
        }

    def fill(self, gathered: EpochBuffer, deltas: int, ids: int) -> None:
        for _ in range(deltas):
            owner = self.random.choice(list(self.rows))
            changes: Counter = Counter()
            for _ in range(self.random.randrange(60)):
                number = self.random.randrange(ids)
                # Error rows begin with the title of their view.
                first = b"public.bag" if owner[1] else number
                row = (first, b"%d" % number + b"x" * self.random.randrange(3))
                changes[row] += self.random.choice((-1, 1, 1))
            kept = [(row, weight) for row, weight in changes.items() if weight]
            kinds = "ss" if owner[1] else "is"
            delta = Delta.of(kinds, [row for row, _ in kept], [weight for _, weight in kept])
            gathered.add(owner[0], delta, is_errors=owner[1])
            for row, weight in kept:
                self.rows[owner][row] += weight

    def wanted(self, *owners: tuple[SinkTable, bool]) -> list[Counter]:
        return [Counter({r: w for r, w in self.rows[o].items() if w}) for o in owners]


def rows_of(parts: list[SinkPart]) -> list[Counter]:
    """Rows of KEYED, of BAG, and error rows; each row and each key in one part only."""
    found: dict[SinkTable | None, Counter] = {KEYED: Counter(), BAG: Counter(), None: Counter()}
    keys: Counter = Counter()
    for part in parts:
        for table, delta in [*part.deltas, *([(None, part.errors)] if part.errors else [])]:
            assert all(weight for _, weight in delta.rows())
            assert not found[table].keys() & {row for row, _ in delta.rows()}
            found[table].update(dict(delta.rows()))
            if table == KEYED:
                keys.update({row[0] for row, _ in delta.rows()})
    assert set(keys.values()) <= {1}
    return list(found.values())


@pytest.mark.parametrize(
    ("budget_bytes", "deltas", "ids"), [(1 << 20, 40, 50), (3_000, 400, 5_000)]
)
def test_parts_add_up_to_the_deltas(budget_bytes: int, deltas: int, ids: int) -> None:
    sums, gathered = Sums(deltas), EpochBuffer(budget_bytes)
    sums.fill(gathered, deltas, ids)
    assert gathered.is_spilled == (budget_bytes < 10_000)
    wanted = sums.wanted((KEYED, False), (BAG, False), (BAG, True))
    for _ in range(2):
        parts = list(gathered)
        assert rows_of(parts) == wanted
    for part in parts:
        held = sum(len(d) for _, d in part.deltas) + (len(part.errors) if part.errors else 0)
        assert held * 24 <= budget_bytes
    gathered.leave_out({BAG.relation})
    assert rows_of(list(gathered)) == [wanted[0], Counter(), Counter()]
    gathered.close()


def test_what_cancels_out_takes_no_disk() -> None:
    gathered = EpochBuffer(10_000)
    for n in range(200):
        rows = [(n * 50 + i, b"row") for i in range(50)]
        gathered.add(BAG, Delta.of("is", rows))
        gathered.add(BAG, Delta.of("is", rows, -1))
    assert not gathered.is_spilled
    assert not list(gathered)


@pytest.mark.whole
def test_a_byte_that_has_changed_on_disk_is_refused() -> None:
    """Wherever it is, and what is cut off too: nothing of the epoch is taken."""
    sums, gathered = Sums(7), EpochBuffer(3_000)
    sums.fill(gathered, 400, 5_000)
    whole = rows_of(list(gathered))
    assert gathered._file is not None
    size = gathered._file.seek(0, 2)
    for place in sums.random.sample(range(size), 60):
        gathered._file.seek(place)
        [byte] = gathered._file.read(1)
        for value in (byte ^ 1 << sums.random.randrange(8), byte):
            gathered._file.seek(place)
            gathered._file.write(bytes([value]))
            if value != byte:
                with pytest.raises(TemporaryError) as refused:
                    list(gathered)
                assert refused.value.code == "state.spill_damaged"
    assert rows_of(list(gathered)) == whole
    gathered._file.truncate(size - 1)
    with pytest.raises(TemporaryError):
        list(gathered)
    gathered.close()


def epoch_of(number: int, gathered: EpochBuffer) -> SinkEpoch:
    part = gathered.take()
    later = gathered if gathered.is_spilled else None
    return SinkEpoch(Progress(number, {}), SinkRows(part.deltas, part.errors, later=later))


def test_the_outbox_gives_back_what_was_committed_and_nothing_else(tmp_path) -> None:
    budget = StoreBudget(ahead_bytes=2_000)
    store = RocksStore(tmp_path, budget=budget)
    outbox, sums = Outbox(store), [Sums(n) for n in range(3)]
    for number, (budget_bytes, epoch_sums) in enumerate(
        zip((1 << 20, 3000), sums, strict=False), 1
    ):
        gathered = EpochBuffer(budget_bytes)
        epoch_sums.fill(gathered, 300, 5_000)
        epoch = epoch_of(number, gathered)
        outbox.put(epoch)
        gathered.close()
        store.commit()
        owners = [(KEYED, False), (BAG, False), (BAG, True)]
        assert rows_of(list(epoch.rows.parts())) == epoch_sums.wanted(*owners)
        counts = {
            t: len(w) for t, w in zip((KEYED, BAG), epoch_sums.wanted(*owners[:2]), strict=True)
        }
        assert epoch.rows.counts() == counts
        without = epoch.without({BAG.relation})
        assert {t for part in without.rows.parts() for t, _ in part.deltas} == {KEYED}
        assert not any(part.errors for part in without.rows.parts())
        refused = epoch.refused(ViewError("x", "y", relation=KEYED.relation))
        assert {t for part in refused.rows.parts() for t, _ in part.deltas} == {BAG}
    # Killed before its commit: parts of epoch 3 are on disk already.
    gathered = EpochBuffer(3_000)
    sums[2].fill(gathered, 300, 5_000)
    outbox.put(epoch_of(3, gathered))
    gathered.close()
    store.close()
    store = RocksStore(tmp_path, budget=budget)
    assert [key for key, _ in store.items("outbox-part/") if "/00000000000000000003/" in key]
    outbox = Outbox(store)
    assert not [key for key, _ in store.items("outbox-part/") if "/00000000000000000003/" in key]
    found = [rows_of(list(epoch.rows.parts())) for epoch in outbox.read(0, 2)]
    assert found == [s.wanted((KEYED, False), (BAG, False), (BAG, True)) for s in sums[:2]]
    with pytest.raises(InvariantError):
        outbox.read(0, 3)
    outbox.forget(2)
    store.commit()
    assert not list(store.items("outbox"))
    store.close()
