"""The order of values of a type, as integers.

Invariant: within one call the order is total on bits: equal numbers are equal bits, so that the
extreme of a group is one value, whatever the order of arrival. Where PostgreSQL considers different
bits equal (1.5 and 1.50), the bytes of the text decide.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tidemark_native.expressions import rank_keys

from dataflow.delta import KIND_BYTES, KIND_FLOAT, Column
from dataflow.expressions.evaluator import Evaluator
from dataflow.expressions.intervals import span_of
from dataflow.expressions.numbers import Numbers
from dataflow.types import SqlType, TypeKind

_BYTEWISE = (TypeKind.UUID, TypeKind.BYTEA)
_MAGNITUDE = np.int64(2**63 - 1)
_MAX_PADDED_BYTES = 1 << 24


def ranks(type: SqlType, column: Column, evaluator: Evaluator) -> np.ndarray:
    """Return int64[n]: the rank of each value in PostgreSQL's order; no value is NULL."""
    kind = column.kind
    if kind == KIND_FLOAT:
        return _float_ranks(column.values)
    if kind != KIND_BYTES or _is_bytewise(type):
        return text_ranks(column)
    return _tied(peer_ranks(type, column, evaluator), column)


def peer_ranks(type: SqlType, column: Column, evaluator: Evaluator) -> np.ndarray:
    """Return int64[n]: the same order, with one rank for all values that PostgreSQL calls equal."""
    kind = column.kind
    if kind == KIND_FLOAT:
        # There is one NaN, above all numbers; adding 0 turns -0 into 0, which it equals.
        return _float_ranks(column.values + 0.0)
    if kind != KIND_BYTES or _is_bytewise(type):
        return text_ranks(column)
    if type.kind is TypeKind.DECIMAL:
        return _number_ranks(column)
    if type.kind is TypeKind.INTERVAL:
        return _dense_ranks([span_of(text) for text in column.to_list()])
    return evaluator.rank(type, column)


def text_ranks(column: Column) -> np.ndarray:
    """Return int64[n]: the rank of each value by its stored bytes; no value is NULL."""
    kind = column.kind
    if kind == KIND_FLOAT:
        return _float_ranks(column.values)
    if kind != KIND_BYTES:
        return column.values.astype(np.int64)
    return _byte_ranks(column)


def _is_bytewise(type: SqlType) -> bool:
    return type.kind in _BYTEWISE or (type.kind is TypeKind.TEXT and type.is_bytewise)


def _float_ranks(values: np.ndarray) -> np.ndarray:
    # NaN is above all numbers, as are its bits: there is one NaN, with a positive sign.
    bits = values.view(np.int64)
    return np.where(bits < 0, bits ^ _MAGNITUDE, bits)


def _byte_ranks(column: Column) -> np.ndarray:
    """Return int64[n]: the rank of each value of a bytes column among the distinct ones."""
    assert column.data is not None
    n = len(column)
    lengths = np.diff(column.values)
    width = int(lengths.max(initial=1)) or 1
    if n * width > _MAX_PADDED_BYTES:
        return _dense_ranks(column.to_list())
    # No value has a zero byte, so padding with zeros preserves order and identity.
    padded = np.zeros((n, width), np.uint8)
    inside = np.arange(width) < lengths[:, np.newaxis]
    padded[inside] = column.data[column.values[0] : column.values[-1]]
    rank = np.unique(padded.view(f"S{width}").reshape(n), return_inverse=True)[1]
    return rank.astype(np.int64)


def _dense_ranks(keys: Sequence[Any]) -> np.ndarray:
    """Return int64[n]: the rank of each key among the distinct ones."""
    rank = {key: i for i, key in enumerate(sorted(set(keys)))}
    return np.fromiter((rank[k] for k in keys), np.int64, len(keys))


def _number_ranks(column: Column) -> np.ndarray:
    numbers = Numbers.of_text(column)
    if numbers.words is not None:
        signs, words, scales = numbers.words
        keys, fits = rank_keys(signs, words, scales, int(scales.max(initial=0)))
        if fits:
            return _ranked(keys)
    decimals = numbers.decimals().tolist()
    finite = sorted({d for d in decimals if not d.is_nan()})
    rank = {d: i for i, d in enumerate(finite)}
    nan = len(finite)
    return np.fromiter((nan if d.is_nan() else rank[d] for d in decimals), np.int64, len(column))


def _ranked(keys: np.ndarray) -> np.ndarray:
    """Return int64[n]: the rank of each column of int64[k, n] keys, the first key the most
    significant."""
    sequence = np.lexsort(keys[::-1])
    ordered = keys[:, sequence]
    fresh = np.zeros(len(sequence), np.int64)
    fresh[1:] = (ordered[:, 1:] != ordered[:, :-1]).any(axis=0)
    out = np.empty(len(sequence), np.int64)
    out[sequence] = np.cumsum(fresh)
    return out


def _tied(order: np.ndarray, column: Column) -> np.ndarray:
    """Return the order, with values of equal rank ordered by their text."""
    texts = text_ranks(column)
    sequence = np.lexsort((texts, order))
    fresh = np.ones(len(sequence), np.int64)
    a, b = sequence[1:], sequence[:-1]
    fresh[1:] = (order[a] != order[b]) | (texts[a] != texts[b])
    out = np.empty(len(sequence), np.int64)
    out[sequence] = np.cumsum(fresh)
    return out
