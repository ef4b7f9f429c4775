"""Oracle: a dictionary from key to row, to which the same changes are applied one by one."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import numpy as np
import pytest

from dataflow.changes import Changes
from dataflow.delta import Column
from dataflow.errors import InvariantError, SourceError
from dataflow.operators.tables.table import TableState
from dataflow.schema import Field, Relation, RelationName
from dataflow.types import INT4, TEXT
from storage.memory import MemoryStore

FIELDS = (Field("payload", TEXT), Field("id", INT4), Field("unread", INT4), Field("n", INT4))
NAME = RelationName("s", "public", "t")
KEYED = Relation(NAME, 1, FIELDS, key=(1,))
FULL = Relation(NAME, 1, FIELDS, key=(1,), is_full=True)
APPENDED = Relation(NAME, 1, FIELDS, is_append=True)
COLUMNS = (0, 1, 3)
Row = tuple[Any, ...]


class Stream:
    """Draws changes of one table and applies them to a model."""

    def __init__(self, relation: Relation, seed: int) -> None:
        self.relation = relation
        self.random = Random(seed)
        self.rows: dict[int, Row] = {}
        self.letters: list[str] = []
        self.cells: list[Row] = []
        self.unsent: list[int] = []

    def _row(self, key: int) -> Row:
        random = self.random
        text = random.choice([None, b"", b"x", b"long" * 5])
        return (text, key, random.randint(0, 9), random.choice([None, 1, 2]))

    def _emit(self, letter: str, row: Row, *, is_unsent: bool = False) -> None:
        if is_unsent:
            self.unsent.append(len(self.letters))
            row = (None, *row[1:])
        self.letters.append(letter)
        self.cells.append(row)

    def _old(self, row: Row) -> Row:
        return row if self.relation.is_full else (None, row[1], None, None)

    def change(self) -> None:
        """One insert, update, key change, delete or truncation."""
        random = self.random
        choice = random.random()
        if choice < 0.03:
            self.rows.clear()
            self._emit("T", (None,) * 4)
        elif choice < 0.4 or not self.rows:
            key = random.randint(0, 30)
            if key not in self.rows:
                self.rows[key] = self._row(key)
                self._emit("I", self.rows[key])
        elif choice < 0.6:
            old = self.rows.pop(random.choice(list(self.rows)))
            self._emit("D" if self.relation.is_full else "E", self._old(old))
        else:
            self._update(random.choice(list(self.rows)))

    def _update(self, key: int) -> None:
        random = self.random
        old = self.rows.pop(key)
        target = key if random.random() < 0.6 else random.randint(0, 30)
        target = key if target in self.rows else target
        new = self._row(target)
        is_unsent = random.random() < 0.5
        if is_unsent:
            new = (old[0], *new[1:])
        self.rows[target] = new
        if self.relation.is_full:
            self._emit("O", old)
        elif target != key:
            self._emit("K", self._old(old))
        self._emit("N", new, is_unsent=is_unsent)

    def take(self) -> Changes:
        """What was drawn since the last call."""
        columns = tuple(
            Column.of(f.type.physical, [row[i] for row in self.cells]) for i, f in enumerate(FIELDS)
        )
        mask = np.zeros(len(self.cells), np.bool_)
        mask[self.unsent] = True
        unchanged = {0: mask} if self.unsent else {}
        kinds = np.array([ord(letter) for letter in self.letters], np.uint8)
        self.letters, self.cells, self.unsent = [], [], []
        return Changes(self.relation, kinds, columns, unchanged)


@pytest.mark.parametrize("relation", [KEYED, FULL], ids=["default identity", "full identity"])
@pytest.mark.parametrize("seed", range(40))
def test_random_histories(relation: Relation, seed: int) -> None:
    """Batches of all sizes, keys touched again and again inside one."""
    stream, store = Stream(relation, seed), MemoryStore()
    table = TableState(relation, COLUMNS, store, "v")
    total: Counter[Row] = Counter()
    for _ in range(30):
        for _ in range(stream.random.choice([0, 1, 2, 10, 40])):
            stream.change()
        delta = table.resolve(stream.take())
        rows = delta.rows()
        assert len({row for row, _ in rows}) == len(rows)
        for row, weight in rows:
            total[row] += weight
        expected = Counter(tuple(row[c] for c in COLUMNS) for row in stream.rows.values())
        assert +total == expected
        assert not any(weight < 0 for weight in total.values())


@pytest.mark.parametrize("seed", range(20))
def test_columns_die_one_after_the_other(seed: int) -> None:
    """Whatever of a row its changes still have, its retraction never comes too early."""
    stream, store, random = Stream(FULL, seed), MemoryStore(), Random(seed)
    dead: list[str] = []
    for _ in range(4):
        table = TableState(FULL, COLUMNS, store, "v", dead)
        for _ in range(30):
            stream.change()
        # Only the key is never dead; those that are dead are no longer sent.
        changes = stream.take()
        columns = [
            Column.nulls(f.type.physical, len(changes)) if f.name in dead else column
            for f, column in zip(FIELDS, changes.columns, strict=True)
        ]
        unchanged = {} if "payload" in dead else changes.unchanged
        table.resolve(Changes(FULL, changes.kinds, tuple(columns), unchanged))
        alive = [name for name in ("payload", "n") if name not in dead]
        dead += random.sample(alive, random.randint(0, 1)) if alive else []
    table = TableState(FULL, COLUMNS, store, "v", dead)
    present = Counter(stream.rows.keys())
    for rows, sign in ((table.rows(), 1), (table.emptied(), -1)):
        found = Counter() if sign > 0 else Counter(present)
        for delta in rows:
            # Each row by itself, as the key that it is for readers.
            for (_, key, _), weight in sorted(delta.rows(), key=lambda row: row[1]):
                found[key] += weight
                assert found[key] >= 0
        assert +found == (present if sign > 0 else Counter())


def _changes(letters: str, keys: list[int]) -> Changes:
    columns = tuple(
        Column.of(f.type.physical, keys if i == 1 else [None] * len(keys))
        for i, f in enumerate(FIELDS)
    )
    return Changes(KEYED, np.frombuffer(letters.encode(), np.uint8), columns)


@pytest.mark.parametrize(
    ("letters", "keys"),
    [("N", [1]), ("E", [1]), ("KN", [1, 2]), ("II", [1, 1]), ("IEE", [1, 1, 1]), ("EN", [1, 1])],
)
def test_changes_that_do_not_fit_are_refused(letters: str, keys: list[int]) -> None:
    """An old row that is not there, an insert over a row that is."""
    table = TableState(KEYED, COLUMNS, MemoryStore(), "v")
    with pytest.raises(InvariantError, match="do not fit"):
        table.resolve(_changes(letters, keys))


def test_columns_that_nobody_needs_cancel_out() -> None:
    """An update of other columns alone is no change."""
    table = TableState(KEYED, COLUMNS, MemoryStore(), "v")
    table.resolve(_changes("I", [1]))
    assert len(table.resolve(_changes("N", [1]))) == 0


def test_loaded_rows_are_old_rows() -> None:
    """A snapshot row is found by the first change of it."""
    table = TableState(KEYED, COLUMNS, MemoryStore(), "v")
    first = TableState(KEYED, COLUMNS, MemoryStore(), "v").resolve(_changes("II", [1, 2]))
    table.load(first)
    assert table.resolve(_changes("E", [2])).rows() == [((None, 2, None), -1)]


class Topic:
    """Draws rows that replace those of their key, and removals, and applies them to a model."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.rows: dict[int, Row] = {}

    def take(self, count: int) -> Changes:
        """So many changes, of few keys; values that have not changed may be left out."""
        random, kinds, cells, unsent = self.random, [], [], []
        for _ in range(count):
            key = random.randint(0, 12)
            old = self.rows.pop(key, None)
            choice = random.random()
            if choice < 0.03:
                self.rows.clear()
                cells.append((None,) * 4)
                kinds.append(Changes.TRUNCATE)
            elif choice < 0.3:
                cells.append((None, key, None, None))
                kinds.append(Changes.REMOVE)
            else:
                row = (random.choice([None, b"x", b"long" * 5]), key, 0, random.choice([None, 1]))
                if old is not None and random.random() < 0.4:
                    row = (old[0], *row[1:])
                    unsent.append(len(cells))
                self.rows[key] = row
                cells.append((None, *row[1:]) if len(cells) in unsent[-1:] else row)
                kinds.append(Changes.UPSERT)
        columns = tuple(
            Column.of(f.type.physical, [row[i] for row in cells]) for i, f in enumerate(FIELDS)
        )
        mask = np.zeros(count, np.bool_)
        mask[unsent] = True
        return Changes(KEYED, np.array(kinds, np.uint8), columns, {0: mask} if unsent else {})


