"""A view in ClickHouse: its rows first, then the progress, both of which may be repeated.

ClickHouse has no transactions. So each row carries its epoch, and a write that is repeated after a
kill puts the same rows in the place of the earlier ones. Invariant: the progress names an epoch
only if all rows up to it are there. A writer that was replaced is refused before its next write;
what it has in flight is what its successor writes too.
"""

from __future__ import annotations

import io
import json
import re
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import xxhash

from connectors.clickhouse.session import ClickHouseSession, unreached
from connectors.clickhouse.sink_options import ClickHouseOptions, literal
from connectors.clickhouse.tables import (
    NOW,
    PROGRESS,
    changes_of,
    fixed_view,
    rows_of,
    statements,
)
from connectors.lake.location import UNREACHABLE
from connectors.sink import SinkTable
from connectors.view_sink import Detachment, Interruption, ViewEpoch, fenced, lost
from dataflow.errors import SinkError, TemporaryError, TidemarkError
from storage.failpoints import failpoint

LEAST_VERSION = (23, 2)
INSERT_ROWS, INSERT_BYTES = 1_000_000, 64 << 20
# First and last one of a sink that has not begun.
_NO_EPOCHS = 2**64 - 1, 0


class ClickHouseSink:
    """One sink; see ViewSink. identity: new for each creation."""

    def __init__(self, options: ClickHouseOptions, table: SinkTable, identity: str) -> None:
        self._options = options
        self._table = table
        self._identity = identity
        self._owner = f"tidemark sink {identity}"
        self._writer = uuid.uuid4().hex
        self._has_claimed = False
        self._generation = 0
        self._first: int | None = None
        self._interrupted = Interruption()
        self._session: ClickHouseSession | None = None

    # --- life ------------------------------------------------------------------------------

    def open(self, known: int | None = None) -> int | None:
        """See ViewSink. SinkError sink.fenced, sink.lost, sink.not_empty."""
        self._interrupted.check()
        self.close()
        self._session = connect(self._options)
        there = existing(self._session, self._options)
        if there and there.get(PROGRESS) != self._owner:
            if self._has_claimed:
                raise self._lost("others have created its tables again")
            raise not_empty(self._options, ", ".join(there))
        newest = self._newest() if there else None
        missing = [suffix for suffix in ("", PROGRESS, NOW) if suffix not in there]
        if known is not None or self._has_claimed or (newest and newest["has_begun"]):
            if newest is None or missing:
                raise self._lost("its tables or its progress are gone")
            if self._has_claimed and newest["writer"] != self._writer:
                raise fenced(f"table {self._options.name()}")
        for suffix, statement in statements(self._options, self._table, self._owner).items():
            if suffix in missing:
                self._command(statement)
        return self._claim(newest)

    def _claim(self, newest: dict[str, Any] | None) -> int | None:
        """Put our name into the progress, as a later one than every other."""
        epoch = None
        self._first = None
        if newest is not None and newest["has_begun"]:
            epoch, self._first = newest["epoch"], newest["first_epoch"]
        self._generation = 1 + (0 if newest is None else newest["generation"])
        positions = "{}" if newest is None else newest["positions"]
        self._write_progress(epoch, positions)
        self._has_claimed = True
        return epoch

    def interrupt(self) -> None:
        """See ViewSink."""
        self._interrupted.set()
        session = self._session
        if session is not None:
            session.abort()

    def close(self) -> None:
        """See ViewSink."""
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def remove(self) -> None:
        """See ViewSink. SinkError sink.not_ours."""
        if not self._own_tables():
            return
        # The progress names the sink, so it goes last.
        self._command(f"DROP VIEW IF EXISTS {self._options.name(NOW)}")
        self._command(f"DROP TABLE IF EXISTS {self._options.name()}")
        self._command(f"DROP TABLE IF EXISTS {self._options.name(PROGRESS)}")

    def detachment(self) -> Detachment:
        """See ViewSink."""
        view, table = self._options.name(NOW), self._options.name()
        return Detachment(
            (f"table {self._options.name(PROGRESS)}",),
            (f"table {table}", f"view {view}, which shows the rows of the last epoch from now on"),
        )

    def detach(self) -> None:
        """Fix the view over the table at the last epoch, and drop the progress. SinkError
        sink.not_ours."""
        there = self._own_tables(needs_progress=True)
        if not there:
            return
        if "" in there:
            newest = self._newest()
            bounds = _NO_EPOCHS
            if newest is not None and newest["has_begun"]:
                bounds = newest["first_epoch"], newest["epoch"]
            self._command(f"DROP VIEW IF EXISTS {self._options.name(NOW)}")
            self._command(fixed_view(self._options, self._table, bounds))
        self._command(f"DROP TABLE IF EXISTS {self._options.name(PROGRESS)}")

    def _own_tables(self, *, needs_progress: bool = False) -> dict[str, str]:
        """Return what is there as of `existing`, once connected. SinkError sink.not_ours.

        needs_progress: return nothing without it, whoever has made the other tables.
        """
        self.close()
        self._session = connect(self._options)
        there = existing(self._session, self._options)
        if needs_progress and PROGRESS not in there:
            return {}
        if there and there.get(PROGRESS) != self._owner:
            raise SinkError(
                "sink.not_ours",
                f"table {self._options.name()} cannot be dropped: another one has created it",
                hint="drop the sink without its data",
            )
        return there

    # --- epochs ----------------------------------------------------------------------------

    def write(self, epochs: Sequence[ViewEpoch]) -> None:
        """See ViewSink: repeating a write that was interrupted changes nothing."""
        newest = self._newest()
        if newest is None:
            raise self._lost("its progress is gone")
        if newest["writer"] != self._writer:
            raise fenced(f"table {self._options.name()}")
        make = rows_of if self._options.mode == "rows" else changes_of
        span = f"{self._identity}-{epochs[0].number}-{epochs[-1].number}"
        for number, chunk in enumerate(_chunks(make(self._table, epochs))):
            self._interrupted.check()
            body = _stream(chunk)
            # The same rows only: other rows under one token would be ignored.
            token = f"{span}-{number}-{xxhash.xxh128_hexdigest(body)}"
            self._insert("", chunk[0].schema.names, body, token)
        failpoint("clickhouse.rows.written", unreached)
        self._first = epochs[0].number if self._first is None else self._first
        last = epochs[-1]
        self._write_progress(last.number, json.dumps(last.positions))
        failpoint("clickhouse.progress.written", unreached)

    def _write_progress(self, epoch: int | None, positions: str) -> None:
        facts = {
            "sink": self._identity,
            "generation": self._generation,
            "writer": self._writer,
            "has_begun": int(epoch is not None),
            "epoch": epoch or 0,
            "first_epoch": self._first or 0,
            "positions": positions,
        }
        body = json.dumps(facts).encode()
        self._insert(PROGRESS, list(facts), body)

    def _newest(self) -> dict[str, Any] | None:
        """Return the progress of the last writer that has taken over."""
        sql = (
            "SELECT generation, writer, has_begun, epoch, first_epoch, positions"
            f" FROM {self._options.name(PROGRESS)} WHERE sink = {literal(self._identity)}"
            " ORDER BY generation DESC, writer DESC, has_begun DESC, epoch DESC LIMIT 1"
        )
        found = _query(self._opened(), sql)
        return found[0] if found else None

    # --- the server ------------------------------------------------------------------------

    def _opened(self) -> ClickHouseSession:
        if self._session is None:
            raise TemporaryError(UNREACHABLE, "the sink is not open")
        return self._session

    def _command(self, sql: str) -> None:
        self._opened().command(sql)

    def _insert(self, suffix: str, names: Sequence[str], body: bytes, token: str = "") -> None:
        form = "ArrowStream" if token else "JSONEachRow"
        settings = {"insert_deduplication_token": token} if token else {}
        self._opened().insert(self._options.name(suffix), names, body, form, **settings)

    def _lost(self, detail: str) -> SinkError:
        what = f"table {self._options.name()} is missing"
        return lost(detail, what, first="drop the sink's other tables too")


