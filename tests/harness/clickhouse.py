"""Private ClickHouse servers on 127.0.0.1: Debian's, and chdb's engine behind the same interface.

Their data is in a temporary folder, and everything ends with the process that has started them.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Self

import httpx
import pytest

from connectors.loopback import free_port
from tests.harness import http
from tests.harness.leash import Leash

PROGRAM = "clickhouse-server"
START_TIMEOUT_S = 120.0
CONFIG = """<?xml version="1.0"?>
<yandex>
<logger><level>warning</level><log>{folder}/log</log><errorlog>{folder}/errors</errorlog></logger>
<http_port>{port}</http_port><tcp_port>{other}</tcp_port><listen_host>127.0.0.1</listen_host>
<path>{folder}/data/</path><tmp_path>{folder}/tmp/</tmp_path>
<users_config>{folder}/users.xml</users_config>
<mark_cache_size>8388608</mark_cache_size><timezone>Asia/Tokyo</timezone>
<default_profile>default</default_profile><default_database>default</default_database>
</yandex>
"""
USERS = """<yandex>
<profiles><default><max_memory_usage>400000000</max_memory_usage></default></profiles>
<users>
<default><password></password><networks><ip>127.0.0.1</ip></networks>
<profile>default</profile><quota>default</quota></default>
<reader><password>hunter22</password><networks><ip>127.0.0.1</ip></networks>
<profile>default</profile><quota>default</quota></reader>
</users>
<quotas><default></default></quotas>
</yandex>
"""
# A server of one engine in its process: one query at a time.
CHDB = """
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.parse import parse_qs, urlsplit
from chdb import session

opened = session.Session(sys.argv[2])

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        sql = self.rfile.read(int(self.headers["content-length"])).decode()
        query = parse_qs(urlsplit(self.path).query)
        names = [n for n in query if n.startswith("output_format_")]
        status, code = 200, ""
        try:
            if names and sql.startswith("SELECT"):
                head, _, form = sql.rpartition(" FORMAT ")
                set_to = ", ".join(n + "=" + query[n][0] for n in names)
                sql = head + " SETTINGS " + set_to + " FORMAT " + form
            content = opened.query(sql, "TabSeparated").bytes()
        except Exception as error:
            status, content = 500, str(error).encode()
            code = str(error).partition("Code: ")[2].partition(".")[0]
        self.send_response(status)
        if code:
            self.send_header("X-ClickHouse-Exception-Code", code)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass

HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def found_program() -> str | None:
    """Where the program is; None if it is not there."""
    return shutil.which(PROGRAM) or shutil.which(PROGRAM, path="/usr/sbin:/usr/local/sbin:/sbin")


class ClickHouse:
    """A running server. Used with `with`."""

    def __init__(self, *, is_chdb: bool = False) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.folder = Path(tempfile.mkdtemp(prefix="tidemark-clickhouse-"))
        self.is_chdb = is_chdb
        self._process: subprocess.Popen | None = None
        self._leash: Leash | None = None

    def __enter__(self) -> Self:
        if not self.is_chdb and found_program() is None:
            pytest.skip(f"{PROGRAM} is not there: apt-get install {PROGRAM}")
        if self.is_chdb and importlib.util.find_spec("chdb") is None:
            pytest.skip("chdb is not there: pip install chdb")
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self) -> None:
        """Start, and wait until it answers."""
        if self.is_chdb:
            program = [sys.executable, "-c", CHDB, str(self.port), str(self.folder / "data")]
        else:
            settings = {"folder": self.folder, "port": self.port, "other": free_port()}
            (self.folder / "config.xml").write_text(CONFIG.format(**settings))
            (self.folder / "users.xml").write_text(USERS)
            program = [str(found_program()), f"--config-file={self.folder}/config.xml"]
        with (self.folder / "out").open("ab") as out:
            self._process = subprocess.Popen(
                program,
                stdout=out,
                stderr=out,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                cwd=self.folder,
            )
        self._leash = Leash(self._process.pid)
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._answers():
            assert self._process.poll() is None, (self.folder / "out").read_text()[-3000:]
            assert time.monotonic() < deadline, (self.folder / "out").read_text()[-3000:]
            time.sleep(0.1)

    def stop(self) -> None:
        """kill -9: the tests read nothing after it."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
        if self._leash is not None:
            self._leash.let_go()
            self._leash = None

    def execute(self, sql: str) -> str:
        """Run one statement; its answer."""
        answer = http.post(self.url, content=sql.encode(), timeout=60)
        assert answer.status_code == 200, answer.text
        return answer.text

    def _answers(self) -> bool:
        try:
            return http.post(self.url, content=b"SELECT 1").status_code == 200
        except httpx.TransportError:
            return False
