"""Numbers: PostgreSQL numerics inside an expression, each with its display scale.

Narrow form: int64 units and a scale a row (or one for all), value = units / 10^scale, NaN is
FIXED_NAN. Words: the same with up to 48 digits, in limbs. Wide form: Python decimals, for all
other numbers and infinities; words become decimals where no kernel accepts them. All forms are
exact and give the same result; an operation leaves a form only when it must. Invariant: the scale
of a number is PostgreSQL's display scale, and no zero is negative.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal

import numpy as np
from tidemark_native import expressions as kernels

from dataflow.delta import Column
from dataflow.errors import InvariantError
from dataflow.long_integers import decimal_of
from dataflow.types import FIXED_NAN

# PostgreSQL's numeric has at most 131,072 digits before and 16,383 after the point.
EXACT = Context(prec=400_000, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[])
NAN = Decimal("NaN")
ZERO = Decimal(0)
_NO_MASK = np.empty(0, np.bool_)

# Signs, magnitudes and scales, as the kernels have them.
Words = tuple[np.ndarray, np.ndarray, np.ndarray]


class Numbers:
    """k numerics: narrow (int64 units, int64 scales[k] or [1]), words, or wide (decimals).

    scales is None for words and wide ones; units of words are the decimals they stand for.
    """

    __slots__ = ("_units", "_words", "scales", "valid")

    def __init__(
        self,
        units: np.ndarray | None,
        scales: np.ndarray | None,
        valid: np.ndarray | None,
        words: Words | None = None,
    ) -> None:
        self._units = units
        self._words = words
        self.scales = scales
        self.valid = valid

    def __len__(self) -> int:
        return len(self._units) if self._words is None else len(self._words[0])  # type: ignore[arg-type]

    @property
    def units(self) -> np.ndarray:
        """int64[k] of narrow numbers, else object[k] of Decimal."""
        if self._units is None:
            self._units = self._decimals_of_words()
        return self._units

    @property
    def words(self) -> Words | None:
        """The numbers as words; None for decimals that were never words."""
        if self._words is None and self.scales is not None:
            self._words = kernels.words_of_units(self.units, self.scales)
        return self._words

    def _decimals_of_words(self) -> np.ndarray:
        assert self._words is not None
        offsets, data = kernels.format_words(*self._words, _NO_MASK)
        out = np.empty(len(self), object)
        for i, text in enumerate(Column(offsets, None, data).texts()):
            out[i] = Decimal(text or 0)
        return out

    @staticmethod
    def of_fixed(units: np.ndarray, scale: int, valid: np.ndarray | None) -> Numbers:
        """Return numbers of one scale from int64 units."""
        return Numbers(units, np.array([scale], np.int64), valid)

    @staticmethod
    def of_text(column: Column) -> Numbers:
        """Return numbers from PostgreSQL's text output of numeric."""
        units, scales, fits = kernels.parse_numbers(column.values, column.data)
        if fits:
            return Numbers(units, scales, column.valid)
        *words, fits = kernels.parse_words(column.values, column.data)
        if fits:
            return Numbers.of_words(words, column.valid)
        return Numbers.of_decimals(
            [ZERO if x is None else Decimal(x) for x in column.texts()], column.valid
        )

    @staticmethod
    def of_words(words: Sequence[np.ndarray], valid: np.ndarray | None) -> Numbers:
        """Return numbers from words, one row each."""
        signs, magnitudes, scales = words
        return Numbers(None, None, valid, (signs, magnitudes, scales))

    @staticmethod
    def of_decimals(decimals: Sequence[Decimal], valid: np.ndarray | None) -> Numbers:
        """Return wide numbers; the exponent of each is minus its display scale."""
        units = np.empty(len(decimals), object)
        for i, number in enumerate(decimals):
            units[i] = number if number else number.copy_abs()
        return Numbers(units, None, valid)

    @staticmethod
    def concat(parts: Sequence[Numbers]) -> Numbers:
        """Return rows of all parts, in order."""
        valid = None
        if any(p.valid is not None for p in parts):
            valid = np.concatenate([p.mask() for p in parts])
        if all(p.scales is not None for p in parts):
            units = np.concatenate([p.units for p in parts])
            scales = np.concatenate([np.broadcast_to(p.scales, len(p)) for p in parts])  # type: ignore[arg-type]
            return Numbers(units, scales, valid)
        words = [p.words for p in parts]
        if None not in words:
            together = [np.concatenate(same) for same in zip(*words, strict=True)]  # type: ignore[arg-type]
            return Numbers.of_words(together, valid)
        return Numbers(np.concatenate([p.decimals() for p in parts]), None, valid)

    def mask(self) -> np.ndarray:
        """Return bool[k]: True where the number is not NULL."""
        return np.ones(len(self), np.bool_) if self.valid is None else self.valid

    def with_valid(self, valid: np.ndarray | None) -> Numbers:
        """Return the same numbers under another mask, bool[k] or bool[1]."""
        if valid is None or len(valid) == len(self):
            return Numbers(self._units, self.scales, valid, self._words)
        if len(valid) == 1:
            valid = np.repeat(valid, len(self))
            return Numbers(self._units, self.scales, valid, self._words)
        index = np.zeros(len(valid), np.int64)
        alone = Numbers(self._units, self.scales, None, self._words).take(index)
        return Numbers(alone._units, alone.scales, valid, alone._words)

    def take(self, index: np.ndarray) -> Numbers:
        """Return rows at int64 positions."""
        scales, valid = self.scales, None if self.valid is None else self.valid[index]
        if scales is None and self._words is not None:
            return Numbers.of_words([part[index] for part in self._words], valid)
        if scales is not None and len(scales) > 1:
            scales = scales[index]
        return Numbers(self.units[index], scales, valid)

    def decimals(self) -> np.ndarray:
        """Return object[k] of Decimal; NULL slots hold zero."""
        if self.scales is None:
            return self.units
        scales = np.broadcast_to(self.scales, len(self)).tolist()
        out = np.empty(len(self), object)
        for i, (units, scale) in enumerate(zip(self.units.tolist(), scales, strict=True)):
            out[i] = NAN if units == FIXED_NAN else scaled(units, scale)
        return out

    def is_nan(self) -> np.ndarray:
        """Return bool[k]: True for NaN."""
        if self.scales is not None:
            return self.units == FIXED_NAN
        if self._words is not None:
            return self._words[0] == kernels.NOT_A_NUMBER
        return np.fromiter((x.is_nan() for x in self.units), np.bool_, len(self))

    def is_finite(self) -> np.ndarray:
        """Return bool[k]: True for neither NaN nor an infinity."""
        if self.scales is not None:
            return self.units != FIXED_NAN
        if self._words is not None:
            return ~self.is_nan()
        return np.fromiter((x.is_finite() for x in self.units), np.bool_, len(self))

    def is_zero(self) -> np.ndarray:
        """Return bool[k]: True for zero."""
        if self.scales is not None:
            return self.units == 0
        if self._words is not None:
            return self._words[0] == 0
        return np.fromiter((not x for x in self.units), np.bool_, len(self))

    def to_text(self) -> Column:
        """Return a bytes column of PostgreSQL's text output."""
        if self.scales is not None:
            valid = _NO_MASK if self.valid is None else self.valid
            offsets, data = kernels.format_numbers(self.units, self.scales, valid)
            return Column(offsets, self.valid, data)
        if self._words is not None:
            valid = _NO_MASK if self.valid is None else self.valid
            offsets, data = kernels.format_words(*self._words, valid)
            return Column(offsets, self.valid, data)
        mask = self.mask()
        return Column.of(
            "s", [text_of(x) if ok else None for x, ok in zip(self.units, mask, strict=True)]
        )

    def to_fixed(self, scale: int) -> Column:
        """int64 column of units at one scale; InvariantError for a number that does not fit it."""
        if self.scales is not None:
            if len(self.scales) == 1 and self.scales[0] == scale:
                return Column(self.units, self.valid)
            units, fits = kernels.rescale_numbers(self.units, self.scales, scale, self.mask())
            if fits:
                return Column(units, self.valid)
        else:
            units = np.zeros(len(self), np.int64)
            for i in np.flatnonzero(self.mask()).tolist():
                units[i] = _fixed_units(self.units[i], scale)
            return Column(units, self.valid)
        raise _does_not_fit(scale)


