"""A server of another program as a child of ours, in a new directory of its own.

`ChildServer` is what the embedded servers share: the directory, the ports that someone else may
take first, the life cycle, and the watch. Invariant: nothing outlives us, not even after kill -9:
a watching shell that holds the other end of a pipe ends the server and removes the directory when
we are gone.
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
    """One server, started by a subclass.

    start() makes the directory on its first call; stop() keeps it, close() removes it. The ports
    stay the same over restarts. port_taken: what the log says then. stop_timeout_s: after that
    long it is killed.
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
        """Where all files of the server lie."""
        if self._directory is None:
            raise self._not_started()
        return self._directory

    @property
    def pid(self) -> int:
        """Of the server; 0 when it does not run."""
        return self._server.pid if self._server is not None and self.is_running else 0

    @property
    def is_running(self) -> bool:
        """True between start and stop, False also after a crash."""
        return self._server is not None and self._server.poll() is None

    def log_text(self) -> str:
        """The server's log so far."""
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
        """Start and wait until it serves; nothing when it runs already."""
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
                    # Someone may have taken a port between our look and the server's bind.
                    is_taken = any(words in self.log_text() for words in self._port_taken)
                    if not is_taken or attempt + 1 == PORT_ATTEMPTS:
                        raise
        except BaseException:
            self.close()
            raise
        return self

    def kill(self) -> None:
        """kill -9; what the server has acknowledged is in its files."""
        if self._server is not None and self._server.poll() is None:
            self._server.kill()
            self._server.wait()

    def close(self) -> None:
        """End it and remove everything; the object can be started anew."""
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
        """What asking for the directory of none is told."""

    @abstractmethod
    def _make_directory(self) -> None:
        """Make the directory and what does not depend on the ports, and watch it."""

    @abstractmethod
    def _take_ports(self) -> None:
        """Choose free ports."""

    @abstractmethod
    def _launch(self) -> None:
        """Start the server and wait until it serves. SourceError when it does not."""

    def _end(self, *signals: signal.Signals) -> None:
        """Ask by signals, kill what does not end by them."""
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
        """The server as a process of its own, its output in the log."""
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
        """Run a shell's script once we are gone; its $1 is the directory."""
        read_end, write_end = os.pipe()
        try:
            self._watch_end = os.fdopen(write_end, "wb", buffering=0)
            self._watch = subprocess.Popen(
                ["/bin/sh", "-c", script, name, str(self.directory)],
                stdin=read_end,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C at the terminal must not end the watch first
                **surroundings,
            )
        finally:
            os.close(read_end)
