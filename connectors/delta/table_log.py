"""What a Delta table has at a version, and what each version has changed, as files.

The client library reads states: checkpoints, protocols, deletion vectors. A version's own file of
the log says which data files it changed (the "Change Data Files" of Delta's PROTOCOL.md): those
with changed rows if there are any, else the files that it added and removed. Invariant: the rows of
a version plus the changes of the next one are the rows of the next one, or an error says why not.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.fs import DeltaStorageHandler
from pyarrow.fs import FileSystem, PyFileSystem

from connectors import netguard, secrets
from connectors.delta.table_options import TableOptions
from connectors.delta.table_schema import TableSchema, check_features, unsupported
from dataflow.errors import SourceError, TemporaryError, TidemarkError
from dataflow.schema import Relation

INSERTS, DELETES, CHANGES = "inserts", "deletes", "changes"
# What the client says of a version of which the log lacks something.
_NO_LOG = ("end version", "metadata or protocol")
# A version is missing between two others.
_GAP = "contiguous commit files"
# About so many bytes of a file without statistics are a row.
ROW_BYTES = 32


@dataclass(frozen=True)
class DataFile:
    """A Parquet file of a table, and what its rows are to the version.

    path: below the table. kind: INSERTS, DELETES, or CHANGES if each row says what it is.
    partition: texts by physical column name. rows: about how many. mask: bits of the rows that
    count, None for all.
    """

    path: str
    kind: str
    partition: Mapping[str, str | None]
    size_bytes: int
    rows: int
    mask: bytes | None = field(default=None, repr=False)


class TableLog:
    """The log of the table of one relation. Nothing is reached before the first use."""

    def __init__(self, relation: Relation, options: TableOptions) -> None:
        self._relation = relation
        self._options = options
        self._files: FileSystem | FolderFiles | None = None
        self._masks: tuple[int, dict[str, np.ndarray]] = (-1, {})

    def newest(self) -> int:
        """Return the number of the newest version. SourceError source.table_missing."""
        return self._table(None).version()

    def schema(self, version: int | None = None) -> TableSchema:
        """Return a version's schema, by default the newest one's. SourceError delta.feature,
        delta.version_gone.
        """
        return self._schema(self._table(version))

    def files(self, version: int) -> tuple[TableSchema, list[DataFile]]:
        """Return a version's schema, and its files in the order of their paths."""
        table = self._table(version)
        schema = self._schema(table)
        with reached(self._relation, self._options, version):
            found = pa.table(table.get_add_actions())
        partitions = [dict[str, str | None]() for _ in range(len(found))]
        if "partition" in found.schema.names:
            values = found.column("partition").combine_chunks()
            for at in range(values.type.num_fields):
                name = schema.physical_name(values.type.field(at).name)
                texts = pc.cast(values.field(at), pa.string()).to_pylist()
                for partition, text in zip(partitions, texts, strict=True):
                    partition[name] = text
        paths = [self._path(p) for p in found.column("path").to_pylist()]
        masks = self._masks_of(version) if schema.has_vectors else {}
        columns = [found.column(n).to_pylist() for n in ("size_bytes", "num_records")]
        files = [
            DataFile(path, INSERTS, own, size, _rows(rows, size), _bits(masks.get(path)))
            for path, own, size, rows in zip(paths, partitions, *columns, strict=True)
        ]
        return schema, sorted(files, key=lambda file: file.path)

    def changes(self, version: int, before: TableSchema) -> tuple[TableSchema, list[DataFile]]:
        """Return the schema after a version, and the files that say what it has changed.

        before: the schema of the version before. SourceError delta.feature, delta.version_gone,
        source.column_dropped, source.column_changed.
        """
        with reached(self._relation, self._options, version):
            content = self._opened().open_input_file(f"_delta_log/{version:020}.json").readall()
        actions: dict[str, list[dict[str, Any]]] = {}
        for line in content.splitlines():
            if line.strip():
                for kind, action in orjson.loads(line).items():
                    actions.setdefault(kind, []).append(action)
        schema = before
        for action in actions.get("protocol", ()):
            features = action.get("readerFeatures") or ()
            check_features(self._relation, action["minReaderVersion"], features)
            schema = schema.with_vectors("deletionVectors" in features)
        for action in actions.get("metaData", ()):
            schema = TableSchema.of_action(self._relation, action, schema.has_vectors)
            schema.check_after(before, self._options.content(), version)
        if "cdc" in actions:
            return schema, [self._file(a, CHANGES) for a in actions["cdc"]]
        added = {a["path"]: a for a in actions.get("add", ()) if a.get("dataChange", True)}
        removed = {a["path"]: a for a in actions.get("remove", ()) if a.get("dataChange", True)}
        return schema, self._of_files(version, schema, added, removed)

    def _of_files(
        self,
        version: int,
        schema: TableSchema,
        added: Mapping[str, dict[str, Any]],
        removed: Mapping[str, dict[str, Any]],
    ) -> list[DataFile]:
        found: list[DataFile] = []
        for path in sorted({**removed, **added}):
            old, new = removed.get(path), added.get(path)
            for action in (old, new):
                if action is not None and schema.partition_by and not action.get("partitionValues"):
                    raise unsupported(self._relation, "files that were removed by old writers")
            if not any(action and action.get("deletionVector") for action in (old, new)):
                if old is None or new is None:
                    kind = DELETES if new is None else INSERTS
                    found.append(self._file(old or new or {}, kind))
                continue
            name = self._path(path)
            before = self._mask(version - 1, name, old)
            after = self._mask(version, name, new)
            for kind, action, own, other in (
                (DELETES, old, before, after),
                (INSERTS, new, after, before),
            ):
                if action is not None:
                    found += self._masked(action, kind, own, other)
        return found

    def _masked(
        self,
        action: Mapping[str, Any],
        kind: str,
        own: np.ndarray | bool,
        other: np.ndarray | bool,
    ) -> list[DataFile]:
        """Return the rows of a file that are on one side only."""
        mask = np.logical_and(own, np.logical_not(other))
        if not mask.any():
            return []
        return [self._file(action, kind, mask if mask.ndim else None)]

    def _mask(self, version: int, path: str, action: Mapping[str, Any] | None) -> np.ndarray | bool:
        """Return which rows of a file a version has: bool[n], or one for all rows."""
        if action is None:
            return False
        if not action.get("deletionVector"):
            return True
        found = self._masks_of(version).get(path)
        if found is None:
            raise version_gone(self._relation, version, f"no deletion vector of {path}")
        return found

    def _masks_of(self, version: int) -> dict[str, np.ndarray]:
        """Return the rows that files with a deletion vector have at a version."""
        if self._masks[0] == version:
            return self._masks[1]
        table = self._table(version)
        found: dict[str, np.ndarray] = {}
        with reached(self._relation, self._options, version):
            for batch in table.deletion_vectors():
                rows = pa.record_batch(batch)
                uris, lists = rows.column("filepath"), rows.column("selection_vector")
                for uri, bits in zip(uris.to_pylist(), lists, strict=True):
                    path = self._path(uri.removeprefix(table.table_uri).lstrip("/"))
                    found[path] = bits.values.to_numpy(zero_copy_only=False)
        self._masks = version, found
        return found

    def _file(
        self, action: Mapping[str, Any], kind: str, mask: np.ndarray | None = None
    ) -> DataFile:
        size = int(action.get("size") or 0)
        statistics = orjson.loads(action.get("stats") or b"{}")
        partition = {
            name: text or None for name, text in (action.get("partitionValues") or {}).items()
        }
        rows = _rows(statistics.get("numRecords"), size)
        return DataFile(self._path(action["path"]), kind, partition, size, rows, _bits(mask))

    def _path(self, encoded: str) -> str:
        """Return the path of a file below the table. SourceError delta.feature."""
        path = unquote(encoded)
        if ":/" in path or path.startswith("/") or ".." in path.split("/"):
            raise unsupported(self._relation, "files outside of its folder", path)
        self._options.check(path)
        return path

    # --- the client ------------------------------------------------------------------------------

    def _table(self, version: int | None) -> DeltaTable:
        self._options.check()
        path, client = self._options.location.path, self._options.client()
        with reached(self._relation, self._options, version):
            return DeltaTable(path, version, client)

    def _schema(self, table: DeltaTable) -> TableSchema:
        with reached(self._relation, self._options, table.version()):
            protocol, facts = table.protocol(), table.metadata()
            schema = orjson.loads(table.schema().to_json())
        features = protocol.reader_features or ()
        check_features(self._relation, protocol.min_reader_version, features)
        return TableSchema.of(
            self._relation,
            str(facts.id),
            schema,
            facts.partition_columns,
            facts.configuration,
            has_vectors="deletionVectors" in features,
        )

    def _opened(self) -> FileSystem | FolderFiles:
        if self._files is None:
            self._options.check()
            self._files = open_files(self._options)
        return self._files


