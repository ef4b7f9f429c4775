"""Which features go into which query: each alone, then all pairs, then deep ones.

Invariant: the lists depend on the seed alone; after `singles` and `pairs` each feature and each
pair of features has been in a list.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from random import Random

TRIES = 30


def singles(names: Sequence[str], rng: Random) -> list[tuple[str, ...]]:
    """Return each feature by itself."""
    return [(name,) for name in rng.sample(list(names), len(names))]


def pairs(names: Sequence[str], rng: Random, size: int) -> list[tuple[str, ...]]:
    """Lists of `size` features that hold every pair, most of them once."""
    missing = set(combinations(sorted(names), 2))
    partners = {name: {n for n in names if n != name} for name in names}
    found = []
    while missing:
        chosen = list(rng.choice(sorted(missing)))
        while len(chosen) < size:
            candidates = rng.sample(sorted(set(names) - set(chosen)), min(TRIES, len(names) - size))
            chosen.append(max(candidates, key=lambda c: sum(c in partners[n] for n in chosen)))
        for left, right in combinations(sorted(chosen), 2):
            missing.discard((left, right))
            partners[left].discard(right)
            partners[right].discard(left)
        found.append(tuple(chosen))
    return found


def deep(names: Sequence[str], rng: Random) -> Iterator[tuple[str, ...]]:
    """Many features in one query, which makes it three or four levels deep; endless."""
    while True:
        yield tuple(rng.sample(list(names), rng.randint(6, 10)))