def scaled(units: int, scale: int) -> Decimal:
    """units / 10^scale, its exponent -scale.

    >>> scaled(150, 2)
    Decimal('1.50')
    """
    return decimal_of(units).scaleb(-scale, EXACT)


def text_of(number: Decimal) -> str:
    """Return PostgreSQL's text output of a numeric.

    >>> text_of(Decimal("-1.50")), text_of(Decimal("NaN")), text_of(Decimal("-Infinity"))
    ('-1.50', 'NaN', '-Infinity')
    """
    if number.is_finite():
        return format(number if number else number.copy_abs(), "f")
    return "NaN" if number.is_nan() else str(number)


def scale_of(number: Decimal) -> int:
    """Return the display scale of a finite number."""
    return -number.as_tuple().exponent  # type: ignore[operator]


def rounded(number: Decimal, scale: int, mode: str) -> Decimal:
    """Return a finite number brought to a scale (negative: zeros before the point, display scale
    0)."""
    out = number.quantize(Decimal((0, (1,), -scale)), rounding=mode, context=EXACT)
    return out.quantize(Decimal(1), context=EXACT) if scale < 0 else out


def _fixed_units(number: Decimal, scale: int) -> int:
    if number.is_nan():
        return FIXED_NAN
    units = number.scaleb(scale, EXACT) if number.is_finite() else number
    if not number.is_finite() or units != units.to_integral_value() or abs(units) >= FIXED_NAN:
        raise _does_not_fit(scale)
    return int(units)


def _does_not_fit(scale: int) -> InvariantError:
    what = f"a number does not fit fixed point of scale {scale}"
    return InvariantError("plan.numeric_form", what)
