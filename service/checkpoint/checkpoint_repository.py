"""Copies of one group's state in a folder or bucket (docs/CHECKPOINTS.md).

`files/` holds the content of the state's files, named by hash, so that unchanged content is stored
once. `checkpoints/` holds a manifest per copy: which file has which content, and the state's
positions. Invariants: a manifest is written last and removed first, so a copy without one does not
count. A manifest carries an HMAC-SHA256 of its content under the service's key: others may write
here, and what they made, changed or mixed is not a copy. Every byte that a manifest names is
compared with its hash before use.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from connectors.shuffle_storage import S3, Exchange, open_exchange
from connectors.source import MAIN_SOURCE
from dataflow.errors import TidemarkError
from service.runtime.checked_json import as_written, checked
from service.runtime.settings import DEFAULT_GROUP

FORMAT = 2
# The last format without a MAC.
_PLAIN_FORMAT = 1
FILES, MANIFESTS = "files", "checkpoints"
_READ_BYTES = 4 << 20
_CONTEXT = b"tidemark checkpoint manifest 1\0"
_HEX = re.compile(r"[0-9a-f]{64}")
_LATEST = 1 << 36  # seconds; a later time is invalid
_SOURCE_FACTS = 3
_TRUST = "--trust-storage accepts it unchecked, if nobody else can write to that location"


@dataclass(frozen=True)
class StoredFile:
    """One file of a state. name: in the state directory."""

    name: str
    sha256: str
    nbytes: int

    @property
    def location(self) -> str:
        """Return the location of its content."""
        return f"{FILES}/{self.sha256}"


@dataclass(frozen=True)
class Manifest:
    """One copy.

    at: Unix time. source: system, timeline and database of the server that the state follows, if
    any. state: the state's version.
    """

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
    mac: str = ""

    @property
    def position(self) -> int:
        """Return the database's position; 0 if it reads nothing of the database."""
        return int(self.positions.get(MAIN_SOURCE, 0))

    @property
    def nbytes(self) -> int:
        """Return the size of all files."""
        return sum(file.nbytes for file in self.files)

    def signed(self, key: bytes) -> Manifest:
        """Return a copy with its MAC."""
        return replace(self, mac=self._mac(key))

    def refusal(self, key: bytes | None) -> TidemarkError | None:
        """Return why the key does not authenticate this manifest; None if it does.

        checkpoint.unauthentic, checkpoint.no_key.
        """
        name = f"checkpoint {self.number} of group {self.group}"
        if self.format == _PLAIN_FORMAT:
            why = f"{name} has no MAC: Tidemark {self.program} did not write one"
        elif key is None:
            return TidemarkError(
                "checkpoint.no_key",
                f"there is no key to verify {name}",
                hint=f"pass --key FILE, or set TIDEMARK_CHECKPOINT_KEY; {_TRUST}",
            )
        elif hmac.compare_digest(self.mac.encode(), self._mac(key).encode()):
            return None
        else:
            why = f"{name} was not made with this key, or was changed since"
        return TidemarkError(
            "checkpoint.unauthentic", why, hint=f"choose another one with --number; {_TRUST}"
        )

    def encode(self) -> bytes:
        """Return the stored form."""
        return json.dumps(checked(asdict(self)), indent=1).encode()

    @staticmethod
    def decode(content: bytes, name: str) -> Manifest:
        """Return a manifest, whoever has written it. TidemarkError checkpoint.corrupt,
        checkpoint.format.
        """
        damaged = corrupt(f'its manifest "{name}" is damaged')
        facts = as_written(content)
        if facts is None:
            raise damaged
        try:
            if facts["format"] not in (_PLAIN_FORMAT, FORMAT):
                raise TidemarkError(
                    "checkpoint.format",
                    f'checkpoint "{name}" has unknown format {facts["format"]}',
                    hint="restore it with the version of Tidemark that wrote it",
                )
            files = tuple(StoredFile(**file) for file in facts.pop("files"))
            source = None if facts["source"] is None else tuple(facts.pop("source"))
            found = Manifest(**{**facts, "files": files, "source": source})
            if not found._is_sound():
                raise damaged
            return found
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise damaged from error

    def _mac(self, key: bytes) -> str:
        facts = asdict(self)
        del facts["mac"]
        content = json.dumps(facts, sort_keys=True).encode()
        return hmac.new(key, _CONTEXT + content, hashlib.sha256).hexdigest()

    def _is_sound(self) -> bool:
        """Return True if all values have their types; unauthenticated manifests are shown too."""
        numbers = [self.number, self.state, self.epoch, *(file.nbytes for file in self.files)]
        texts = [self.group, self.prefix, self.program]
        return (
            all(isinstance(number, int) and number >= 0 for number in numbers)
            and all(isinstance(text, str) and text.isprintable() for text in texts)
            and (self.mac == "" or _HEX.fullmatch(self.mac) is not None)
            and 0 <= self.at < _LATEST
            and self.position >= 0
            and (self.source is None or len(self.source) == _SOURCE_FACTS)
            and all(is_plain(file.name) and _HEX.fullmatch(file.sha256) for file in self.files)
        )


