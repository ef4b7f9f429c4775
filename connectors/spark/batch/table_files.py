"""The files of an Iceberg table of a view: what its newest snapshot lists, read and written by
executors.

Invariants: a row that is read here is one that a scan of the snapshot shows: no position delete
names it, and no equality delete that is newer than its file has its key. A file that manifests name
is read only if it lies below the table's location: who can write to the table cannot have other
files of the executors copied into it.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.types import LongType, StringType, StructField, StructType

from connectors.outside.texts import clean
from dataflow.errors import SourceError

# Stands for a row's key; deletes find rows by it.
KEY_COLUMN = "_tidemark_key"
# About so many rows make a file.
FILE_ROWS = 1_000_000
# Up to so many keys are looked up by the index of a file's pages, more by reading all keys.
LOOKED_UP_KEYS = 1_000
# Of the session: columns are found by their numbers, which Iceberg's own files have too.
READ_SETTINGS = {
    "spark.sql.parquet.fieldId.read.enabled": "true",
    "spark.sql.parquet.pushdown.inFilterThreshold": str(LOOKED_UP_KEYS),
    # Of joins with keys and deletes; files are written in parts of their own.
    "spark.sql.shuffle.partitions": "16",
}
FIELD_ID = "parquet.field.id"
# The scheme of a folder's files, of which there are several forms.
_LOCAL = re.compile("^file:/+")
# What Spark takes for a pattern in a path.
_PATTERN = re.compile(r"[{}\[\]*?\\]")
# Of rows that are read: Spark's name of their file, the table's name of it, and when it came.
_FILE, _LOCATION, _SEQUENCE = "_tidemark_file", "_tidemark_location", "_tidemark_sequence"
_POSITION, _GONE_SINCE = "_tidemark_position", "_tidemark_gone_since"
# More keys than these are not sent to every task.
_BROADCAST_KEYS = 500_000
# With pages of so few rows, looking up a key reads little.
_PAGE_ROWS = "2000"
# Numbers that Iceberg's specification reserves for the columns of position deletes.
_POSITIONS = StructType(
    [
        StructField("file_path", StringType(), False, {FIELD_ID: 2_147_483_546}),
        StructField("pos", LongType(), False, {FIELD_ID: 2_147_483_545}),
    ]
)


@dataclass(frozen=True)
class TableFile:
    """A data or delete file. location: as the table has it. sequence: grows by each commit.

    handle: Iceberg's own object.
    """

    location: str
    rows: int
    nbytes: int
    sequence: int
    handle: Any


@dataclass(frozen=True)
class Contents:
    """What a snapshot lists: data files, position deletes, and equality deletes."""

    data: Sequence[TableFile] = ()
    positions: Sequence[TableFile] = ()
    keys: Sequence[TableFile] = ()


class IcebergFiles:
    """Reads and writes the files of one table. schema: of its columns, numbered from 1."""

    def __init__(self, spark: SparkSession, table: Any, schema: pa.Schema) -> None:
        self._spark = spark
        self._jvm: Any = spark._jvm
        self._table = table
        empty: DataFrame = spark.createDataFrame(schema.empty_table())
        self._fields = {
            field.name: StructField(field.name, field.dataType, True, {FIELD_ID: number})
            for number, field in enumerate(empty.schema.fields, start=1)
        }
        # Folders that were written to.
        self._written: list[str] = []

    # --- what there is -------------------------------------------------------------------------

    def contents(self) -> Contents:
        """Return the files of the table's current snapshot. SourceError path.forbidden."""
        snapshot = self._table.currentSnapshot()
        if snapshot is None:
            return Contents()
        io, specs = self._table.io(), self._table.specs()
        manifests = self._jvm.org.apache.iceberg.ManifestFiles
        data = [
            file
            for manifest in snapshot.dataManifests(io)
            for file in _listed(manifests.read(manifest, io, specs))
        ]
        deletes = [
            file
            for manifest in snapshot.deleteManifests(io)
            for file in _listed(manifests.readDeleteManifest(manifest, io, specs))
        ]
        for file in (*data, *deletes):
            self._check_below(file.location)
        is_of_keys = [file.handle.content().name() == "EQUALITY_DELETES" for file in deletes]
        pairs = list(zip(deletes, is_of_keys, strict=True))
        return Contents(
            data, [file for file, of in pairs if not of], [file for file, of in pairs if of]
        )

    def _check_below(self, location: str) -> None:
        base, path = (_LOCAL.sub("/", text) for text in (self._table.location(), location))
        below = path.removeprefix(f"{base.rstrip('/')}/")
        if below == path or {".", ".."} & {*below.split("/")}:
            raise SourceError(
                "path.forbidden",
                f'the table names a file outside of its location: "{clean(location, 200)}"',
                detail=f"only files below {base} are used",
                hint="check who else can write to the catalog and to the table's files",
            )

    # --- rows ----------------------------------------------------------------------------------

    def positions_of(self, contents: Contents, keys: pa.Table) -> DataFrame:
        """Return where the rows with these keys are, as position deletes."""
        frame = self._read(contents.data, [KEY_COLUMN])
        if len(keys) <= LOOKED_UP_KEYS:
            frame = frame.where(sql.col(KEY_COLUMN).isin(keys[KEY_COLUMN].to_pylist()))
        of_keys: DataFrame = self._spark.createDataFrame(keys)
        if len(keys) <= _BROADCAST_KEYS:
            of_keys = sql.broadcast(of_keys)
        found = frame.join(of_keys, KEY_COLUMN, "left_semi")
        return self._alive(found, contents).select(
            sql.col(_LOCATION).alias("file_path"), sql.col(_POSITION).alias("pos")
        )

    def rows_of(self, contents: Contents, files: Sequence[TableFile]) -> DataFrame:
        """Return the rows of some of the data files."""
        names = list(self._fields)
        alive = self._alive(self._read(files, names), contents)
        return alive.select(*(sql.col(_quoted(name)) for name in names))

    def rows_without(self, contents: Contents, keys: pa.Table) -> DataFrame:
        """Return all rows but those with these keys."""
        rows = self.rows_of(contents, contents.data)
        return rows.join(sql.broadcast(self._spark.createDataFrame(keys)), KEY_COLUMN, "left_anti")

    def positions_in(self, contents: Contents, files: Sequence[TableFile]) -> DataFrame:
        """Return the position deletes of some of the data files, each once."""
        of_files = pa.table({"file_path": pa.array([f.location for f in files], pa.string())})
        held = sql.broadcast(self._spark.createDataFrame(of_files))
        return self._deleted(contents).join(held, "file_path", "left_semi").distinct()

    def deleted_rows(self, contents: Contents) -> dict[str, int]:
        """Return how many position deletes each data file has, by its location."""
        counted = self._deleted(contents).groupBy("file_path").count().collect()
        return {row["file_path"]: row["count"] for row in counted}

    def _deleted(self, contents: Contents) -> DataFrame:
        if not contents.positions:
            return self._spark.createDataFrame([], _POSITIONS)
        return self._spark.read.schema(_POSITIONS).parquet(*_paths(contents.positions))

    def _read(self, files: Sequence[TableFile], names: Sequence[str]) -> DataFrame:
        """Return all rows of files, also those that are deleted, and where each is."""
        schema = StructType([self._fields[name] for name in names])
        frame = self._spark.read.schema(schema).parquet(*_paths(files))
        hidden = frame.metadataColumn("_metadata")
        file = sql.regexp_replace(hidden["file_path"], _LOCAL.pattern, "/")
        frame = frame.select(
            *(sql.col(_quoted(name)) for name in names),
            file.alias(_FILE),
            hidden["row_index"].alias(_POSITION),
        )
        return frame.join(sql.broadcast(self._places(files)), _FILE)

    def _alive(self, frame: DataFrame, contents: Contents) -> DataFrame:
        if contents.positions:
            gone = self._deleted(contents).select(
                sql.col("file_path").alias(_LOCATION), sql.col("pos").alias(_POSITION)
            )
            frame = frame.join(gone, [_LOCATION, _POSITION], "left_anti")
        if contents.keys:
            deleted = self._read(contents.keys, [KEY_COLUMN]).groupBy(KEY_COLUMN)
            gone = deleted.agg(sql.max(_SEQUENCE).alias(_GONE_SINCE))
            frame = frame.join(gone, KEY_COLUMN, "left")
            since = sql.col(_GONE_SINCE)
            frame = frame.where(since.isNull() | (since <= sql.col(_SEQUENCE)))
        return frame

    def _places(self, files: Sequence[TableFile]) -> DataFrame:
        columns = {
            _FILE: [self._spark_name(file.location) for file in files],
            _LOCATION: [file.location for file in files],
            _SEQUENCE: [file.sequence for file in files],
        }
        return self._spark.createDataFrame(pa.table(columns))

    def _spark_name(self, location: str) -> str:
        """Return a location as Spark's readers name it: a URL with escapes."""
        path = self._path(location)
        url = self._file_system(location).makeQualified(path).toUri().toString()
        return _LOCAL.sub("/", url)

    # --- files ---------------------------------------------------------------------------------

    def write_rows(self, frame: DataFrame, rows: int) -> list[Any]:
        """Have executors write about so many rows; return Iceberg's data files."""
        parts = _numbered(frame, self._fields.values()).repartition(1 + rows // FILE_ROWS)
        paths = self._write(parts.sortWithinPartitions(KEY_COLUMN))
        files = self._jvm.org.apache.iceberg.DataFiles
        made = [self._file(files.builder(self._table.spec()), path) for path in paths]
        return [file for file in made if file.recordCount()]

    def write_positions(self, frame: DataFrame, rows: int) -> list[Any]:
        """Have executors write about so many position deletes; return Iceberg's delete files."""
        parts = _numbered(frame, _POSITIONS.fields)
        parts = parts.repartition(1 + rows // FILE_ROWS, "file_path")
        iceberg = self._jvm.org.apache.iceberg
        return [
            self._file(
                iceberg.FileMetadata.deleteFileBuilder(self._table.spec()).ofPositionDeletes(),
                path,
                iceberg.MetricsConfig.forPositionDelete(),
            )
            for path in self._write(parts.sortWithinPartitions("file_path", "pos"))
        ]

    def write_keys(self, keys: pa.Table) -> list[Any]:
        """Have an executor write keys; return Iceberg's equality deletes of them."""
        frame = _numbered(self._spark.createDataFrame(keys), [self._fields[KEY_COLUMN]])
        gateway: Any = self._spark.sparkContext._gateway
        ids = gateway.new_array(gateway.jvm.int, 1)
        ids[0] = 1
        made = self._jvm.org.apache.iceberg.FileMetadata
        return [
            self._file(made.deleteFileBuilder(self._table.spec()).ofEqualityDeletes(ids), path)
            for path in self._write(frame.repartition(1 + len(keys) // FILE_ROWS))
        ]

    def remove_marks(self) -> None:
        """Delete Spark's marks beside the files that were written."""
        while self._written:
            folder = self._written.pop()
            self._file_system(folder).delete(self._path(f"{folder}/_SUCCESS"), False)

    def _write(self, frame: DataFrame) -> list[str]:
        folder = f"{self._table.location()}/data/{uuid.uuid4().hex}"
        frame.write.option("parquet.page.row.count.limit", _PAGE_ROWS).parquet(folder)
        self._written.append(folder)
        found = self._file_system(folder).listStatus(self._path(folder))
        paths = [status.getPath().toString() for status in found]
        return [path for path in paths if path.endswith(".parquet")]

    def _file(self, builder: Any, path: str, config: Any = None) -> Any:
        iceberg = self._jvm.org.apache.iceberg
        file = self._table.io().newInputFile(path)
        config = config or iceberg.MetricsConfig.forTable(self._table)
        metrics = iceberg.parquet.ParquetUtil.fileMetrics(file, config)
        builder = builder.withPath(path).withFileSizeInBytes(file.getLength())
        return builder.withFormat(iceberg.FileFormat.PARQUET).withMetrics(metrics).build()

    def _path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(path)

    def _file_system(self, path: str) -> Any:
        context: Any = self._spark.sparkContext._jsc
        return self._path(path).getFileSystem(context.hadoopConfiguration())


def _paths(files: Sequence[TableFile]) -> list[str]:
    """Return the locations of files, of which each names one file alone."""
    return [_PATTERN.sub(r"\\\g<0>", file.location) for file in files]


def _quoted(name: str) -> str:
    """Return a column's name as Spark's expressions have it."""
    return f"`{name.replace('`', '``')}`"


def _listed(reader: Any) -> Iterable[TableFile]:
    try:
        found = reader.iterator()
        while found.hasNext():
            file = found.next()
            sequence = file.dataSequenceNumber()
            rows, nbytes = file.recordCount(), file.fileSizeInBytes()
            yield TableFile(file.location(), rows, nbytes, sequence or 0, file)
    finally:
        reader.close()


def _numbered(frame: DataFrame, fields: Iterable[StructField]) -> DataFrame:
    """Return these columns of a frame, with their numbers for the writer of files."""
    return frame.select(
        *(sql.col(_quoted(f.name)).alias(f.name, metadata=f.metadata) for f in fields)
    )
