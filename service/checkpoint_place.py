"""Copies of the state of one group in a folder or bucket elsewhere (docs/CHECKPOINTS.md).

`files/` holds the content of the state's files, each under the hash of its content, so that what
did not change is there once; `checkpoints/` a manifest a copy: which file has which content, and
how far the state was. Invariant: a manifest is written last and removed first, so a copy without
one does not count; what it says, and every byte that it names, is checked before it is used.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from connectors.exchange import S3, Exchange, open_exchange
from connectors.source import MAIN_SOURCE
from dataflow.errors import TidemarkError
from service.checked_json import as_written, checked
from service.settings import DEFAULT_GROUP

FORMAT = 1
FILES, MANIFESTS = "files", "checkpoints"
_READ_BYTES = 4 << 20


@dataclass(frozen=True)
class StoredFile:
    """One file of a state. name: in the state's directory."""

    name: str
    sha256: str
    nbytes: int

    @property
    def place(self) -> str:
        """Where its content lies."""
        return f"{FILES}/{self.sha256}"


@dataclass(frozen=True)
class Manifest:
    """One copy. at: Unix time. source: system, timeline and database of the server that the state
    follows, if it follows any; state: the version of the state's form."""

    number: int
    at: float
    group: str
    prefix: str
    program: str
    state: int
    source: tuple[Any, ...] | None
    epoch: int
    positions: Mapping[str, Any]
    files: tuple[StoredFile, ...]
    format: int = FORMAT

    @property
    def position(self) -> int:
        """The database's; 0 where nothing of it is read."""
        return int(self.positions.get(MAIN_SOURCE, 0))

    @property
    def nbytes(self) -> int:
        """Of all files."""
        return sum(file.nbytes for file in self.files)

    def encode(self) -> bytes:
        """As it is stored."""
        return json.dumps(checked(asdict(self)), indent=1).encode()

    @staticmethod
    def decode(content: bytes, name: str) -> Manifest:
        """TidemarkError checkpoint.corrupt, checkpoint.format."""
        damaged = corrupt(f'its manifest "{name}" is not as it was written')
        facts = as_written(content)
        if facts is None:
            raise damaged
        try:
            if facts["format"] != FORMAT:
                raise TidemarkError(
                    "checkpoint.format",
                    f'checkpoint "{name}" is of format {facts["format"]}',
                    hint="restore it by the version of Tidemark that made it",
                )
            files = tuple(StoredFile(**file) for file in facts.pop("files"))
            source = None if facts["source"] is None else tuple(facts.pop("source"))
            return Manifest(**{**facts, "files": files, "source": source})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise damaged from error


@dataclass
class Place:
    """Of one group."""

    exchange: Exchange
    _sizes: dict[str, int] = field(default_factory=dict)

    def numbers(self) -> list[int]:
        """The copies that are there, oldest first."""
        names = (name.removesuffix(".json") for name in self.exchange.sizes(MANIFESTS))
        return sorted(int(name) for name in names if name.isdigit())

    def read(self, number: int) -> Manifest:
        """TidemarkError checkpoint.corrupt, checkpoint.missing, checkpoint.format."""
        name = manifest_name(number)
        try:
            found = Manifest.decode(self.exchange.get(name), name)
        except FileNotFoundError:
            raise TidemarkError(
                "checkpoint.missing",
                f"there is no checkpoint {number}",
                hint="tidemark checkpoints lists those that there are",
            ) from None
        if found.number != number:
            raise corrupt(f'its manifest "{name}" is that of another one')
        return found

    def manifests(self) -> list[Manifest]:
        """All that can be read, oldest first."""
        found = []
        for number in self.numbers():
            try:
                found.append(self.read(number))
            except TidemarkError as error:
                if error.is_temporary:
                    raise
        return found

    def look(self) -> None:
        """See which files are there already; nobody else writes here."""
        self._sizes = self.exchange.sizes(FILES)

    def has(self, file: StoredFile) -> bool:
        """Whether its content is there, as of the last `look` and what was sent since."""
        return self._sizes.get(file.sha256) == file.nbytes

    def send(self, path: Path, file: StoredFile) -> None:
        """Bring a file's content."""
        self.exchange.send(path, file.place)
        self._sizes[file.sha256] = file.nbytes

    def finish(self, manifest: Manifest, folder: Path) -> None:
        """From now on the copy counts. folder: for the manifest on its way."""
        path = folder / "manifest.json"
        path.write_bytes(manifest.encode())
        self.exchange.send(path, manifest_name(manifest.number))

    def prune(self, kept: Collection[Manifest]) -> None:
        """Keep these copies alone, and the files that they name."""
        numbers = {manifest.number for manifest in kept}
        for number in self.numbers():
            if number not in numbers:
                self.exchange.delete(manifest_name(number))
        used = {file.sha256 for manifest in kept for file in manifest.files}
        self.look()
        for name in [name for name in self._sizes if name not in used]:
            self.exchange.delete(f"{FILES}/{name}")
            del self._sizes[name]

    def bring(self, file: StoredFile, folder: Path) -> None:
        """A file of a copy into a folder, checked. TidemarkError checkpoint.corrupt."""
        path = folder / file.name
        check, size = hashlib.sha256(), 0
        try:
            with self.exchange.open(file.place) as source, path.open("wb") as target:
                while content := source.read(_READ_BYTES):
                    check.update(content)
                    size += len(content)
                    target.write(content)
                target.flush()
                os.fsync(target.fileno())
        except FileNotFoundError:
            raise corrupt(f'the content of "{file.name}" is not there') from None
        if (check.hexdigest(), size) != (file.sha256, file.nbytes):
            raise corrupt(f'the content of "{file.name}" is not what was copied')


def open_place(url: str, prefix: str, group: str) -> Place:
    """Where the copies of a group lie. TidemarkError backfill.exchange_url."""
    return Place(_all_of(url, prefix).below(group))


def groups_in(url: str, prefix: str) -> list[str]:
    """The groups of which there are copies, the default one first."""
    found = _all_of(url, prefix).folders()
    return sorted(found, key=lambda group: (group != DEFAULT_GROUP, group))


def _all_of(url: str, prefix: str) -> Exchange:
    base = url if url.startswith(S3) else str(Path(url).absolute())
    return open_exchange(base).below(prefix)


def manifest_name(number: int) -> str:
    """Where a manifest lies."""
    return f"{MANIFESTS}/{number:010d}.json"


def stored_file(path: Path) -> StoredFile:
    """A file as its content tells."""
    with path.open("rb") as file:
        check = hashlib.file_digest(file, "sha256")
        return StoredFile(path.name, check.hexdigest(), file.tell())


def corrupt(what: str) -> TidemarkError:
    """The refusal of a copy that is damaged."""
    return TidemarkError(
        "checkpoint.corrupt",
        "the checkpoint is damaged",
        detail=what,
        hint="restore another one: tidemark checkpoints lists them, --number chooses",
    )


def oldest_position(manifests: Iterable[Manifest]) -> int | None:
    """Up to where the source may forget for all of them; None where none follows a database."""
    return min((m.position for m in manifests if m.position), default=None)
