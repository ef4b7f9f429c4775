"""Compiled walking over Avro records: how many values each has, before any of them is decoded.

The decoder trusts a record: a few bytes may announce 2^62 values that take no bytes, and values
within each other end the process when its stack does. Invariant: a record that passes has no more
values and no more depth than allowed, and every length in it is within its bytes.
"""

import numpy as np
from numba import njit

# Kinds of nodes. The count is the bytes of FIXED, or the children of RECORD and UNION; ARRAY and
# MAP have one child.
NULL, LONG, FIXED, BYTES, RECORD, UNION, ARRAY, MAP = range(8)
# What is wrong with a record, in place of its number of values.
BROKEN, TOO_MANY, TOO_DEEP = -1, -2, -3
_MOST_SHIFT = 63


@njit(nogil=True, cache=True)
def _long(raw, at, end):
    """Return (value of a zigzag varint, position after it); a position of -1 if there is none."""
    value, shift = np.uint64(0), 0
    while at < end and shift <= _MOST_SHIFT:
        byte = np.uint64(raw[at])
        value |= (byte & np.uint64(0x7F)) << np.uint64(shift)
        at += 1
        if byte < 0x80:
            half = np.int64(value >> np.uint64(1))
            return (-half - 1 if value & np.uint64(1) else half), at
        shift += 7
    return np.int64(0), np.int64(-1)


@njit(nogil=True, cache=True)
def _after_bytes(raw, at, end):
    """Return the position after a length and that many bytes; -1 if they are not there."""
    size, at = _long(raw, at, end)
    if at < 0 or size < 0 or size > end - at:
        return np.int64(-1)
    return at + size


@njit(nogil=True, cache=True)
def _after_scalar(raw, at, end, kind, size):
    """Return the position after a value without inner ones; -1 if it is not there."""
    if kind == LONG:
        _, at = _long(raw, at, end)
    elif kind == FIXED:
        at = at + size if size <= end - at else np.int64(-1)
    elif kind == BYTES:
        at = _after_bytes(raw, at, end)
    return at


@njit(nogil=True, cache=True)
def _block(raw, at, end):
    """Return (items of a block of an array or map, position after its head, -1 if broken)."""
    count, at = _long(raw, at, end)
    if at >= 0 and count < 0:
        count = -count
        _, at = _long(raw, at, end)
    # The least number has no opposite.
    return count, at if count >= 0 else np.int64(-1)


@njit(nogil=True, cache=True)
def _next(raw, at, end, nodes, children, open_nodes, left, depth):
    """Return (type of the next value or -1, position, depth), after leaving what has none left."""
    while depth > 0 and at >= 0:
        top = open_nodes[depth - 1]
        if nodes[top, 0] == RECORD:
            if left[depth - 1] < nodes[top, 2]:
                left[depth - 1] += 1
                return children[nodes[top, 1] + left[depth - 1] - 1], at, depth
            depth -= 1
            continue
        if left[depth - 1] == 0:
            left[depth - 1], at = _block(raw, at, end)
            if left[depth - 1] == 0:
                depth -= 1
                continue
        left[depth - 1] -= 1
        if at >= 0 and nodes[top, 0] == MAP:
            at = _after_bytes(raw, at, end)
        return children[nodes[top, 1]], at, depth
    return np.int64(-1), at, depth


@njit(nogil=True, cache=True)
def count_values(offsets, raw, nodes, children, most_values, most_depth):
    """Return int64[records]: the values of each record, or what is wrong with it.

    nodes: int64[nodes, 3] of kind, first child and count, the record's type first. children: node
    numbers. most_depth: of values within each other.
    """
    found = np.zeros(offsets.shape[0] - 1, np.int64)
    # By depth: the node, and the next child of a record or what is left of a block.
    open_nodes, left = np.zeros(most_depth, np.int64), np.zeros(most_depth, np.int64)
    for row in range(found.shape[0]):
        at, end, depth = offsets[row], offsets[row + 1], 0
        values, node = np.int64(0), np.int64(0)
        while node >= 0:
            values += 1
            kind = nodes[node, 0]
            if values > most_values:
                values = np.int64(TOO_MANY)
                break
            if kind == UNION:
                branch, at = _long(raw, at, end)
                if at >= 0 and 0 <= branch < nodes[node, 2]:
                    node = children[nodes[node, 1] + branch]
                    continue
                at = np.int64(-1)
            elif kind in (RECORD, ARRAY, MAP):
                if depth == most_depth:
                    values = np.int64(TOO_DEEP)
                    break
                open_nodes[depth], left[depth] = node, 0
                depth += 1
            else:
                at = _after_scalar(raw, at, end, kind, nodes[node, 2])
            node, at, depth = _next(raw, at, end, nodes, children, open_nodes, left, depth)
            if at < 0:
                values = np.int64(BROKEN)
                break
        found[row] = values
    return found
