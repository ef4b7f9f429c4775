"""A server of another program, run as a child process in its own new directory.

`ChildServer` has what the embedded servers share: directory, ports, start and stop, and the
watchdog. Another program may take a chosen port first; start() then chooses new ones. Invariant:
nothing outlives this process, not even after kill -9. A watchdog shell holds the other end of a
pipe; when this process is gone, it ends the server and removes the directory.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from dataflow.errors import SourceError

PORT_ATTEMPTS = 3


class ChildServer(ABC):
    """One server; subclasses start it.

    start() makes the directory on its first call; stop() keeps it, close() removes it. The ports
    stay the same over restarts. port_taken: what the log says if a port is in use. stop_timeout_s:
    after this time the server is killed.
    """

    def __init__(self, port_taken: Sequence[str], stop_timeout_s: float) -> None:
        self._port_taken = port_taken
        self._stop_timeout_s = stop_timeout_s
        self._directory: Path | None = None
        self._server: subprocess.Popen[Any] | None = None
        self._watch: subprocess.Popen[Any] | None = None
        self._watch_end: IO[bytes] | None = None

    @property
    def directory(self) -> Path:
        """The directory with all files of the server."""
        if self._directory is None:
            raise self._not_started()
        return self._directory

    @property
    def pid(self) -> int:
        """The process id of the server; 0 if it is not running."""
        return self._server.pid if self._server is not None and self.is_running else 0

    @property
    def is_running(self) -> bool:
        """True between start and stop; False after a crash."""
        return self._server is not None and self._server.poll() is None

    def log_text(self) -> str:
        """Return the server's log so far."""
        path = self.directory / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def start(self) -> Self:
        """Start the server and wait until it is ready; do nothing if it runs already."""
        if self.is_running:
            return self
        if self._directory is not None:
            self._launch()
            return self
        try:
            self._make_directory()
            for attempt in range(PORT_ATTEMPTS):
                self._take_ports()
                try:
                    self._launch()
                    return self
                except SourceError:
                    # Another program may take a port between the check and the server's bind.
                    is_taken = any(words in self.log_text() for words in self._port_taken)
                    if not is_taken or attempt + 1 == PORT_ATTEMPTS:
                        raise
        except BaseException:
            self.close()
            raise
        return self

    def kill(self) -> None:
        """Kill with SIGKILL; writes that the server acknowledged are in its files."""
        if self._server is not None and self._server.poll() is None:
            self._server.kill()
            self._server.wait()

    def close(self) -> None:
        """Stop the server and remove everything; the object can be started again."""
        self.kill()
        self._server = None
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None
        if self._watch_end is not None and self._watch is not None:
            self._watch_end.close()
            self._watch.wait()
            self._watch_end = self._watch = None

    @abstractmethod
    def _not_started(self) -> SourceError:
        """Return the error for using the directory of a server that was not started."""

    @abstractmethod
    def _make_directory(self) -> None:
        """Make the directory and everything independent of the ports, and start the watchdog."""

    @abstractmethod
    def _take_ports(self) -> None:
        """Choose free ports."""

    @abstractmethod
    def _launch(self) -> None:
        """Start the server and wait until it is ready. SourceError if it does not start."""

    def _end(self, *signals: signal.Signals) -> None:
        """Send these signals, then kill the server if it still runs."""
        server = self._server
        if server is None:
            return
        if server.poll() is None:
            for one in signals:
                server.send_signal(one)
            try:
                server.wait(self._stop_timeout_s)
            except subprocess.TimeoutExpired:
                self.kill()
        self._server = None

    def _spawn(self, command: Sequence[Any], surroundings: Mapping[str, Any]) -> subprocess.Popen:
        """Start the server as a separate process, with its output in the log."""
        with (self.directory / "log").open("ab") as log:
            self._server = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                umask=0o077,
                **surroundings,
            )
        return self._server

    def _watch_pipe(self, script: str, name: str, surroundings: Mapping[str, Any]) -> None:
        """Run a shell script when this process is gone; its $1 is the directory."""
        read_end, write_end = os.pipe()
        try:
            self._watch_end = os.fdopen(write_end, "wb", buffering=0)
            self._watch = subprocess.Popen(
                ["/bin/sh", "-c", script, name, str(self.directory)],
                stdin=read_end,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C at the terminal must not end the watchdog first
                **surroundings,
            )
        finally:
            os.close(read_end)
