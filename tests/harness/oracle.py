"""The oracle of operators: a plan evaluated row by row in plain Python, over whole inputs.

It is written from the SQL rules alone and shares nothing with the operators but the plan's shape
and the physical form of values. Invariant: slow and obvious. A multiset is a Counter of row tuples.
It is longer because every kind of node has its answer here.
"""

from __future__ import annotations

import math
import re
import struct
from collections import Counter
from collections.abc import Mapping
from decimal import Context, Decimal
from fractions import Fraction
from functools import cmp_to_key
from typing import Any

from dataflow.expressions.ir import Call, ColumnRef, Expression, Literal
from dataflow.plan import nodes as p
from dataflow.schema import RelationName
from dataflow.types import FIXED_NAN, SqlType, TypeKind

Row = tuple[Any, ...]
Bag = Counter[Row]
Failures = Counter[tuple[str, str]]
_EXACT = Context(prec=5000)
_DAY_US = 86_400_000_000


class Double(float):
    """A float that is equal by its bits, as rows are: -0.0 is not 0.0, NaN is NaN."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, float) and struct.pack("d", self) == struct.pack("d", other)

    def __hash__(self) -> int:
        return hash(struct.pack("d", self))


def exact(row: Row) -> Row:
    """The row with its floats equal by their bits."""
    return tuple(Double(v) if isinstance(v, float) else v for v in row)


class Failure(Exception):
    """An expression that PostgreSQL refuses to compute: (sqlstate, message)."""


class Oracle:
    """Evaluates plans over the present rows of relations; failures are counted by weight."""

    def __init__(self, tables: Mapping[RelationName, Bag]) -> None:
        self._tables = tables
        self._rounds: dict[str, Bag] = {}
        self.failures: Failures = Counter()

    def rows(self, plan: p.Plan) -> Bag:
        """Return the multiset that a plan computes."""
        return getattr(self, f"_{type(plan).__name__.lower()}")(plan)

    def _scan(self, plan: p.Scan) -> Bag:
        out: Bag = Counter()
        for row, weight in self._tables[plan.relation.name].items():
            out[tuple(row[c] for c in plan.columns)] += weight
        return out

    def _values(self, plan: p.Values) -> Bag:
        return Counter(tuple(value_of(cell, ()) for cell in row) for row in plan.rows)

    def _filter(self, plan: p.Filter) -> Bag:
        out: Bag = Counter()
        for row, weight in self.rows(plan.input).items():
            if self._try(plan.predicate, row, weight) is True:
                out[row] += weight
        return out

    def _thresholdfilter(self, plan: p.ThresholdFilter) -> Bag:
        """Of several thresholds the least counts; without one nothing passes."""
        return Counter({row: n for (row, flag), n in self._compared(plan).items() if flag})

    def _thresholdflag(self, plan: p.ThresholdFlag) -> Bag:
        """All rows whose value does not fail, with the value of the comparison."""
        return Counter({(*row, flag): n for (row, flag), n in self._compared(plan).items()})

    def _compared(self, plan: p.ThresholdFilter) -> Counter[tuple[Row, bool | None]]:
        type, out = plan.value.type, Counter()
        found = [row[0] for row in self.rows(plan.threshold) if row[0] is not None]
        least = min((order(v, type) for v in found), default=None)
        for row, weight in self.rows(plan.input).items():
            failed = self.failures.total()
            value = self._try(plan.value, row, weight)
            if self.failures.total() != failed:
                continue
            if least is None or value is None:
                out[row, None] += weight
                continue
            place = order(value, type)
            passes = {
                "<": place < least,
                "<=": place <= least,
                ">": place > least,
                ">=": place >= least,
            }
            out[row, passes[plan.operator]] += weight
        return out

    def _project(self, plan: p.Project) -> Bag:
        out: Bag = Counter()
        for row, weight in self.rows(plan.input).items():
            try:
                out[tuple(value_of(e, row) for e in plan.expressions)] += weight
            except Failure as failure:
                self.failures[failure.args] += weight
        return out

    def _try(self, expression: Expression | None, row: Row, weight: int) -> Any:
        if expression is None:
            return True
        try:
            return value_of(expression, row)
        except Failure as failure:
            self.failures[failure.args] += weight
            return None

    def _matches(self, plan: p.Join | p.SemiJoin, pair: tuple[Row, Row], weight: int) -> bool:
        left, right = pair
        for a, b in zip(plan.left_keys, plan.right_keys, strict=True):
            x, y = value_of(a, left), value_of(b, right)
            if x is None or y is None or x != y:
                return False
        return self._try(plan.residual, left + right, weight) is True

    def _keyed(self, plan: p.Plan, keys: tuple[Expression, ...]) -> Bag:
        """The rows whose keys can be computed."""
        out: Bag = Counter()
        for row, weight in self.rows(plan).items():
            try:
                for key in keys:
                    value_of(key, row)
                out[row] = weight
            except Failure as failure:
                self.failures[failure.args] += weight
        return out

    def _join(self, plan: p.Join) -> Bag:
        out: Bag = Counter()
        left = self._keyed(plan.left, plan.left_keys)
        right = self._keyed(plan.right, plan.right_keys)
        matched: tuple[set[Row], set[Row]] = (set(), set())
        for a, n in left.items():
            for b, m in right.items():
                if self._matches(plan, (a, b), n * m):
                    out[a + b] += n * m
                    matched[0].add(a)
                    matched[1].add(b)
        if plan.kind in ("left", "full"):
            for a, n in left.items():
                if a not in matched[0]:
                    out[a + (None,) * len(plan.right.fields)] += n
        if plan.kind in ("right", "full"):
            for b, m in right.items():
                if b not in matched[1]:
                    out[(None,) * len(plan.left.fields) + b] += m
        return out

    def _asofjoin(self, plan: p.AsOfJoin) -> Bag:
        """Of the right rows that a left row reaches the first one."""
        out: Bag = Counter()
        left = self._keyed(plan.left, (*plan.left_keys, plan.value))
        order = tuple(k.expression for k in plan.order)
        right = sorted(
            self._keyed(plan.right, (*plan.right_keys, *order)),
            key=lambda row: tuple(map(_tie, row)),
        )
        right.sort(key=cmp_to_key(lambda a, b: _compare_rows(a, b, plan.order)))
        for a, n in left.items():
            first = next((b for b in right if self._reaches(plan, a, b)), None)
            if first is not None:
                out[a + first] += n
            elif plan.kind == "left":
                out[a + (None,) * len(plan.right.fields)] += n
        return out

    def _reaches(self, plan: p.AsOfJoin, left: Row, right: Row) -> bool:
        for a, b in zip(plan.left_keys, plan.right_keys, strict=True):
            x, y = value_of(a, left), value_of(b, right)
            if x is None or y is None or x != y:
                return False
        x, y = value_of(plan.value, left), value_of(plan.order[0].expression, right)
        if x is None or y is None:
            return False
        x, y = order(x, plan.value.type), order(y, plan.value.type)
        return {"<": y < x, "<=": y <= x, ">": y > x, ">=": y >= x}[plan.operator]

    def _semijoin(self, plan: p.SemiJoin) -> Bag:
        out: Bag = Counter()
        left = self._keyed(plan.left, plan.left_keys)
        right = self._keyed(plan.right, plan.right_keys)
        for a, n in left.items():
            if plan.kind == "not in":
                x = value_of(plan.left_keys[0], a)
                ys = [value_of(plan.right_keys[0], b) for b in right]
                verdicts = [None if x is None or y is None else x != y for y in ys]
                passes = all(v is True for v in verdicts)
            else:
                # No short cut: every pair whose residual fails is counted.
                found = [self._matches(plan, (a, b), n * m) for b, m in right.items()]
                passes = any(found) == (plan.kind == "semi")
            if passes:
                out[a] += n
        return out

    def _unionall(self, plan: p.UnionAll) -> Bag:
        return sum((self.rows(child) for child in plan.inputs), Counter())

    def _setoperation(self, plan: p.SetOperation) -> Bag:
        types = [f.type for f in plan.fields]
        sides: list[dict[Row, list[Row]]] = [{}, {}]
        for groups, below in zip(sides, (plan.left, plan.right), strict=True):
            for row in self.rows(below).elements():
                pairs = zip(row, types, strict=True)
                key = tuple(None if v is None else identity(v, t) for v, t in pairs)
                groups.setdefault(key, []).append(row)
        out: Bag = Counter()
        for key, members in sides[0].items():
            n, m = len(members), len(sides[1].get(key, ()))
            if plan.kind == "intersect":
                times = min(n, m)
            else:
                times = max(n - m, 0) if plan.is_all else n * (m == 0)
            columns = zip(*members, strict=True)
            shown = [min(c, key=_text_order) if c[0] is not None else None for c in columns]
            if times:
                out[exact(tuple(shown))] += times if plan.is_all else 1
        return out

    def _distinct(self, plan: p.Distinct) -> Bag:
        references = tuple(ColumnRef(i, f.type) for i, f in enumerate(plan.fields))
        return self._aggregate(p.Aggregate(plan.input, references, (), plan.fields))

    def _recursive(self, plan: p.Recursive) -> Bag:
        """Round after round until one has no rows, as PostgreSQL's documentation tells it."""
        seen: set[Row] = set()
        last = self._new_rows(plan, self.rows(plan.base), seen)
        found = Counter(last)
        while True:
            around, self._rounds[plan.name] = self._rounds.get(plan.name, Counter()), last
            derived = self.rows(plan.step)
            self._rounds[plan.name] = around
            last = self._new_rows(plan, derived, seen)
            if not last:
                return found
            found += last

    def _new_rows(self, plan: p.Recursive, derived: Bag, seen: set[Row]) -> Bag:
        """What a round adds; of rows that are equal under UNION the least."""
        if not plan.is_distinct:
            return derived
        groups: dict[Row, list[Row]] = {}
        for row in derived:
            pairs = zip(row, plan.fields, strict=True)
            key = tuple(None if v is None else identity(v, f.type) for v, f in pairs)
            groups.setdefault(key, []).append(row)
        new = {key: min(rows) for key, rows in groups.items() if key not in seen}
        seen.update(new)
        return Counter(new.values())

    def _recursionref(self, plan: p.RecursionRef) -> Bag:
        return self._rounds[plan.name]

    def _singlerow(self, plan: p.SingleRow) -> Bag:
        rows = list(self.rows(plan.input).elements())
        if len(rows) > 1:
            text = "more than one row returned by a subquery used as an expression"
            self.failures["21000", text] += 1
            return Counter()
        return Counter(rows or [(None,) * len(plan.fields)])

    def _topk(self, plan: p.TopK) -> Bag:
        groups: dict[Row, list[Row]] = {}
        for row in self.rows(plan.input).elements():
            values = zip((value_of(e, row) for e in plan.partition), plan.partition, strict=True)
            key = tuple(None if v is None else identity(v, e.type) for v, e in values)
            groups.setdefault(key, []).append(row)
        out: Bag = Counter()
        for members in groups.values():
            ordered = sorted(members, key=lambda row: tuple(map(_tie, row)))
            ordered.sort(key=cmp_to_key(lambda a, b: _compare_rows(a, b, plan.order)))
            end = len(ordered) if plan.limit is None else plan.offset + plan.limit
            if plan.with_ties and plan.limit:
                while 0 < end < len(ordered) and not _compare_rows(
                    ordered[end - 1], ordered[end], plan.order
                ):
                    end += 1
            out.update(exact(row) for row in ordered[plan.offset : end])
        return out

    def _aggregate(self, plan: p.Aggregate) -> Bag:
        groups: dict[Row, list[tuple[Row, Row]]] = {}
        for row in self.rows(plan.input).elements():
            values = tuple(value_of(g, row) for g in plan.groups)
            pairs = zip(values, plan.groups, strict=True)
            key = tuple(None if v is None else identity(v, g.type) for v, g in pairs)
            groups.setdefault(key, []).append((values, row))
        if not plan.groups and not groups:
            groups[()] = []
        out: Bag = Counter()
        for members in groups.values():
            columns = zip(*(values for values, _ in members), strict=True)
            shown = [min(c, key=_text_order) if c[0] is not None else None for c in columns]
            rows = [row for _, row in members]
            try:
                out[exact((*shown, *(aggregate(call, rows) for call in plan.calls)))] += 1
            except Failure as failure:
                self.failures[failure.args] += 1
        return out


