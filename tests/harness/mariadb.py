"""A private MariaDB server on 127.0.0.1 with a binary log of rows, from the system's packages.

Its data is in a temporary folder, and everything ends with the process that has started it. Each
test makes databases of its own; the log is shared, as it is in production.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import pymysql

from connectors.loopback import free_port
from tests.harness.leash import Leash

PROGRAMS = ("mariadbd", "mariadb-install-db")
START_TIMEOUT_S = 60.0
# What the service's user may do; the tests of preflight take some of it away.
GRANTS = ("REPLICATION SLAVE, BINLOG MONITOR", "RELOAD", "SELECT")
SETTINGS: Mapping[str, str] = {
    "log-bin": "log",
    "server-id": "1",
    "binlog-format": "ROW",
    "binlog-row-image": "FULL",
    "binlog-row-metadata": "FULL",
    "binlog-checksum": "CRC32",
    # What is written outlives a killed server, if not a crashed machine. With 0, a killed server
    # would lose transactions that are in its log.
    "innodb-flush-log-at-trx-commit": "2",
    "sync-binlog": "0",
    "innodb-buffer-pool-size": "24M",
    "innodb-log-file-size": "8M",
    "innodb-fast-shutdown": "1",
    "performance-schema": "OFF",
    "skip-name-resolve": "ON",
    "max-connections": "60",
    "character-set-server": "utf8mb4",
}


def missing() -> str | None:
    """Return why no server can be started; None if it can."""
    lacking = [name for name in PROGRAMS if _found(name) is None]
    if not lacking:
        return None
    return f"{lacking[0]} is not there: apt-get install mariadb-server-core mariadb-client-core"


class MariaDbServer:
    """A running server. Used with `with`; settings override SETTINGS, "" leaves one out."""

    _numbers = itertools.count()

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        self.port = free_port()
        self.folder = Path(tempfile.mkdtemp(prefix="tidemark-mariadb-"))
        self._settings = {**SETTINGS, **(settings or {})}
        self._process: subprocess.Popen | None = None
        self._leash: Leash | None = None

    def __enter__(self) -> Self:
        self._install()
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self) -> None:
        """Start, and wait until it answers.

        It has a folder of its own for temporary tables: a server that starts deletes all that it
        finds there, and another one that is about to use them crashes.
        """
        (self.folder / "tmp").mkdir(exist_ok=True)
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *self._command("mariadbd"),
                    f"--port={self.port}",
                    "--bind-address=127.0.0.1",
                    f"--socket={self.folder}/s",
                    f"--tmpdir={self.folder}/tmp",
                    f"--pid-file={self.folder}/pid",
                    *(f"--{name}={value}" for name, value in self._settings.items() if value),
                ],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self._leash = Leash(self._process.pid)
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline and self._process.poll() is None:
            with contextlib.suppress(pymysql.Error):
                self.connect().close()
                return
            time.sleep(0.05)
        raise AssertionError(f"MariaDB did not start\n{self.log_tail()}")

    def stop(self) -> None:
        """End it in order."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """kill -9."""
        self._end(signal.SIGKILL)

    def log_tail(self) -> str:
        """The end of its own log."""
        path = self.folder / "log"
        return path.read_text(errors="replace")[-3000:] if path.exists() else ""

    def connect(self, database: str = "", **more: Any) -> pymysql.connections.Connection:
        """A connection of the administrator."""
        return pymysql.connect(
            host="127.0.0.1",
            port=self.port,
            user="root",
            database=database or None,
            autocommit=True,
            charset="utf8mb4",
            connect_timeout=5,
            **more,
        )

    @contextlib.contextmanager
    def database(self) -> Iterator[MariaDb]:
        """An empty database, with a user of the service's."""
        name = f"d{next(self._numbers)}_{secrets.token_hex(3)}"
        with contextlib.closing(self.connect()) as session:
            session.cursor().execute(f"CREATE DATABASE {name}")
        made = MariaDb(self, name)
        try:
            yield made
        finally:
            made.close()
            with contextlib.suppress(pymysql.Error), contextlib.closing(self.connect()) as session:
                session.cursor().execute(f"DROP DATABASE {name}")

    def _install(self) -> None:
        done = subprocess.run(
            [
                *self._command("mariadb-install-db"),
                "--auth-root-authentication-method=normal",
                "--skip-test-db",
                "--innodb-log-file-size=8M",
            ],
            capture_output=True,
            text=True,
        )
        assert not done.returncode, done.stdout + done.stderr

    def _command(self, name: str) -> list[str]:
        found = [str(_found(name)), "--no-defaults", f"--datadir={self.folder}/data"]
        return [*found, "--user=root"] if os.getuid() == 0 else found

    def _end(self, number: int) -> None:
        process, self._process = self._process, None
        if process is not None and process.poll() is None:
            process.send_signal(number)
            process.wait(60)
        if self._leash is not None:
            self._leash.let_go()
            self._leash = None


class MariaDb:
    """One database of a server, by a connection that is opened again after a restart."""

    def __init__(self, server: MariaDbServer, name: str) -> None:
        self.server = server
        self.name = name
        self._session: pymysql.connections.Connection | None = None

    def execute(self, sql: str, values: Sequence[object] | None = None) -> int:
        """Run one statement; the number of rows that it has changed."""
        return self.session.cursor().execute(sql, values)

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """The rows of a query."""
        cursor = self.session.cursor()
        cursor.execute(sql)
        return list(cursor.fetchall())

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """The statements inside are one transaction."""
        self.session.begin()
        yield
        self.session.commit()

    @property
    def session(self) -> pymysql.connections.Connection:
        """The connection."""
        if self._session is None or not self._session.open:
            self._session = self.server.connect(self.name)
        return self._session

    def close(self) -> None:
        """Close the connection."""
        if self._session is not None and self._session.open:
            self._session.close()
        self._session = None

    def options(self, *tables: str, **more: Any) -> dict[str, Any]:
        """A source's options for these tables, without columns."""
        return {
            "host": "127.0.0.1",
            "port": self.server.port,
            "user": "root",
            "tables": [f"{self.name}.{table}" for table in tables],
            **more,
        }


def _found(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin:/sbin")
