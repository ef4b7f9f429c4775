"""Statements of a sink over ClickHouse's HTTP interface.

Invariant: a statement has ended on the server, or is an error: the server is asked to answer only
then, since an error after the answer's head would look like its end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from connectors import secrets
from connectors.clickhouse.sink_options import ClickHouseOptions, quoted
from connectors.lake.location import UNREACHABLE
from connectors.outside.address import parse_url
from connectors.outside.bounded import Bounds, Meter, OverLimitError
from connectors.outside.http import (
    BadAnswerError,
    HttpClient,
    Trust,
    UnreachableError,
    with_parameters,
)
from dataflow.errors import SinkError, TemporaryError, TidemarkError

WAIT_S = 60
# What is read are a sink's own facts: few rows.
_ANSWER = Bounds(out_bytes=16 << 20)
_SHOWN = 500
_OK = 200


class ClickHouseSession:
    """One server. Used by one thread; `abort` is of any. SourceError host.forbidden,
    secret.missing."""

    def __init__(self, options: ClickHouseOptions) -> None:
        options.check()
        headers = {"X-ClickHouse-User": options.user}
        if options.password:
            headers["X-ClickHouse-Key"] = secrets.resolve(options.password)
        self._url = parse_url(options.url)
        self._database = options.database
        self._client = HttpClient(
            timeout_s=WAIT_S, trust=Trust(options.ca_file), headers=headers, side="sink"
        )

    def query(self, sql: str) -> list[dict[str, Any]]:
        """Return the rows of a query. It raises as `command` does."""
        answer = self._ask({"query": f"{sql} FORMAT JSONEachRow"}, b"")
        try:
            return [orjson.loads(line) for line in answer.splitlines() if line]
        except ValueError:
            raise unreached("the answer is no JSON") from None

    def command(self, sql: str) -> None:
        """Execute a statement. TemporaryError sink.unreachable; SinkError sink.lost,
        sink.table_changed."""
        self._ask({}, sql.encode())

    def insert(
        self, table: str, columns: Sequence[str], body: bytes, form: str, **settings: str
    ) -> None:
        """Insert rows in a format of ClickHouse. It raises as `command` does."""
        names = ", ".join(map(quoted, columns))
        self._ask({"query": f"INSERT INTO {table} ({names}) FORMAT {form}", **settings}, body)

    def abort(self) -> None:
        """End what is on its way, from any thread."""
        self._client.abort()

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _ask(self, parameters: Mapping[str, str], body: bytes) -> bytes:
        # As a JSON number a large integer would lose digits; as a text it loses none.
        settings = {"wait_end_of_query": "1", "output_format_json_quote_64bit_integers": "1"}
        url = with_parameters(self._url, {"database": self._database, **settings, **parameters})
        try:
            with self._client.ask("POST", url, content=body, meter=Meter(_ANSWER)) as answer:
                if answer.status != _OK:
                    raise _failure(answer.status, answer.quoted(_SHOWN))
                return answer.content()
        except (UnreachableError, BadAnswerError, OverLimitError) as error:
            raise unreached(str(error)) from None


def unreached(detail: str) -> TemporaryError:
    """Return the error of a server that does not answer."""
    hint = "no action needed if it is a short failure; else see the detail"
    return TemporaryError(UNREACHABLE, "ClickHouse cannot be reached", detail=detail, hint=hint)


def _failure(status: int, text: str) -> TidemarkError:
    """Return what a refusal of the server means."""
    detail = text or f"HTTP {status}"
    for words, code in (("UNKNOWN_TABLE", "sink.lost"), ("TYPE_MISMATCH", "sink.table_changed")):
        if words in detail:
            hint = "drop the sink and add it again, with another table"
            return SinkError(code, "a table of the sink was changed", detail=detail, hint=hint)
    if 300 <= status < 400:
        detail = f"HTTP {status}: the server leads elsewhere, where no row is sent"
    return TemporaryError(
        UNREACHABLE,
        "ClickHouse does not accept a statement",
        detail=detail,
        hint="no action needed if it is a short failure; else see the detail",
    )
