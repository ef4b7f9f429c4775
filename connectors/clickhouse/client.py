"""Queries over ClickHouse's HTTP interface, within the guard and the limits.

Invariant: an answer is whole or an error. The server is asked to finish a query before it answers,
since an error in the middle of an answer would look like its end. No error contains a secret.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import orjson

from connectors import secrets
from connectors.clickhouse.column_types import ColumnType, column_type
from connectors.clickhouse.options import QueryRelation, Server
from connectors.guarded_http import AGENT, GuardedTransport, tls_context
from connectors.polled.schedule import RetryLaterError
from dataflow.errors import SourceError, TemporaryError, TidemarkError

_SHOWN = 300
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
        self._left = server.max_bytes
        inner = httpx.HTTPTransport(verify=tls_context(server.ca), trust_env=False)
        headers = {"User-Agent": AGENT}
        if server.user:
            headers["X-ClickHouse-User"] = secrets.resolve(server.user)
        if server.password:
            headers["X-ClickHouse-Key"] = secrets.resolve(server.password)
        self._client = httpx.Client(
            transport=GuardedTransport(inner),
            headers=headers,
            timeout=server.timeout_s,
            follow_redirects=False,
            trust_env=False,
        )

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def types(self, relation: QueryRelation) -> dict[str, ColumnType]:
        """Return the types of the relation's columns by their names, in order."""
        sql = f"SELECT * FROM {relation.text()} LIMIT 0 FORMAT JSONCompact"
        found = orjson.loads(b"".join(self._content(relation, sql)))["meta"]
        return {str(one["name"]): column_type(str(one["type"])) for one in found}

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
        rest = b""
        for part in self._content(relation, f"{sql} FORMAT JSONEachRow", has_limit=has_limit):
            *whole, rest = (rest + part).split(b"\n")
            yield from filter(None, whole)
        if rest:
            yield rest

    def _content(
        self, relation: QueryRelation, sql: str, *, has_limit: bool = True
    ) -> Iterator[bytes]:
        server = self._server
        query = {**server.settings, **_SETTINGS}
        if server.database:
            query["database"] = server.database
        try:
            with self._answer(query, sql) as answer:
                if answer.status_code != 200:
                    answer.read()
                    raise _failure(relation, answer)
                for part in answer.iter_bytes():
                    self._left -= len(part) if has_limit else 0
                    if self._left < 0:
                        raise _too_large(relation, server)
                    yield part
        except httpx.TransportError as error:
            what = f"ClickHouse at {_shown(server)} cannot be reached"
            detail = secrets.hide(f"{type(error).__name__}: {error}")[:_SHOWN]
            hint = "check url, and that the server runs and is reachable from the service"
            raise TemporaryError("clickhouse.unreachable", what, detail=detail, hint=hint) from None

    @contextmanager
    def _answer(self, query: dict[str, str], sql: str) -> Iterator[httpx.Response]:
        url = httpx.URL(self._server.url).copy_merge_params(query)
        with self._client.stream("POST", url, content=sql.encode()) as answer:
            yield answer


def _failure(relation: QueryRelation, answer: httpx.Response) -> TidemarkError:
    detail = secrets.hide(answer.text.strip())[:_SHOWN] or f"HTTP {answer.status_code}"
    code = answer.headers.get(_CODE, "")
    if not code and (found := _NUMBER.match(detail)):
        # Servers before 2019 name it in the text alone.
        code = found[1]
    if code in _OF_LOGIN or (answer.status_code in _LOGIN and not code):
        what, hint = "ClickHouse refuses the login", "check user, password and the user's rights"
        return SourceError("clickhouse.login", what, detail=detail, hint=hint)
    if code in _PASSING or (not code and answer.status_code in (408, 425, 429, 502, 503, 504)):
        what = f'ClickHouse cannot answer the query of relation "{relation.name}" now'
        return RetryLaterError("clickhouse.unavailable", what, detail=detail)
    what = f'ClickHouse refuses the query of relation "{relation.name}"'
    return SourceError("clickhouse.refused", what, detail=detail, hint="check table and query")


def _too_large(relation: QueryRelation, server: Server) -> TidemarkError:
    return SourceError(
        "clickhouse.too_large",
        f'the answers for relation "{relation.name}" have more than {server.max_bytes:,} bytes',
        hint="ask for fewer rows or columns, or raise max_bytes",
    )


def _shown(server: Server) -> str:
    url = httpx.URL(server.url)
    return f"{url.scheme}://{url.netloc.decode()}"


def one_row(records: list[bytes]) -> dict[str, Any]:
    """Return the only row of a query's answer."""
    [row] = records
    return orjson.loads(row)
