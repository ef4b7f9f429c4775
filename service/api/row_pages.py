"""Requests of `GET /views/{name}/rows`, and their pages as JSON.

A parameter that is not reserved (WORDS) is a condition: a column with `operator.value`. A name in
double quotes is always a column.
Invariant: a page's `next` is valid only with the same order and conditions. An error names the
column, operator or value that does not fit the view.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from connectors.postgres.query.history_rows import DifferencePage
from connectors.postgres.query.view_rows import (
    COMPARISONS,
    PATTERNS,
    STATES,
    Condition,
    Order,
    Page,
    PageRequest,
    order_count,
)
from connectors.sink import Progress, SinkTable
from dataflow.errors import TidemarkError
from service.sinks.sink_workers import shown_positions
from service.subscriptions.change_encoder import plain_rows

WORDS = ("columns", "order", "limit", "after", "as_of", "min_position", "wait_s", "access_token")
MAX_CONDITIONS = 50
# What the page tokens of differences begin with.
_DIFFERENCE = "difference"
MAX_VALUES = 1_000
_OPERATORS = (*COMPARISONS, *PATTERNS, "in", "is")
_NAME = re.compile(r'\s*(?:"((?:[^"]|"")*)"|([^",.]+))((?:\.\w+)*)\s*(?:,|$)')
_VALUE = re.compile(r'\s*(?:"((?:[^"\\]|\\.)*)"|([^,"]*?))\s*(?:,|$)', re.DOTALL)
_DIRECTIONS = {"asc": False, "desc": True}
_NULLS = {"nullsfirst": True, "nullslast": False}


@dataclass(frozen=True)
class RowOptions:
    """The parameters of a request. columns, order, after: as text; others: all other parameters;
    as_of: a point of the view's past, or "".
    """

    columns: str = ""
    order: str = ""
    limit: int = 100
    after: str = ""
    others: tuple[tuple[str, str], ...] = ()
    as_of: str = ""


@dataclass(frozen=True)
class DifferenceOptions:
    """The parameters of a difference. end: "" for the newest; after: `next` of the page before."""

    begin: str
    end: str = ""
    limit: int = 1_000
    after: str = ""


def page_request(table: SinkTable, options: RowOptions) -> PageRequest:
    """Return the parsed request.

    TidemarkError rows.unknown_column, rows.bad_filter, rows.bad_order, rows.bad_page.
    """
    existing = [f.name for f in table.fields]
    columns = tuple(_require_column(name, existing) for name in _names(options.columns)) or tuple(
        existing
    )
    if len(options.others) > MAX_CONDITIONS:
        raise _bad_filter(f"{len(options.others)} conditions, the limit is {MAX_CONDITIONS}")
    request = PageRequest(
        table,
        columns,
        tuple(_condition(name, text, existing) for name, text in options.others),
        tuple(_orders(options.order, existing)),
        options.limit,
    )
    if not options.after:
        return request
    after = _unpacked(options.after, _order_of(request), order_count(request))
    return PageRequest(table, columns, request.conditions, request.order, options.limit, after)


def page_json(request: PageRequest, page: Page) -> tuple[bytes, str]:
    """Return a page's body and its entity tag. A new position alone does not change the tag."""
    types = {f.name: f for f in request.table.fields}
    fields = [types[name] for name in request.columns]
    rows = [] if page.rows is None else plain_rows(fields, page.rows)
    shown = [{"name": f.name, "type": f.type.name, "nullable": f.is_nullable} for f in fields]
    next_token = _packed(_order_of(request), page.after) if page.after else None
    body = b'{"fields":%b,"rows":[%b],"next":%b' % (
        _json(shown),
        b",".join(rows),
        _json(next_token),
    )
    tag = hashlib.blake2b(body, digest_size=12).hexdigest()
    epoch, positions = (None, {}) if page.progress is None else _shown(page.progress)
    return b'%b,"epoch":%b,"positions":%b}' % (body, _json(epoch), _json(positions)), tag


def difference_points(options: DifferenceOptions) -> tuple[tuple[str, str], int]:
    """Return the two points and the rows to skip: of the page before, where there was one.

    TidemarkError rows.bad_page.
    """
    if not options.after:
        return (options.begin, options.end), 0
    requested: list[Any] = [_DIFFERENCE]
    begin, end, skipped = _unpacked(options.after, requested, 3)
    if not all(text and text.isdecimal() and len(text) < 19 for text in (begin, end, skipped)):
        raise _bad_page()
    return (str(begin), str(end)), int(str(skipped))


def difference_json(table: SinkTable, page: DifferencePage, skipped: int) -> bytes:
    """Return the body of a page of a difference."""
    rows = [] if page.rows is None else plain_rows(table.fields, page.rows)
    weights = [] if page.rows is None else page.rows.weights.tolist()
    shown = [{"name": f.name, "type": f.type.name, "nullable": f.is_nullable} for f in table.fields]
    begin, end = (
        {
            "epoch": point.epoch,
            "committed_at": point.committed_at,
            "positions": shown_positions(point.positions),
        }
        for point in (page.begin, page.end)
    )
    token = [str(page.begin.epoch), str(page.end.epoch), str(skipped + len(rows))]
    following = _packed([_DIFFERENCE], token) if page.has_more else None
    return b'{"fields":%b,"rows":[%b],"weights":%b,"from":%b,"to":%b,"next":%b}' % (
        _json(shown),
        b",".join(rows),
        _json(weights),
        _json(begin),
        _json(end),
        _json(following),
    )


