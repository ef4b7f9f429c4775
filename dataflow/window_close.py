"""When a window of time is closed: the watermark has passed its end.

Pure functions of columns. Invariant: the dataflow and a reader of the view's table decide alike.
"""

from __future__ import annotations

import numpy as np

from dataflow.delta import Column
from dataflow.types import SqlType, TypeKind

# Microseconds of one unit of each type that a window may begin with.
UNITS_US = {TypeKind.DATE: 86_400_000_000, TypeKind.TIMESTAMP: 1, TypeKind.TIMESTAMPTZ: 1}


def last_closed(type: SqlType, width_us: int, edge_us: int) -> int:
    """Return the greatest value, in the type's units, whose window of that length is closed.

    edge_us: the watermark, in microseconds since 2000 UTC.
    """
    return (edge_us - width_us) // UNITS_US[type.kind]


def is_closed(column: Column, type: SqlType, width_us: int, edge_us: int | None) -> np.ndarray:
    """Return bool[n]: whether the window that begins at each value is closed; False for NULL.

    edge_us: as in `last_closed`; None while there is no watermark: no window is closed then.
    """
    if edge_us is None:
        return np.zeros(len(column), np.bool_)
    return column.mask() & (column.values <= last_closed(type, width_us, edge_us))
