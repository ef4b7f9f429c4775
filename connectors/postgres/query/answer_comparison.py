"""Compare two answers to one query row by row, in bounded memory.

Rows are lines of COPY, sorted by PostgreSQL, spooled to disk and merged. Invariant: equal means the
same rows equally often, character for character (so numeric scale counts); only floats may differ
by 1e-9 of their size. Rows that PostgreSQL calls equal but prints differently (1.5 and 1.50) are
counted separately.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import IO, Any

from connectors.postgres.schema.sink_target import Target
from connectors.postgres.session.quoting import quote_name
from connectors.sink import SinkTable
from dataflow.schema import Field
from dataflow.types import TypeKind

Row = tuple[str | None, ...]
TOLERANCE = 1e-9
FLOATS = (TypeKind.FLOAT4, TypeKind.FLOAT8)
_UNCONSOLIDATED = (*FLOATS, TypeKind.DECIMAL, TypeKind.JSONB)
_SPOOL_BYTES = 16 << 20
# The number of differing rows that are compared a second time.
_MAX_UNPAIRED = 20_000
_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


@dataclass
class Comparison:
    """How two answers differ.

    alike: rows equal in value, in another form. examples: differences, as {"kind", "key",
    "expected", "found"}, rows by column name.
    """

    rows: int = 0
    missing: int = 0
    surplus: int = 0
    different: int = 0
    alike: int = 0
    examples: list[dict[str, Any]] = field(default_factory=list)

    @property
    def is_equal(self) -> bool:
        """Return whether no row differs in value."""
        return not (self.missing or self.surplus or self.different)


def parse_line(line: str) -> Row:
    """Return the cells of a line of COPY's text format.

    >>> parse_line("a\\\\tb\\t\\\\N\\t")
    ('a\\tb', None, '')
    """
    return tuple(None if cell == "\\N" else _unescape(cell) for cell in line.split("\t"))


def is_near(left: Row, right: Row, inexact: Sequence[int]) -> bool:
    """Return whether rows are equal when floats, at the positions `inexact`, may differ a
    little."""
    for i, (a, b) in enumerate(zip(left, right, strict=True)):
        if a == b:
            continue
        if i not in inexact or a is None or b is None:
            return False
        if not math.isclose(float(a), float(b), rel_tol=TOLERANCE, abs_tol=TOLERANCE):
            return False
    return True


def without_near(
    left: Counter[Row], right: Counter[Row], inexact: Sequence[int]
) -> tuple[Counter[Row], Counter[Row]]:
    """Return both multisets without the rows that pair up when floats may differ a little."""
    rest: dict[Row, list[Row]] = defaultdict(list)
    for row in right.elements():
        rest[_exact(row, inexact)].append(row)
    unpaired = []
    for row in left.elements():
        near = rest.get(_exact(row, inexact), [])
        match = next((r for r in near if is_near(row, r, inexact)), None)
        if match is None:
            unpaired.append(row)
        else:
            near.remove(match)
    return Counter(unpaired), Counter(row for rows in rest.values() for row in rows)


class SortedRows:
    """The rows of a query, sorted, on disk when they are many. Always close it.

    key: positions of the view's key; () sorts by all columns, floats last.
    """

    def __init__(self, fields: Sequence[Field], key: Sequence[int]) -> None:
        self.inexact = tuple(i for i, f in enumerate(fields) if f.type.kind in FLOATS)
        exact = [i for i in range(len(fields)) if i not in self.inexact]
        self.order = tuple(key) or (*exact, *self.inexact)
        self._width = len(fields)
        self._file: IO[bytes] = tempfile.SpooledTemporaryFile(_SPOOL_BYTES)  # noqa: SIM115

    def sql(self, query: str, encoding: str = "UTF8") -> str:
        """Return a query that yields the lines in order. encoding: the server's."""
        if not self._width:
            return query
        names = [f"c{i}" for i in range(self._width)]
        order = ", ".join(_sorted_by(f"q.c{i}", encoding) for i in self.order)
        shown = ", ".join(f"q.{n}" for n in names)
        return f"SELECT {shown} FROM ({query}) AS q({', '.join(names)}) ORDER BY {order}"

    def fill(self, cursor: Any, query: str) -> None:
        """Read the query's rows, sorted. psycopg2.Error."""
        cursor.execute("SHOW server_encoding")
        (encoding,) = cursor.fetchone()
        cursor.copy_expert(f"COPY ({self.sql(query, encoding)}) TO STDOUT", self._file, 1 << 20)
        self._file.seek(0)

    def lines(self) -> Iterator[str]:
        """Yield each row as a line without its end, from the first one."""
        self._file.seek(0)
        return (line[:-1].decode() for line in self._file)

    def sort_key(self, row: Row) -> tuple[tuple[bytes, bool], ...]:
        """Return the sort key of a row."""
        return tuple(((row[i] or "").encode(), row[i] is None) for i in self.order)

    def close(self) -> None:
        """Free the space."""
        self._file.close()


