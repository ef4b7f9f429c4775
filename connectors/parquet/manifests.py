"""Versions of the list of files: each is written once, by the writer that took over last.

A manifest names the newest epoch, its positions and all files. Of its files, the older ones are in
checkpoints, so that a manifest stays small. Invariant: versions form one line. Version n + 1 is
created only if no one else has it, so of two writers one fails; and once a writer has taken over
with a version of its own, every earlier one fails at its next version.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

from connectors.lake.location import unreached
from connectors.objects.shared_storage import NameTakenError, SharedStorage
from connectors.view_sink import fenced, lost
from dataflow.errors import SinkError, TemporaryError
from storage.failpoints import failpoint

FOLDER = "_tidemark"
FORMAT = 1
FENCED = "sink.fenced"
# How many versions readers can still open, and how many files a manifest lists itself.
KEEP_VERSIONS = 100
MAX_FILES = 500
MAX_CHECKPOINTS = 100
_MANIFEST, _CHECKPOINT = f"{FOLDER}/manifest-", f"{FOLDER}/files-"
_READ_ATTEMPTS = 10


@dataclass(frozen=True)
class DataFile:
    """A file of changes. path: below the sink's folder. partition: values by column."""

    path: str
    rows: int
    bytes: int
    first_epoch: int
    last_epoch: int
    partition: Mapping[str, str | None]


@dataclass(frozen=True)
class Manifest:
    """One version.

    sink: the identity of the sink. writer, generation: who wrote it, and the number of that
    takeover. epoch, first_epoch: the newest, and the one of the first rows; None before any.
    columns: name and type of each column of the files. checkpoints: files that list older files.
    """

    version: int
    sink: str
    writer: str
    generation: int
    columns: Sequence[Mapping[str, str]]
    epoch: int | None = None
    first_epoch: int | None = None
    positions: Mapping[str, Any] | None = None
    checkpoints: tuple[str, ...] = ()
    files: tuple[DataFile, ...] = ()

    def to_bytes(self) -> bytes:
        """Return the manifest as JSON."""
        return json.dumps({"format": FORMAT, **asdict(self)}).encode()

    @staticmethod
    def of(content: bytes) -> Manifest:
        """Read JSON. SinkError sink.version, sink.bad_metadata."""
        facts = _read(content)
        if facts.pop("format", None) != FORMAT:
            raise SinkError(
                "sink.version",
                "a newer version of Tidemark has written the sink's manifest",
                hint="use that version, or a newer one",
            )
        with _checked():
            files = _files(facts.pop("files"))
            found = Manifest(**{**facts, "files": files, "checkpoints": (*facts["checkpoints"],)})
            numbers = (found.version, found.generation, found.epoch or 0, found.first_epoch or 0)
            if not all(type(number) is int for number in numbers):
                raise TypeError
            return found