def value_of(expression: Expression, row: Row) -> Any:
    """One expression over one row."""
    if isinstance(expression, ColumnRef):
        return row[expression.index]
    if isinstance(expression, Literal):
        return _literal(expression)
    assert isinstance(expression, Call), expression
    name = expression.function
    if name == "case":
        *pairs, otherwise = expression.arguments
        for when, then in zip(pairs[0::2], pairs[1::2], strict=True):
            if value_of(when, row) is True:
                return value_of(then, row)
        return value_of(otherwise, row)
    arguments = [value_of(a, row) for a in expression.arguments]
    if name == "coalesce":
        return next((a for a in arguments if a is not None), None)
    if name == "is null":
        return arguments[0] is None
    if name == "and":
        return False if False in arguments else None if None in arguments else True
    if None in arguments:
        return None
    return _CALLS[name](*arguments)


def _divide(a: int, b: int) -> int:
    if b == 0:
        raise Failure("22012", "division by zero")
    return int(a / b)


_CALLS = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "/": _divide,
    "=": lambda a, b: a == b,
    "<>": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    ">": lambda a, b: a > b,
    "<=": lambda a, b: a <= b,
    ">=": lambda a, b: a >= b,
}


def _literal(literal: Literal) -> Any:
    text, kind = literal.text, literal.type.kind
    if text is None:
        return None
    if kind is TypeKind.BOOL:
        return text.startswith("t")
    return int(text) if literal.type.physical == "i" else text.encode()


