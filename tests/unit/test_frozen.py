"""Oracle: plain frozen dataclasses; what is kept beside the fields changes no answer and is not
pickled."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError, dataclass, replace

import pytest

from dataflow.frozen import caches_hash


@dataclass(frozen=True)
class Plain:
    left: object
    right: object = None


@caches_hash
@dataclass(frozen=True)
class Kept:
    left: object
    right: object = None


def tree(depth: int) -> Kept:
    """One object in both places of each level."""
    found = Kept(depth)
    for _ in range(depth):
        found = Kept(found, found)
    return found


def test_equality_and_hash_are_those_of_the_fields() -> None:
    values = [1, "a", None, (1, 2), 1.5]
    for a in values:
        for b in values:
            assert (Kept(a) == Kept(b)) == (Plain(a) == Plain(b))
            assert (hash(Kept(a)) == hash(Kept(b))) == (hash(Plain(a)) == hash(Plain(b)))
    assert Kept(1) != Plain(1)
    assert Kept(1) != 1
    assert replace(Kept(1), left=2) == Kept(2)
    with pytest.raises(FrozenInstanceError):
        Kept(1).left = 2  # type: ignore[misc]


def test_deep_shared_trees_are_compared_in_linear_time() -> None:
    first, second = tree(200), tree(200)
    assert first == second
    assert hash(first) == hash(second)
    assert first != tree(199)


def test_nothing_stored_is_pickled() -> None:
    found = Kept(Kept(1), Kept("text"))
    assert found == Kept(Kept(1), Kept("text"))
    assert b"_hash" not in pickle.dumps(found)
    assert b"_same" not in pickle.dumps(found)
    assert pickle.loads(pickle.dumps(found)) == found
