"""A view as an Iceberg table of its changes: one commit for whole epochs, whose snapshot has the
newest one's number.

Snapshots form a line, and a commit requires that the snapshot before it is still the newest. `open`
adds a snapshot with a writer's name of its own, so every commit of an earlier writer fails.
Invariant: each epoch is in the table once and whole. Other jobs may compact the table meanwhile:
the progress is that of the newest snapshot of this sink.
"""

from __future__ import annotations

import json
import sqlite3
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa
from pyiceberg.exceptions import (
    CommitFailedException,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from sqlalchemy.exc import SQLAlchemyError

from connectors import secrets
from connectors.iceberg.catalog import SINK, IcebergTable, SinkCatalog, bad_metadata
from connectors.iceberg.options import IcebergOptions
from connectors.lake.changelog import changelog_schema, changes
from connectors.lake.location import UNREACHABLE, unreached
from connectors.objects.folder_storage import FolderStorage
from connectors.sink import SinkTable
from connectors.view_sink import Detachment, Interruption, ViewEpoch, fenced, lost
from dataflow.errors import SinkError, TemporaryError, TidemarkError
from storage.failpoints import failpoint

EPOCH, WRITER = "tidemark.epoch", "tidemark.writer"
POSITIONS = "tidemark.positions"
# Rows of this size are one file of a commit.
FILE_BYTES = 64 << 20
_CONFLICTS = (CommitFailedException, TableAlreadyExistsError)
_MISSING = (NoSuchTableError, NoSuchNamespaceError)


class IcebergSink:
    """One sink; see ViewSink. identity: new for each creation."""

    def __init__(self, options: IcebergOptions, table: SinkTable, identity: str) -> None:
        self._options = options
        self._view = table
        self._identity = identity
        self._writer = uuid.uuid4().hex
        self._has_claimed = False
        self._interrupted = Interruption()
        self._table: IcebergTable | None = None

    def open(self, known: int | None = None) -> int | None:
        """See ViewSink. SinkError sink.fenced, sink.lost, sink.not_empty."""
        self._interrupted.check()
        with self._reported():
            table = load(self._options)
            if table is None:
                if known is not None or self._has_claimed:
                    raise self._lost("there is no table")
                table = self._created()
            elif table.properties.get(SINK) != self._identity:
                raise not_empty(self._options)
            newest = self._newest(table)
            if self._has_claimed and newest.get(WRITER) != self._writer:
                raise fenced(f'table "{self._options.title}"')
            epoch = int(newest[EPOCH]) if EPOCH in newest else None
            if epoch is None and known is not None:
                raise self._lost("its snapshots are gone")
            self._commit(table, [], {POSITIONS: newest.get(POSITIONS, "{}")}, epoch)
        self._has_claimed, self._table = True, table
        return epoch

    def _created(self) -> IcebergTable:
        return SinkCatalog(self._options).created(
            changelog_schema(self._view.fields), self._identity
        )

    def write(self, epochs: Sequence[ViewEpoch]) -> None:
        """See ViewSink. SinkError sink.value_unfit."""
        table, self._table = self._table, None
        if table is None:
            raise TemporaryError(UNREACHABLE, "the sink is not open")
        last = epochs[-1]
        with self._reported():
            failpoint("iceberg.commit.before", unreached)
            rows = self._changes(epochs)
            self._commit(table, rows, {POSITIONS: json.dumps(last.positions)}, last.number)
            failpoint("iceberg.commit.after", unreached)
        self._table = table

    def _commit(
        self,
        table: IcebergTable,
        rows: Iterator[pa.RecordBatch] | Sequence[pa.RecordBatch],
        facts: dict[str, str],
        epoch: int | None,
    ) -> None:
        """Add the rows, and a last snapshot with the progress, in one commit."""
        summary = {SINK: self._identity, WRITER: self._writer, **facts}
        if epoch is not None:
            summary[EPOCH] = str(epoch)
        schema = changelog_schema(self._view.fields)
        with table.transaction() as transaction:
            waiting: list[pa.RecordBatch] = []
            for batch in rows:
                waiting.append(batch)
                if sum(one.nbytes for one in waiting) >= FILE_BYTES:
                    transaction.append(pa.Table.from_batches(waiting, schema))
                    waiting = []
            last = pa.Table.from_batches(waiting, schema)
            transaction.append(last, snapshot_properties=summary)

    def _changes(self, epochs: Sequence[ViewEpoch]) -> Iterator[pa.RecordBatch]:
        for epoch in epochs:
            for rows in changes(self._view.fields, epoch):
                self._interrupted.check()
                yield rows

    def _newest(self, table: IcebergTable) -> dict[str, str]:
        """Return the summary of this sink's newest snapshot; {} if it has none."""
        snapshot, passed = table.current_snapshot(), set[int]()
        while snapshot is not None and snapshot.snapshot_id not in passed:
            found = snapshot.summary.additional_properties if snapshot.summary else {}
            if found.get(SINK) == self._identity:
                return found
            passed.add(snapshot.snapshot_id)
            parent = snapshot.parent_snapshot_id
            snapshot = None if parent is None else table.snapshot_by_id(parent)
        return {}

    def remove(self) -> None:
        """See ViewSink. SinkError sink.not_ours."""
        with self._reported():
            catalog = SinkCatalog(self._options)
            table = catalog.found()
            if table is None:
                return
            if table.properties.get(SINK) != self._identity:
                raise SinkError(
                    "sink.not_ours",
                    f'table "{self._options.title}" cannot be dropped: another one has created it',
                    hint="drop the sink without its data",
                )
            storage, below = self._options.location.storage(), self._options.table_folder
            newest = catalog.files.name_of(table.metadata_location)
            for name in storage.names(below):
                # The catalog's entry goes last, and needs the newest metadata to be read.
                if name != newest:
                    self._interrupted.check()
                    storage.delete(name)
            catalog.dropped()
            for name in storage.names(below):
                storage.delete(name)
            # What a process that was killed had begun to write.
            if isinstance(storage, FolderStorage):
                storage.remove_drafts([below])

    def detachment(self) -> Detachment:
        """See ViewSink."""
        return Detachment(
            kept=(f'table "{self._options.title}", with the properties that name its sink',)
        )

    def detach(self) -> None:
        """Leave the target as it is: what names the sink is part of what its readers read."""

    def interrupt(self) -> None:
        """See ViewSink."""
        self._interrupted.set()

    def close(self) -> None:
        """See ViewSink."""
        self._table = None

    # --- errors ----------------------------------------------------------------------------

    @contextmanager
    def _reported(self) -> Iterator[None]:
        """Turn the client's errors into ours."""
        try:
            with client_errors():
                yield
        except _CONFLICTS as error:
            raise TemporaryError(
                "sink.transaction_lost",
                "another writer changed the table at the same time",
                detail=secrets.hide(str(error)).partition("\n")[0][:500],
                hint="no action needed: it is written again",
            ) from None
        except _MISSING as error:
            raise self._lost(str(error)) from None

    def _lost(self, detail: str) -> SinkError:
        what = f'table "{self._options.title}" is missing'
        return lost(detail, what, first="drop the table")


@contextmanager
def client_errors() -> Iterator[None]:
    """Turn what the client makes of a table or catalog into our errors, but those it documents.

    SinkError sink.bad_metadata; SourceError, TemporaryError.
    """
    try:
        yield
    except (TidemarkError, *_CONFLICTS, *_MISSING):
        raise
    except (OSError, SQLAlchemyError, sqlite3.Error) as error:
        raise unreached(secrets.hide(str(error)).partition("\n")[0]) from None
    except Exception as error:
        # Its text may quote what was read.
        raise bad_metadata("", type(error).__name__) from None


def load(options: IcebergOptions) -> IcebergTable | None:
    """Return the table; None if there is none."""
    return SinkCatalog(options).found()


def not_empty(options: IcebergOptions) -> SinkError:
    """Return the error of a table that is not free for a new sink."""
    return SinkError(
        "sink.not_empty",
        f'table "{options.title}" exists',
        hint="choose another table, or drop this one",
    )