def identity(value: Any, type: SqlType) -> Any:
    """What two values have in common iff PostgreSQL's = says equal."""
    if type.kind is TypeKind.DECIMAL:
        number = Decimal(value.decode())
        return "NaN" if number.is_nan() else number
    if type.kind in (TypeKind.FLOAT4, TypeKind.FLOAT8):
        return "NaN" if math.isnan(value) else value + 0.0
    if type.kind is TypeKind.INTERVAL:
        return _span(value)
    return value.rstrip(b" ") if type.kind is TypeKind.BPCHAR else value


def order(value: Any, type: SqlType) -> Any:
    """A sort key in PostgreSQL's order; NaN is greatest."""
    if type.kind is TypeKind.DECIMAL:
        number = Decimal(value.decode())
        return (1, Decimal(0)) if number.is_nan() else (0, number)
    if type.kind in (TypeKind.FLOAT4, TypeKind.FLOAT8):
        return (1, 0.0) if math.isnan(value) else (0, float(value))
    return _span(value) if type.kind is TypeKind.INTERVAL else value


def _text_order(value: Any) -> Any:
    return math.copysign(1.0, value) if isinstance(value, float) else value


def _tie(value: Any) -> Any:
    """A sort key of any value of a column: NULL last, NaN after all numbers, -0 before 0."""
    if not isinstance(value, float):
        return (value is None, value)
    is_nan = math.isnan(value)
    return (False, is_nan, 0.0 if is_nan else float(value), math.copysign(1.0, value))


