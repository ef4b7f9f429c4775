"""Shared storage below a marked root, by its URL.

Invariant: the mark is read from the very folder in which a call then works (`storage_mark`), so a
folder that is replaced meanwhile is not written to.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from connectors.objects.folder_storage import FolderStorage
from connectors.objects.open_folder import open_nearest, opened_below
from connectors.objects.shared_storage import SharedStorage
from connectors.objects.storage_mark import StorageMark
from connectors.shuffle_storage import S3, url_below


def open_marked(root: str, mark: StorageMark, folder: str) -> SharedStorage:
    """Return the storage of a folder below a marked root; "" is the root itself.

    Its calls raise as `StorageMark.check`, beside what those of SharedStorage raise.
    """
    if not root.startswith(S3):
        return MarkedFolder(Path(root), mark=mark, below=tuple(folder.split("/") if folder else ()))
    from connectors.objects.marked_bucket import MarkedBucket

    return MarkedBucket(url_below(root, folder) if folder else root, root=root, mark=mark)


@dataclass(frozen=True)
class MarkedFolder(FolderStorage):
    """A folder below a marked one. path: of the marked one. below: from there."""

    mark: StorageMark = field(kw_only=True)
    below: tuple[str, ...] = ()

    @contextmanager
    def _opened(self, parts: Sequence[str], *, makes: bool = False) -> Iterator[int]:
        nearest, missing = open_nearest(self.path)
        try:
            self.mark.check_folder(None if missing else nearest, str(self.path))
            with opened_below(nearest, [*self.below, *parts], makes=makes) as opened:
                yield opened
        finally:
            os.close(nearest)
