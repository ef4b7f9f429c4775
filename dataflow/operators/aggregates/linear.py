"""Aggregates that are sums of a contribution of each row: one Sums stores all of them.

Invariant: sums are exact. A smallint or integer counts in one int64, a wider one in two limbs (v &
0xffffffff and v >> 32), so that 2^31 rows of a group cannot overflow. NaN of fixed point is
counted, not added. Other numerics with known scales and digits use as many limbs as they need, and
count the rows of each scale: the sum has the greatest scale of the live rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
from tidemark_native import storage as kernels
from tidemark_native.aggregates import parse_limbs

from dataflow.delta import Column
from dataflow.errors import InvariantError
from dataflow.expressions.numeric_form import NumericForm
from dataflow.frozen import caches_hash
from dataflow.operators.aggregates.numeric_results import (
    Masks,
    average_column,
    limbs_of,
    sum_column,
)
from dataflow.operators.base import Context
from dataflow.operators.groups import Touched
from dataflow.types import FIXED_NAN, SqlType, TypeKind

INPUT = -1
_LOW = 0xFFFFFFFF
_NO_MASK = np.empty(0, np.bool_)
# Beyond this a ledger is smaller: 8 limbs are 76 digits.
_MAX_LIMBS, _MAX_SCALES = 8, 3


class Measure(Enum):
    """What a part of the vector sums. FIXED_* leave NaN out; the last three sum numeric text."""

    ROWS = 1
    EMITTED = 2
    COUNT = 3
    WHOLE = 4
    LOW = 5
    HIGH = 6
    FIXED_LOW = 7
    FIXED_HIGH = 8
    NANS = 9
    BIT = 10
    LIMB = 11
    OF_SCALE = 12
    NAN_TEXTS = 13


@caches_hash
@dataclass(frozen=True)
class Part:
    """One int64 of the vector: a measure of a column of a feed.

    bit: which one BIT counts, which LIMB, what scale OF_SCALE counts. form: of a column of text.
    """

    measure: Measure
    column: int = -1
    feed: int = INPUT
    bit: int = 0
    form: NumericForm | None = None


ROWS = Part(Measure.ROWS)
EMITTED = Part(Measure.EMITTED)
Vectors = Callable[[Part], np.ndarray]


@dataclass(frozen=True)
class Feed:
    """n rows to accumulate: columns by position, weights, touched group of each row."""

    columns: Mapping[int, Column]
    weights: np.ndarray
    group: np.ndarray


class LinearSums:
    """The vector of all linear accumulators of one aggregate."""

    def __init__(self, context: Context, key_kinds: str, parts: Sequence[Part]) -> None:
        self._parts = tuple(dict.fromkeys(parts))
        self._position = {part: i for i, part in enumerate(self._parts)}
        self._sums = context.arrange_sums("sums", key_kinds, len(self._parts))

    def is_emitted(self) -> bool:
        """Return whether a global aggregate has emitted its row."""
        return bool(self._sums.lookup(())[self._position[EMITTED], 0])

    def forget(self, keys: Sequence[Column]) -> None:
        """Free the vectors of some groups, each once."""
        self._sums.add(keys, -self._sums.lookup(keys))

    @property
    def summed(self) -> tuple[Part, ...]:
        """Return the parts that are sums over rows: all but the mark of an emitted row."""
        return tuple(part for part in self._parts if part is not EMITTED)

    def changes(self, touched: Touched, feeds: Mapping[int, Feed]) -> np.ndarray:
        """Return int64[parts, groups]: what the feeds add to each of `summed`."""
        change = np.empty((len(self.summed), touched.count), np.int64)
        parsed: dict[tuple[int, int], Parsed] = {}
        for i, part in enumerate(self.summed):
            feed = feeds[part.feed]
            if part.form is not None:
                position = (part.column, part.feed)
                if position not in parsed:
                    parsed[position] = Parsed(feed.columns[part.column], part.form)
                contribution = parsed[position].contribution(part) * feed.weights
            else:
                contribution = _contribution(part, feed)
            change[i] = kernels.sum_by_group(feed.group, contribution, touched.count)
        return change

    def add(
        self, touched: Touched, changes: np.ndarray, emitting: int
    ) -> tuple[np.ndarray, Vectors]:
        """Apply `changes`; emitting: 1 if a global aggregate emits its row now.

        Return int64[2, groups], the rows of each group before and after, and a function that gives
        any part's int64[2 * groups] sums: all before, then all after.
        """
        if EMITTED in self._position:
            changes = np.insert(changes, self._position[EMITTED], emitting, axis=0)
        old = self._sums.lookup(touched.keys)
        self._sums.add(touched.keys, changes)
        both = np.concatenate([old, old + changes], axis=1)
        rows = both[self._position.get(EMITTED, 0)]
        return rows.reshape(2, -1), lambda part: both[self._position[part]]


def _contribution(part: Part, feed: Feed) -> np.ndarray:
    """Return int64[n]: what each row of a feed adds to a part."""
    weights, measure = feed.weights, part.measure
    if measure is Measure.ROWS:
        return weights
    column = feed.columns[part.column]
    if measure is Measure.COUNT:
        return weights if column.valid is None else weights * column.valid
    values = column.values
    if measure is Measure.WHOLE:
        return values * weights
    if measure is Measure.BIT:
        return ((values >> part.bit) & 1) * weights
    if measure not in (Measure.LOW, Measure.HIGH):
        nan = values == FIXED_NAN
        if measure is Measure.NANS:
            return nan * weights
        if nan.any():
            values = np.where(nan, 0, values)
    is_low = measure in (Measure.LOW, Measure.FIXED_LOW)
    return ((values & _LOW) if is_low else (values >> 32)) * weights


class Parsed:
    """A column of numeric text as limbs of the form that the plan derived. Raise InvariantError for
    a value that does not fit the form."""

    def __init__(self, column: Column, form: NumericForm) -> None:
        valid = _NO_MASK if column.valid is None else column.valid
        self._limbs, self._nan, self._scales, bad = parse_limbs(
            column.values, column.data, valid, form.scale, limbs_for(form)
        )
        counted = column.mask() & ~self._nan
        self._scales = np.where(counted, self._scales, -1)
        if bad >= 0 or not np.isin(self._scales[counted], list(form.scales)).all():
            raise InvariantError("plan.numeric_form", f"a number does not have the form {form}")

    def contribution(self, part: Part) -> np.ndarray:
        """Return int64[n] or bool[n]: what each row adds to a part for a weight of 1."""
        if part.measure is Measure.LIMB:
            return self._limbs[part.bit]
        return self._nan if part.measure is Measure.NAN_TEXTS else self._scales == part.bit


def limbs_for(form: NumericForm) -> int:
    """Return limbs of 32 bits that hold every number of a form, sign included."""
    return (10**form.digits).bit_length() // 32 + 1


class LinearCall:
    """count, sum, avg, bool_*, bit_*: parts of the vector, and the result out of them.

    form: of an argument that is numeric text.
    """

    def __init__(
        self,
        function: str,
        column: int,
        type: SqlType | None,
        feed: int,
        form: NumericForm | None = None,
    ) -> None:
        self._function = function
        self._type = type
        self._form = form
        if column < 0:
            self._count = ROWS
            self._parts = [ROWS]
            return
        self._count = Part(Measure.COUNT, column, feed)
        if function.startswith("bit_"):
            width = _BITS[type.kind]  # type: ignore[union-attr]
            self._parts = [Part(Measure.BIT, column, feed, bit) for bit in range(width)]
            return
        if form is not None:
            self._parts = [
                Part(measure, column, feed, bit, form)
                for measure, bits in _text_parts(form)
                for bit in bits
            ]
            return
        measures: tuple[Measure, ...] = ()
        if function != "count":
            measures = _MEASURES[type.kind]  # type: ignore[union-attr]
        self._parts = [Part(m, column, feed) for m in measures]

    @property
    def parts(self) -> list[Part]:
        """Return the parts of the vector that this call needs."""
        return [self._count, *self._parts]

    def result(self, sums: Vectors) -> Column:
        """Return one value for each vector."""
        counts = sums(self._count)
        if self._function == "count":
            return Column(counts)
        valid, parts = counts > 0, [sums(p) for p in self._parts]
        if self._function.startswith("bit_"):
            return Column(_bits(self._function, parts, counts), _mask(valid))
        if self._function.startswith("bool"):
            verdict = parts[0] == counts if self._function == "bool_and" else parts[0] > 0
            return Column(verdict & valid, _mask(valid))
        if len(parts) == 1 and self._function == "sum":
            return Column(parts[0], _mask(valid))
        if self._form is not None:
            return self._of_text(self._form, parts, counts)
        masks = Masks(valid, parts[2] > 0 if len(parts) == 3 else None)
        scale = self._type.scale if self._type is not None else 0
        limbs = parts[:2] if len(parts) > 1 else limbs_of(parts[0])
        if self._function == "sum":
            return sum_column(limbs, scale, scale, masks)
        return average_column(limbs, counts, scale, scale, masks)

    def _of_text(
        self, form: NumericForm, parts: Sequence[np.ndarray], counts: np.ndarray
    ) -> Column:
        nans, parts = parts[0], parts[1:]
        width, scales = limbs_for(form), sorted(form.scales)
        shown: int | np.ndarray = form.scale
        if len(scales) > 1:
            shown = np.zeros(len(counts), np.int64)
            for scale, rows in zip(scales, parts[width:], strict=True):
                shown = np.where(rows > 0, scale, shown)
        masks = Masks(counts > 0, nans > 0)
        if self._function == "sum":
            return sum_column(parts[:width], form.scale, shown, masks)
        return average_column(parts[:width], counts, form.scale, shown, masks)


def _bits(function: str, parts: Sequence[np.ndarray], counts: np.ndarray) -> np.ndarray:
    """Return int64[n] values, from the number of live values that have each bit."""
    found = np.zeros(len(counts), np.int64)
    for bit, ones in enumerate(parts):
        if function == "bit_xor":
            is_set = ones & 1
        else:
            is_set = (ones == counts) if function == "bit_and" else (ones > 0)
        # The highest bit of a type is its sign: it counts as minus its value.
        weight = np.int64(1) << bit if bit < len(parts) - 1 else np.int64(-1) << bit
        found |= is_set.astype(np.int64) * weight
    return np.where(counts > 0, found, 0)


_BITS = {TypeKind.INT2: 16, TypeKind.INT4: 32, TypeKind.INT8: 64}
_WIDE = (Measure.LOW, Measure.HIGH)
_MEASURES = {
    TypeKind.BOOL: (Measure.WHOLE,),
    TypeKind.INT2: (Measure.WHOLE,),
    TypeKind.INT4: (Measure.WHOLE,),
    TypeKind.INT8: _WIDE,
    TypeKind.FIXED: (Measure.FIXED_LOW, Measure.FIXED_HIGH, Measure.NANS),
}


def _text_parts(form: NumericForm) -> Iterator[tuple[Measure, Sequence[int]]]:
    yield Measure.NAN_TEXTS, (0,)
    yield Measure.LIMB, range(limbs_for(form))
    if len(form.scales) > 1:
        yield Measure.OF_SCALE, sorted(form.scales)


def text_form(form: NumericForm | None) -> NumericForm | None:
    """Return the form of an argument that is numeric text, where its sums can be parts of the
    vector."""
    if form is None or not form.scales or len(form.scales) > _MAX_SCALES:
        return None
    return form if limbs_for(form) <= _MAX_LIMBS else None


def is_linear(function: str, type: SqlType | None, form: NumericForm | None = None) -> bool:
    """Return whether the state of a call is a few int64 sums; form: of numeric text (text_form)."""
    if function == "count":
        return True
    if form is not None and function in ("sum", "avg"):
        return True
    if function.startswith("bit_"):
        return _kind(type) in _BITS
    return function in ("sum", "avg", "bool_and", "bool_or") and _kind(type) in _MEASURES


def _kind(type: SqlType | None) -> TypeKind:
    if type is None:
        raise InvariantError("plan.aggregate", "only count does without an argument")
    return type.kind


def _mask(valid: np.ndarray) -> np.ndarray | None:
    return None if valid.all() else valid
