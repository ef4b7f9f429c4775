"""Start, await and stop the engine's process, from the user's process.

Invariant: the engine's process ends with the user's process, even after kill -9: it watches the
pipe to its parent and the parent's pid. A fork of the user's process cannot stop it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from dataflow.errors import TemporaryError, TidemarkError
from service.embedded.folders import make_shared, usable

READY_S = 600.0
ANSWER_S = 5.0
POLL_S = 0.02
# An engine without a state_dir drops its objects in a database of the user at the end.
END_S = 90.0
_ROOT = Path(__file__).resolve().parents[2]
_LOG = "engine.log"
_TAIL = 3_000


class Child:
    """A running engine. url: of REST. dsn: of its database. is_private: the database is its own."""

    def __init__(self, dsn: str, state_dir: Path | None, settings: Mapping[str, object]) -> None:
        """Start the process. TidemarkError engine.not_started, or the process's own error."""
        self._pid = os.getpid()
        self._log = self._open_log(dsn, state_dir)
        self._process = self._start(dsn, state_dir, settings)
        try:
            answer = self._await_start()
            self.url: str = answer["url"]
            self.dsn: str = answer["dsn"]
            self.is_private: bool = answer["is_private"]
            self._await_answer()
        except BaseException:
            self.close()
            raise

    @property
    def is_running(self) -> bool:
        """False once it has ended, also by a crash."""
        return self._process.poll() is None

    def log_text(self) -> str:
        """Return the end of its log."""
        number = self._log.fileno()
        # pread, not seek: the child shares the file offset.
        tail = os.pread(number, _TAIL, max(0, os.fstat(number).st_size - _TAIL))
        return tail.decode(errors="replace").strip()

    def close(self) -> None:
        """Stop the process and wait; do nothing in a fork of the user's process."""
        if os.getpid() != self._pid:
            return
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
        self._process.stdout.close()
        self._log.close()

    def _open_log(self, dsn: str, state_dir: Path | None) -> Any:
        if state_dir is None:
            return tempfile.TemporaryFile(prefix="tidemark-engine-")
        with usable(state_dir):
            make_shared(state_dir, is_private=not dsn)
            # Set the mode explicitly: the umask is the user's.
            return open(
                state_dir / _LOG, "a+b", opener=lambda path, flags: os.open(path, flags, 0o600)
            )

    def _start(
        self, dsn: str, state_dir: Path | None, settings: Mapping[str, object]
    ) -> subprocess.Popen[bytes]:
        path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH", ""))))
        process = subprocess.Popen(
            [sys.executable, "-m", "service.embedded.host"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,  # Ctrl-C in a notebook interrupts the cell alone
        )
        folder = str(state_dir.absolute()) if state_dir else ""
        request = {"dsn": dsn, "state_dir": folder, "settings": dict(settings)}
        assert process.stdin is not None
        process.stdin.write(json.dumps(request, default=str).encode() + b"\n")
        process.stdin.flush()
        return process

    def _await_start(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        ready = wait([self._process.stdout.fileno()], READY_S)
        line = self._process.stdout.readline() if ready else b""
        if not line:
            raise self._not_started()
        answer = json.loads(line)
        if (error := answer.get("error")) is not None:
            kind = TemporaryError if error["is_temporary"] else TidemarkError
            raise kind(error["code"], error["what"], detail=error["detail"], hint=error["hint"])
        return answer

    def _await_answer(self) -> None:
        deadline = time.monotonic() + READY_S
        address = self.url.removeprefix("http://")
        while time.monotonic() < deadline and self.is_running:
            # A client of httpx would cost as much as this pause, each time.
            connection = HTTPConnection(address, timeout=ANSWER_S)
            try:
                connection.request("GET", "/health")
                connection.getresponse().read()
                return
            except (OSError, HTTPException):
                time.sleep(POLL_S)
            finally:
                connection.close()
        raise self._not_started()

    def _not_started(self) -> TidemarkError:
        return TidemarkError(
            "engine.not_started",
            "the engine did not start",
            detail=self.log_text(),
            hint="see the end of its log in the detail",
        )