@dataclass
class CheckpointRepository:
    """The checkpoints of one group.

    key: authenticates them; None: there is no key to check them by. is_trusted: accept them
    unchecked, whoever has made them.
    """

    exchange: Exchange
    prefix: str
    group: str
    key: bytes | None
    is_trusted: bool = False
    _sizes: dict[str, int] = field(default_factory=dict)

    def numbers(self) -> list[int]:
        """Return the existing copies, oldest first."""
        names = (name.removesuffix(".json") for name in self.exchange.sizes(MANIFESTS))
        return sorted(int(name) for name in names if name.isascii() and name.isdigit())

    def read(self, number: int) -> Manifest:
        """Return an authenticated manifest.

        TidemarkError checkpoint.corrupt, checkpoint.missing, checkpoint.format,
        checkpoint.unauthentic, checkpoint.no_key.
        """
        found = self._read(number)
        refusal = None if self.is_trusted else found.refusal(self.key)
        if refusal is not None:
            raise refusal
        return found

    def listed(self) -> list[tuple[Manifest, TidemarkError | None]]:
        """Return all readable manifests, oldest first, each with the reason if it is rejected."""
        found = []
        for number in self.numbers():
            try:
                manifest = self._read(number)
                found.append((manifest, manifest.refusal(self.key)))
            except TidemarkError as error:
                if error.is_temporary:
                    raise
        return found

    def _read(self, number: int) -> Manifest:
        """Return a manifest without authenticating it."""
        name = manifest_name(number)
        try:
            found = Manifest.decode(self.exchange.get(name), name)
        except FileNotFoundError:
            raise TidemarkError(
                "checkpoint.missing",
                f"checkpoint {number} does not exist",
                hint="list the existing ones with `tidemark checkpoints`",
            ) from None
        if (found.number, found.prefix, found.group) != (number, self.prefix, self.group):
            raise corrupt(f'its manifest "{name}" belongs to another checkpoint')
        return found

    def refresh(self) -> None:
        """List the stored files; a restore compares their content."""
        self._sizes = self.exchange.sizes(FILES)

    def has(self, file: StoredFile) -> bool:
        """Return True if its content was stored at the last `refresh`, or sent since."""
        return self._sizes.get(file.sha256) == file.nbytes

    def send(self, path: Path, file: StoredFile) -> None:
        """Upload a file's content."""
        self.exchange.send(path, file.location)
        self._sizes[file.sha256] = file.nbytes

    def finish(self, manifest: Manifest, folder: Path) -> None:
        """Make the copy count. folder: for the temporary manifest."""
        path = folder / "manifest.json"
        path.write_bytes(manifest.encode())
        self.exchange.send(path, manifest_name(manifest.number))

    def prune(self, retained: Collection[Manifest]) -> None:
        """Delete all other copies, and the files that no retained manifest names."""
        numbers = {manifest.number for manifest in retained}
        for number in self.numbers():
            if number not in numbers:
                self.exchange.delete(manifest_name(number))
        used = {file.sha256 for manifest in retained for file in manifest.files}
        self.refresh()
        for name in [name for name in self._sizes if name not in used]:
            self.exchange.delete(f"{FILES}/{name}")
            del self._sizes[name]

    def fetch(self, file: StoredFile, folder: Path) -> None:
        """Download a file of a copy into a folder, checked. TidemarkError checkpoint.corrupt."""
        path = folder / file.name
        check, size = hashlib.sha256(), 0
        try:
            with self.exchange.open(file.location) as source, path.open("wb") as target:
                while content := source.read(_READ_BYTES):
                    check.update(content)
                    size += len(content)
                    target.write(content)
                target.flush()
                os.fsync(target.fileno())
        except FileNotFoundError:
            raise corrupt(f'the content of "{file.name}" is missing') from None
        if (check.hexdigest(), size) != (file.sha256, file.nbytes):
            raise corrupt(f'the content of "{file.name}" differs from what was copied')


def open_repository(
    url: str, prefix: str, group: str, key: bytes | None, *, is_trusted: bool = False
) -> CheckpointRepository:
    """Open the checkpoints of a group. TidemarkError backfill.exchange_url."""
    return CheckpointRepository(_all_of(url, prefix).below(group), prefix, group, key, is_trusted)


def groups_in(url: str, prefix: str) -> list[str]:
    """Return the groups that have copies, the default one first."""
    found = filter(is_plain, _all_of(url, prefix).folders())
    return sorted(found, key=lambda group: (group != DEFAULT_GROUP, group))


def remove_all(url: str, prefix: str) -> None:
    """Remove the copies of all groups of a service."""
    _all_of(url, prefix).remove()


def _all_of(url: str, prefix: str) -> Exchange:
    base = url if url.startswith(S3) else str(Path(url).absolute())
    return open_exchange(base).below(prefix)


def is_plain(name: str) -> bool:
    """Return True if a name cannot lead to another folder.

    >>> is_plain("000012.sst"), is_plain("../x"), is_plain(".."), is_plain("")
    (True, False, False, False)
    """
    return Path(name).name == name and name not in ("", "..") and "\0" not in name


def manifest_name(number: int) -> str:
    """Return the name of a manifest's object."""
    return f"{MANIFESTS}/{number:010d}.json"


def stored_file(path: Path) -> StoredFile:
    """Return a file with the hash of its content."""
    with path.open("rb") as file:
        check = hashlib.file_digest(file, "sha256")
        return StoredFile(path.name, check.hexdigest(), file.tell())


def corrupt(what: str) -> TidemarkError:
    """Return the error for a damaged copy."""
    return TidemarkError(
        "checkpoint.corrupt",
        "the checkpoint is damaged",
        detail=what,
        hint="restore another one: list them with `tidemark checkpoints`, choose with --number",
    )


def oldest_position(manifests: Iterable[Manifest]) -> int | None:
    """Return the position before which no copy needs WAL; None if none follows a database."""
    return min((m.position for m in manifests if m.position), default=None)
