"""All pages of a relation, one request after the other, as JSON texts of its rows.

Invariant: a poll has all pages or none. Pagination that does not end, or that repeats itself, is an
error, never a shorter relation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import orjson

from connectors.formats.declared import DeclaredColumn, declared_type
from connectors.formats.json_lists import elements
from connectors.formats.json_reader import JsonReader
from connectors.http.client import NOT_MODIFIED, Client, Page, next_request
from connectors.http.options import (
    CURSOR,
    LINK,
    NUMBER,
    OFFSET,
    HttpRelation,
    Limits,
    Pagination,
    Request,
)
from connectors.outside.texts import shown
from dataflow.errors import SourceError
from dataflow.schema import Field

_OPEN = b"["
_VALUE_BYTES = 64 << 10


@dataclass(frozen=True)
class Answer:
    """All rows as JSON texts, None if nothing has changed; validators for the next poll."""

    records: list[bytes] | None
    validators: Mapping[str, str]


def read_pages(
    client: Client, relation: HttpRelation, limits: Limits, validators: Mapping[str, str]
) -> Answer:
    """Read a relation whole. SourceError http.*, TemporaryError; see `Client.ask`."""
    rows = _RowsReader(relation, limits.max_rows)
    records: list[bytes] = []
    request: Request | None = _first(relation)
    seen = set[object]()
    last: Page | None = None
    for _ in range(limits.max_pages):
        assert request is not None
        # With several pages only all of them together would tell.
        page = client.ask(request, validators if last is None else {})
        if page.status == NOT_MODIFIED:
            return Answer(None, validators)
        found = rows.read(page.content, len(records))
        records += found
        request, mark = _next(relation, request, page, len(found), len(records))
        if request is None:
            is_whole = last is None
            return Answer(records, page.validators if is_whole else {})
        if mark in seen:
            raise _endless(relation, f"the page after {mark!r} was read before")
        seen.add(mark)
        last = page
    raise _endless(relation, f"there are more than {limits.max_pages:,} pages")


def read_sample(client: Client, relation: HttpRelation, count: int) -> list[bytes]:
    """Return the first rows of a relation's first page. SourceError http.*, TemporaryError."""
    page = client.ask(_first(relation), {})
    return _RowsReader(relation, count).sample(page.content)


def _first(relation: HttpRelation) -> Request:
    request, way = relation.request, relation.pagination
    query = dict(request.query)
    if way.size_parameter:
        query[way.size_parameter] = str(way.size)
    if way.kind in (NUMBER, OFFSET):
        query[way.parameter] = str(way.first)
    return replace(request, query=query)


def _next(
    relation: HttpRelation, request: Request, page: Page, count: int, total: int
) -> tuple[Request | None, object]:
    """Return the request of the next page, None after the last one, and what identifies it.

    count: rows of this page. total: of all so far.
    """
    way = relation.pagination
    if way.kind == LINK:
        following = next_request(request, page.next_url) if page.next_url else None
        return following, page.next_url
    if way.kind == CURSOR:
        cursor = _cursor(relation, page.content)
        return (None if cursor is None else _with_cursor(request, way, cursor)), cursor
    if way.kind in (NUMBER, OFFSET) and count and count >= way.size:
        before = int(request.query[way.parameter])
        number = before + (1 if way.kind == NUMBER else count)
        return replace(request, query={**request.query, way.parameter: str(number)}), number
    return None, total


def _with_cursor(request: Request, way: Pagination, cursor: Any) -> Request:
    if way.parameter:
        return replace(request, query={**request.query, way.parameter: str(cursor)})
    body = dict(request.body)
    variables = {**(body.get("variables") or {}), way.variable: cursor}
    return replace(request, body={**body, "variables": variables})


def _cursor(relation: HttpRelation, content: bytes) -> Any:
    """Return the next cursor; None after the last page."""
    way = relation.pagination
    if way.more and not _at(content, way.more):
        return None
    found = _at(content, way.source)
    if found is not None and not isinstance(found, str | int):
        what = f'relation "{relation.name}": the next cursor is neither a text nor a number'
        hint = 'check "from" of its pagination'
        raise SourceError("http.bad_answer", what, detail=shown(found, 100), hint=hint)
    return None if found == "" else found


def _at(content: bytes, path: tuple[str, ...]) -> Any:
    """Return the value at a path of an answer, None if there is none.

    Only that value becomes an object, and only if it is short: a cursor, a flag, an error.
    """
    column = DeclaredColumn(Field("value", declared_type("json")[0]), path)
    fields = JsonReader([column]).read([content])
    [found] = [None] if fields.bad else fields.columns[0].to_list()
    if found is not None and len(found) > _VALUE_BYTES:
        return found[:_VALUE_BYTES].decode(errors="replace")
    try:
        return None if found is None else orjson.loads(found)
    except ValueError as error:
        what, hint = "an answer cannot be read as JSON", "check the server"
        raise SourceError("http.bad_answer", what, detail=shown(error), hint=hint) from None


class _RowsReader:
    """Cuts the list of rows out of an answer, with every digit of its numbers."""

    def __init__(self, relation: HttpRelation, max_rows: int) -> None:
        self._relation = relation
        self._max_rows = max_rows
        column = DeclaredColumn(Field("rows", declared_type("json")[0]), relation.path)
        self._reader = JsonReader([column])

    def read(self, content: bytes, before: int) -> list[bytes]:
        """Return the rows of an answer. before: rows of earlier answers to the same poll.

        SourceError http.bad_answer, http.errors, http.too_many_rows.
        """
        left = self._max_rows - before
        found = elements(self._list(content), left + 1)
        if len(found) > left:
            what = f'relation "{self._relation.name}" has more than {self._max_rows:,} rows'
            hint = "ask for fewer rows, or raise max_rows"
            raise SourceError("http.too_many_rows", what, hint=hint)
        return found

    def sample(self, content: bytes) -> list[bytes]:
        """Return the first rows of an answer, as many as there may be. It raises as `read`."""
        return elements(self._list(content), self._max_rows)

    def _list(self, content: bytes) -> bytes:
        """Return the list of rows in an answer."""
        fields = self._reader.read([content])
        if fields.bad:
            [fault] = fields.bad.values()
            raise self._bad(f"it is not JSON: {fault.reason}")
        self._check_errors(content)
        [found] = fields.columns[0].to_list()
        if found is None or not found.lstrip().startswith(_OPEN):
            path = ".".join(("$", *self._relation.path))
            raise self._bad(f"there is no list at {path}")
        return found

    def _check_errors(self, content: bytes) -> None:
        """Refuse an answer of GraphQL that says that it is not whole."""
        body = self._relation.request.body
        if not isinstance(body, Mapping) or "query" not in body:
            return
        if errors := _at(content, ("errors",)):
            what = f'relation "{self._relation.name}": GraphQL reports errors'
            hint = "check the query and its variables"
            raise SourceError("http.errors", what, detail=shown(errors, 200), hint=hint)

    def _bad(self, detail: str) -> SourceError:
        what = f'relation "{self._relation.name}": the answer has not the rows that are declared'
        hint = 'check "path" and "rows"'
        return SourceError("http.bad_answer", what, detail=detail, hint=hint)


def _endless(relation: HttpRelation, detail: str) -> SourceError:
    what = f'relation "{relation.name}": its pages do not end'
    hint = 'check "pagination", or raise max_pages'
    return SourceError("http.endless", what, detail=detail, hint=hint)