def _compare_rows(a: Row, b: Row, keys: tuple[p.SortKey, ...]) -> int:
    """By ORDER BY alone."""
    for key in keys:
        x, y = value_of(key.expression, a), value_of(key.expression, b)
        if x is None or y is None:
            found = ((x is None) > (y is None)) - ((x is None) < (y is None))
            found = -found if key.nulls_first else found
        else:
            x, y = order(x, key.expression.type), order(y, key.expression.type)
            found = ((x > y) - (x < y)) * (-1 if key.is_descending else 1)
        if found:
            return found
    return 0


def aggregate(call: p.AggregateCall, rows: list[Row]) -> Any:
    """One aggregate call over the rows of one group."""
    if call.filter is not None:
        rows = [row for row in rows if value_of(call.filter, row) is True]
    if call.argument is None:
        return len(rows)
    type = call.argument.type
    values = [v for v in (value_of(call.argument, row) for row in rows) if v is not None]
    if call.is_distinct and call.function not in ("min", "max"):
        least: dict[Any, Any] = {}
        for value in sorted(values, key=_text_order, reverse=True):
            least[identity(value, type)] = value
        values = list(least.values())
    if call.function == "count":
        return len(values)
    if not values:
        return None
    if call.function in ("min", "max"):
        chosen = min if call.function == "min" else max
        return chosen(values, key=cmp_to_key(lambda a, b: _compare(a, b, type)))
    if call.function in ("bool_and", "bool_or"):
        return all(values) if call.function == "bool_and" else any(values)
    return _total(call.function, values, type)


def _compare(a: Any, b: Any, type: SqlType) -> int:
    x, y = (order(a, type), _text_order(a)), (order(b, type), _text_order(b))
    return (x > y) - (x < y)


