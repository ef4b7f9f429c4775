"""Facts about the rows of a node: keys, equal columns, constants, columns never NULL.

Two values are the same if PostgreSQL's `=` says so, or both are NULL. Columns count as equal to
each other or to a constant only if equality of their type is equality of bits.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from dataflow.expressions.ir import ColumnRef
from dataflow.expressions.keys import key_form
from dataflow.types import SqlType

Key = frozenset[int]
NO_COLUMNS: Key = frozenset()
_MAX_KEYS = 16
_MAX_FACTS = 64


@dataclass(frozen=True)
class Keys:
    """The keys of an output, and other facts about its rows.

    keys: sets of columns on which no two rows agree; the empty set: at most one row. equal: pairs
    of columns that hold one value in every row. determined: (columns, the columns whose values
    follow from theirs). constants: (column, the text that it has in every row). present: columns
    that are never NULL.
    """

    keys: tuple[Key, ...]
    equal: tuple[tuple[int, int], ...] = ()
    determined: tuple[tuple[Key, Key], ...] = ()
    constants: tuple[tuple[int, str | None], ...] = ()
    present: Key = NO_COLUMNS

    def __post_init__(self) -> None:
        # Keep each fact once, and only useful ones: otherwise they double with every self join.
        equal = {(min(pair), max(pair)) for pair in self.equal if pair[0] != pair[1]}
        follows: dict[Key, Key] = {}
        for source, columns in self.determined:
            follows[source] = follows.get(source, NO_COLUMNS) | columns
        determined = [(s, c) for s, c in follows.items() if not c <= s][:_MAX_FACTS]
        object.__setattr__(self, "keys", fewest(self.keys))
        object.__setattr__(self, "equal", tuple(sorted(equal)))
        object.__setattr__(self, "determined", tuple(determined))
        object.__setattr__(self, "constants", tuple(sorted(dict(self.constants).items())))

    def closure(self, columns: Key) -> Key:
        """Return all columns whose values follow from those of `columns`."""
        found = {*columns, *(c for c, _ in self.constants)}
        size = -1
        while len(found) > size:
            size = len(found)
            for a, b in self.equal:
                if a in found or b in found:
                    found |= {a, b}
            for source, follows in self.determined:
                if source <= found:
                    found |= follows
        return frozenset(found)

    def reduced(self, columns: Key) -> Key:
        """Return fewer columns that determine all of `columns`, at least one; later ones are
        removed first."""
        retained = set(columns)
        for column in sorted(columns, reverse=True):
            if len(retained) > 1 and column in self.closure(frozenset(retained - {column})):
                retained.remove(column)
        return frozenset(retained)

    def is_once(self, columns: Iterable[int]) -> bool:
        """Return whether no two rows agree on the columns."""
        known = self.closure(frozenset(columns))
        return any(key <= known for key in self.keys)

    def minimized(self, width: int) -> Keys:
        """Return the same facts with smaller keys, each determining all of the output's `width`
        columns."""
        keys = fewest([self.reduced(key) for key in self.keys])
        every = frozenset(range(width))
        follows = tuple((key, every) for key in keys)
        return replace(self, keys=keys, determined=(*follows, *self.determined))

    def shifted(self, by: int) -> Keys:
        """Return the facts with all columns `by` positions further right."""

        def moved(columns: Key) -> Key:
            return frozenset(c + by for c in columns)

        return Keys(
            tuple(moved(key) for key in self.keys),
            tuple((a + by, b + by) for a, b in self.equal),
            tuple((moved(a), moved(b)) for a, b in self.determined),
            tuple((c + by, text) for c, text in self.constants),
            moved(self.present),
        )


def fewest(keys: Iterable[Key]) -> tuple[Key, ...]:
    """Return the keys that contain no other key, the smallest first."""
    retained: list[Key] = []
    for key in sorted(set(keys), key=lambda k: (len(k), sorted(k))):
        if not any(other <= key for other in retained):
            retained.append(key)
    return tuple(retained[:_MAX_KEYS])


def is_plain(type: SqlType) -> bool:
    """Return whether equal values of the type are equal bits."""
    return key_form(ColumnRef(0, type)) == ColumnRef(0, type)