def compare(
    expected: SortedRows, got: SortedRows, fields: Sequence[Field], key: Sequence[int], limit: int
) -> Comparison:
    """Return the differences, with at most `limit` examples."""
    found = Comparison()
    missing: Counter[Row] = Counter()
    surplus: Counter[Row] = Counter()
    changed: list[tuple[Row, Row]] = []
    for left, right in _merged(expected, got, found, is_keyed=bool(key)):
        if left is not None and right is not None:
            found.different += 1
            if len(changed) < _MAX_UNPAIRED:
                changed.append((left, right))
        elif left is not None:
            found.missing += 1
            if len(missing) < _MAX_UNPAIRED:
                missing[left] += 1
        elif right is not None:
            found.surplus += 1
            if len(surplus) < _MAX_UNPAIRED:
                surplus[right] += 1
    _pair_up(found, missing, surplus, changed, fields)
    _show(found, (missing, surplus, changed), fields, key, limit)
    return found


def _merged(
    expected: SortedRows, got: SortedRows, found: Comparison, *, is_keyed: bool
) -> Iterator[tuple[Row | None, Row | None]]:
    """Yield rows of one answer alone, and pairs that differ under one key; count the rows of
    `got`."""
    lefts, rights = expected.lines(), got.lines()
    left, right = next(lefts, None), next(rights, None)
    while left is not None or right is not None:
        if left == right:
            found.rows += 1
            left, right = next(lefts, None), next(rights, None)
            continue
        a = None if left is None else parse_line(left)
        b = None if right is None else parse_line(right)
        if a is not None and b is not None:
            first, second = expected.sort_key(a), got.sort_key(b)
            is_pair = is_near(a, b, expected.inexact)
            if is_pair or (is_keyed and first == second):
                found.rows += 1
                if not is_pair:
                    yield a, b
                left, right = next(lefts, None), next(rights, None)
                continue
            a, b = (a, None) if first < second else (None, b)
        if a is not None:
            left = next(lefts, None)
        else:
            found.rows += 1
            right = next(rights, None)
        yield a, b


def _pair_up(
    found: Comparison,
    missing: Counter[Row],
    surplus: Counter[Row],
    changed: list[tuple[Row, Row]],
    fields: Sequence[Field],
) -> None:
    """Remove pairs within tolerance, then pairs equal in another form, which are counted."""
    inexact = [i for i, f in enumerate(fields) if f.type.kind in FLOATS]
    if inexact and missing and surplus:
        lefts, rights = without_near(missing, surplus, inexact)
        _take_away(found, missing, surplus, missing - lefts, surplus - rights)
    inconsistent = [i for i, f in enumerate(fields) if f.type.kind in _UNCONSOLIDATED]
    if not inconsistent:
        return
    unequal = [(a, b) for a, b in changed if _form(a, fields) != _form(b, fields)]
    found.alike += len(changed) - len(unequal)
    found.different -= len(changed) - len(unequal)
    changed[:] = unequal
    forms: dict[Hashable, list[Row]] = defaultdict(list)
    for row in surplus.elements():
        forms[_form(row, fields)].append(row)
    lefts, rights = Counter[Row](), Counter[Row]()
    for row in missing.elements():
        if same := forms.get(_form(row, fields)):
            lefts[row] += 1
            rights[same.pop()] += 1
    found.alike += lefts.total()
    _take_away(found, missing, surplus, lefts, rights)


