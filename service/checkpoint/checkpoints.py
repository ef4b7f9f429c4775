"""When the pipeline makes a checkpoint, and what the slot retains for it.

A separate thread copies the state and uploads its new files; epochs continue meanwhile. Invariant:
the source may release only WAL before the oldest counting copy, so that each copy can be restored;
before the first copy, WAL that the state itself covers. A failed copy is reported and retried, and
stops nothing. Only authenticated copies count, because others may write to the location.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from connectors.feed_source import FeedPositions
from connectors.postgres.source import PostgresSource
from dataflow.errors import TidemarkError
from service.checkpoint import checkpoint_repository
from service.checkpoint.checkpoint_repository import (
    CheckpointRepository,
    Manifest,
    StoredFile,
    stored_file,
)
from service.engine import state_version
from service.engine.positions import PROGRESS
from service.runtime import release
from service.runtime.log import log
from service.runtime.runtime import RUNTIME, Runtime
from service.runtime.service_key import service_key
from service.runtime.settings import Settings
from storage.failpoints import failpoint
from storage.rocks import named_value
from storage.store import Store

COPY = "checkpoint"
RETRY_S = 30.0
CLOSE_S = 1.0
# At shutdown, a copy in progress has so long to notice it.
END_S = 5.0
# RocksDB's own log and lock.
_LEFT_OUT = ("LOG", "LOCK")


@dataclass
class CheckpointStatus:
    """The status for metrics.

    at: Unix time of the newest copy. error: why there is no newer one. sent_bytes: what the newest
    one had to upload.
    """

    at: float = 0.0
    nbytes: int = 0
    sent_bytes: int = 0
    seconds: float = 0.0
    count: int = 0
    failures: int = 0
    error: str = ""


@dataclass
class Checkpoints:
    """One per pipeline. Does nothing without the setting checkpoint_to.

    identity: returns the server that the state follows. source: with its own session.
    """

    settings: Settings
    store: Store
    identity: Callable[[], tuple[object, ...] | None]
    source: PostgresSource
    runtime: Runtime = RUNTIME
    status: CheckpointStatus = field(default_factory=CheckpointStatus)

    def __post_init__(self) -> None:
        self._folder = self.settings.state / COPY
        self._is_stopping = False
        self._thread: Any = None
        self._due_at = 0.0
        self._repository: CheckpointRepository | None = None
        self._key = b""
        self._retained: list[Manifest] = []
        self._unverified: list[Manifest] = []
        self._is_listed = False
        self._floor: int | None = None
        self._of: tuple[object, ...] | None = None
        self._is_due = False
        self._hashes: dict[tuple[str, int, int], StoredFile] = {}
        self.status.at = self.runtime.time()
        # Remains of a killed process.
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def is_desired(self) -> bool:
        """Return True if checkpoints are configured."""
        return bool(self.settings.checkpoint_to)

    def confirmable(self, position: int) -> int:
        """Return up to where the source may release WAL, if the state itself covers `position`."""
        if self.is_desired and not self._is_listed:
            # The existing copies are not listed yet: the source must not release their WAL.
            return 0
        floor = self._floor
        return position if floor is None else min(position, floor)

    def retained_offsets(self, source: str) -> list[FeedPositions] | None:
        """Return the positions of another source at which the counting copies continue; None while
        they are not known."""
        if self.is_desired and not self._is_listed:
            return None
        found = (manifest.positions.get(source) for manifest in self._retained)
        return [positions for positions in found if isinstance(positions, dict)]

    def tick(self, *, is_due: bool) -> None:
        """Start a copy if it is time; from the pipeline's thread.

        is_due: the state is ready for it (it has views, and does not lag behind its sink).
        """
        now = self.runtime.monotonic()
        is_busy = self._thread is not None and self._thread.is_alive()
        if (
            not self.is_desired
            or is_busy
            or now < self._due_at
            or not (is_due or self._repository is None)
        ):
            return
        self._due_at = now + self.settings.checkpoint_every_s
        self._of = self.identity()
        self._is_due = is_due
        self._thread = self.runtime.begin(self._run, "checkpoint")

    def figures(self) -> dict[str, Any]:
        """Return the figures for the pipeline's metrics."""
        if not self.is_desired:
            return {}
        status = self.status
        return {
            "checkpoint_at": status.at,
            "checkpoint_interval_seconds": self.settings.checkpoint_every_s,
            "checkpoint_bytes": status.nbytes,
            "checkpoint_sent_bytes": status.sent_bytes,
            "checkpoint_seconds": round(status.seconds, 3),
            "checkpoints_total": status.count,
            "checkpoint_failures_total": status.failures,
            "checkpoint_error": status.error,
        }

    def close(self) -> None:
        """Abandon a copy in progress; call before the store is closed.

        It ends before its next request; one that its storage does not answer is not waited for.
        """
        self._is_stopping = True
        if self._thread is not None:
            self._thread.join(END_S)
            if self._thread.is_alive():
                log.warning("checkpoint.abandoned")
        self.source.close()

    # --- the thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            if not self._is_listed:
                self._list()
            elif self._is_due:
                started = self.runtime.monotonic()
                self._report(started, *self._make())
        except _Stopped:
            log.debug("checkpoint.cancelled")
        except Exception as error:
            self.status.failures += 1
            self.status.error = str(error)
            self._due_at = min(self._due_at, self.runtime.monotonic() + RETRY_S)
            code = getattr(error, "code", "internal")
            log.warning("checkpoint.failed", code=code, why=str(error))
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _list(self) -> None:
        """List the copies of earlier processes, before anything is confirmed to the source."""
        settings = self.settings
        self._key = service_key(settings)
        self._repository = checkpoint_repository.open_repository(
            settings.checkpoint_to, settings.prefix, settings.group, self._key
        )
        listed = self._repository.listed()
        self._unverified = [manifest for manifest, refusal in listed if refusal is not None]
        for manifest, refusal in listed:
            if refusal is not None:
                log.warning("checkpoint.ignored", number=manifest.number, code=refusal.code)
        self._resolve([manifest for manifest, refusal in listed if refusal is None])
        self._is_listed = True
        age_s = settings.checkpoint_every_s
        if self._retained:
            self.status.at, self.status.nbytes = self._retained[-1].at, self._retained[-1].nbytes
            age_s = max(0.0, self.runtime.time() - self.status.at)
        self._due_at = self.runtime.monotonic() + settings.checkpoint_every_s - age_s

    def _report(self, started: float, manifest: Manifest, sent: int) -> None:
        status = self.status
        status.at, status.nbytes, status.sent_bytes = manifest.at, manifest.nbytes, sent
        status.seconds = self.runtime.monotonic() - started
        status.count, status.error = status.count + 1, ""
        log.info("checkpoint.made", number=manifest.number, epoch=manifest.epoch, sent_bytes=sent)

    def _make(self) -> tuple[Manifest, int]:
        repository = self._opened()
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        store = self._folder / state_version.STORE
        self.store.copy_to(store)
        failpoint("checkpoints.copied")
        files, sent = [], 0
        for path in sorted(p for p in store.iterdir() if p.is_file()):
            if path.name.startswith(_LEFT_OUT):
                continue
            self._check_stopping()
            file = self._hashed(path)
            if not repository.has(file):
                repository.send(path, file)
                sent += file.nbytes
            files.append(file)
        failpoint("checkpoints.sent")
        manifest = self._manifest(store, tuple(files))
        self._check_stopping()
        repository.finish(manifest, self._folder)
        failpoint("checkpoints.finished")
        self._retain(repository, manifest)
        return manifest, sent

    def _opened(self) -> CheckpointRepository:
        assert self._repository is not None
        for manifest in (*self._retained, *self._unverified):
            if manifest.source and self._of and manifest.source[0] != self._of[0]:
                raise TidemarkError(
                    "checkpoint.foreign",
                    "this location contains checkpoints of another server's state",
                    detail=f'"{self.settings.checkpoint_to}", number {manifest.number}',
                    hint="choose another TIDEMARK_CHECKPOINT_TO, or another --prefix",
                )
        self._repository.refresh()
        return self._repository

    def _hashed(self, path: Path) -> StoredFile:
        """Return a file with its hash; tables never change, so each is hashed once."""
        stat = path.stat()
        key = (path.name, stat.st_size, stat.st_ino)
        if path.suffix != ".sst":
            return stored_file(path)
        if key not in self._hashes:
            self._hashes[key] = stored_file(path)
        return self._hashes[key]

    def _manifest(self, store: Path, files: tuple[StoredFile, ...]) -> Manifest:
        stored = named_value(store, PROGRESS)
        facts = {"epoch": 0, "positions": {}} if stored is None else json.loads(stored)
        assert self._repository is not None
        return Manifest(
            number=max(self._repository.numbers(), default=0) + 1,
            at=self.runtime.time(),
            group=self.settings.group,
            prefix=self.settings.prefix,
            program=release.VERSION,
            state=state_version.VERSION,
            source=self._of,
            epoch=facts["epoch"],
            positions=facts["positions"],
            files=files,
        ).signed(self._key)

    def _retain(self, repository: CheckpointRepository, newest: Manifest) -> None:
        """Delete older copies."""
        self._resolve([*self._retained, newest])
        if len(self._retained) >= self.settings.checkpoint_keep:
            # Copies of another key, or without one: they stay until there are enough new ones.
            self._unverified = []
        repository.prune([*self._retained, *self._unverified])
        failpoint("checkpoints.pruned")
        used = {file.name for file in newest.files}
        self._hashes = {key: file for key, file in self._hashes.items() if key[0] in used}

    def _resolve(self, manifests: list[Manifest]) -> None:
        """Determine which copies count, and the slot's floor.

        A copy does not count if the source has released its WAL.
        """
        confirmed = self._confirmed()
        retained = [m for m in manifests if not m.position or m.position >= confirmed]
        self._retained = retained[-self.settings.checkpoint_keep :]
        self._floor = checkpoint_repository.oldest_position(self._retained)

    def _confirmed(self) -> int:
        """Return the position confirmed to the source; 0 if unknown or without a slot."""
        try:
            return self.source.confirmed_position()
        except TidemarkError as error:
            log.debug("checkpoint.slot", code=error.code)
            return 0

    def _check_stopping(self) -> None:
        if self._is_stopping:
            raise _Stopped


class _Stopped(Exception):
    """The service is stopping: the copy does not count."""
