"""Floats to and from text where the compiled kernels stop: exact, one value at a time.

PostgreSQL prints with Ryu (src/common/d2s.c, f2s.c): the shortest decimal strictly inside the
rounding interval, nearest to the value. Python's repr also accepts a decimal on the edge of that
interval, so values that can hit an edge are searched for with integers. Fixed notation for
exponents -4 <= e < 15 (float8) or 6 (float4). Reading rounds once, float4 included.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction

_NUMBER = re.compile(rb"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\Z")
_NAMES = {
    b"nan": math.nan,
    b"infinity": math.inf,
    b"inf": math.inf,
    b"-infinity": -math.inf,
    b"-inf": -math.inf,
}
SINGLE_MAX = float.fromhex("0x1.fffffep+127")


def parse_float(text: bytes, is_single: bool) -> float:
    """Return the float nearest to a decimal; ValueError if it is none or out of range.

    >>> parse_float(b"1e-45", True) == 2.0**-149
    True
    """
    if _NUMBER.match(text) is None:
        if text.lower() in _NAMES:
            return _NAMES[text.lower()]
        raise ValueError("not a number")
    value = float(text)
    if is_single and value != 0.0:
        value = round_single(value, text.decode())
    if math.isinf(value):
        raise ValueError("out of range")
    return value


def round_single(value: float, text: str) -> float:
    """Return the float4 nearest to the decimal `text`, whose nearest float8 is `value`."""
    if math.isinf(value) or abs(value) >= SINGLE_MAX * (1 + 2.0**-25):
        return math.copysign(math.inf, value)
    exponent = max(math.frexp(value)[1] - 24, -149)
    scaled = math.ldexp(value, -exponent)
    whole = math.floor(scaled)
    if scaled - whole == 0.5:
        # The float8 lies halfway between two float4: the decimal itself decides which is nearer.
        side = Fraction(text) - Fraction(value)
        if side:
            return math.ldexp(whole + (1 if side > 0 else 0), exponent)
    return math.ldexp(round(scaled), exponent)


def print_float(value: float, is_single: bool) -> bytes:
    """Return PostgreSQL's text under extra_float_digits = 1.

    >>> print_float(1e23, False), print_float(123456789.0, True), print_float(-0.0, False)
    (b'9.999999999999999e+22', b'1.2345679e+08', b'-0')
    """
    if value != value:
        return b"NaN"
    if math.isinf(value):
        return b"Infinity" if value > 0 else b"-Infinity"
    if value == 0.0:
        return b"-0" if math.copysign(1.0, value) < 0 else b"0"
    sign = "-" if value < 0 else ""
    digits, exponent = _digits(abs(value), is_single)
    if -4 <= exponent < (6 if is_single else 15):
        if exponent < 0:
            body = "0." + "0" * (-exponent - 1) + digits
        elif len(digits) <= exponent + 1:
            body = digits + "0" * (exponent + 1 - len(digits))
        else:
            body = f"{digits[: exponent + 1]}.{digits[exponent + 1 :]}"
    else:
        tail = f".{digits[1:]}" if len(digits) > 1 else ""
        body = f"{digits[0]}{tail}e{'-' if exponent < 0 else '+'}{abs(exponent):02d}"
    return (sign + body).encode()


def _digits(value: float, is_single: bool) -> tuple[str, int]:
    """Return (digits without trailing zeros, exponent of the first) of a positive finite float."""
    fraction, _ = math.frexp(value)
    if fraction == 0.5 or value >= (2.0**25 if is_single else 2.0**54):
        return _shortest(value, is_single)
    if not is_single:
        mantissa, _, exponent = f"{value!r}".partition("e")
        if exponent:
            return mantissa.replace(".", ""), int(exponent)
        whole, _, part = mantissa.partition(".")
        shown = (whole + part).lstrip("0")
        return shown.rstrip("0"), len(whole) - 1 if whole != "0" else len(shown) - len(part) - 1
    # Six digits always survive in a normal float4; the smallest ones keep fewer.
    for precision in range(1 if value < 2.0**-126 else 6, 10):
        text = f"{value:.{precision - 1}e}"
        if round_single(float(text), text) == value:
            mantissa, _, exponent = text.partition("e")
            return mantissa.replace(".", "").rstrip("0"), int(exponent)
    return _shortest(value, is_single)


def _shortest(value: float, is_single: bool) -> tuple[str, int]:
    """Like _digits, by definition: fewest digits strictly inside the interval, then nearest."""
    bits, lowest = (24, -149) if is_single else (53, -1074)
    fraction, exponent = math.frexp(value)
    unit = max(exponent - bits, lowest)
    exact = Fraction(value)
    above = Fraction(2) ** unit / 2
    below = above / 2 if fraction == 0.5 and unit > lowest else above
    low, high = exact - below, exact + above
    first = int(f"{value:.20e}".partition("e")[2])
    for precision in range(1, 18):
        step = Fraction(10) ** (first - precision + 1)
        floor = exact // step
        inside = [d for d in (floor, floor + 1) if low < d * step < high]
        if inside:
            best = min(inside, key=lambda d: (abs(d * step - exact), d % 2))
            text = str(best)
            return text.rstrip("0"), first + len(text) - precision
    raise ValueError(f"no decimal of 17 digits for {value!r}")