def _total(function: str, values: list[Any], type: SqlType) -> Any:
    kind = type.kind
    if kind is TypeKind.INTERVAL:
        parts = [_interval(v) for v in values]
        months, days, micros = (sum(column) for column in zip(*parts, strict=True))
        return _interval_text(months, days, micros)
    if kind in (TypeKind.FLOAT4, TypeKind.FLOAT8):
        total = _float_total(function, values)
        is_single = kind is TypeKind.FLOAT4 and function == "sum"
        return struct.unpack("f", struct.pack("f", total))[0] if is_single else total
    if kind is TypeKind.DECIMAL:
        numbers = [Decimal(v.decode()) for v in values]
    elif kind is TypeKind.FIXED:
        nan = Decimal("NaN")
        numbers = [nan if v == FIXED_NAN else Decimal(v).scaleb(-type.scale) for v in values]
    else:
        numbers = [Decimal(v) for v in values]
        if function == "sum" and kind in (TypeKind.INT2, TypeKind.INT4):
            return sum(values)
    special = _special([float(n) for n in numbers if not n.is_finite()])
    if special is not None:
        names = {math.inf: b"Infinity", -math.inf: b"-Infinity"}
        return names.get(special, b"NaN")
    total, scale = Decimal(0), 0
    for number in numbers:
        total = _EXACT.add(total, number)
        scale = max(scale, -number.as_tuple().exponent)
    if function == "sum":
        return f"{total if total else abs(total):.{scale}f}".encode()
    return _quotient(total, scale, len(numbers)).encode()


def _special(values: list[float]) -> float | None:
    if any(math.isnan(v) for v in values) or len(set(values)) > 1:
        return math.nan
    return values[0] if values else None


def _float_total(function: str, values: list[float]) -> float:
    special = _special([v for v in values if not math.isfinite(v)])
    if special is not None:
        return special
    total = sum(map(Fraction, values), Fraction(0))
    return float(total if function == "sum" else total / len(values))


def _quotient(total: Decimal, scale: int, count: int) -> str:
    """numeric_div by select_div_scale: digits to base 10,000, first ones compared."""

    def leading(number: Decimal) -> tuple[int, int]:
        if not number:
            return 0, 0
        weight = 0
        while number >= 10_000:
            number, weight = _EXACT.divide(number, Decimal(10_000)), weight + 1
        while number < 1:
            number, weight = number * 10_000, weight - 1
        return weight, int(number)

    (w1, d1), (w2, d2) = leading(abs(total)), leading(Decimal(count))
    weight = w1 - w2 - (1 if d1 <= d2 else 0)
    places = max(16 - weight * 4, scale, 0)
    exact = _EXACT.divide(abs(total), Decimal(count))
    shown = exact.quantize(Decimal(1).scaleb(-places), "ROUND_HALF_UP", _EXACT)
    return ("-" if total < 0 and shown else "") + f"{shown:f}"


def _interval(text: bytes) -> tuple[int, int, int]:
    found = dict.fromkeys(("year", "mon", "day"), 0)
    for number, unit in re.findall(r"([+-]?\d+) (year|mon|day)", text.decode()):
        found[unit] = int(number)
    clock = re.search(r"([+-]?)(\d+):(\d+):(\d+)", text.decode())
    micros = 0
    if clock:
        hours, minutes, seconds = map(int, clock.groups()[1:])
        micros = ((hours * 60 + minutes) * 60 + seconds) * 1_000_000
        micros = -micros if clock.group(1) == "-" else micros
    return found["year"] * 12 + found["mon"], found["day"], micros


def _span(text: bytes) -> int:
    months, days, micros = _interval(text)
    return (months * 30 + days) * _DAY_US + micros


def _interval_text(months: int, days: int, micros: int) -> bytes:
    """For amounts of one sign each and whole seconds."""
    words = []
    negative = False
    for amount, unit in (
        (int(months / 12), "year"),
        (int(math.fmod(months, 12)), "mon"),
        (days, "day"),
    ):
        if amount:
            sign = "+" if negative and amount > 0 else ""
            words.append(f"{sign}{amount} {unit}" + ("" if amount == 1 else "s"))
            negative = amount < 0
    if micros or not words:
        seconds = abs(micros) // 1_000_000
        sign = "-" if micros < 0 else "+" if negative else ""
        words.append(f"{sign}{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}")
    return " ".join(words).encode()
