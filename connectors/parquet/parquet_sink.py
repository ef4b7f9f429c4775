"""A view as Parquet files of its changes: a manifest makes whole epochs visible.

`open` takes over with a manifest of its own, so that every earlier writer fails at its next one,
and deletes files that no manifest lists. `write` sends the files of whole epochs, then creates the
next manifest, which lists them and has the newest epoch and positions. Invariant: a reader that
follows the newest manifest sees each epoch once and whole. A kill leaves files that no manifest
lists; a lost reply is resolved by `open`, which reads the newest manifest.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import replace

from connectors.lake.changelog import changelog_schema, changes
from connectors.lake.location import UNREACHABLE, unreached
from connectors.objects.folder_storage import FolderStorage
from connectors.objects.shared_storage import SharedStorage
from connectors.parquet import data_files
from connectors.parquet.data_files import DataFiles
from connectors.parquet.manifests import FENCED, FOLDER, Manifest, Manifests, files_lost
from connectors.parquet.options import ParquetOptions
from connectors.sink import SinkTable
from connectors.view_sink import Detachment, Interruption, ViewEpoch, fenced
from dataflow.errors import SinkError, TemporaryError
from storage.failpoints import failpoint


class ParquetSink:
    """One sink; see ViewSink. identity: new for each creation."""

    def __init__(self, options: ParquetOptions, table: SinkTable, identity: str) -> None:
        self._options = options
        self._table = table
        self._identity = identity
        self._writer = uuid.uuid4().hex
        self._has_claimed = False
        self._interrupted = Interruption()
        self._storage: SharedStorage | None = None
        self._newest: Manifest | None = None

    def open(self, known: int | None = None) -> int | None:
        """See ViewSink. SinkError sink.fenced, sink.lost, sink.not_empty."""
        self._interrupted.check()
        self._storage = self._options.location.storage()
        manifests = self._manifests(self._storage)
        newest = manifests.newest()
        self._check(newest, known)
        claimed = self._claimed(newest)
        try:
            manifests.commit(claimed)
        except SinkError as error:
            if error.code != FENCED:
                raise
            # An earlier writer was about to commit. The next attempt sees what it wrote.
            raise TemporaryError(UNREACHABLE, error.what, hint="no action needed") from None
        self._has_claimed, self._newest = True, claimed
        manifests.remove_garbage(claimed, data_files.FOLDER)
        if isinstance(self._storage, FolderStorage):
            self._storage.remove_drafts((data_files.FOLDER, FOLDER))
        return claimed.epoch

    def _check(self, newest: Manifest | None, known: int | None) -> None:
        """Check before anything is written that nothing has taken over and nothing was lost."""
        title = self._options.location.path
        if newest is None:
            if self._has_claimed or known is not None:
                raise files_lost(title, "there is no manifest")
            require_empty(self._options)
        elif newest.sink != self._identity:
            raise not_empty(title, "another sink has written to it")
        elif self._has_claimed and newest.writer != self._writer:
            raise fenced(f'"{title}"')

    def _claimed(self, newest: Manifest | None) -> Manifest:
        if newest is None:
            fields = changelog_schema(self._table.fields)
            columns = [{"name": f.name, "type": str(f.type)} for f in fields]
            return Manifest(1, self._identity, self._writer, 1, columns)
        return replace(
            newest,
            version=newest.version + 1,
            writer=self._writer,
            generation=newest.generation + 1,
        )

    def write(self, epochs: Sequence[ViewEpoch]) -> None:
        """See ViewSink. SinkError sink.value_unfit."""
        storage, newest = self._storage, self._newest
        if storage is None or newest is None:
            raise TemporaryError(UNREACHABLE, "the sink is not open")
        manifests, options = self._manifests(storage), self._options
        prefix = f"{newest.version + 1:020d}-{self._writer[:8]}"
        # Whatever fails from here on leaves a state that only `open` knows.
        self._newest = None
        try:
            with DataFiles(storage, options.partition_by, prefix, options.max_file_bytes) as files:
                for epoch in epochs:
                    for rows in changes(self._table.fields, epoch):
                        files.write(rows, epoch.number)
                        self._interrupted.check()
                sent = files.finish()
        except OSError as error:
            what = f'files of "{options.location.path}" cannot be made'
            raise TemporaryError(UNREACHABLE, what, detail=str(error)) from None
        failpoint("lake.files.sent", unreached)
        last = epochs[-1]
        first = epochs[0].number if newest.first_epoch is None else newest.first_epoch
        made = manifests.next_version(
            newest, sent, epoch=last.number, first_epoch=first, positions=dict(last.positions)
        )
        self._interrupted.check()
        manifests.commit(made)
        self._newest = made

    def remove(self) -> None:
        """See ViewSink. SinkError sink.not_ours."""
        storage = self._options.location.storage()
        manifests = self._manifests(storage)
        newest = manifests.newest()
        if newest is None:
            return
        if newest.sink != self._identity:
            raise SinkError(
                "sink.not_ours",
                f'"{self._options.location.path}" cannot be deleted: another sink has written it',
                hint="drop the sink without its data",
            )
        for name in storage.names(data_files.FOLDER):
            self._interrupted.check()
            storage.delete(name)
        manifests.remove()

    def detachment(self) -> Detachment:
        """See ViewSink."""
        return Detachment(
            kept=(
                f'the files in "{self._options.location.path}", with the manifests that list them',
            )
        )

    def detach(self) -> None:
        """Leave the target as it is: what names the sink is part of what its readers read."""

    def interrupt(self) -> None:
        """See ViewSink."""
        self._interrupted.set()

    def close(self) -> None:
        """See ViewSink."""
        self._storage = self._newest = None

    def _manifests(self, storage: SharedStorage) -> Manifests:
        return Manifests(storage, self._options.location.path)


def require_empty(options: ParquetOptions) -> None:
    """Refuse a location that has files or manifests. SinkError sink.not_empty."""
    storage = options.location.storage()
    if Manifests(storage, options.location.path).newest() is not None:
        raise not_empty(options.location.path, "another sink has written to it")
    if storage.names(data_files.FOLDER):
        why = f'there are files in its folder "{data_files.FOLDER}"'
        raise not_empty(options.location.path, why)


def not_empty(path: str, detail: str) -> SinkError:
    """Return the error of a location that is not free for a new sink."""
    return SinkError(
        "sink.not_empty",
        f'"{path}" is not empty',
        detail=detail,
        hint="choose another path, or empty this one",
    )
