"""A view as an Iceberg table: Spark's executors write the files, one commit an epoch adds them.

Iceberg's SQL extensions lag behind Spark, so this uses only its core library in Spark's driver: it
works with every Spark. An epoch is one Iceberg transaction: a row delta, with equality deletes of
old rows by a hidden key column and a data file of new ones, and the table's properties with the
epoch's number. Invariant: rows and number change together, so a repeated epoch changes nothing; two
writers of one epoch conflict, and one of them fails. Needs format version 2 in readers.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from connectors import secrets
from connectors.lake.lake_rows import arrow_column, lake_type, row_keys
from connectors.spark.batch.planning import PlannedView
from connectors.spark.maintained.output import CommittedEpoch
from connectors.spark.session import GONE
from dataflow.delta import Delta
from dataflow.errors import SinkError, TemporaryError, TidemarkError
from storage.failpoints import failpoint

# The newest release; its core needs no particular Spark.
PACKAGE = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"
# Of the session that writes: files with the types and times that Iceberg expects.
SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.fieldId.write.enabled": "true",
    # Timestamps of Arrow without a zone stay without one.
    "spark.sql.timestampType": "TIMESTAMP_NTZ",
}
# Stands for the row's key; equality deletes name it.
KEY_COLUMN = "_tidemark_key"
VIEW, EPOCH, FAILED = "tidemark.view", "tidemark.epoch", "tidemark.failed-rows"
COMMIT = "tidemark.commit"
# About so many rows make a file.
FILE_ROWS = 1_000_000
_FIELD_ID = "parquet.field.id"
_CONFLICTS = ("ValidationException", "CommitFailedException")


class IcebergSink:
    """The sink of one view; see `ViewSink`. One thread.

    catalog: its properties, as Iceberg's own documentation names them. table: "namespace.name".
    """

    def __init__(
        self, spark: SparkSession, catalog: Mapping[str, str], table: str, view: PlannedView
    ) -> None:
        self.rows = 0
        self.failed_rows = 0
        self._since: int | None = None
        self._spark = spark
        self._jvm: Any = spark._jvm
        self._name = table
        self._view = view
        with self._reported("open"):
            self._table = self._opened(catalog)
        self._check_owner()
        self._check_properties()

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
        written: list[Any] = []
        with self._reported("write"):
            deletes = self._write(old, written)
            added = self._write(new, written)
            failpoint("batch.lake.written")
            self._commit(epoch, failed_rows, deletes, added)
        failpoint("batch.lake.committed")
        self.rows += len(shown.rows)
        with contextlib.suppress(*GONE):
            # Spark's marks beside the files.
            for folder in written:
                self._files(folder).delete(self._path(f"{folder}/_SUCCESS"), False)

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
        names = [KEY_COLUMN, *(f.name for f in fields)]
        return (
            pa.table([self._keys(old)], [KEY_COLUMN]),
            pa.table([self._keys(new), *columns], names),
        )

    def _keys(self, rows: Delta) -> pa.Array:
        return row_keys([rows.columns[i] for i in self._view.key], len(rows))

    def _write(self, rows: pa.Table, written: list[Any]) -> list[str]:
        """Have executors write rows as files; return their paths."""
        if not len(rows):
            return []
        folder = f"{self._table.location()}/data/{uuid.uuid4().hex}"
        frame: DataFrame = self._spark.createDataFrame(rows)
        numbers = {KEY_COLUMN: 1, **{f.name: n for n, f in enumerate(self._view.fields, start=2)}}
        named = [
            sql.col(f"`{name.replace('`', '``')}`").alias(name, metadata={_FIELD_ID: numbers[name]})
            for name in rows.column_names
        ]
        parts = 1 + len(rows) // FILE_ROWS
        frame.select(*named).repartition(parts).write.parquet(folder)
        written.append(folder)
        found = self._files(folder).listStatus(self._path(folder))
        paths = [status.getPath().toString() for status in found]
        return [path for path in paths if path.endswith(".parquet")]

    # --- the table -------------------------------------------------------------------------------

    def _commit(
        self,
        epoch: CommittedEpoch,
        failed: int,
        deletes: Sequence[str],
        added: Sequence[str],
    ) -> None:
        table, jvm = self._table, self._jvm
        transaction = table.newTransaction()
        if deletes or added:
            change = transaction.newRowDelta()
            for path in deletes:
                change = change.addDeletes(self._delete_file(path))
            for path in added:
                change = change.addRows(self._data_file(path))
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

    def _data_file(self, path: str) -> Any:
        iceberg = self._jvm.org.apache.iceberg
        return self._filled(iceberg.DataFiles.builder(self._table.spec()), path).build()

    def _delete_file(self, path: str) -> Any:
        iceberg = self._jvm.org.apache.iceberg
        gateway: Any = self._spark.sparkContext._gateway
        ids = gateway.new_array(gateway.jvm.int, 1)
        ids[0] = 1
        builder = iceberg.FileMetadata.deleteFileBuilder(self._table.spec())
        return self._filled(builder.ofEqualityDeletes(ids), path).build()

    def _filled(self, builder: Any, path: str) -> Any:
        iceberg = self._jvm.org.apache.iceberg
        file = self._table.io().newInputFile(path)
        config = iceberg.MetricsConfig.forTable(self._table)
        metrics = iceberg.parquet.ParquetUtil.fileMetrics(file, config)
        builder = builder.withPath(path).withFileSizeInBytes(file.getLength())
        return builder.withFormat(iceberg.FileFormat.PARQUET).withMetrics(metrics)

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
        return catalog.createTable(name, self._schema(), spec, made)

    def _schema(self) -> Any:
        iceberg = self._jvm.org.apache.iceberg
        required = iceberg.types.Types.NestedField.required
        optional = iceberg.types.Types.NestedField.optional
        found = self._jvm.java.util.ArrayList()
        found.add(required(1, KEY_COLUMN, self._type(pa.string())))
        for number, field in enumerate(self._view.fields, start=2):
            found.add(optional(number, field.name, self._type(lake_type(field))))
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

    def _path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(path)

    def _files(self, path: str) -> Any:
        context: Any = self._spark.sparkContext._jsc
        return self._path(path).getFileSystem(context.hadoopConfiguration())

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
        if any(name in text for name in _CONFLICTS):
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
