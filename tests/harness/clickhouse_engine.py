"""ClickHouse's engine behind its HTTP interface: a process of its own, with its data in a folder.

The engine is chdb, the library of ClickHouse's own makers, of the current version. This server is
the little that clients need: queries, inserts with a body, settings in the address, and errors.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from connectors.loopback import free_port

START_S = 180.0
_INSERT = re.compile(r"\s*INSERT INTO\s+(.+?)\s+FORMAT\s+(\w+)\s*$", re.IGNORECASE | re.DOTALL)
# Parameters that are no settings of a query.
_NOT_SETTINGS = {
    *("query", "database", "default_format", "user", "password", "session_id", "query_id"),
    *("client_protocol_version", "compress", "decompress", "enable_http_compression", "role"),
    *("http_headers_progress_interval_ms", "send_progress_in_http_headers", "wait_end_of_query"),
}


class ClickHouse:
    """A running engine; url: of its HTTP interface."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._folder = folder
        self._child: subprocess.Popen | None = None

    def start(self) -> None:
        """Start it on its folder and wait until it answers."""
        command = [sys.executable, "-m", "tests.harness.clickhouse_engine", str(self.port)]
        with self._folder.with_suffix(".log").open("ab") as log:
            self._child = subprocess.Popen([*command, str(self._folder)], stdout=log, stderr=log)
        deadline = time.monotonic() + START_S
        while True:
            with suppress(OSError):
                assert self.query("SELECT 1") == b"1\n"
                return
            assert self._child.poll() is None and time.monotonic() < deadline, "did not start"
            time.sleep(0.05)

    def kill(self) -> None:
        """End it as kill -9 does."""
        assert self._child is not None
        self._child.kill()
        self._child.wait()

    def query(self, sql: str, **settings: object) -> bytes:
        """The answer in TSV, or in the format that the query names."""
        query = urllib.parse.urlencode({"query": sql, **settings})
        request = urllib.request.Request(f"{self.url}/?{query}", b"", method="POST")
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.read()


@contextmanager
def clickhouse(folder: Path) -> Iterator[ClickHouse]:
    """A running engine; the test is skipped where chdb is not installed."""
    pytest.importorskip("chdb", reason="no chdb: ClickHouse's engine to test against")
    running = ClickHouse(folder)
    running.start()
    try:
        yield running
    finally:
        running.kill()


def _serve(port: int, folder: str) -> None:
    from chdb.session import Session

    session, lock = Session(folder), threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._reply(b"Ok.\n")

        def do_POST(self) -> None:
            parts = urllib.parse.urlsplit(self.path)
            given = dict(urllib.parse.parse_qsl(parts.query, keep_blank_values=True))
            body = self._body()
            sql = given.get("query", "")
            if not sql:
                # Rows may follow the statement, after the end of its line.
                is_insert = body[:11].upper() == b"INSERT INTO"
                text, _, body = body.partition(b"\n") if is_insert else (body, b"", b"")
                sql = text.decode()
            settings = {n: v for n, v in given.items() if n not in _NOT_SETTINGS}
            try:
                with lock:
                    answer = _run(session, sql, given, settings, body)
            except Exception as error:
                self._reply(f"Code: 1. DB::Exception: {error}".encode(), 500)
                return
            self._reply(answer)

        def _body(self) -> bytes:
            if self.headers.get("Transfer-Encoding", "") != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length") or 0))
            found = b""
            while size := int(self.rfile.readline().split(b";")[0], 16):
                found += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return found

        def _reply(self, body: bytes, status: int = 200) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            if status != 200:
                self.send_header("X-ClickHouse-Exception-Code", "1")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()


def _run(session: object, sql: str, given: dict, settings: dict, body: bytes) -> bytes:
    run = session.query  # type: ignore[attr-defined]
    database = given.get("database") or "default"
    run(f"USE `{database}`")
    insert = _INSERT.match(sql)
    if insert is None:
        found = run(sql + _clause(settings, sql), given.get("default_format") or "TSV")
        return bytes(found.bytes() or b"")
    with tempfile.NamedTemporaryFile() as file:
        file.write(body)
        file.flush()
        target, form = insert.groups()
        source = f"SELECT * FROM file('{file.name}', '{form}')"
        run(f"INSERT INTO {target}{_clause(settings, '')} {source}", "TSV")
    return b""


def _clause(settings: dict, sql: str) -> str:
    is_plain = sql and not re.match(r"\s*(SELECT|WITH)\b", sql, re.IGNORECASE)
    if not settings or is_plain or re.search(r"\bFORMAT\s+\w+\s*$", sql):
        return ""
    return " SETTINGS " + ", ".join(f"{name} = '{value}'" for name, value in settings.items())


if __name__ == "__main__":
    _serve(int(sys.argv[1]), sys.argv[2])