@pytest.mark.parametrize("seed", range(40))
def test_rows_that_replace_those_of_their_key(seed: int) -> None:
    """Whether there was a row or not; of a key that comes several times the last one stands."""
    topic = Topic(seed)
    table = TableState(KEYED, COLUMNS, MemoryStore(), "v")
    total: Counter[Row] = Counter()
    for _ in range(30):
        delta = table.resolve(topic.take(topic.random.choice([0, 1, 2, 10, 40])))
        rows = delta.rows()
        assert len({row for row, _ in rows}) == len(rows)
        for row, weight in rows:
            total[row] += weight
        expected = Counter(tuple(row[c] for c in COLUMNS) for row in topic.rows.values())
        assert +total == expected
        assert not any(weight < 0 for weight in total.values())


def test_a_value_that_was_left_out_of_an_unknown_row_is_refused() -> None:
    """It can be found nowhere; nothing is made up."""
    table = TableState(KEYED, COLUMNS, MemoryStore(), "v")
    change = _changes("U", [1])
    change.unchanged[0] = np.ones(1, np.bool_)
    with pytest.raises(SourceError) as refusal:
        table.resolve(change)
    assert refusal.value.code == "source.no_old_value"


def test_a_value_of_an_unknown_row_is_reported_if_requested() -> None:
    """So is one that rests on such a row; others of the batch, and later ones, stand."""
    table = TableState(KEYED, COLUMNS, MemoryStore(), "v")
    change = _changes("UUUU", [1, 1, 2, 3])
    change.unchanged[0] = np.array([True, True, False, True])
    change.letters = ((b"first",), (b"second",), None, None)
    found = table.resolve(change)
    assert [row[1] for row, _ in found.rows()] == [2]
    assert table.rejected == [(b"first",), (b"second",)]
    assert len(table.resolve(_changes("U", [1]))) == 1
    again = _changes("U", [1])
    again.unchanged[0] = np.ones(1, np.bool_)
    again.letters = ((b"third",),)
    table.resolve(again)
    assert (table.rejected[2:], table.row_count()) == ([], 2)


def test_rows_that_are_only_added_are_not_stored() -> None:
    """Equal ones add up; there is no state, and a change of another kind is refused."""
    store = MemoryStore()
    table = TableState(APPENDED, COLUMNS, store, "v")
    changes = _changes("III", [1, 2, 1])
    changes.relation = APPENDED
    assert sorted(table.resolve(changes).rows()) == [((None, 1, None), 2), ((None, 2, None), 1)]
    table.load(table.resolve(changes))
    with pytest.raises(InvariantError, match="do not fit"):
        table.resolve(_changes("E", [1]))
