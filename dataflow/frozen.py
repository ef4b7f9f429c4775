"""Trees of frozen dataclasses that are hashed and compared often.

A node caches its hash, and the node that it was last found equal to. So trees that share objects
are compared in linear time. Invariant: neither leaves the process, since hashes of text differ
between processes.
"""

from __future__ import annotations

from typing import Any, TypeVar
from weakref import ref

_KEPT, _SAME = "_hash", "_same"
_T = TypeVar("_T")


def caches_hash(cls: type[_T]) -> type[_T]:
    """Cache the hash of a class; apply outside `dataclass(frozen=True)`.

    >>> from dataclasses import dataclass
    >>> @caches_hash
    ... @dataclass(frozen=True)
    ... class Pair:
    ...     a: object
    ...     b: object
    >>> Pair(1, 2) == Pair(1, 2), hash(Pair(1, 2)) == hash(Pair(1, 2)), Pair(1, 2) == Pair(2, 1)
    (True, True, False)
    """
    compute, same_fields = cls.__hash__, cls.__eq__

    def cached_hash(self: Any) -> int:
        found = self.__dict__.get(_KEPT)
        if found is None:
            found = self.__dict__[_KEPT] = compute(self)
        return found

    def equals(self: Any, other: object) -> Any:
        if self is other:
            return True
        if self.__class__ is not other.__class__ or hash(self) != hash(other):
            return False
        same = self.__dict__.get(_SAME)
        if same is not None and same() is other:
            return True
        is_equal = same_fields(self, other)
        if is_equal is True:
            self.__dict__[_SAME] = ref(other)
        return is_equal

    def state(self: Any) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k not in (_KEPT, _SAME)}

    for name, method in (("__hash__", cached_hash), ("__eq__", equals), ("__getstate__", state)):
        setattr(cls, name, method)
    return cls
