"""Shuffle storage whose files carry a MAC, so that only a holder of the key can have written them.

Each file ends with an HMAC-SHA256 of its name and content. Invariant: no byte of a file is returned
before the whole file has been checked. A file that was changed, swapped or written without the key
is refused and never parsed. Not detected: a missing file, or an older file of the same name.
Callers therefore never reuse a name for other content, and know which files must exist. The key is
never written to the storage.
"""

from __future__ import annotations

import hashlib
import hmac
import io
import os
import secrets
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, cast

from connectors.shuffle_storage import Exchange
from dataflow.errors import TemporaryError

KEY_BYTES = 32
_MAC_BYTES = 32
_READ_BYTES = 4 << 20
_IN_MEMORY_BYTES = 8 << 20
_CONTEXT = b"tidemark exchange file 1\0"


def new_key() -> bytes:
    """Return KEY_BYTES random bytes, the key of one backfill."""
    return secrets.token_bytes(KEY_BYTES)


@dataclass(frozen=True)
class AuthenticatedExchange:
    """Add MACs to the files of another exchange. base: the prefix of file names within the MAC.

    Reading raises TemporaryError backfill.unauthentic if the MAC is wrong or missing.
    """

    exchange: Exchange
    key: bytes = field(repr=False)
    base: str = ""

    @contextmanager
    def draft(self, name: str) -> Iterator[Path]:
        """See Exchange."""
        with self.exchange.draft(name) as draft:
            yield draft
            check = self._check_of(name)
            # Others may have put a link in its place, also one to a file elsewhere.
            opened = os.open(draft, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            with os.fdopen(opened, "r+b") as file:
                if os.fstat(opened).st_nlink != 1:
                    raise _unauthentic(f"{self.base}{name}")
                while content := file.read(_READ_BYTES):
                    check.update(content)
                file.write(check.digest())

    def put(self, name: str, content: bytes) -> None:
        """See Exchange."""
        check = self._check_of(name)
        check.update(content)
        self.exchange.put(name, content + check.digest())

    def get(self, name: str) -> bytes:
        """See Exchange."""
        target = io.BytesIO()
        self._copy(name, target)
        return target.getvalue()

    def open(self, name: str) -> BinaryIO:
        """See Exchange. Returns a copy, because the whole file is checked first."""
        with ExitStack() as stack:
            target = stack.enter_context(tempfile.SpooledTemporaryFile(_IN_MEMORY_BYTES))
            self._copy(name, cast(BinaryIO, target))
            target.seek(0)
            stack.pop_all()
            return cast(BinaryIO, target)

    def sizes(self, folder: str) -> dict[str, int]:
        """See Exchange. The contents are not read or checked."""
        found = self.exchange.sizes(folder)
        return {name: max(size - _MAC_BYTES, 0) for name, size in found.items()}

    def folders(self) -> list[str]:
        """See Exchange."""
        return self.exchange.folders()

    def download(self, name: str, folder: Path) -> Path:
        """See Exchange. Always a copy, without the MAC."""
        path = folder / f"{uuid.uuid4().hex}-{name.rsplit('/', 1)[-1]}"
        try:
            with path.open("wb") as target:
                self._copy(name, target)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return path

    def send(self, path: Path, name: str) -> None:
        """See Exchange."""
        with self.draft(name) as draft:
            shutil.copyfile(path, draft)

    def delete(self, name: str) -> None:
        """See Exchange."""
        self.exchange.delete(name)

    def below(self, name: str) -> Exchange:
        """See Exchange."""
        base = f"{self.base}{name}/"
        return AuthenticatedExchange(self.exchange.below(name), self.key, base)

    def remove(self) -> None:
        """See Exchange."""
        self.exchange.remove()

    def _copy(self, name: str, target: BinaryIO) -> None:
        """Copy the content to `target`; the caller discards `target` if this raises."""
        check, last = self._check_of(name), b""
        with self.exchange.open(name) as source:
            while content := source.read(_READ_BYTES):
                checked = last + content
                checked, last = checked[:-_MAC_BYTES], checked[-_MAC_BYTES:]
                check.update(checked)
                target.write(checked)
        if not hmac.compare_digest(check.digest(), last):
            raise _unauthentic(f"{self.base}{name}")

    def _check_of(self, name: str) -> hmac.HMAC:
        whole = f"{self.base}{name}".encode()
        start = _CONTEXT + len(whole).to_bytes(8, "big") + whole
        return hmac.new(self.key, start, hashlib.sha256)


def _unauthentic(name: str) -> TemporaryError:
    return TemporaryError(
        "backfill.unauthentic",
        f'"{name}" was not written by this backfill',
        detail="its MAC is wrong or missing; the file was not used",
        hint="the backfill is retried; check who else can write to this storage",
    )
