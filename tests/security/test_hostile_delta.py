"""Oracle: no file outside of a Delta table gets into it, whatever its log names and whatever in its
folder becomes a link; the client of its own copies it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from connectors import netguard
from connectors.delta.sink import make
from connectors.delta.table_log import FolderFiles
from connectors.lake.location import Location
from connectors.objects.bucket_options import BucketOptions
from connectors.view_sink import ViewSink
from dataflow.errors import TidemarkError
from tests.harness.sink_contract import FINITE, Model, new_identity

THEIRS = "a row of somebody else"


class Ground:
    """A table of the sink's, and one outside with the same columns."""

    def __init__(self, folder: Path, model: Model, **options: Any) -> None:
        self.path, self.outside = folder / "in" / "table", folder / "outside"
        self.path.parent.mkdir()
        self.options = {"path": str(self.path), **options}
        self.model, self.identity = model, new_identity()
        self.sink = self.writer()
        assert self.sink.open(None) is None
        self.sink.write([model.epoch()])

    def writer(self) -> ViewSink:
        return make(self.options, self.model.table, self.identity, "t")

    def theirs(self) -> Path:
        """Write a file outside with the table's columns, and a text that is in no row of ours."""
        schema = pa.schema(DeltaTable(str(self.path)).schema().to_arrow())
        columns = [
            pa.array(
                [
                    THEIRS
                    if pa.types.is_large_string(f.type) or pa.types.is_string(f.type)
                    else None
                ],
                f.type,
                from_pandas=True,
            )
            for f in schema
        ]
        write_deltalake(str(self.outside), pa.table(columns, schema=schema))
        return next(self.outside.glob("*.parquet"))

    def add(self, path: str, size: int) -> None:
        """Commit a file to the log, as whoever can write there can."""
        version = DeltaTable(str(self.path)).version() + 1
        facts = {"path": path, "partitionValues": {}, "size": size, "modificationTime": 1}
        entry = {"add": {**facts, "dataChange": True}}
        (self.path / "_delta_log" / f"{version:020}.json").write_text(json.dumps(entry))

    def has_theirs(self) -> bool:
        files = [file for file in self.path.glob("*.parquet") if not file.is_symlink()]
        assert files
        return any(THEIRS in pq.ParquetFile(f).read(["name"])["name"].to_pylist() for f in files)


@pytest.fixture
def ground(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ground:
    monkeypatch.setattr(netguard, "_guard", netguard.Guard(writable=(f"{tmp_path}/in",)))
    pools = tuple(one for one in FINITE if one[0] in ("name", "big"))
    return Ground(tmp_path, Model(pools), mode="rows")


def test_a_log_names_no_file_elsewhere(ground: Ground) -> None:
    file = ground.theirs()
    size = file.stat().st_size
    named = [f"file://{file}", f"file:{file}", str(file), f"../../outside/{file.name}"]
    named += [f"%2e%2e/%2e%2e/outside/{file.name}", "s3://theirs/x.parquet", "HTTP://127.0.0.1:9/x"]
    version = DeltaTable(str(ground.path)).version()
    for path in named:
        ground.add(path, size)
        sink = ground.writer()
        sink.open(ground.model.number)
        epoch = ground.model.epoch()
        with pytest.raises(TidemarkError, match=r"path\.forbidden"):
            sink.write([epoch])
        for entry in (ground.path / "_delta_log").glob("*.json"):
            if int(entry.stem) > version:
                entry.unlink()
        assert not ground.has_theirs()
        again = ground.writer()
        again.open(epoch.number - 1)
        again.write([epoch])
        version = DeltaTable(str(ground.path)).version()


def test_the_client_alone_would_copy_it(ground: Ground) -> None:
    file = ground.theirs()
    ground.add(f"file://{file}", file.stat().st_size)
    assert not ground.has_theirs()
    rows = pa.table({"name": [THEIRS]})
    table = DeltaTable(str(ground.path))
    merge = table.merge(rows, "t.name = s.name", source_alias="s", target_alias="t")
    merge.when_matched_update({"big": "1"}).execute()
    assert ground.has_theirs()


def test_a_link_to_a_file_is_refused(ground: Ground) -> None:
    file = ground.theirs()
    link = ground.path / "link.parquet"
    link.symlink_to(file)
    ground.add(link.name, file.stat().st_size)
    with pytest.raises(TidemarkError, match=r"path\.forbidden"):
        ground.writer().open(ground.model.number)
    with pytest.raises(TidemarkError, match=r"path\.forbidden"):
        ground.sink.write([ground.model.epoch()])
    assert not ground.has_theirs()


@pytest.mark.parametrize("name", ["", "_delta_log"])
def test_a_folder_that_becomes_a_link_is_refused(ground: Ground, name: str) -> None:
    ground.outside.mkdir()
    path = ground.path / name if name else ground.path
    path.rename(path.with_name("moved"))
    path.symlink_to(ground.outside)
    with pytest.raises(TidemarkError, match=r"path\.forbidden"):
        ground.sink.write([ground.model.epoch()])
    assert os.listdir(ground.outside) == []
    path.unlink()
    path.with_name("moved").rename(path)
    again = ground.writer()
    again.open(ground.model.number - 1)
    again.write([ground.model.epoch()])


@pytest.mark.parametrize("name", ["", "_delta_log"])
def test_a_folder_that_is_swapped_during_a_commit_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The client opens paths itself, so what it wrote elsewhere is an error, not a success."""
    monkeypatch.setattr(netguard, "_guard", netguard.Guard(writable=(f"{tmp_path}/in",)))
    table, outside = tmp_path / "in" / "table", tmp_path / "outside"
    for base in (table, outside):
        (base / "_delta_log").mkdir(parents=True)
    location = Location(str(table), BucketOptions())
    with location.held("_delta_log"):
        (table / "_delta_log" / "0.json").touch()
    swapped = table / name if name else table
    with pytest.raises(TidemarkError, match=r"path\.forbidden"), location.held("_delta_log"):
        swapped.rename(swapped.with_name("moved"))
        swapped.symlink_to(outside / name)


# --- as a source -----------------------------------------------------------------------------


def test_a_file_that_becomes_a_link_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was opened is checked, not only the path before."""
    folder, outside = tmp_path / "in", tmp_path / "outside"
    for base, content in ((folder, b"ours"), (outside, b"theirs")):
        base.mkdir()
        (base / "a").write_bytes(content)
    monkeypatch.setattr(netguard, "_guard", netguard.Guard(folders=(str(folder),)))
    files = FolderFiles(str(folder))
    (folder / "b").symlink_to(folder / "a")
    assert files.open_input_file("a").readall() == b"ours"
    assert files.open_input_file("b").readall() == b"ours"
    (folder / "a").unlink()
    (folder / "a").symlink_to(outside / "a")
    for name in ("a", "b", "../outside/a"):
        with pytest.raises(TidemarkError, match=r"path\.forbidden"):
            files.open_input_file(name)
    os.mkfifo(folder / "pipe")
    with pytest.raises(OSError, match="no file"):
        files.open_input_file("pipe")