def connect(options: ClickHouseOptions) -> ClickHouseSession:
    """Return a session. TemporaryError; SinkError clickhouse.version; SourceError host.forbidden,
    secret.missing.
    """
    session = ClickHouseSession(options)
    try:
        [row] = session.query("SELECT version() AS version") or [{}]
        _require_recent(str(row.get("version", "")))
    except BaseException:
        session.close()
        raise
    return session


def _require_recent(version: str) -> None:
    """SinkError clickhouse.version.

    >>> _require_recent("23.2.1.2537"), _require_recent("26.9"), _require_recent("")
    (None, None, None)
    """
    found, least = re.match(r"(\d+)\.(\d+)", version), ".".join(map(str, LEAST_VERSION))
    if found is not None and (int(found[1]), int(found[2])) < LEAST_VERSION:
        raise SinkError(
            "clickhouse.version",
            f"the server is older than ClickHouse {least}",
            detail=f"it is version {version}",
            hint=f"use ClickHouse {least} or newer",
        )


def existing(session: ClickHouseSession, options: ClickHouseOptions) -> dict[str, str]:
    """Return the comment of each of the tables that are there, by the end of its name."""
    names = {options.table + suffix: suffix for suffix in ("", PROGRESS, NOW)}
    sql = (
        f"SELECT name, comment FROM system.tables WHERE database = {literal(options.database)}"
        f" AND name IN ({', '.join(map(literal, names))})"
    )
    return {names[row["name"]]: row["comment"] for row in _query(session, sql)}


