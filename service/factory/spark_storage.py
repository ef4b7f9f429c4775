"""The shared storage of views on Spark as one service has it: marked, with keys of its own.

Below TIDEMARK_SPARK_STORAGE a service has the folder of its prefix, which its mark identifies
(`connectors.objects.storage_mark`); the file FILE in the service's own state says which mark that
is. Invariant: a storage that this service has used is never taken for a new one, and its files are
read only with their MACs, under keys that differ by view.
"""

from __future__ import annotations

import json
import os
import uuid
from contextlib import suppress
from pathlib import Path

from connectors.objects.marked_storage import open_marked
from connectors.objects.sealed_storage import SealedStorage, derived_key
from connectors.objects.shared_storage import SharedStorage
from connectors.objects.storage_mark import (
    StorageMark,
    check_mark,
    new_mark,
    read_mark,
)
from connectors.shuffle_storage import (
    S3,
    Exchange,
    FolderExchange,
    open_exchange,
    shown_url,
    url_below,
)
from connectors.spark.maintained.runtime import storage_below
from service.runtime.log import log
from service.runtime.service_key import service_key
from service.runtime.settings import DEFAULT_GROUP, Settings

FILE = "spark_storage.json"
# The folder of a group's own state that has its buckets, where there is no shared storage.
STORAGE = "buckets"
# The folder of the shared storage in which builds exchange files.
EXCHANGE = "exchange"


class ViewStorage:
    """Opens the storages of the views of one group.

    TidemarkError spark.storage_other, spark.storage_url, checkpoint.key, secret.*; TemporaryError
    spark.storage, spark.storage_absent.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._key = service_key(settings)
        self._root = root_of(settings)
        self._mark = taken_mark(settings, self._key) if self._root else None

    def below(self, folder: str) -> SharedStorage:
        """Return the storage of a view's folder; "" is that of the whole group."""
        settings = self._settings
        key = derived_key(self._key, f"{settings.sink_key}/{folder}")
        if self._mark is None:
            return SealedStorage(storage_below(str(settings.state / STORAGE), folder), key)
        own = settings.group if settings.group != DEFAULT_GROUP else ""
        path = "/".join(filter(None, [own, folder]))
        return SealedStorage(open_marked(self._root, self._mark, path), key)


def build_exchange(settings: Settings) -> Exchange:
    """Return where builds of views on Spark exchange files by default: beside their states.

    As for `ViewStorage`.
    """
    root = root_of(settings)
    if root.startswith(S3):
        return open_exchange(root).below(EXCHANGE)
    mark = taken_mark(settings, service_key(settings))
    return FolderExchange(Path(root), (EXCHANGE,), mark)


def root_of(settings: Settings) -> str:
    """Return the URL or path of all that the service has in the shared storage; "" without one."""
    return url_below(settings.spark_storage, settings.prefix) if settings.spark_storage else ""


def known_mark(settings: Settings) -> StorageMark | None:
    """Return the mark of the storage if the service has used it; None if not.

    Nothing is written. TidemarkError spark.storage_other; TemporaryError spark.storage,
    spark.storage_absent: it is not there.
    """
    root, found = root_of(settings), _recorded(settings)
    if found.get("location") != shown_url(root):
        return None
    mark = StorageMark(found["id"])
    check_mark(root, mark)
    return mark


def taken_mark(settings: Settings, key: bytes) -> StorageMark:
    """Return the mark of the storage; a storage that is used for the first time gets one.

    As for `known_mark`.
    """
    mark = known_mark(settings)
    if mark is not None:
        return mark
    root = root_of(settings)
    # A service that was restored elsewhere has the key, and lacks the file.
    mark = read_mark(root, key) or new_mark(root, key)
    _record(settings, {"location": shown_url(root), "id": mark.id})
    log.info("buckets.storage_taken", storage=shown_url(root))
    return mark


def _recorded(settings: Settings) -> dict[str, str]:
    with suppress(FileNotFoundError, ValueError):
        found = json.loads((settings.home / FILE).read_text())
        if isinstance(found, dict) and isinstance(found.get("id"), str):
            return found
    return {}


def _record(settings: Settings, facts: dict[str, str]) -> None:
    draft = settings.home / f".{FILE}.{uuid.uuid4().hex}"
    with draft.open("w") as target:
        json.dump(facts, target)
        target.flush()
        os.fsync(target.fileno())
    draft.replace(settings.home / FILE)