def _take_away(
    found: Comparison,
    missing: Counter[Row],
    surplus: Counter[Row],
    lefts: Counter[Row],
    rights: Counter[Row],
) -> None:
    missing -= lefts
    surplus -= rights
    found.missing -= lefts.total()
    found.surplus -= rights.total()


def _show(
    found: Comparison,
    differing: tuple[Counter[Row], Counter[Row], list[tuple[Row, Row]]],
    fields: Sequence[Field],
    key: Sequence[int],
    limit: int,
) -> None:
    names = [f.name for f in fields]
    missing, surplus, changed = differing

    def shown(row: Row | None) -> dict[str, str | None] | None:
        return None if row is None else dict(zip(names, row, strict=True))

    def add(kind: str, expected: Row | None, got: Row | None) -> None:
        row = expected or got or ()
        under = {names[i]: row[i] for i in key}
        facts = {"kind": kind, "key": under, "expected": shown(expected), "found": shown(got)}
        found.examples.append(facts)

    for a, b in changed[:limit]:
        add("different", a, b)
    for kind, rows in (("missing", missing), ("surplus", surplus)):
        for row in list(rows.elements())[: max(0, limit - len(found.examples))]:
            add(kind, *((row, None) if kind == "missing" else (None, row)))


def _sorted_by(column: str, encoding: str) -> str:
    """Sort by the bytes of the UTF-8 text, NULL after the empty text."""
    text = f"format('%s', {column})"
    ordered = f'{text} COLLATE "C"' if encoding == "UTF8" else f"convert_to({text}, 'UTF8')"
    return f"{ordered}, num_nulls({column})"


def _exact(row: Row, inexact: Sequence[int]) -> Row:
    return tuple(x for i, x in enumerate(row) if i not in inexact)


def _form(row: Row, fields: Sequence[Field]) -> Hashable:
    """Return the same value for rows that PostgreSQL calls equal, of types with several forms."""
    return tuple(_value(x, f.type.kind) for x, f in zip(row, fields, strict=True))


def _value(text: str | None, kind: TypeKind) -> Hashable:
    if text is None or kind not in _UNCONSOLIDATED:
        return text
    if kind is TypeKind.JSONB:
        return json.dumps(json.loads(text, parse_float=_plain, parse_int=_plain), sort_keys=True)
    number = Decimal(text)
    return "NaN" if number.is_nan() else number + 0


def _plain(text: str) -> str:
    return f"\0{Decimal(text).normalize():f}"


def _unescape(cell: str) -> str:
    if "\\" not in cell:
        return cell
    out, at = [], 0
    while at < len(cell):
        if cell[at] == "\\":
            at += 1
            out.append(_ESCAPES.get(cell[at], cell[at]))
        else:
            out.append(cell[at])
        at += 1
    return "".join(out)


def selected(table: SinkTable, target: Target) -> str:
    """Return a query of a view's rows, each as often as it occurs.

    It avoids the view that people read, which its owner may replace.
    """
    columns = ", ".join(f"t.{quote_name(f.name)}" for f in table.fields)
    sql = f"SELECT {columns} FROM ONLY {target.sql} AS t"
    if target.is_multiset:
        sql += f" CROSS JOIN LATERAL generate_series(1, t.{quote_name(target.count)})"
    return sql
