"""Shared storage below a marked root of a bucket; imported where one is opened, as its client is.

Invariant: a file counts as missing only while the root has its mark (`storage_mark`).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from connectors.objects.object_storage import BucketStorage
from connectors.objects.storage_mark import StorageMark, check_mark

# A bucket cannot be unmounted, so its mark is read by calls that write once in so many seconds.
CHECKED_S = 1.0
# By URL of the root and mark, when this process has last found it.
_checked: dict[tuple[str, str], float] = {}


@dataclass(frozen=True)
class MarkedBucket(BucketStorage):
    """A prefix below a marked root; see `storage_mark`. root: its URL."""

    root: str = field(kw_only=True)
    mark: StorageMark = field(kw_only=True)

    def create(self, name: str, content: bytes) -> None:
        """See SharedStorage."""
        self._require_recently()
        super().create(name, content)

    def put(self, name: str, content: bytes) -> None:
        """See SharedStorage."""
        self._require_recently()
        super().put(name, content)

    def send(self, source: Path | Iterable[bytes], name: str) -> None:
        """See SharedStorage."""
        self._require_recently()
        super().send(source, name)

    def get(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        """See SharedStorage."""
        with self._required_if_missing():
            return super().get(name, start, stop)

    def read(self, name: str) -> Iterator[bytes]:
        """See SharedStorage."""
        with self._required_if_missing():
            yield from super().read(name)

    def names(self, folder: str) -> list[str]:
        """See SharedStorage."""
        self._require_recently()
        found = super().names(folder)
        if not found:
            self._require()
        return found

    def delete(self, name: str) -> None:
        """See SharedStorage."""
        self._require_recently()
        super().delete(name)

    @contextmanager
    def _required_if_missing(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            self._require()
            raise

    def _require_recently(self) -> None:
        now = time.monotonic()
        if now - _checked.get((self.root, self.mark.id), -CHECKED_S) >= CHECKED_S:
            self._require()

    def _require(self) -> None:
        """Require the mark, read now. As for `StorageMark.check`; TemporaryError."""
        check_mark(self.root, self.mark)
        _checked[self.root, self.mark.id] = time.monotonic()
