"""Whether a call can be maintained row by row in a long partition, and which rows it depends on.

"number": a position in the partition. "running": all rows up to the current one, resumed from a
state. "local": rows near the current one, whatever the partition's ends. None: any change may
affect all rows of the partition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from dataflow.expressions.ir import Literal
from dataflow.operators.windows.window_frames import Frames
from dataflow.operators.windows.window_ranges import has_distance, is_native_range
from dataflow.operators.windows.window_rows import WindowRows
from dataflow.plan.nodes import Frame, SortKey, Window, WindowCall
from dataflow.plan.window_functions import PICKING, SHIFTING, is_native

_NEAR = ("preceding", "current row", "following")


def kind_of(call: WindowCall, order: Sequence[SortKey]) -> str | None:
    """ "number", "running", "local" or None, see above."""
    if call.function in ("row_number", "rank"):
        return "number"
    if call.function == "dense_rank":
        return "running"
    if call.function in SHIFTING:
        offset = call.arguments[1] if len(call.arguments) > 1 else None
        is_fixed = isinstance(offset, Literal) and offset.text is not None
        return "local" if offset is None or is_fixed else None
    frame = call.frame
    is_picking = call.function in PICKING
    if not (is_picking or call.is_aggregate):
        return None
    if frame.start.kind in _NEAR and frame.end.kind in _NEAR:
        if frame.mode != "range" or not has_distance(frame):
            return "local"
        return "local" if is_native_range(frame, order[0].expression.type) else None
    is_running = frame.start.kind == "unbounded preceding" and frame.end.kind == "current row"
    if not is_running or frame.exclude:
        return None
    if is_picking:
        return {"first_value": "running", "last_value": "local"}.get(call.function)
    return "running" if is_native(call) else None


def reaches_end(call: WindowCall, kind: str | None) -> bool:
    """Return whether a change usually affects all later rows: another extreme soon replaces one."""
    return kind == "number" or (kind == "running" and call.function not in ("min", "max"))


def sees_peers(call: WindowCall) -> bool:
    """Return whether the value depends on which rows are peers."""
    frame = call.frame
    if call.function in ("rank", "dense_rank"):
        return True
    if call.function == "row_number" or call.function in SHIFTING:
        return False
    return frame.mode != "rows" or frame.exclude in ("group", "ties")


def is_followed(plan: Window) -> bool:
    """Return whether each call can be maintained row by row; with peers and no order all rows are
    peers."""
    if not plan.order and any(map(sees_peers, plan.calls)):
        return False
    return all(kind_of(c, plan.order) is not None for c in plan.calls)


def reach_of(
    call: WindowCall, rows: WindowRows, frames: Mapping[Frame, Frames]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the positions low <= p < high that a local call's value depends on, its own included;
    neither decreases from row to row."""
    low = high = rows.position
    if call.function in SHIFTING:
        offset = call.arguments[1] if len(call.arguments) > 1 else None
        steps = int(str(offset.text)) if isinstance(offset, Literal) else 1
        steps = -steps if call.function == "lag" else steps
        low, high = rows.position + min(steps, 0), rows.position + max(steps, 0) + 1
    elif call.frame.start.kind in _NEAR:
        low, high = frames[call.frame].low[0], frames[call.frame].high[-1]
    low = np.minimum(np.maximum(low, rows.begin), rows.position)
    return low, np.maximum(np.minimum(high, rows.end), rows.position + 1)
