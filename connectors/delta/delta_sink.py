"""A view as a Delta Lake table: one commit for whole epochs, which has the newest one's number.

The number is an application transaction of the table, in the same commit as the rows, so a repeated
write is recognised. A second one is the number of the takeover: `open` draws a new one, and since
every commit has it too, a commit of an earlier writer conflicts with it. Invariant: each epoch is
in the table once and whole. Other jobs may compact the table meanwhile; their conflicts are
retried.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, WriterProperties, write_deltalake
from deltalake.exceptions import (
    CommitFailedError,
    DeltaError,
    SchemaMismatchError,
    TableNotFoundError,
)

from connectors import secrets
from connectors.delta.options import DeltaOptions
from connectors.lake.changelog import batches, changelog_schema, changes, row_arrays, row_schema
from connectors.lake.lake_rows import row_keys
from connectors.lake.location import UNREACHABLE, unreached
from connectors.lake.net_changes import net_changes
from connectors.outside.texts import clean
from connectors.sink import SinkTable
from connectors.view_sink import Detachment, Interruption, ViewEpoch, fenced, lost
from dataflow.delta import Delta
from dataflow.errors import SinkError, SourceError, TemporaryError, TidemarkError
from storage.failpoints import failpoint

# Stands for the row's key, which readers need not know; rows are merged by it.
KEY_COLUMN = "_tidemark_key"
_GONE = "_tidemark_gone"
# Epochs of more rows are merged alone.
MERGE_ROWS = 1_000_000
_WRITER = WriterProperties(compression="ZSTD")
_LOG = "_delta_log"
# A path of the log that is not below the table: a URL, an absolute one, or one through "..".
_ELSEWHERE = re.compile(
    r"\A/|\A[A-Za-z][A-Za-z0-9+.-]*(:|%3[aA])|(\A|/|%2[fF])(\.|%2[eE]){2}(\Z|/|%2[fF])"
)

T = TypeVar("T")


class DeltaSink:
    """One sink; see ViewSink. identity: new for each creation."""

    def __init__(self, options: DeltaOptions, table: SinkTable, identity: str) -> None:
        self._options = options
        self._view = table
        self._epochs = f"tidemark-{identity}"
        self._takeovers = f"tidemark-{identity}-writer"
        self._has_claimed = False
        self._number = 0
        # Those of this writer, also where the outcome of the commit is unknown.
        self._numbers: set[int] = set()
        self._interrupted = Interruption()
        self._table: DeltaTable | None = None

    # --- life ------------------------------------------------------------------------------

    def open(self, known: int | None = None) -> int | None:
        """See ViewSink. SinkError sink.fenced, sink.lost, sink.not_empty."""
        self._interrupted.check()
        with self._options.location.held(_LOG):
            return self._opened(known)

    def _opened(self, known: int | None) -> int | None:
        table = self._loaded()
        if table is None:
            if known is not None or self._has_claimed:
                raise self._lost("there is no table")
            table = self._created()
        else:
            self._claim(table)
        self._has_claimed, self._table = True, table
        return self._reached(table, self._epochs)

    def _loaded(self) -> DeltaTable | None:
        path, options = self._options.location.path, self._options.client_options()
        try:
            return DeltaTable(path, storage_options=options)
        except TableNotFoundError:
            return None
        except (DeltaError, OSError) as error:
            raise self._failure(error) from None

    def _created(self) -> DeltaTable:
        options = self._options
        self._draw()
        try:
            return DeltaTable.create(
                options.location.path,
                schema=table_schema(self._view, options),
                mode="error",
                partition_by=list(options.partition_by),
                name=self._view.name,
                storage_options=options.client_options(),
                commit_properties=self._properties(None),
            )
        except (DeltaError, OSError) as error:
            raise self._failure(error) from None

    def _claim(self, table: DeltaTable) -> None:
        found = self._reached(table, self._takeovers)
        if found is None:
            raise not_empty(self._options.location.path)
        if self._has_claimed and found not in self._numbers:
            raise fenced(f'"{self._options.location.path}"')
        self._draw()
        self._commit_progress(table, self._reached(table, self._epochs))

    def _draw(self) -> None:
        """Draw a number for a takeover, which no other writer has."""
        self._number = random.getrandbits(52)
        self._numbers.add(self._number)

    def detachment(self) -> Detachment:
        """See ViewSink."""
        return Detachment(kept=(f'the table in "{self._options.location.path}", with its log',))

    def detach(self) -> None:
        """Leave the target as it is: what names the sink is part of what its readers read."""

    def interrupt(self) -> None:
        """See ViewSink."""
        self._interrupted.set()

    def close(self) -> None:
        """See ViewSink."""
        self._table = None

    def remove(self) -> None:
        """See ViewSink. SinkError sink.not_ours."""
        storage = self._options.location.storage()
        table = self._loaded()
        if table is None:
            return
        if self._reached(table, self._takeovers) is None:
            raise SinkError(
                "sink.not_ours",
                f'"{self._options.location.path}" cannot be deleted: another one has written it',
                hint="drop the sink without its data",
            )
        # The log's first entry, which names the sink, goes last.
        names = storage.names("")
        entries = sorted((n for n in names if n.startswith(f"{_LOG}/0")), reverse=True)
        entries.sort(key=lambda name: name.endswith(".json"))
        for name in [*(n for n in names if n not in set(entries)), *entries]:
            self._interrupted.check()
            storage.delete(name)

    # --- epochs ----------------------------------------------------------------------------

    def write(self, epochs: Sequence[ViewEpoch]) -> None:
        """See ViewSink. SinkError sink.value_unfit, sink.table_changed."""
        table, self._table = self._table, None
        if table is None:
            raise TemporaryError(UNREACHABLE, "the sink is not open")
        failpoint("delta.commit.before", unreached)
        with self._options.location.held(_LOG):
            self._write(table, epochs)
        failpoint("delta.commit.after", unreached)
        self._table = table

    def _write(self, table: DeltaTable, epochs: Sequence[ViewEpoch]) -> None:
        if self._options.mode == "changes":
            self._append(table, epochs, _chained(self._changes(e) for e in epochs))
            return
        for group in _groups(epochs):
            if self._reached(table, self._epochs) is None:
                self._append(table, group, self._new_rows(group))
            else:
                self._merge(table, group)

    def _append(
        self, table: DeltaTable, epochs: Sequence[ViewEpoch], rows: Iterator[pa.RecordBatch]
    ) -> None:
        number = epochs[-1].number
        first = next(rows, None)
        if first is None:
            self._commit_progress(table, number)
        else:
            schema = table_schema(self._view, self._options)
            reader = _Reader(schema, _chained([[first], rows]))
            self._run(
                table,
                reader,
                lambda: write_deltalake(
                    table,
                    reader.stream(),
                    mode="append",
                    writer_properties=_WRITER,
                    commit_properties=self._properties(number),
                ),
            )

    def _merge(self, table: DeltaTable, epochs: Sequence[ViewEpoch]) -> None:
        self._require_own_files(table)
        number = epochs[-1].number
        rows = self._merged(epochs)
        first = next(rows, None)
        if first is not None:
            reader = _Reader(first.schema, _chained([[first], rows]))
            merge = lambda: self._merge_all(table, reader.stream(), number)  # noqa: E731
            self._run(table, reader, merge)
        if self._reached(table, self._epochs) != number:
            # A merge that changes nothing commits nothing.
            self._commit_progress(table, number)

    def _require_own_files(self, table: DeltaTable) -> None:
        """Refuse a log that names files elsewhere, which a merge would copy into the table.

        SourceError path.forbidden.
        """
        try:
            paths = pa.table(table.get_add_actions()).column("path")
        except (DeltaError, OSError) as error:
            raise self._failure(error) from None
        elsewhere = next(filter(_ELSEWHERE.search, map(str, paths.to_pylist())), None)
        if elsewhere is not None:
            raise SourceError(
                "path.forbidden",
                f'the log of table "{self._options.location.path}" names a file elsewhere:'
                f' "{clean(elsewhere, 200)}"',
                hint="check who else can write to the table's log",
            )

    def _merge_all(self, table: DeltaTable, rows: pa.RecordBatchReader, number: int) -> None:
        names = [KEY_COLUMN, *(field.name for field in self._view.fields)]
        values = {_quoted(name): f"s.{_quoted(name)}" for name in names}
        table.merge(
            rows,
            f"t.{_quoted(KEY_COLUMN)} = s.{_quoted(KEY_COLUMN)}",
            source_alias="s",
            target_alias="t",
            writer_properties=_WRITER,
            commit_properties=self._properties(number),
        ).when_matched_delete(f"s.{_GONE}").when_matched_update(values).when_not_matched_insert(
            values, predicate=f"NOT s.{_GONE}"
        ).execute()

    def _run(self, table: DeltaTable, reader: _Reader, commit: Callable[[], object]) -> None:
        """Commit rows that a reader makes, and see what is in the table then."""
        try:
            commit()
        except Exception as error:
            if reader.error is not None:
                raise reader.error from None
            if not isinstance(error, DeltaError | OSError):
                raise
            self._refresh(table)
            raise self._failure(error) from None
        self._refresh(table)

    def _commit_progress(self, table: DeltaTable, number: int | None) -> None:
        """Commit the number of an epoch without rows."""
        try:
            schema = table.schema()
            properties = self._properties(number)
            table.create_write_transaction([], "append", schema, commit_properties=properties)
        except (DeltaError, OSError) as error:
            self._refresh(table, is_claimed=False)
            raise self._failure(error) from None
        self._refresh(table)

    def _refresh(self, table: DeltaTable, *, is_claimed: bool = True) -> None:
        """Read the newest version. SinkError sink.fenced."""
        try:
            table.update_incremental()
            found = self._reached(table, self._takeovers)
        except (DeltaError, OSError) as error:
            raise self._failure(error) from None
        if is_claimed and found != self._number:
            raise fenced(f'"{self._options.location.path}"')

    def _properties(self, number: int | None) -> CommitProperties:
        found = [Transaction(self._takeovers, self._number)]
        if number is not None:
            found.append(Transaction(self._epochs, number))
        return CommitProperties(app_transactions=found)

    # --- rows ------------------------------------------------------------------------------

    def _changes(self, epoch: ViewEpoch) -> Iterator[pa.RecordBatch]:
        for rows in changes(self._view.fields, epoch):
            self._interrupted.check()
            yield rows

    def _new_rows(self, epochs: Sequence[ViewEpoch]) -> Iterator[pa.RecordBatch]:
        """Yield the first rows of the table."""
        schema = table_schema(self._view, self._options)
        for deltas in self._netted(epochs):
            for rows in batches(deltas):
                new = rows.filter(rows.weights > 0)
                if len(new):
                    yield pa.record_batch(self._arrays(new), schema=schema)

    def _merged(self, epochs: Sequence[ViewEpoch]) -> Iterator[pa.RecordBatch]:
        """Yield each key that changes, with its newest row."""
        schema = table_schema(self._view, self._options).append(pa.field(_GONE, pa.bool_()))
        for deltas in self._netted(epochs):
            for rows in batches(deltas):
                arrays = [*self._arrays(rows), pa.array(rows.weights < 0)]
                yield pa.record_batch(arrays, schema=schema)

    def _netted(self, epochs: Sequence[ViewEpoch]) -> Iterator[list[Delta]]:
        """Yield deltas with a row for each key, of weight -1 if the key is gone."""
        many = len(epochs) > 1
        groups = (
            [[d for e in epochs for d in e.deltas]] if many else ([d] for d in epochs[0].deltas)
        )
        for deltas in groups:
            self._interrupted.check()
            if deltas:
                found = net_changes(deltas, self._view.key)
                yield [found.rows.weighted(1 - 2 * found.is_gone.astype("int64"))]

    def _arrays(self, rows: Delta) -> list[pa.Array]:
        keys = row_keys([rows.columns[i] for i in self._view.key], len(rows))
        return [keys, *row_arrays(self._view.fields, rows)]

    # --- errors ----------------------------------------------------------------------------

    def _reached(self, table: DeltaTable, application: str) -> int | None:
        try:
            return table.transaction_version(application)
        except (DeltaError, OSError) as error:
            raise self._failure(error) from None

    def _failure(self, error: Exception) -> TidemarkError:
        detail = secrets.hide(str(error)).partition("\n")[0]
        if isinstance(error, SchemaMismatchError):
            return SinkError(
                "sink.table_changed",
                f'the columns of table "{self._options.location.path}" were changed',
                detail=detail,
                hint="drop the sink and add it again, with another path",
            )
        if isinstance(error, CommitFailedError):
            return TemporaryError(
                "sink.transaction_lost",
                "another writer changed the table at the same time",
                detail=detail,
                hint="no action needed: it is written again",
            )
        return unreached(detail)

    def _lost(self, detail: str) -> SinkError:
        what = f'table "{self._options.location.path}" is missing'
        return lost(detail, what, first="empty the folder")


class _Reader:
    """Batches as a stream; error: what ended it, which the client reports as its own error."""

    def __init__(self, schema: pa.Schema, rows: Iterator[pa.RecordBatch]) -> None:
        self.error: TidemarkError | None = None
        self._schema = schema
        self._rows = rows

    def stream(self) -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_batches(self._schema, self._noted())

    def _noted(self) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._rows
        except TidemarkError as error:
            self.error = error
            raise


def table_schema(table: SinkTable, options: DeltaOptions) -> pa.Schema:
    """Return the table's columns."""
    if options.mode == "changes":
        return changelog_schema(table.fields)
    return pa.schema([pa.field(KEY_COLUMN, pa.string(), False), *row_schema(table.fields)])


def not_empty(path: str) -> SinkError:
    """Return the error of a location that is not free for a new sink."""
    return SinkError(
        "sink.not_empty",
        f'"{path}" is not empty',
        detail="there is a table",
        hint="choose another path, or empty this one",
    )


def _groups(epochs: Sequence[ViewEpoch]) -> Iterator[list[ViewEpoch]]:
    """Yield epochs to be merged together: those that are large alone."""
    group: list[ViewEpoch] = []
    for epoch in epochs:
        if group and (epoch.rows > MERGE_ROWS or group[-1].rows > MERGE_ROWS):
            yield group
            group = []
        group.append(epoch)
    if group:
        yield group


def _chained(parts: Iterable[Iterable[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
    for part in parts:
        yield from part


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