class FolderFiles:
    """The files below a table in a folder; what was opened is checked, not only its path."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def open_input_file(self, name: str) -> pa.NativeFile:
        """Open a file. FileNotFoundError, OSError; SourceError path.forbidden: it is elsewhere,
        whatever its path was when it was checked.
        """
        path = f"{self._folder}/{name}"
        opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            netguard.check_open(opened, path)
            if not stat.S_ISREG(os.fstat(opened).st_mode):
                raise OSError(errno.EINVAL, "it is no file", name)
            link = f"/proc/self/fd/{opened}"
            if os.path.lexists(link):
                # The very file that is open; the client reads it without Python.
                return pa.OSFile(link)
            return pa.PythonFile(os.fdopen(os.dup(opened), "rb"), mode="r")
        finally:
            os.close(opened)


def open_files(options: TableOptions) -> FileSystem | FolderFiles:
    """Return the files below a table."""
    if not options.location.is_bucket:
        return FolderFiles(options.location.path)
    return PyFileSystem(DeltaStorageHandler(options.location.path, options.client()))


@contextmanager
def reached(
    relation: Relation, options: TableOptions, version: int | None, file: str = ""
) -> Iterator[None]:
    """Turn what the client raises into our errors. version, file: what is read, if it is one."""
    try:
        yield
    except TidemarkError:
        raise
    except (TableNotFoundError, FileNotFoundError) as error:
        if version is not None:
            raise version_gone(relation, version, file or _first_line(error)) from None
        raise SourceError(
            "source.table_missing",
            f'there is no Delta table at "{options.location.path}"',
            detail=_first_line(error),
            hint="check the path; a table that was dropped is gone with its rows",
            relation=relation.name,
        ) from None
    except (DeltaError, OSError) as error:
        text = _first_line(error)
        if "is not supported" in text or "catalog-managed" in text:
            what = "a feature that the client does not have"
            raise unsupported(relation, what, text) from None
        if version is not None and any(words in text for words in _NO_LOG):
            raise version_gone(relation, version, text) from None
        if _GAP in text:
            raise SourceError(
                "delta.version_gone",
                f'the log of Delta table "{relation.name.name}" has a gap',
                detail=text,
                hint="restore the table's folder, or write it again, and rebuild the views",
                relation=relation.name,
            ) from None
        raise TemporaryError(
            "source.unreachable",
            f'Delta table "{options.location.path}" cannot be read now',
            detail=text,
            hint="no action needed if it is a short failure; else check the path and the network",
            relation=relation.name,
        ) from None


def version_gone(relation: Relation, version: int, detail: str) -> SourceError:
    """Return the error of a version of which the log or a file is gone."""
    return SourceError(
        "delta.version_gone",
        f'version {version} of Delta table "{relation.name.name}" can no longer be read',
        detail=f"{detail}: VACUUM or the table's retention has deleted it",
        hint="rebuild the views that read it: they begin with the newest version; let runs be more"
        " frequent than the table's retention is long",
        relation=relation.name,
    )


def _rows(counted: int | None, size_bytes: int) -> int:
    return max(1, size_bytes // ROW_BYTES) if counted is None else counted


def _bits(mask: np.ndarray | None) -> bytes | None:
    return None if mask is None else np.packbits(mask).tobytes()


def _first_line(error: Exception) -> str:
    return secrets.hide(str(error)).partition("\n")[0][:500]
