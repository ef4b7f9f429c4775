"""Queries of a source over ClickHouse's HTTP interface, within the limits of a poll.

Invariant: an answer is whole or an error. The server is asked to finish a query before it answers,
since an error in the middle of an answer would look like its end. No error contains a secret.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import orjson

from connectors import secrets
from connectors.clickhouse.column_types import ColumnType, column_type
from connectors.clickhouse.options import QueryRelation, Server
from connectors.outside.address import parse_url
from connectors.outside.bounded import Bounds, Meter, OverLimitError, lines
from connectors.outside.http import (
    Answer,
    HttpClient,
    Trust,
    UnreachableError,
    with_parameters,
)
from connectors.polled.schedule import RetryLaterError
from dataflow.errors import SourceError, TemporaryError, TidemarkError

_SHOWN, _OK = 300, 200
# An answer may take so many timeouts as a whole: each is of one wait.
TOTAL_TIMEOUTS = 10
# Rows of one table are alike, so its answers are compressed well.
_RATIO, _LINE_BYTES, _WHOLE_TABLE = 1000, 64 << 20, 1 << 50
_TYPES = Bounds(out_bytes=4 << 20)
_LOGIN = (401, 403)
_CODE = "x-clickhouse-exception-code"
_NUMBER = re.compile(r"Code: (\d+)")
# Unknown user, wrong password, required password, access denied.
_OF_LOGIN = {"192", "193", "194", "497", "516"}
# Of a server that is busy, has too little memory, or has lost others: the query itself is right.
_PASSING = {"159", "160", "202", "209", "210", "241", "242", "252", "279", "319", "425", "439"}
_SETTINGS = {
    "wait_end_of_query": "1",
    "output_format_json_quote_64bit_integers": "1",
    "output_format_json_quote_denormals": "1",
}


class Client:
    """Queries of one poll. Used by one thread, with `with`."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._meter = Meter(_bounds(server.max_bytes))
        headers = {}
        if server.user:
            headers["X-ClickHouse-User"] = secrets.resolve(server.user)
        if server.password:
            headers["X-ClickHouse-Key"] = secrets.resolve(server.password)
        self._client = HttpClient(
            timeout_s=server.timeout_s,
            total_s=server.timeout_s * TOTAL_TIMEOUTS,
            trust=Trust(server.ca),
            headers=headers,
        )

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def types(self, relation: QueryRelation) -> dict[str, ColumnType]:
        """Return the types of the relation's columns by their names, in order."""
        sql = f"SELECT * FROM {relation.text()} LIMIT 0 FORMAT JSONCompact"
        content = b"".join(self._content(relation, sql, Meter(_TYPES)))
        try:
            found = orjson.loads(content)["meta"]
            return {str(one["name"]): column_type(str(one["type"])) for one in found}
        except (ValueError, KeyError, TypeError):
            raise _unreadable(relation) from None

    def records(self, relation: QueryRelation, sql: str) -> list[bytes]:
        """Return the rows of a query as JSON objects. It raises as `lines` does."""
        return list(self.lines(relation, sql))

    def lines(
        self, relation: QueryRelation, sql: str, *, has_limit: bool = True
    ) -> Iterator[bytes]:
        """Yield the rows of a query as JSON objects. has_limit: count the bytes.

        SourceError clickhouse.login, clickhouse.refused, clickhouse.too_large, host.forbidden,
        secret.*; TemporaryError clickhouse.unreachable, clickhouse.unavailable, host.unknown.
        """
        meter = self._meter if has_limit else Meter(_bounds(_WHOLE_TABLE))
        parts = self._content(
            relation, f"{sql} FORMAT JSONEachRow", meter, is_endless=not has_limit
        )
        try:
            yield from filter(None, lines(parts, meter))
        except OverLimitError as error:
            raise _too_large(relation, self._server, error) from None

    def _content(
        self, relation: QueryRelation, sql: str, meter: Meter, *, is_endless: bool = False
    ) -> Iterator[bytes]:
        server = self._server
        query = {**server.settings, **_SETTINGS}
        if server.database:
            query["database"] = server.database
        url = with_parameters(parse_url(server.url), query)
        try:
            with self._client.ask("POST", url, content=sql.encode(), meter=meter) as answer:
                if answer.status != _OK:
                    raise _failure(relation, answer)
                if is_endless:
                    # Of a whole table, which takes as long as it takes.
                    answer.wait_at_most(server.timeout_s)
                yield from answer.blocks()
        except OverLimitError as error:
            raise _too_large(relation, server, error) from None
        except UnreachableError as error:
            what = f"ClickHouse at {parse_url(server.url).shown} cannot be reached"
            hint = "check url, and that the server runs and is reachable from the service"
            raise TemporaryError(
                "clickhouse.unreachable", what, detail=str(error), hint=hint
            ) from None


def _failure(relation: QueryRelation, answer: Answer) -> TidemarkError:
    detail = answer.quoted(_SHOWN) or f"HTTP {answer.status}"
    code = answer.headers.get(_CODE, "")
    if not code and (found := _NUMBER.match(detail)):
        # Servers before 2019 name it in the text alone.
        code = found[1]
    if code in _OF_LOGIN or (answer.status in _LOGIN and not code):
        what, hint = "ClickHouse refuses the login", "check user, password and the user's rights"
        return SourceError("clickhouse.login", what, detail=detail, hint=hint)
    if code in _PASSING or (not code and answer.status in (408, 425, 429, 502, 503, 504)):
        what = f'ClickHouse cannot answer the query of relation "{relation.name}" now'
        return RetryLaterError("clickhouse.unavailable", what, detail=detail)
    what = f'ClickHouse refuses the query of relation "{relation.name}"'
    return SourceError("clickhouse.refused", what, detail=detail, hint="check table and query")


def _too_large(relation: QueryRelation, server: Server, error: OverLimitError) -> TidemarkError:
    return SourceError(
        "clickhouse.too_large",
        f'the answers for relation "{relation.name}" are larger than max_bytes allows, '
        f"{server.max_bytes:,}",
        detail=str(error),
        hint="ask for fewer rows or columns, or raise max_bytes",
    )


def _unreadable(relation: QueryRelation) -> TidemarkError:
    what = f'the answer for relation "{relation.name}" is not of ClickHouse'
    return SourceError("clickhouse.refused", what, hint="check url: it is of the HTTP interface")


def _bounds(out_bytes: int) -> Bounds:
    return Bounds(out_bytes, ratio=_RATIO, line_bytes=min(out_bytes, _LINE_BYTES))


def one_row(relation: QueryRelation, records: list[bytes]) -> dict[str, Any]:
    """Return the only row of a query's answer. SourceError clickhouse.refused."""
    try:
        [row] = records
        return dict(orjson.loads(row))
    except (ValueError, TypeError):
        raise _unreadable(relation) from None
