"""The pipeline's side of checkpoints elsewhere: when one is made, and what the slot keeps for them.

A thread of its own copies the state and brings what is new of it to its place; epochs go on all
the while. Invariant: the source may forget only what lies before the oldest copy that counts, so
that each of them can be brought back; before the first one, what the state itself covers. A copy
that cannot be made is told and tried again, and stops nothing. Only what the service's key vouches
for counts: others may write to the place.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from connectors.postgres.source import PostgresSource
from dataflow.errors import TidemarkError
from service.checkpoint import checkpoint_repository
from service.checkpoint.checkpoint_key import service_key
from service.checkpoint.checkpoint_repository import Manifest, Place, StoredFile, stored_file
from service.engine import state_version
from service.engine.positions import PROGRESS
from service.runtime import release
from service.runtime.log import log
from service.runtime.runtime import RUNTIME, Runtime
from service.runtime.settings import Settings
from storage.failpoints import failpoint
from storage.rocks import named_value
from storage.store import Store

COPY = "checkpoint"
RETRY_S = 30.0
CLOSE_S = 1.0
# What RocksDB writes for people, or for itself while it runs.
_LEFT_OUT = ("LOG", "LOCK")


@dataclass
class Told:
    """How it stands, for metrics. at: Unix time of the newest copy; error: why there is no newer
    one; sent_bytes: what the newest one had to bring."""

    at: float = 0.0
    nbytes: int = 0
    sent_bytes: int = 0
    seconds: float = 0.0
    count: int = 0
    failures: int = 0
    error: str = ""


@dataclass
class Checkpoints:
    """One for a pipeline. identity: of the server that the state follows; source: a session of
    its own. Does nothing without the setting checkpoint_to."""

    settings: Settings
    store: Store
    identity: Callable[[], tuple[object, ...] | None]
    source: PostgresSource
    host: Runtime = RUNTIME
    told: Told = field(default_factory=Told)

    def __post_init__(self) -> None:
        self._folder = self.settings.state / COPY
        self._is_stopping = False
        self._thread: Any = None
        self._due_at = 0.0
        self._place: Place | None = None
        self._key = b""
        self._kept: list[Manifest] = []
        self._unverified: list[Manifest] = []
        self._is_known = False
        self._floor: int | None = None
        self._of: tuple[object, ...] | None = None
        self._is_due = False
        self._hashes: dict[tuple[str, int, int], StoredFile] = {}
        self.told.at = self.host.time()
        # What a kill may have left.
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def is_desired(self) -> bool:
        """Whether copies are to be made at all."""
        return bool(self.settings.checkpoint_to)

    def confirmable(self, position: int) -> int:
        """Up to where the source may forget, when the state itself covers `position`."""
        if self.is_desired and not self._is_known:
            # Which copies there are has yet to be seen: none of them may be left behind.
            return 0
        floor = self._floor
        return position if floor is None else min(position, floor)

    def tick(self, *, is_due: bool) -> None:
        """Begin a copy if it is time; from the pipeline's thread. is_due: the state is fit for it
        (it has views, and is not behind its sink)."""
        now = self.host.monotonic()
        is_busy = self._thread is not None and self._thread.is_alive()
        if (
            not self.is_desired
            or is_busy
            or now < self._due_at
            or not (is_due or self._place is None)
        ):
            return
        self._due_at = now + self.settings.checkpoint_every_s
        self._of = self.identity()
        self._is_due = is_due
        self._thread = self.host.begin(self._run, "checkpoint")

    def figures(self) -> dict[str, Any]:
        """For the pipeline's metrics."""
        if not self.is_desired:
            return {}
        told = self.told
        return {
            "checkpoint_at": told.at,
            "checkpoint_interval_seconds": self.settings.checkpoint_every_s,
            "checkpoint_bytes": told.nbytes,
            "checkpoint_sent_bytes": told.sent_bytes,
            "checkpoint_seconds": round(told.seconds, 3),
            "checkpoints_total": told.count,
            "checkpoint_failures_total": told.failures,
            "checkpoint_error": told.error,
        }

    def close(self) -> None:
        """Give up what is under way; before the store is closed."""
        self._is_stopping = True
        if self._thread is not None:
            self._thread.join()
        self.source.close()

    # --- the thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            if not self._is_known:
                self._look()
            elif self._is_due:
                started = self.host.monotonic()
                self._report(started, *self._make())
        except _Stopped:
            log.debug("checkpoint.given_up")
        except Exception as error:
            self.told.failures += 1
            self.told.error = str(error)
            self._due_at = min(self._due_at, self.host.monotonic() + RETRY_S)
            code = getattr(error, "code", "internal")
            log.warning("checkpoint.failed", code=code, why=str(error))
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _look(self) -> None:
        """See what an earlier process has left, before the source is told anything."""
        settings = self.settings
        self._key = service_key(settings)
        self._place = checkpoint_repository.open_place(
            settings.checkpoint_to, settings.prefix, settings.group, self._key
        )
        listed = self._place.listed()
        self._unverified = [manifest for manifest, refusal in listed if refusal is not None]
        for manifest, refusal in listed:
            if refusal is not None:
                log.warning("checkpoint.not_ours", number=manifest.number, code=refusal.code)
        self._resolve([manifest for manifest, refusal in listed if refusal is None])
        self._is_known = True
        age_s = settings.checkpoint_every_s
        if self._kept:
            self.told.at, self.told.nbytes = self._kept[-1].at, self._kept[-1].nbytes
            age_s = max(0.0, self.host.time() - self.told.at)
        self._due_at = self.host.monotonic() + settings.checkpoint_every_s - age_s

    def _report(self, started: float, manifest: Manifest, sent: int) -> None:
        told = self.told
        told.at, told.nbytes, told.sent_bytes = manifest.at, manifest.nbytes, sent
        told.seconds = self.host.monotonic() - started
        told.count, told.error = told.count + 1, ""
        log.info("checkpoint.made", number=manifest.number, epoch=manifest.epoch, sent_bytes=sent)

    def _make(self) -> tuple[Manifest, int]:
        place = self._opened()
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
            if not place.has(file):
                place.send(path, file)
                sent += file.nbytes
            files.append(file)
        failpoint("checkpoints.sent")
        manifest = self._manifest(store, tuple(files))
        self._check_stopping()
        place.finish(manifest, self._folder)
        failpoint("checkpoints.finished")
        self._keep(place, manifest)
        return manifest, sent

    def _opened(self) -> Place:
        assert self._place is not None
        for manifest in (*self._kept, *self._unverified):
            if manifest.source and self._of and manifest.source[0] != self._of[0]:
                raise TidemarkError(
                    "checkpoint.foreign",
                    "checkpoints of another server's state lie in this place",
                    detail=f'"{self.settings.checkpoint_to}", number {manifest.number}',
                    hint="choose another TIDEMARK_CHECKPOINT_TO, or another --prefix",
                )
        self._place.look()
        return self._place

    def _hashed(self, path: Path) -> StoredFile:
        """Tables never change: each is hashed once."""
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
        assert self._place is not None
        return Manifest(
            number=max(self._place.numbers(), default=0) + 1,
            at=self.host.time(),
            group=self.settings.group,
            prefix=self.settings.prefix,
            program=release.VERSION,
            state=state_version.VERSION,
            source=self._of,
            epoch=facts["epoch"],
            positions=facts["positions"],
            files=files,
        ).signed(self._key)

    def _keep(self, place: Place, newest: Manifest) -> None:
        """Let older copies go."""
        self._resolve([*self._kept, newest])
        if len(self._kept) >= self.settings.checkpoint_keep:
            # Of another key, or from before there were keys: they stay until there are enough.
            self._unverified = []
        place.prune([*self._kept, *self._unverified])
        failpoint("checkpoints.pruned")
        used = {file.name for file in newest.files}
        self._hashes = {key: file for key, file in self._hashes.items() if key[0] in used}

    def _resolve(self, manifests: list[Manifest]) -> None:
        """Which copies count, and so what the slot keeps: not those that it has left behind."""
        confirmed = self._confirmed()
        kept = [m for m in manifests if not m.position or m.position >= confirmed]
        self._kept = kept[-self.settings.checkpoint_keep :]
        self._floor = checkpoint_repository.oldest_position(self._kept)

    def _confirmed(self) -> int:
        """What the source has been told; 0 where it cannot be asked, or there is no slot."""
        try:
            return self.source.confirmed_position()
        except TidemarkError as error:
            log.debug("checkpoint.slot", code=error.code)
            return 0

    def _check_stopping(self) -> None:
        if self._is_stopping:
            raise _Stopped


class _Stopped(Exception):
    """The service ends: the copy does not count."""
