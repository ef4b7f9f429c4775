"""Changes of one relation as a source reports them, before old rows are known."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from dataflow.delta import Column
from dataflow.schema import Relation


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
    stands in the old row.
    """

    relation: Relation
    kinds: np.ndarray
    columns: tuple[Column, ...]
    unchanged: dict[int, np.ndarray] = field(default_factory=dict)

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
