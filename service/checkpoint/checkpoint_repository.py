"""Copies of the state of one group in a folder or bucket elsewhere (docs/CHECKPOINTS.md).

`files/` holds the content of the state's files, each under the hash of its content, so that what
did not change is there once; `checkpoints/` a manifest a copy: which file has which content, and
how far the state was. Invariant: a manifest is written last and removed first, so a copy without
one does not count. It carries an HMAC-SHA256 of all that it says, under the service's key: others
may write here, and what they have made, changed or mixed is not a copy. Every byte that a manifest
names is compared with its hash before it is used.
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
# The last one without a MAC.
_PLAIN_FORMAT = 1
FILES, MANIFESTS = "files", "checkpoints"
_READ_BYTES = 4 << 20
_CONTEXT = b"tidemark checkpoint manifest 1\0"
_HEX = re.compile(r"[0-9a-f]{64}")
_LATEST = 1 << 36  # seconds; what is later is no time
_SOURCE_FACTS = 3
_TRUST = "--trust-storage takes it unchecked, where nobody else can write to that place"


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
    mac: str = ""

    @property
    def position(self) -> int:
        """The database's; 0 where nothing of it is read."""
        return int(self.positions.get(MAIN_SOURCE, 0))

    @property
    def nbytes(self) -> int:
        """Of all files."""
        return sum(file.nbytes for file in self.files)

    def signed(self, key: bytes) -> Manifest:
        """The same with its MAC."""
        return replace(self, mac=self._mac(key))

    def refusal(self, key: bytes | None) -> TidemarkError | None:
        """Why the key does not vouch for it; None when it does. checkpoint.unauthentic,
        checkpoint.no_key."""
        name = f"checkpoint {self.number} of group {self.group}"
        if self.format == _PLAIN_FORMAT:
            why = f"{name} has no MAC: Tidemark {self.program} made none"
        elif key is None:
            return TidemarkError(
                "checkpoint.no_key",
                f"there is no key to check {name} by",
                hint=f"--key FILE, or TIDEMARK_CHECKPOINT_KEY; {_TRUST}",
            )
        elif hmac.compare_digest(self.mac.encode(), self._mac(key).encode()):
            return None
        else:
            why = f"{name} was not made with this key, or was changed since"
        return TidemarkError(
            "checkpoint.unauthentic", why, hint=f"choose another one: --number; {_TRUST}"
        )

    def encode(self) -> bytes:
        """As it is stored."""
        return json.dumps(checked(asdict(self)), indent=1).encode()

    @staticmethod
    def decode(content: bytes, name: str) -> Manifest:
        """What a manifest says, whoever has written it. TidemarkError checkpoint.corrupt,
        checkpoint.format."""
        damaged = corrupt(f'its manifest "{name}" is not as it was written')
        facts = as_written(content)
        if facts is None:
            raise damaged
        try:
            if facts["format"] not in (_PLAIN_FORMAT, FORMAT):
                raise TidemarkError(
                    "checkpoint.format",
                    f'checkpoint "{name}" is of format {facts["format"]}',
                    hint="restore it by the version of Tidemark that made it",
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
        """Whether all is of its type: one that no key vouches for is still shown."""
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
class Place:
    """Of one group. key: what vouches for its copies; None: there is none to check them by.

    is_trusted: they are taken for what they say, whoever has made them.
    """

    exchange: Exchange
    prefix: str
    group: str
    key: bytes | None
    is_trusted: bool = False
    _sizes: dict[str, int] = field(default_factory=dict)

    def numbers(self) -> list[int]:
        """The copies that are there, oldest first."""
        names = (name.removesuffix(".json") for name in self.exchange.sizes(MANIFESTS))
        return sorted(int(name) for name in names if name.isascii() and name.isdigit())

    def read(self, number: int) -> Manifest:
        """TidemarkError checkpoint.corrupt, checkpoint.missing, checkpoint.format,
        checkpoint.unauthentic, checkpoint.no_key."""
        found = self._read(number)
        refusal = None if self.is_trusted else found.refusal(self.key)
        if refusal is not None:
            raise refusal
        return found

    def listed(self) -> list[tuple[Manifest, TidemarkError | None]]:
        """All that can be read, oldest first; and why the key does not vouch for one, if so."""
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
        """Whoever has made it."""
        name = manifest_name(number)
        try:
            found = Manifest.decode(self.exchange.get(name), name)
        except FileNotFoundError:
            raise TidemarkError(
                "checkpoint.missing",
                f"there is no checkpoint {number}",
                hint="tidemark checkpoints lists those that there are",
            ) from None
        if (found.number, found.prefix, found.group) != (number, self.prefix, self.group):
            raise corrupt(f'its manifest "{name}" is that of another one')
        return found

    def look(self) -> None:
        """See which files are there already; a restore compares their content."""
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


def open_place(
    url: str, prefix: str, group: str, key: bytes | None, *, is_trusted: bool = False
) -> Place:
    """Where the copies of a group lie. TidemarkError backfill.exchange_url."""
    return Place(_all_of(url, prefix).below(group), prefix, group, key, is_trusted)


def groups_in(url: str, prefix: str) -> list[str]:
    """The groups of which there are copies, the default one first."""
    found = filter(is_plain, _all_of(url, prefix).folders())
    return sorted(found, key=lambda group: (group != DEFAULT_GROUP, group))


def _all_of(url: str, prefix: str) -> Exchange:
    base = url if url.startswith(S3) else str(Path(url).absolute())
    return open_exchange(base).below(prefix)


def is_plain(name: str) -> bool:
    """Whether a name leads to no other folder.

    >>> is_plain("000012.sst"), is_plain("../x"), is_plain(".."), is_plain("")
    (True, False, False, False)
    """
    return Path(name).name == name and name not in ("", "..") and "\0" not in name


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
