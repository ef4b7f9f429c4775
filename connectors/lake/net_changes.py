"""The net effect of epochs on a keyed view: for each key its newest row, or that it is gone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dataflow.delta import Delta, group_rows


@dataclass(frozen=True)
class NetChanges:
    """rows: one for each key; where `is_gone`, the last row that the key had.

    order: for each, the position of the newest delta that has the key.
    """

    rows: Delta
    is_gone: np.ndarray
    order: np.ndarray


def net_changes(deltas: Sequence[Delta], key: Sequence[int]) -> NetChanges:
    """Return the net effect of deltas in the order of their epochs; at least one delta.

    >>> first, second = Delta.of("is", [(1, "a"), (2, "b")]), Delta.of("is", [(1, "a")], -1)
    >>> found = net_changes([first, second], [0])
    >>> [row for row, _ in found.rows.rows()], found.is_gone.tolist()
    ([(1, b'a'), (2, b'b')], [True, False])
    """
    rows = Delta.concat(deltas)
    order = np.repeat(np.arange(len(deltas)), [len(delta) for delta in deltas])
    group, _ = group_rows([rows.columns[i] for i in key], len(rows))
    # Of each key the newest delta that has it, and in that one the new row, if there is one.
    found = np.lexsort((rows.weights > 0, order, group))
    ends = np.append(group[found][1:] != group[found][:-1], True) if len(rows) else found
    last = found[ends.astype(np.bool_)]
    return NetChanges(rows.take(last), rows.weights[last] < 0, order[last])
