"""Changes of one relation as a source reports them, before old rows are known.

Invariant: changes of a relation stand in the order in which they were made; those of several
relations in none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dataflow.delta import Column
from dataflow.schema import Relation, RelationName

Letter = tuple[Any, ...]


@dataclass
class Changes:
    """What happened to one relation, in order, in columns of the relation's fields.

    kinds uint8[n], one letter as ord() each:
      INSERT   a full new row
      NEW      the new side of an update, full but for `unchanged` values
      OLD      the old side of an update, whole (REPLICA IDENTITY FULL)
      OLD_KEY  the old side of an update, only the key's columns filled (the key changed)
      DELETE   a deleted row, whole (REPLICA IDENTITY FULL)
      DELETE_KEY  a deleted row, only the key's columns filled
      UPSERT   a full row that takes the place of the one with its key, if there is one
      REMOVE   only the key's columns filled: the row with this key goes, if there is one
      TRUNCATE every row is gone; the row itself is NULLs
    An update is OLD or OLD_KEY directly followed by NEW, or NEW alone: then the key did not
    change and the old row is the one kept under NEW's key. Of a relation with UPSERT or REMOVE
    all changes are of these two kinds or TRUNCATE.
    unchanged[c] is bool[n]: the value of column c was not sent (an unchanged TOAST value); it
    stands in the old row. letters: where a row whose value stands nowhere is left out rather than
    refused, what is told of each row then (`connectors.feed_source.rejected_row`), None for
    nothing.
    """

    relation: Relation
    kinds: np.ndarray
    columns: tuple[Column, ...]
    unchanged: dict[int, np.ndarray] = field(default_factory=dict)
    letters: tuple[Letter | None, ...] | None = None

    INSERT = ord("I")
    NEW = ord("N")
    OLD = ord("O")
    OLD_KEY = ord("K")
    DELETE = ord("D")
    DELETE_KEY = ord("E")
    UPSERT = ord("U")
    REMOVE = ord("R")
    TRUNCATE = ord("T")

    def __len__(self) -> int:
        return len(self.kinds)


def truncated(changes: Sequence[Changes]) -> set[RelationName]:
    """The relations among them that are truncated."""
    return {c.relation.name for c in changes if (c.kinds == Changes.TRUNCATE).any()}


def since_truncation(changes: Sequence[Changes]) -> list[Changes]:
    """Without all that comes before the last truncation of its relation, within other changes."""
    newest = {
        change.relation.name: position
        for position, change in enumerate(changes)
        if (change.kinds == Changes.TRUNCATE).any()
    }
    return [c for i, c in enumerate(changes) if i >= newest.get(c.relation.name, 0)]
