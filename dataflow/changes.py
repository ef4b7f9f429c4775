"""Changes of one relation as a source reports them, before old rows are looked up.

Invariant: the changes of one relation are in the order in which they were made. Changes of
different relations have no order among themselves.
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
    """The changes of one relation, in order, as columns of the relation's fields.

    kinds uint8[n], one letter as ord() each:
      INSERT   a full new row
      NEW      the new side of an update, full but for `unchanged` values
      OLD      the old side of an update, whole (REPLICA IDENTITY FULL)
      OLD_KEY  the old side of an update, only the key's columns filled (the key changed)
      DELETE   a deleted row, whole (REPLICA IDENTITY FULL)
      DELETE_KEY  a deleted row, only the key's columns filled
      UPSERT   a full row that replaces the row with its key, if any
      REMOVE   only the key's columns filled: deletes the row with this key, if any
      TRUNCATE deletes every row; the row itself is NULLs
    An update is OLD or OLD_KEY, directly followed by NEW. NEW alone means that the key did not
    change: the old row is the stored one with NEW's key. A relation with UPSERT or REMOVE has no
    other kinds but TRUNCATE. unchanged[c] is bool[n]: the value of column c was not sent (an
    unchanged TOAST value) and is that of the old row. letters: where a row whose value cannot be
    found is left out rather than refused, the dead letter of each row
    (`connectors.feed_source.rejected_row`); None for none.
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
    """Return the relations that these changes truncate."""
    return {c.relation.name for c in changes if (c.kinds == Changes.TRUNCATE).any()}


def since_truncation(changes: Sequence[Changes]) -> list[Changes]:
    """Return the changes without those before the last truncation of their relation."""
    newest = {
        change.relation.name: position
        for position, change in enumerate(changes)
        if (change.kinds == Changes.TRUNCATE).any()
    }
    return [c for i, c in enumerate(changes) if i >= newest.get(c.relation.name, 0)]
