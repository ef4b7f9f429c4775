"""The location of an engine's database and state: a persistent or a temporary folder.

Invariant: at most one engine per folder, and per database. A temporary folder is removed even after
kill -9 of all processes: a shell at the other end of a pipe removes it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from connectors.postgres.embedded.engine_lock import EngineLock, with_search_path
from connectors.postgres.embedded.function_tables import SCHEMA
from connectors.postgres.embedded.server import EmbeddedPostgres, PersistentPostgres
from dataflow.errors import TidemarkError
from service.embedded.folders import make_shared, usable

STATE, SERVER, LOCK = "state", "postgres", "engine.lock"
# Time for an earlier engine to end.
LOCK_WAIT_S = 20.0
_SERVER_SETTINGS: Mapping[str, object] = {"search_path": f'"$user", public, {SCHEMA}'}
# A temporary database need not survive a crash.
_TEMPORARY = {"fsync": "off", "full_page_writes": "off"}
_REMOVE = 'read -r _; for _ in 1 2 3 4 5; do rm -rf "$1" && break; sleep 1; done'


class EngineLocation:
    """`with EngineLocation(dsn, folder) as location:`. dsn "": a private PostgreSQL. folder None: a
    temporary folder."""

    def __init__(self, dsn: str, folder: Path | None) -> None:
        self.is_temporary = folder is None
        self.is_private = not dsn
        self._dsn_option = dsn
        self._folder = folder
        self._resources = ExitStack()
        self.dsn = ""

    @property
    def state(self) -> Path:
        """The folder of the service's state."""
        assert self._folder is not None
        return self._folder / STATE

    def __enter__(self) -> EngineLocation:
        try:
            self._open()
        except BaseException:
            self._resources.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._resources.close()

    def _open(self) -> None:
        if self._folder is None:
            self._folder = self._temporary()
        else:
            with usable(self._folder):
                make_shared(self._folder, is_private=self.is_private)
            self._lock(self._folder)
        if self._dsn_option:
            self.dsn = with_search_path(self._dsn_option)
        elif self.is_temporary:
            settings = {**_SERVER_SETTINGS, **_TEMPORARY}
            self.dsn = self._resources.enter_context(EmbeddedPostgres(settings=settings)).dsn
        else:
            server = PersistentPostgres(self._folder / SERVER, _SERVER_SETTINGS)
            self.dsn = self._resources.enter_context(server).dsn
        self._resources.enter_context(EngineLock(self.dsn, LOCK_WAIT_S))

    def _temporary(self) -> Path:
        folder = Path(tempfile.mkdtemp(prefix="tidemark-engine-"))
        read_end, write_end = os.pipe()
        try:
            watch = subprocess.Popen(
                ["/bin/sh", "-c", _REMOVE, "tidemark-engine-watch", str(folder)],
                stdin=read_end,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        finally:
            os.close(read_end)
        self._resources.callback(watch.wait)
        self._resources.callback(os.close, write_end)
        self._resources.callback(shutil.rmtree, folder, ignore_errors=True)
        return folder

    def _lock(self, folder: Path) -> None:
        lock = self._resources.enter_context((folder / LOCK).open("w"))
        deadline = time.monotonic() + LOCK_WAIT_S
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except OSError:
                if time.monotonic() > deadline:
                    raise TidemarkError(
                        "engine.in_use",
                        f'folder "{folder}" is in use by another engine',
                        hint="close that engine, or pass another state_dir",
                    ) from None
                time.sleep(0.1)