def lasting(error: TemporaryError) -> TidemarkError:
    """Return the error of a new sink: one that only the user can change is not temporary."""
    if "AUTHENTICATION_FAILED" in error.detail:
        what = "ClickHouse refuses the user or the password"
        return SinkError("sink.login", what, detail=error.detail, hint="check user and password")
    if "UNKNOWN_DATABASE" in error.detail:
        what = "the database does not exist in ClickHouse"
        return SinkError("sink.database", what, detail=error.detail, hint="create or correct it")
    if "ACCESS_DENIED" in error.detail or "NOT_ENOUGH_PRIVILEGES" in error.detail:
        what, hint = "the user of ClickHouse lacks a right", "grant what the detail names"
        return SinkError("sink.privilege", what, detail=error.detail, hint=hint)
    return error


def not_empty(options: ClickHouseOptions, detail: str) -> SinkError:
    """Return the error of a table that is not free for a new sink."""
    return SinkError(
        "sink.not_empty",
        f"table {options.name()}, or one beside it, exists",
        detail=detail,
        hint="choose another table, or drop this one",
    )


def _query(session: ClickHouseSession, sql: str) -> list[dict[str, Any]]:
    numbers = ("generation", "epoch", "first_epoch")
    try:
        return [
            {name: int(v) if name in numbers else v for name, v in row.items()}
            for row in session.query(sql)
        ]
    except (ValueError, TypeError, AttributeError):
        raise unreached("the answer has not the columns that were asked for") from None


def _chunks(rows: Iterator[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    """Yield batches together, as many as one insert takes."""
    chunk: list[pa.RecordBatch] = []
    n, size = 0, 0
    for batch in rows:
        if chunk and (n + len(batch) > INSERT_ROWS or size + batch.nbytes > INSERT_BYTES):
            yield chunk
            chunk, n, size = [], 0, 0
        chunk.append(batch)
        n, size = n + len(batch), size + batch.nbytes
    if chunk:
        yield chunk


def _stream(batches: Sequence[pa.RecordBatch]) -> bytes:
    found = io.BytesIO()
    with pa.ipc.new_stream(found, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return found.getvalue()