class Manifests:
    """The manifests of one sink, as one writer sees them."""

    def __init__(self, storage: SharedStorage, title: str) -> None:
        self._storage = storage
        self._title = title

    def newest(self) -> Manifest | None:
        """Return the newest version; None if there is none."""
        for _ in range(_READ_ATTEMPTS):
            versions = self._versions()
            if not versions:
                return None
            try:
                return Manifest.of(self._storage.get(_name(versions[-1])))
            except FileNotFoundError:
                # Newer ones have been written since, and this one was deleted.
                continue
        raise TemporaryError("sink.unreachable", f'the manifests of "{self._title}" change')

    def commit(self, manifest: Manifest) -> None:
        """Write the next version. SinkError sink.fenced, sink.lost."""
        if len(manifest.files) > MAX_FILES:
            raise ValueError("use `next_version`")
        failpoint("lake.manifest.before", unreached)
        self._require_earlier(manifest, self._versions())
        try:
            self._storage.create(_name(manifest.version), manifest.to_bytes())
        except NameTakenError:
            raise fenced(f'"{self._title}"') from None
        failpoint("lake.manifest.after", unreached)
        versions = self._versions()
        if versions[-1:] != [manifest.version]:
            if manifest.version + 1 not in versions:
                # Later writers had fenced us, and have since deleted the version in our way.
                self._storage.delete(_name(manifest.version))
            raise fenced(f'"{self._title}"')
        try:
            self._require_earlier(manifest, versions)
        except SinkError:
            self._storage.delete(_name(manifest.version))
            raise
        for version in versions:
            if version <= manifest.version - KEEP_VERSIONS:
                self._storage.delete(_name(version))

    def _require_earlier(self, manifest: Manifest, versions: Sequence[int]) -> None:
        """Check that the version before is still there. SinkError sink.fenced, sink.lost."""
        earlier = manifest.version - 1
        if not earlier or earlier in versions:
            return
        if versions and versions[-1] > manifest.version:
            # Later writers have deleted it.
            raise fenced(f'"{self._title}"')
        raise files_lost(self._title, f"version {earlier} of the manifest is gone")

    def next_version(self, earlier: Manifest, files: Sequence[DataFile], **facts: Any) -> Manifest:
        """Return the version after another, with more files; older ones go to checkpoints."""
        version = earlier.version + 1
        checkpoints, own = earlier.checkpoints, (*earlier.files, *files)
        if len(own) > MAX_FILES:
            if len(checkpoints) >= MAX_CHECKPOINTS:
                own, checkpoints = (*self.files(earlier), *files), ()
            name = f"{_CHECKPOINT}{version:020d}-{earlier.writer[:8]}.json"
            entries = {"format": FORMAT, "files": [asdict(file) for file in own]}
            self._storage.put(name, json.dumps(entries).encode())
            checkpoints, own = (*checkpoints, name), ()
        return replace(earlier, version=version, checkpoints=checkpoints, files=own, **facts)

    def files(self, manifest: Manifest) -> Iterator[DataFile]:
        """Yield all files of a version."""
        for name in manifest.checkpoints:
            try:
                content = self._storage.get(name)
            except FileNotFoundError:
                raise files_lost(self._title, f'"{name}" is gone') from None
            with _checked():
                files = _files(_read(content)["files"])
            yield from files
        yield from manifest.files

    def remove_garbage(self, manifest: Manifest, data: str) -> int:
        """Delete files below `data` that no version lists; return how many.

        manifest: the newest one, of this writer: no earlier writer can commit any more.
        """
        known = {file.path for file in self.files(manifest)}
        found = [name for name in self._storage.names(data) if name not in known]
        for name in self._storage.names(FOLDER):
            if name.startswith(_CHECKPOINT) and name not in manifest.checkpoints:
                digits = name.removeprefix(_CHECKPOINT)[:20]
                version = int(digits) if digits.isdecimal() else -1
                # Checkpoints that older versions list stay as long as these.
                if not manifest.version - KEEP_VERSIONS <= version < manifest.version:
                    found.append(name)
        for name in found:
            self._storage.delete(name)
        return len(found)

    def remove(self) -> None:
        """Delete all manifests and checkpoints, the newest manifest last."""
        names = self._storage.names(FOLDER)
        for name in sorted(names, key=lambda name: (name.startswith(_MANIFEST), name)):
            self._storage.delete(name)

    def _versions(self) -> list[int]:
        names = self._storage.names(FOLDER)
        found = [name.removeprefix(_MANIFEST).removesuffix(".json") for name in names]
        return sorted(int(text) for text in found if text.isdecimal())


def files_lost(title: str, detail: str) -> SinkError:
    """Return the error of a sink whose files are gone."""
    return lost(detail, f'files of "{title}" are missing', first="empty the folder")


def _name(version: int) -> str:
    return f"{_MANIFEST}{version:020d}.json"


@contextmanager
def _checked() -> Iterator[None]:
    """Refuse what others have written. SinkError sink.bad_metadata."""
    try:
        yield
    except Exception as error:
        # Its text would quote the file.
        raise SinkError(
            "sink.bad_metadata",
            "a manifest of the sink cannot be used",
            detail=type(error).__name__,
            hint="delete the sink's files, then drop the sink and add it again, with its rows",
        ) from None


def _read(content: bytes) -> dict[str, Any]:
    with _checked():
        return dict(json.loads(content))


def _files(entries: Sequence[Mapping[str, Any]]) -> tuple[DataFile, ...]:
    found = tuple(DataFile(**entry) for entry in entries)
    if not all(isinstance(file.path, str) for file in found):
        raise TypeError
    return found
