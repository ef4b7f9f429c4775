"""Plain dictionaries that say what a store must hold, and random rows to put into it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from storage.delta import Column, Delta

Row = tuple[Any, ...]


def random_value(rng: random.Random, kind: str, spread: int) -> Any:
    """A value of one kind out of about `spread` different ones, or None."""
    if rng.random() < 0.12:
        return None
    n = rng.randrange(spread)
    if kind == "i":
        return [n, -n, n << 40][n % 3]
    if kind == "f":
        return n / 4
    if kind == "b":
        return n % 2 == 0
    return (b"%d" % n) * (n % 4 + (40 if n % 7 == 0 else 0))


def random_row(rng: random.Random, kinds: str, spread: int) -> Row:
    """A row of these kinds."""
    return tuple(random_value(rng, kind, spread) for kind in kinds)


def random_delta(
    rng: random.Random, kinds: str, kept: Counter[Row], size: int
) -> list[tuple[Row, int]]:
    """Up to `size` changes that leave no row below zero; `kept` is changed along."""
    changes = []
    present = list(kept)
    for _ in range(size):
        if present and rng.random() < 0.45:
            row = rng.choice(present)
            if not kept[row]:
                continue
            weight = -rng.randint(1, kept[row]) if rng.random() < 0.3 else -kept[row]
        else:
            row, weight = random_row(rng, kinds, 12), rng.randint(1, 3)
        changes.append((row, weight))
        kept[row] += weight
        if not kept[row]:
            del kept[row]
    return changes


def delta_of(kinds: str, changes: Sequence[tuple[Row, int]]) -> Delta:
    """The changes as a delta, not consolidated."""
    return Delta.of(kinds, [row for row, _ in changes], [weight for _, weight in changes])


def key_of(row: Row, key: Sequence[int]) -> Row:
    """The key of a row."""
    return tuple(row[at] for at in key)


def columns_of(kinds: str, rows: Sequence[Row]) -> list[Column]:
    """Rows as columns."""
    return [Column.of(kind, [row[at] for row in rows]) for at, kind in enumerate(kinds)]


def check_lookup(
    arrangement: Any,
    kept: Counter[Row],
    keys: Sequence[Row],
    between: Callable[[], object] = lambda: None,
) -> None:
    """The lookup of keys (repeats allowed) answers as the dictionary does, whole and in parts.

    between: what happens to the store between two parts.
    """
    key = arrangement.spec.key
    asked = columns_of("".join(arrangement.spec.kinds[at] for at in key), keys)
    wanted = {
        (at, row): weight
        for at, asked in enumerate(keys)
        for row, weight in kept.items()
        if key_of(row, key) == asked
    }
    assert _found([arrangement.lookup(asked)]) == wanted
    for max_rows in (1, 7, 50):
        parts = []
        for part in arrangement.lookup_parts(asked, max_rows):
            parts.append(part)
            between()
        assert _found(parts) == wanted


def _found(parts: Iterable[tuple[np.ndarray, Delta]]) -> Counter[tuple[int, Row]]:
    found: Counter[tuple[int, Row]] = Counter()
    for index, rows in parts:
        for at, (row, weight) in zip(index.tolist(), rows.rows(), strict=True):
            assert (at, row) not in found, "a row came twice for one key"
            found[at, row] = weight
    return found


def check_scan(
    arrangement: Any, kept: Counter[Row], between: Callable[[], object] = lambda: None
) -> None:
    """The scan gives each row kept, once. between: what happens to the store between two chunks."""
    scanned = []
    for delta in arrangement.scan():
        between()
        scanned += delta.rows()
    assert len(scanned) == len(kept)
    assert dict(scanned) == dict(kept)


def check_sums(sums: Any, kept: dict[Row, np.ndarray], keys: Iterable[Row]) -> None:
    """Lookup and scan answer as the dictionary of non-zero vectors does."""
    keys = list(keys)
    zero = np.zeros(sums.spec.width, np.int64)
    vectors = sums.lookup(columns_of(sums.spec.key_kinds, keys))
    wanted = [kept.get(key, zero).tolist() for key in keys]
    assert vectors.T.tolist() == wanted
    scanned = {}
    for columns, part in sums.scan():
        lists = [column.to_list() for column in columns]
        names = list(zip(*lists, strict=True)) if lists else [()] * part.shape[1]
        for name, vector in zip(names, part.T.tolist(), strict=True):
            assert name not in scanned
            scanned[name] = vector
    assert scanned == {key: vector.tolist() for key, vector in kept.items()}
