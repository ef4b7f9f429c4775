"""A Spark Python data source that reads the parts of a snapshot.

One Spark partition for each part. What a task does with a part (read, filter, project, split by
bucket) is `tasks.read_part`; here is only Spark's interface to it. The job, with its connection
strings, lies in a file that only we can read, so it stands in no plan, log or UI of Spark's.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from connectors.spark.frame import FRAME, to_batches

JOB_OPTION, PARTS_OPTION = "job", "parts"


class SnapshotSource(DataSource):
    """format "tidemark_snapshot" with the options job (a path) and parts (how many)."""

    @classmethod
    def name(cls) -> str:
        """What DataFrameReader.format takes."""
        return "tidemark_snapshot"

    def schema(self) -> str:
        """Pages, as everywhere."""
        return FRAME

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of one job."""
        return _SnapshotReader(Path(self.options[JOB_OPTION]), int(self.options[PARTS_OPTION]))


class _SnapshotReader(DataSourceReader):
    def __init__(self, job: Path, parts: int) -> None:
        self._job = job
        self._parts = parts

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(self._parts)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Spark plans with this class in a new worker each time, which needs no operators.
        from connectors.spark.tasks import read_part

        return to_batches(read_part(self._job, partition.value))
