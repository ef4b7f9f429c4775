"""The committed history of a distributed view in its shared storage: manifests and generations.

Only drivers use it. A driver takes a generation when it starts, greater than all before. An epoch
is committed by creating its manifest, which exactly one driver can. Invariant: the manifests that
exist are one history, however many drivers run; the newest is the state.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection
from typing import NamedTuple

from connectors.objects.shared_storage import NameTakenError, SharedStorage
from connectors.spark.maintained.files import (
    EpochInput,
    Manifest,
    digest_of,
    input_name,
    number_of,
    numbered,
)
from dataflow.errors import TidemarkError


def fenced(generation: int, found: int) -> TidemarkError:
    """Return the error of a driver that a later one has replaced."""
    return TidemarkError(
        "spark.fenced",
        "another driver has taken over this view",
        detail=f"this one has generation {generation}, the other one {found}",
        hint="no action needed if the service was restarted elsewhere; else stop one of them",
    )


def lost(detail: str) -> TidemarkError:
    """Return the error of a history of which a file is missing."""
    return TidemarkError(
        "spark.state_lost",
        "a file of the view's committed state is missing in the shared storage",
        detail=detail,
        hint="the view is built again; check who else deletes files there",
    )


# Of a state that cannot be continued: the view is built again.
LOST_CODES = frozenset({"spark.state_lost", "spark.damaged_file", "spark.unauthentic"})


class FixedInput(NamedTuple):
    """What an epoch reads, its payload, and the digest of the document."""

    given: EpochInput
    payload: bytes
    digest: str


class Committed(NamedTuple):
    """A committed epoch, and the digest of its manifest."""

    manifest: Manifest
    digest: str


class Commits:
    """The history in one storage, for one driver."""

    def __init__(self, storage: SharedStorage) -> None:
        self._storage = storage
        self.generation = 0

    def take_generation(self) -> int:
        """Take the next generation."""
        newest = max(map(number_of, self._storage.names("generation")), default=0)
        while True:
            newest += 1
            try:
                self._storage.create(numbered("generation", newest), uuid.uuid4().bytes)
            except NameTakenError:
                continue
            self.generation = newest
            return newest

    def newest(self) -> Committed | None:
        """Return the newest epoch; None before the first.

        A listing that is behind is completed by asking for the next ones.
        """
        found = max(map(number_of, self._storage.names("manifest")), default=0)
        newest = self.read(found) if found > 0 else None
        while (later := self.read(found + 1)) is not None:
            found, newest = found + 1, later
        return newest

    def require(self, epoch: int, digest: str) -> None:
        """Require that an epoch was committed by this manifest, which may be deleted by now.

        TidemarkError spark.state_lost.
        """
        found, after = self.read(epoch), self.read(epoch + 1)
        known = {
            "" if found is None else found.digest,
            "" if after is None else after.manifest.before,
        }
        if known - {""} != {digest}:
            raise lost(f"epoch {epoch}, as the sink shows it")

    def read(self, epoch: int) -> Committed | None:
        """Return an epoch; None if it is not committed."""
        try:
            content = self._storage.get(numbered("manifest", epoch))
        except FileNotFoundError:
            return None
        return Committed(Manifest.decode(content)[0], digest_of(content))

    def read_input(self, before: Committed) -> FixedInput | None:
        """Return what the epoch after another one reads, if it is fixed.

        TidemarkError spark.state_lost: it was fixed after another one.
        """
        name = input_name(before.manifest.epoch + 1, before.manifest.batch)
        try:
            content = self._storage.get(name)
        except FileNotFoundError:
            return None
        given, payload = EpochInput.decode(content)
        if given.before and given.before != before.digest:
            raise lost(f"the epoch before that of {name}: it is another one now")
        return FixedInput(given, payload, digest_of(content))

    def fix_input(self, given: EpochInput, payload: bytes, before: Committed) -> FixedInput:
        """Fix what an epoch reads; return what was fixed, perhaps by another driver."""
        content = given.encode(payload)
        try:
            self._storage.create(input_name(given.epoch, before.manifest.batch), content)
        except NameTakenError:
            found = self.read_input(before)
            if found is None:
                raise
            return found
        return FixedInput(given, payload, digest_of(content))

    def abandon(self, given: EpochInput, before: str) -> None:
        """Let another input take the number of an epoch that has failed, unless it is committed.

        Buckets may have stepped it without rows of one that failed: they differ in the batch from
        whatever comes, so they are made again.
        """
        if self.read(given.epoch) is None:
            self._storage.delete(input_name(given.epoch, before))

    def commit(self, manifest: Manifest) -> Committed:
        """Commit an epoch; return what is committed, perhaps by an earlier driver.

        TidemarkError spark.fenced: a later driver has committed it.
        """
        content = manifest.encode()
        try:
            self._storage.create(numbered("manifest", manifest.epoch), content)
        except NameTakenError:
            found = self.read(manifest.epoch)
            if found is None:
                raise
            if found.manifest.generation > self.generation:
                raise fenced(self.generation, found.manifest.generation) from None
            return found
        return Committed(manifest, digest_of(content))

    def unneeded(self, newest: Manifest, keys: Collection[str], shown: int) -> list[str]:
        """Return the files that nothing needs once no task or driver of before runs any more.

        keys: all buckets, "level-bucket". shown: the newest epoch that the sink has. Attempts that
        did not count go with their epoch. TidemarkError spark.fenced.
        """
        latest = max(map(number_of, self._storage.names("generation")), default=0)
        if latest > self.generation:
            raise fenced(self.generation, latest)
        names = {name for names in newest.bases.values() for name in names}
        is_whole = all(key in newest.bases for key in keys)
        replayed = min(map(base_epoch, names)) if is_whole else 0
        needed_from = {
            **dict.fromkeys(("epochs", "input", "log", "answers"), replayed + 1),
            "out": shown + 1,
            "manifest": min(replayed, shown, newest.epoch),
            "generation": self.generation,
        }
        found = [
            name
            for folder, first in needed_from.items()
            for name in self._storage.names(folder)
            if number_of(name) < first
        ]
        folders = {name.rpartition("/")[0] for name in names}
        return found + [
            name
            for name in self._storage.names("base")
            if name.rpartition("/")[0] not in folders and base_epoch(name) < newest.epoch
        ]


def base_epoch(name: str) -> int:
    """Return the epoch of a base, by the name of one of its files; -1 of what is none.

    >>> base_epoch("base/0-3/000000000012-ab/base"), base_epoch("base/other")
    (12, -1)
    """
    digits = name.split("/")[-2].split("-")[0]
    return int(digits) if digits.isdigit() else -1
