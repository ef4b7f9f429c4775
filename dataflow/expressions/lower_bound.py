"""What a value that follows the clock will never be less than, from now on.

Of an expression over columns that never decrease, `lower_bound` makes another one over the same
columns. Invariant: its value now is at most the first one's value now and at every later value of
the columns. So `now() - interval '1 month'` has a bound, although it goes back at the end of a
month: by less than a day. A change of the clocks of a zone moves a local time by at most the spread
of its offsets. Whatever is not known to be bounded, has none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dataflow.expressions.intervals import DAY_US, parse_interval
from dataflow.expressions.ir import Call, ColumnRef, Expression, Literal, chain_of, links_of
from dataflow.expressions.time_zones import ADD, INSTANT, SUBTRACT
from dataflow.types import INTERVAL, TypeKind

# Returns by how much the offsets of a zone differ at most, in microseconds; None if not known.
SpreadOf = Callable[[str], int | None]

_INTEGERS = (TypeKind.INT2, TypeKind.INT4, TypeKind.INT8)
_STAMPS = (TypeKind.TIMESTAMP, TypeKind.TIMESTAMPTZ)
_TIMES = (TypeKind.DATE, *_STAMPS)


def lower_bound(expression: Expression, spread_of: SpreadOf) -> Expression | None:
    """Return the bound, None if none is known."""
    return _Bounds(spread_of).of(expression)


@dataclass(frozen=True)
class _Bounds:
    spread_of: SpreadOf

    def of(self, expression: Expression) -> Expression | None:
        if isinstance(expression, ColumnRef):
            return expression
        if isinstance(expression, Literal):
            return expression if expression.text is not None else None
        if not isinstance(expression, Call):
            return None
        return self._of_call(expression)

    def _of_call(self, call: Call) -> Expression | None:
        function, arguments = call.function, call.arguments
        links = links_of(function)
        if links:
            first = chain_of(arguments[0], links[:-1], arguments[1:-1])
            return self.of(Call(links[-1], (first, arguments[-1]), call.type))
        if function in ("+", "-") and len(arguments) == 2:
            return self._of_sum(call)
        if function in (ADD, SUBTRACT):
            return self._of_zoned_sum(call)
        if function == "/":
            return self._of_quotient(call)
        if function in ("cast", "key form"):
            return self._of_cast(call)
        if function == "timezone":
            return self._of_zone(call, *arguments)
        if function == INSTANT:
            return self._of_zone(call, arguments[1], arguments[0])
        if function == "date_trunc":
            return self._of_truncation(call)
        if function == "date_bin":
            return self._with(call, 1)
        return None

    def _with(self, call: Call, at: int) -> Expression | None:
        """Return the bound of a call that does not decrease in one argument, others constant."""
        bound = self.of(call.arguments[at])
        rest = (*call.arguments[:at], *call.arguments[at + 1 :])
        if bound is None or not all(isinstance(e, Literal) and e.text is not None for e in rest):
            return None
        return Call(call.function, (*rest[:at], bound, *rest[at:]), call.type)

    def _of_sum(self, call: Call) -> Expression | None:
        """Return the bound of a time and an interval, or of a date and days."""
        value, by = call.arguments
        if value.type.kind is TypeKind.INTERVAL and call.function == "+":
            value, by = by, value
        if value.type.kind is TypeKind.DATE and by.type.kind in _INTEGERS:
            return self._with(call, 0)
        parts = _parts(by)
        if value.type.kind not in _TIMES or call.type.kind not in _STAMPS or parts is None:
            return None
        found = self._with(Call(call.function, (value, by), call.type), 0)
        return found and _less(found, DAY_US if parts[0] else 0)

    def _of_zoned_sum(self, call: Call) -> Expression | None:
        """Return the bound of months, days and time, which are added one after the other."""
        value, by, zone = call.arguments
        parts, spread, found = _parts(by), self._spread(zone), self.of(value)
        if parts is None or found is None:
            return None
        months, days, micros = parts
        for text, back in ((f"{months} mons", DAY_US), (f"{days} days", 0)):
            if text.startswith("0 "):
                continue
            if spread is None:
                return None
            # The local time of an earlier instant is not after that of any later one.
            earlier = _less(found, spread)
            found = Call(call.function, (earlier, Literal(text, INTERVAL), zone), call.type)
            found = _less(found, spread + back)
        return _less(found, micros if call.function == SUBTRACT else -micros)

    def _of_quotient(self, call: Call) -> Expression | None:
        by = call.arguments[1]
        is_positive = isinstance(by, Literal) and by.text is not None and by.text.isdigit()
        is_whole = call.type.kind in _INTEGERS and by.type.kind in _INTEGERS
        return self._with(call, 0) if is_positive and is_whole and int(by.text or 0) else None  # type: ignore[union-attr]

    def _of_cast(self, call: Call) -> Expression | None:
        kinds = {call.arguments[0].type.kind, call.type.kind}
        is_ordered = kinds <= set(_TIMES) or kinds <= set(_INTEGERS)
        return self._with(call, 0) if is_ordered else None

    def _of_zone(self, call: Call, zone: Expression, value: Expression) -> Expression | None:
        """Return the bound of the local time of an instant, or of the instant of a local time."""
        spread, bound = self._spread(zone), self.of(value)
        if spread is None or bound is None:
            return None
        is_instant = value.type.kind is TypeKind.TIMESTAMPTZ
        if not is_instant and value.type.kind not in _TIMES:
            return None
        found = _less(bound, spread) if is_instant else bound
        arguments = (zone, found) if call.function == "timezone" else (found, zone)
        return _less(Call(call.function, arguments, call.type), 0 if is_instant else spread)

    def _of_truncation(self, call: Call) -> Expression | None:
        if call.type.kind not in _STAMPS or call.arguments[1].type.kind is not call.type.kind:
            return None
        if len(call.arguments) == 2:
            return self._with(call, 1)
        spread, bound = self._spread(call.arguments[2]), self.of(call.arguments[1])
        if spread is None or bound is None or not isinstance(call.arguments[0], Literal):
            return None
        unit, _, zone = call.arguments
        return _less(Call("date_trunc", (unit, _less(bound, spread), zone), call.type), spread)

    def _spread(self, zone: Expression) -> int | None:
        if not isinstance(zone, Literal) or zone.text is None:
            return None
        return self.spread_of(zone.text)


def _parts(by: Expression) -> tuple[int, int, int] | None:
    """Return months, days and microseconds of a finite constant interval."""
    is_interval = isinstance(by, Literal) and by.type.kind is TypeKind.INTERVAL
    return parse_interval(by.text.encode()) if is_interval and by.text is not None else None  # type: ignore[union-attr]


def _less(stamp: Expression, micros: int) -> Expression:
    """Return a timestamp that is so many microseconds earlier."""
    if not micros:
        return stamp
    seconds, rest = divmod(abs(micros), 1_000_000)
    text = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{rest:06}"
    return Call("-" if micros > 0 else "+", (stamp, Literal(text, INTERVAL)), stamp.type)
