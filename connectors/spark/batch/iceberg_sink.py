"""A view as an Iceberg table: Spark's executors write the files, one commit an epoch adds them.

Iceberg's SQL extensions lag behind Spark, so this uses only its core library in Spark's driver: it
works with every Spark. An epoch is one Iceberg transaction: a row delta, with deletes of old rows
and data files of new ones, and the table's properties with the epoch's number. Old rows are found
by a hidden key column. A small table's files are written again without them; in others their
positions are deleted, or, if the settings say so, their keys (decision 54). Invariant: rows and
number change together, so a repeated epoch changes nothing; two writers of one epoch conflict, and
one of them fails. Needs format version 2 in readers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from connectors import secrets
from connectors.lake.lake_rows import arrow_column, lake_type, row_keys
from connectors.spark.batch.compaction import has_many_deletes, to_rewrite
from connectors.spark.batch.planning import PlannedView
from connectors.spark.batch.table_files import (
    KEY_COLUMN,
    READ_SETTINGS,
    Contents,
    IcebergFiles,
    TableFile,
)
from connectors.spark.maintained.output import CommittedEpoch
from connectors.spark.session import GONE
from dataflow.delta import Delta
from dataflow.errors import SinkError, TemporaryError, TidemarkError
from storage.failpoints import failpoint

# The newest release; its core needs no particular Spark.
PACKAGE = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"
# Of the session that writes: files with the types and times that Iceberg expects.
SETTINGS = {
    **READ_SETTINGS,
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.fieldId.write.enabled": "true",
    # Timestamps of Arrow without a zone stay without one.
    "spark.sql.timestampType": "TIMESTAMP_NTZ",
}
VIEW, EPOCH, FAILED = "tidemark.view", "tidemark.epoch", "tidemark.failed-rows"
COMMIT = "tidemark.commit"
# How an epoch deletes old rows: by where they are, or by their keys.
Deletes = Literal["position", "equality"]
_CONFLICTS = ("ValidationException", "CommitFailedException")
# Of a commit that names a data file which another job has merged with others meanwhile.
_COMPACTED = ("missing data files", "missing required files")
_FORMAT_VERSION = 2
# A table with so few bytes is written again by each epoch that removes rows: no slower than to
# delete them one by one, and readers need no deletes.
COPIED_BYTES = 16 << 20


@dataclass(frozen=True)
class Change:
    """What an epoch changes: files that it adds, and data files that it removes.

    needed: data files in which deletes have positions.
    """

    rows: Sequence[Any] = ()
    deletes: Sequence[Any] = ()
    removed: Sequence[TableFile] = ()
    needed: Sequence[TableFile] = ()


class IcebergSink:
    """The sink of one view; see `ViewSink`. One thread.

    catalog: its properties, as Iceberg's own documentation names them. table: "namespace.name".
    """

    def __init__(
        self,
        spark: SparkSession,
        catalog: Mapping[str, str],
        table: str,
        view: PlannedView,
        deletes: Deletes = "position",
    ) -> None:
        self.rows = 0
        self.failed_rows = 0
        self._since: int | None = None
        self._spark = spark
        self._jvm: Any = spark._jvm
        self._name = table
        self._view = view
        self._by_position = deletes == "position"
        columns = [(KEY_COLUMN, pa.string()), *((f.name, lake_type(f)) for f in view.fields)]
        self._schema = pa.schema(columns)
        with self._reported("open"):
            self._table = self._opened(catalog)
            self._files = IcebergFiles(spark, self._table, self._schema)
        self._check_owner()
        self._check_properties()
        self._check_version()

    def progress(self) -> int:
        """See EpochSink."""
        with self._reported("read"):
            self._table.refresh()
            # Whatever is added after this snapshot conflicts; a transaction begins by refreshing.
            current = self._table.currentSnapshot()
            self._since = None if current is None else current.snapshotId()
            found = self._table.properties()
            self.failed_rows = int(found.get(FAILED) or 0)
            return int(found.get(EPOCH) or 0)

    def commit(self) -> str:
        """See EpochSink; as of the last `progress`."""
        return str(self._table.properties().get(COMMIT) or "")

    def apply(self, epoch: CommittedEpoch) -> None:
        """See EpochSink. SinkError batch.conflict; TemporaryError batch.lake."""
        if epoch.epoch <= self.progress():
            return
        shown = epoch.whole()
        failed_rows = self.failed_rows + int(shown.errors.weights.sum())
        old, new = self._cut(shown.rows)
        with self._reported("write"):
            change = self._change(old, new)
            failpoint("batch.lake.written")
            self._commit(epoch, failed_rows, change)
        failpoint("batch.lake.committed")
        self.rows += len(shown.rows)
        if self._by_position:
            self.compact()
        with contextlib.suppress(*GONE):
            self._files.remove_marks()

    def compact(self) -> None:
        """Write files again that have become many, or whose rows are mostly gone.

        It changes no row. Another job that changes files meanwhile ends it without an effect.
        TemporaryError batch.lake.
        """
        with self._reported("compact"):
            self.progress()
            contents = self._files.contents()
            is_worn = has_many_deletes(contents)
            deleted = self._files.deleted_rows(contents) if is_worn and contents.positions else {}
            chosen = to_rewrite(contents, deleted)
            if not chosen and not is_worn:
                return
            try:
                self._rewrite(contents, chosen, is_worn, deleted)
            except Py4JJavaError as error:
                if not _is_conflict(str(error.java_exception.toString())):
                    raise
        failpoint("batch.lake.compacted")

    # --- rows ------------------------------------------------------------------------------------

    def _cut(self, rows: Delta) -> tuple[pa.Table, pa.Table]:
        """Return the keys of the old rows, and the new rows with their keys.

        SinkError batch.row: the view is no set of keys.
        """
        if ((rows.weights != 1) & (rows.weights != -1)).any():
            raise SinkError("batch.row", f'a row of view "{self._view.name}" is there twice')
        old, new = rows.filter(rows.weights < 0), rows.filter(rows.weights > 0)
        fields = self._view.fields
        columns = [arrow_column(f, c) for f, c in zip(fields, new.columns, strict=True)]
        return (
            pa.table([self._keys(old)], [KEY_COLUMN]),
            pa.table([self._keys(new), *columns], self._schema.names),
        )

    def _keys(self, rows: Delta) -> pa.Array:
        return row_keys([rows.columns[i] for i in self._view.key], len(rows))

    def _change(self, old: pa.Table, new: pa.Table) -> Change:
        """Write files that replace rows by others. SinkError batch.row_missing."""
        files, frame = self._files, self._spark.createDataFrame
        if not self._by_position or not old:
            deletes = files.write_keys(old) if old else ()
            return Change(files.write_rows(frame(new), len(new)) if new else (), deletes)
        contents = self._contents()
        held = sum(file.rows for file in contents.data)
        size = sum(file.nbytes for file in contents.data)
        if size <= COPIED_BYTES and not contents.positions and contents.data:
            kept = files.rows_without(contents, old)
            rows = kept.unionByName(frame(new)) if new else kept
            made = files.write_rows(rows, held)
            written = sum(file.recordCount() for file in made)
            self._check_found(old, held + len(new) - written)
            return Change(made, removed=contents.data)
        deletes = []
        if contents.data:
            deletes = files.write_positions(files.positions_of(contents, old), len(old))
        self._check_found(old, sum(file.recordCount() for file in deletes))
        added = files.write_rows(frame(new), len(new)) if new else ()
        return Change(added, deletes, needed=contents.data)

    def _check_found(self, keys: pa.Table, rows: int) -> None:
        if rows != len(keys):
            raise SinkError(
                "batch.row_missing",
                f'table "{self._name}" does not have the rows of view "{self._view.name}"',
                detail=f"of {len(keys)} rows that change, it has {rows}: another writer changed it",
                hint="drop the table and the view's folder below storage, and run it again",
            )

    def _contents(self) -> Contents:
        """Return the table's files, without the deletes that only `equality` writes."""
        contents = self._files.contents()
        if contents.keys:
            self.compact()
            contents = self._files.contents()
        return contents

    def _rewrite(
        self,
        contents: Contents,
        chosen: Sequence[TableFile],
        is_worn: bool,
        deleted: Mapping[str, int],
    ) -> None:
        """Write the chosen data files again without deleted rows; with is_worn, all deletes."""
        files, change = self._files, self._table.newRewrite()
        if self._since is not None:
            change = change.validateFromSnapshot(self._since)
        for file in chosen:
            change = change.deleteFile(file.handle)
        if chosen:
            rows = sum(file.rows - deleted.get(file.location, 0) for file in chosen)
            for made in files.write_rows(files.rows_of(contents, chosen), rows):
                change = change.addFile(made)
        if is_worn:
            for file in (*contents.positions, *contents.keys):
                change = change.deleteFile(file.handle)
            gone = {file.location for file in chosen}
            kept = [f for f in contents.data if f.location in deleted.keys() - gone]
            if kept:
                rows = sum(deleted[file.location] for file in kept)
                for made in files.write_positions(files.positions_in(contents, kept), rows):
                    change = change.addFile(made)
        change.set(EPOCH, self._table.properties().get(EPOCH)).commit()

    # --- the table -------------------------------------------------------------------------------

    def _commit(self, epoch: CommittedEpoch, failed: int, made: Change) -> None:
        table, jvm = self._table, self._jvm
        transaction = table.newTransaction()
        if made.rows or made.deletes or made.removed:
            change = transaction.newRowDelta()
            for file in made.deletes:
                change = change.addDeletes(file)
            for file in made.rows:
                change = change.addRows(file)
            for held in made.removed:
                change = change.removeRows(held.handle)
            if made.needed:
                named = jvm.java.util.ArrayList()
                for held in made.needed:
                    named.add(held.location)
                change = change.validateDataFilesExist(named)
            if made.needed or made.removed:
                change = change.validateDeletedFiles()
            if self._since is not None:
                change = change.validateFromSnapshot(self._since)
            always = jvm.org.apache.iceberg.expressions.Expressions.alwaysTrue()
            change = change.conflictDetectionFilter(always).validateNoConflictingDataFiles()
            change.validateNoConflictingDeleteFiles().set(EPOCH, str(epoch.epoch)).commit()
        properties = transaction.updateProperties()
        properties.set(EPOCH, str(epoch.epoch)).set(COMMIT, epoch.commit)
        properties.set(FAILED, str(failed)).commit()
        transaction.commitTransaction()
        self.failed_rows = failed

    def _opened(self, properties: Mapping[str, str]) -> Any:
        iceberg = self._jvm.org.apache.iceberg
        context: Any = self._spark.sparkContext._jsc
        hadoop = context.hadoopConfiguration()
        found = self._jvm.java.util.HashMap()
        for name, value in properties.items():
            found.put(name, secrets.resolve_setting(value))
        catalog = iceberg.CatalogUtil.buildIcebergCatalog("lake", found, hadoop)
        name = iceberg.catalog.TableIdentifier.parse(self._name)
        if catalog.tableExists(name):
            return catalog.loadTable(name)
        namespace = name.namespace()
        with contextlib.suppress(AttributeError):
            if not catalog.namespaceExists(namespace):
                catalog.createNamespace(namespace)
        made = self._jvm.java.util.HashMap()
        settings = {"format-version": "2", VIEW: self._view.identity, EPOCH: "0"}
        for key, value in settings.items():
            made.put(key, value)
        spec = iceberg.PartitionSpec.unpartitioned()
        return catalog.createTable(name, self._iceberg_schema(), spec, made)

    def _iceberg_schema(self) -> Any:
        iceberg = self._jvm.org.apache.iceberg
        field = iceberg.types.Types.NestedField
        found = self._jvm.java.util.ArrayList()
        for number, (name, type) in enumerate(
            zip(self._schema.names, self._schema.types, strict=True), start=1
        ):
            made = field.required if name == KEY_COLUMN else field.optional
            found.add(made(number, name, self._type(type)))
        return iceberg.Schema(found)

    def _type(self, type: pa.DataType) -> Any:
        types = self._jvm.org.apache.iceberg.types.Types
        if pa.types.is_decimal(type):
            return types.DecimalType.of(type.precision, type.scale)
        if pa.types.is_timestamp(type):
            kind = types.TimestampType
            return kind.withoutZone() if type.tz is None else kind.withZone()
        names = {
            pa.bool_(): "BooleanType",
            pa.int32(): "IntegerType",
            pa.int64(): "LongType",
            pa.float32(): "FloatType",
            pa.float64(): "DoubleType",
            pa.date32(): "DateType",
            pa.binary(): "BinaryType",
            pa.string(): "StringType",
        }
        return getattr(types, names[type]).get()

    def _check_owner(self) -> None:
        owner = self._table.properties().get(VIEW)
        if owner != self._view.identity:
            raise SinkError(
                "batch.other_view",
                f'table "{self._name}" is not of view "{self._view.name}" as it is now',
                detail="it is another view's, or the query, its sources or their columns changed"
                if owner
                else "it was not created by Tidemark",
                hint="give the view another table; drop this one when nothing reads it any more",
            )

    def _check_properties(self) -> None:
        """Refuse a table that names classes to load, or folders elsewhere. SinkError
        sink.bad_metadata.
        """
        below = f"{self._table.location().rstrip('/')}/"
        for name, value in dict(self._table.properties()).items():
            names_code = name.endswith((".impl", "-impl"))
            if names_code or (name.endswith(".path") and not f"{value}/".startswith(below)):
                raise SinkError(
                    "sink.bad_metadata",
                    f'property "{name}" of table "{self._name}" cannot be used',
                    detail="it names a class, or a folder outside of the table",
                    hint="remove the property; check who else can write to the table",
                )

    def _check_version(self) -> None:
        """Refuse a table whose deletes this sink cannot write. SinkError sink.bad_metadata."""
        version = self._jvm.org.apache.iceberg.TableUtil.formatVersion(self._table)
        if self._by_position and version != _FORMAT_VERSION:
            raise SinkError(
                "sink.bad_metadata",
                f'table "{self._name}" has format version {version}',
                detail=f"positions are deleted in tables of version {_FORMAT_VERSION}",
                hint='drop the table, or set deletes = "equality" for the sink',
            )

    @contextlib.contextmanager
    def _reported(self, what: str) -> Any:
        """Turn what Iceberg or Spark raises into our errors."""
        try:
            yield
        except TidemarkError:
            raise
        except (Py4JError, PySparkException, TypeError, *GONE) as error:
            raise self._error(what, error) from error

    def _error(self, what: str, error: BaseException) -> TidemarkError:
        if isinstance(error, TypeError):
            # What py4j makes of a class that the JVM does not have.
            return TidemarkError(
                "batch.no_iceberg",
                "Iceberg's library is not in Spark's driver",
                detail=str(error),
                hint=f"start spark-submit with --packages {PACKAGE}, or let the run start Spark",
            )
        text = str(error)
        if isinstance(error, Py4JJavaError):
            text = str(error.java_exception.toString())
        detail = text[:600]
        is_compacted = any(words in text.lower() for words in _COMPACTED)
        if _is_conflict(text) and not is_compacted:
            return SinkError(
                "batch.conflict",
                f'another writer changed table "{self._name}" at the same time',
                detail=detail,
                hint="let no one else write rows into it; then run it again",
            )
        return TemporaryError(
            "batch.lake",
            f'cannot {what} table "{self._name}" of the lake',
            detail=detail,
            hint="check the catalog's properties and the lake's storage; then run it again",
        )


def _is_conflict(text: str) -> bool:
    return any(name in text for name in _CONFLICTS)