def _shown(progress: Progress) -> tuple[int, dict[str, Any]]:
    return progress.epoch, shown_positions(progress.positions)


def _names(text: str) -> Iterable[str]:
    for name, words in _listed(text):
        if words:
            raise TidemarkError(
                "rows.unknown_column",
                f'"{text[:80]}" is not a list of columns',
                hint='write columns=a,b; put special characters in double quotes: columns="a.b",c',
            )
        yield name


def _listed(text: str) -> Iterable[tuple[str, list[str]]]:
    """Yield (name, modifiers after it) of each name in a list."""
    at = 0
    while at < len(text):
        found = _NAME.match(text, at)
        if found is None:
            raise TidemarkError(
                "rows.bad_order",
                f'"{text[:80]}" is not a list of columns',
                hint="write order=amount.desc,id or columns=a,b; put special characters in double"
                " quotes",
            )
        quoted, plain, words = found.groups()
        name = plain.strip() if quoted is None else quoted.replace('""', '"')
        yield name, words.split(".")[1:]
        at = found.end()


def _orders(text: str, existing: Sequence[str]) -> Iterable[Order]:
    used: set[str] = set()
    for name, words in _listed(text):
        column, left = _require_column(name, existing), list(words)
        is_descending = _DIRECTIONS[left.pop(0)] if left and left[0] in _DIRECTIONS else False
        nulls_first = _NULLS[left.pop(0)] if left and left[0] in _NULLS else is_descending
        if left or column in used:
            raise TidemarkError(
                "rows.bad_order",
                f'"{text[:80]}" is not an order',
                detail=f'column "{column}" twice' if column in used else f'"{left[0]}" is unknown',
                hint="write column, column.desc or column.asc.nullsfirst, separated by commas",
            )
        used.add(column)
        yield Order(column, is_descending, nulls_first)


def _condition(name: str, text: str, existing: Sequence[str]) -> Condition:
    if len(name) > 1 and name[0] == name[-1] == '"':
        name = name[1:-1].replace('""', '"')
    column = _require_column(name, existing)
    is_not = text.startswith("not.")
    operator, dot, value = text.removeprefix("not.").partition(".")
    if not dot or operator not in _OPERATORS:
        raise _bad_filter(f'{name}={text[:80]}: "{operator[:40]}" is not an operator')
    if operator == "is" and value not in STATES:
        raise _bad_filter(f"{name}: is.{value[:40]} is not one of {', '.join(STATES)}")
    values = tuple(_members(name, value)) if operator == "in" else (value,)
    return Condition(column, operator, values, is_not)


def _members(name: str, text: str) -> Iterable[str]:
    if not (text.startswith("(") and text.endswith(")")):
        raise _bad_filter(f'{name}: write in.(a,b,"c, d")')
    inner, at, count = text[1:-1], 0, 0
    while at < len(inner) or not count:
        found = _VALUE.match(inner, at)
        if found is None or count == MAX_VALUES:
            raise _bad_filter(f'{name}: write in.(a,b,"c, d"), at most {MAX_VALUES} values')
        quoted, plain = found.groups()
        yield plain if quoted is None else re.sub(r"\\(.)", r"\1", quoted, flags=re.DOTALL)
        at, count = found.end(), count + 1


def _require_column(name: str, existing: Sequence[str]) -> str:
    if name in existing:
        return name
    raise TidemarkError(
        "rows.unknown_column",
        f'the view has no column "{name[:80]}"',
        detail=f"its columns are {', '.join(existing)}"[:1000],
        hint="names are case-sensitive; the other parameters are "
        "columns, order, limit, after, as_of, min_position and wait_s",
    )


def _bad_filter(detail: str) -> TidemarkError:
    return TidemarkError(
        "rows.bad_filter",
        "a condition is not valid",
        detail=detail,
        hint=f"write column=operator.value with one of {', '.join(_OPERATORS)}; not. negates it",
    )


def _order_of(request: PageRequest) -> list[Any]:
    """Return the order that a page token is valid for."""
    return [[o.column, o.is_descending, o.nulls_first] for o in request.order]


def _packed(order: list[Any], after: Sequence[str | None]) -> str:
    return base64.urlsafe_b64encode(_json([order, list(after)])).decode().rstrip("=")


def _unpacked(text: str, order: list[Any], count: int) -> tuple[str | None, ...]:
    try:
        padded = text + "=" * (-len(text) % 4)
        found_order, after = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
        is_whole = found_order == order and len(after) == count
        is_whole &= all(v is None or (isinstance(v, str) and "\0" not in v) for v in after)
    except (ValueError, TypeError, RecursionError):
        is_whole, after = False, ()
    if not is_whole:
        raise _bad_page()
    return tuple(after)


def _bad_page() -> TidemarkError:
    return TidemarkError(
        "rows.bad_page",
        "`after` is not valid for this order",
        hint="use `next` of the previous page, with the same order and conditions",
    )


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
