"""Shared storage whose files carry MACs, so that only a holder of the key can have written them.

A file is a chain of blocks: BLOCK_BYTES of content, of the last one fewer, perhaps none; each
followed by an HMAC-SHA256 of the file's name, the block's number and its content. Invariant: no
byte is returned before its block was checked, and a file that was changed, cut off, renamed or
written without the key is refused. Not detected: a missing file, or an earlier file of the same
name. Callers therefore give a name to one content only, or say elsewhere which one counts. The key
is never written to the storage.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from connectors.objects.shared_storage import SharedStorage, pieces_of
from dataflow.errors import TidemarkError

BLOCK_BYTES = 256 << 10
_MAC_BYTES = 32
_SEALED_BYTES = BLOCK_BYTES + _MAC_BYTES
_CONTEXT = b"tidemark sealed file 1\0"
_KEY_CONTEXT = b"tidemark storage key 1\0"


def derived_key(key: bytes, purpose: str) -> bytes:
    """Return the key of one purpose; it tells nothing of the others, nor of the given one."""
    return hmac.new(key, _KEY_CONTEXT + purpose.encode(), hashlib.sha256).digest()


@dataclass(frozen=True)
class SealedStorage:
    """Add MACs to the files of another storage; see SharedStorage.

    Reading raises TidemarkError spark.unauthentic if a MAC is wrong or missing.
    """

    storage: SharedStorage
    key: bytes = field(repr=False)

    def create(self, name: str, content: bytes) -> None:
        """See SharedStorage."""
        self.storage.create(name, self._sealed(name, content))

    def put(self, name: str, content: bytes) -> None:
        """See SharedStorage."""
        self.storage.put(name, self._sealed(name, content))

    def send(self, source: Path | Iterable[bytes], name: str) -> None:
        """See SharedStorage."""
        self.storage.send(self._seal(name, pieces_of(source)), name)

    def get(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        """See SharedStorage."""
        first = start // BLOCK_BYTES
        end = None if stop is None else -(-stop // BLOCK_BYTES) * _SEALED_BYTES
        sealed = self.storage.get(name, first * _SEALED_BYTES, end)
        begin = first * BLOCK_BYTES
        needed = None if stop is None else stop - begin
        content = b"".join(self._opened(name, [sealed], first, needed))
        return content[start - begin : needed]

    def read(self, name: str) -> Iterator[bytes]:
        """See SharedStorage."""
        return self._opened(name, self.storage.read(name), 0, None)

    def names(self, folder: str) -> list[str]:
        """See SharedStorage. Anyone may have written the files."""
        return self.storage.names(folder)

    def delete(self, name: str) -> None:
        """See SharedStorage."""
        self.storage.delete(name)

    def _sealed(self, name: str, content: bytes) -> bytes:
        return b"".join(self._seal(name, [content]))

    def _seal(self, name: str, pieces: Iterable[bytes]) -> Iterator[bytes]:
        """Yield a file with its MACs."""
        mac, number, last = self._mac_of(name), 0, b""
        for number, block in enumerate(_blocks(pieces, BLOCK_BYTES)):
            last = block
            yield block
            yield _block_mac(mac, number, block)
        if not last or len(last) == BLOCK_BYTES:
            # What ends a file is a block that is not full.
            yield _block_mac(mac, number + (len(last) == BLOCK_BYTES), b"")

    def _opened(
        self, name: str, pieces: Iterable[bytes], first: int, needed: int | None
    ) -> Iterator[bytes]:
        """Yield the content of blocks, of which the first has this number.

        needed: after so many bytes the file may continue; None: it must end.
        """
        mac, is_ended, size = self._mac_of(name), False, 0
        for number, block in enumerate(_blocks(pieces, _SEALED_BYTES), start=first):
            content, found = block[:-_MAC_BYTES], block[-_MAC_BYTES:]
            if is_ended or not hmac.compare_digest(_block_mac(mac, number, content), found):
                raise _unauthentic(name)
            is_ended, size = len(content) < BLOCK_BYTES, size + len(content)
            yield content
        if not is_ended and (needed is None or size < needed):
            raise _unauthentic(name)

    def _mac_of(self, name: str) -> hmac.HMAC:
        whole = name.encode()
        start = _CONTEXT + len(whole).to_bytes(8, "big") + whole
        return hmac.new(self.key, start, hashlib.sha256)


def _block_mac(mac: hmac.HMAC, number: int, content: bytes) -> bytes:
    own = mac.copy()
    own.update(number.to_bytes(8, "big"))
    own.update(content)
    return own.digest()


def _blocks(pieces: Iterable[bytes], size: int) -> Iterator[bytes]:
    """Yield the same bytes in blocks of this size; only the last one has fewer, but never none."""
    held = b""
    for piece in pieces:
        held = held + piece if held else piece
        whole = len(held) - len(held) % size
        for at in range(0, whole, size):
            yield held[at : at + size]
        held = held[whole:]
    if held:
        yield held


def _unauthentic(name: str) -> TidemarkError:
    return TidemarkError(
        "spark.unauthentic",
        f'"{name}" in the shared storage was not written by this service',
        detail="its MAC is wrong or missing; nothing of it was used",
        hint="the view is built again; check who else can write to this storage",
    )
