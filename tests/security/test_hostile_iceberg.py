"""Oracle: nothing that a hostile catalog, metadata or manifest names is imported, reached, read or
written; the client of its own does each of it with the same table."""

from __future__ import annotations

import gzip
import json
import os
import random
import shutil
import sqlite3
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from connectors import netguard
from connectors.iceberg import table_files
from connectors.iceberg.catalog import SINK, SinkCatalog
from connectors.iceberg.iceberg_sink import IcebergSink
from connectors.iceberg.options import IcebergOptions
from connectors.iceberg.sink import check, make
from dataflow.errors import TidemarkError
from tests.connectors.iceberg.reading import IcebergTarget
from tests.harness.lake_files import bucket_facts
from tests.harness.object_store import object_store
from tests.harness.sink_contract import FINITE, Model, new_identity, require
from tests.harness.tiers import count

EVIL = "evil_tidemark_iceberg"
PLANTED = "planted-line-of-another-file"
REFUSED = {"path.forbidden", "sink.bad_metadata", "sink.lost"}
FILES = count("TIDEMARK_TEST_FILES", 8, 30)


class Lake:
    """A sink's folder and catalog, within what is allowed, beside what is not."""

    def __init__(self, folder: Path) -> None:
        self.outside = folder / "outside"
        self.target = IcebergTarget(str(folder / "in"), catalog=f"{folder}/in/catalog.db")
        Path(self.target.path).mkdir()
        self.outside.mkdir()
        (self.outside / "secret").write_text(f"{PLANTED}\n{{\n")
        self.identity = new_identity()
        self.model = Model(FINITE[:4])
        self.sink = self.writer()
        assert self.sink.open(None) is None
        self.sink.write([self.model.epoch()])

    def writer(self) -> IcebergSink:
        return self.target.sink(self.model.table, self.identity)

    @property
    def folder(self) -> Path:
        return Path(self.target.path) / "wh" / "shop" / self.model.table.name

    def metadata(self) -> Path:
        row = self.sql("SELECT metadata_location FROM iceberg_tables")
        return Path(row[0][0].removeprefix("file://"))

    def sql(self, statement: str, *values: str) -> list[tuple[Any, ...]]:
        with sqlite3.connect(self.target.catalog) as opened:
            return opened.execute(statement, values).fetchall()

    def change(self, edit: Callable[[dict[str, Any]], None], name: str = "") -> Path:
        """Write changed metadata beside the newest, and have the catalog name it."""
        found = json.loads(self.metadata().read_text())
        edit(found)
        path = self.metadata().with_name(name or "00009-hostile.metadata.json")
        path.write_text(json.dumps(found))
        self.name(f"file://{path}")
        return path

    def name(self, location: str) -> None:
        self.sql("UPDATE iceberg_tables SET metadata_location = ?", location)

    def refusals(self, codes: set[str]) -> None:
        """Each way in is refused with one of these codes, and quotes nothing of other files."""
        chosen = self.target.chosen(self.model.table)
        for attempt in (
            lambda: check(chosen, self.model.table, "t"),
            lambda: self.writer().open(self.model.number),
            lambda: self.writer().remove(),
        ):
            with pytest.raises(TidemarkError) as refused:
                attempt()
            error = refused.value
            assert error.code in codes, error.described
            assert PLANTED not in f"{error} {error.described} {error.hint} {error.__cause__}"

    def reads_its_rows(self) -> None:
        """The positive control: the sink goes on, and its rows are whole."""
        sink = self.writer()
        assert sink.open(self.model.number) == self.model.number
        sink.write([self.model.epoch()])
        sink.close()
        # The client that reads them would load what the properties name.
        newest = self.metadata()
        self.change(lambda found: found.update(properties={}), "00099-read.metadata.json")
        require(self.target, self.model, self.model.number)
        self.name(f"file://{newest}")


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    monkeypatch.setattr(netguard, "_guard", netguard.Guard(writable=(f"{tmp_path}/in",)))
    return Lake(tmp_path)


@pytest.fixture
def evil(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module that can be imported, and the file that it writes when it is."""
    ran = tmp_path / "ran"
    module = tmp_path / "modules" / f"{EVIL}.py"
    module.parent.mkdir()
    module.write_text(f"open({str(ran)!r}, 'w').close()\nclass Evil:\n    pass\n")
    monkeypatch.syspath_prepend(str(module.parent))
    yield ran
    sys.modules.pop(EVIL, None)


CODE = {
    "py-io-impl": f"{EVIL}.Evil",
    "write.py-location-provider.impl": f"{EVIL}.Evil",
    "write.location-provider.impl": f"{EVIL}.Evil",
    "py-catalog-impl": f"{EVIL}.Evil",
    "s3.retry-strategy-impl": f"{EVIL}.Evil",
    "s3.signer": f"{EVIL}.Evil",
    "s3.endpoint": "http://127.0.0.1:9/",
    "s3.access-key-id": "theirs",
    "s3.proxy-uri": "http://127.0.0.1:9/",
    "adls.account-name": "theirs",
    "gcs.oauth2.token": "theirs",
    "token": "theirs",
    "DEFAULT_SCHEME": "hdfs",
    "metrics-reporter-impl": f"{EVIL}.Evil",
    "commit.manifest-merge.enabled": "true",
    "commit.retry.num-retries": "9999999",
    "write.parquet.row-group-limit": "0",
    "write.parquet.compression-codec": "nonsense",
    "write.format.default": "nonsense",
    "write.metadata.previous-versions-max": "none",
    "write.object-storage.enabled": "maybe",
    "format-version": "x",
}


def test_properties_name_nothing_that_is_loaded(lake: Lake, evil: Path) -> None:
    lake.change(lambda found: found["properties"].update(CODE))
    lake.reads_its_rows()
    kept = json.loads(lake.metadata().read_text())["properties"]
    assert kept.items() >= CODE.items(), "properties of others were changed"
    with pytest.raises(TidemarkError, match=r"sink\.not_empty"):
        check(lake.target.chosen(lake.model.table), lake.model.table, "t")
    lake.writer().remove()
    assert not list(lake.folder.rglob("*.parquet"))
    assert not evil.exists() and EVIL not in sys.modules


def test_the_client_alone_would_have_loaded_it(lake: Lake, evil: Path) -> None:
    lake.change(lambda found: found["properties"].update({"py-io-impl": CODE["py-io-impl"]}))
    with pytest.raises(TypeError):
        lake.target.lake().load_table(f"shop.{lake.model.table.name}")
    assert evil.exists()


def test_properties_of_the_namespace_move_nothing(lake: Lake, evil: Path) -> None:
    for key, value in {**CODE, "location": f"file://{lake.outside}"}.items():
        lake.sql(
            "INSERT INTO iceberg_namespace_properties VALUES ('default', 'shop', ?, ?)", key, value
        )
    model = Model(FINITE[:2])
    sink = lake.target.sink(model.table, new_identity())
    sink.open(None)
    sink.write([model.epoch()])
    require(lake.target, model, model.number)
    assert os.listdir(lake.outside) == ["secret"] and not evil.exists()


@pytest.mark.parametrize("name", ["write.data.path", "write.metadata.path"])
def test_files_are_not_written_elsewhere(lake: Lake, name: str) -> None:
    lake.change(lambda found: found["properties"].update({name: f"file://{lake.outside}"}))
    lake.reads_its_rows()
    assert os.listdir(lake.outside) == ["secret"]


def test_a_location_elsewhere_is_refused(lake: Lake) -> None:
    for place in (f"file://{lake.outside}", f"file://{lake.target.path}/wh", "s3://theirs/t"):
        lake.change(lambda found, place=place: found.update(location=place))
        lake.refusals({"path.forbidden"})
    assert len(list(lake.folder.rglob("*.parquet"))) == 1, "files were removed"


def test_metadata_elsewhere_is_not_read(lake: Lake) -> None:
    valid = f"file://{lake.metadata()}"
    copy = lake.outside / "00000-a.metadata.json"
    shutil.copy(lake.metadata(), copy)
    folder = str(lake.folder)
    for location in (
        "file:///etc/passwd",
        f"file://{lake.outside}/secret",
        f"file://{copy}",
        str(copy),
        f"file://{folder}/metadata/../../../../../outside/secret",
        f"file://{folder}/%2e%2e/%2e%2e/secret",
        f"file://{folder}//etc/passwd",
        f"file://localhost{folder}/metadata/x",
        f"file://{folder}\\..\\x",
        f"file://{folder}",
        f"file://{folder}-other/secret",
        "http://127.0.0.1:9/metadata.json",
        "s3://theirs/metadata.json",
        "hf://datasets/x",
        "",
        "\0",
    ):
        lake.name(location)
        lake.refusals(REFUSED | {"sink.unreachable"})
    lake.name(valid)
    lake.reads_its_rows()


def test_a_link_among_the_files_is_not_followed(lake: Lake) -> None:
    link = lake.metadata().with_name("00007-link.metadata.json")
    copy = lake.outside / "copy.json"
    shutil.copy(lake.metadata(), copy)
    link.symlink_to(copy)
    lake.name(f"file://{link}")
    lake.refusals({"path.forbidden"})
    link.unlink()
    shutil.copy(copy, link)
    lake.reads_its_rows()


def test_a_folder_that_becomes_a_link_is_not_written_to(lake: Lake) -> None:
    data = lake.folder / "data"
    data.rename(lake.folder / "moved")
    data.symlink_to(lake.outside)
    sink = lake.writer()
    sink.open(lake.model.number)
    epoch = lake.model.epoch()
    with pytest.raises(TidemarkError, match=r"path\.forbidden"):
        sink.write([epoch])
    assert os.listdir(lake.outside) == ["secret"]
    data.unlink()
    (lake.folder / "moved").rename(data)
    again = lake.writer()
    again.open(epoch.number - 1)
    again.write([epoch])
    require(lake.target, lake.model, epoch.number)


def test_manifests_elsewhere_are_not_read(lake: Lake) -> None:
    for location in (f"file://{lake.outside}/secret", "file:///etc/passwd", "s3://theirs/x"):
        valid = lake.metadata()

        def edit(found: dict[str, Any], location: str = location) -> None:
            found["snapshots"][-1]["manifest-list"] = location

        lake.change(edit)
        with pytest.raises(TidemarkError) as refused:
            lake.writer().open(lake.model.number)
        assert refused.value.code == "path.forbidden"
        assert PLANTED not in refused.value.described
        lake.name(f"file://{valid}")
    lake.reads_its_rows()


def test_old_metadata_elsewhere_is_not_deleted(lake: Lake) -> None:
    entry = {"metadata-file": f"file://{lake.outside}/secret", "timestamp-ms": 1}

    def edit(found: dict[str, Any]) -> None:
        found["metadata-log"] = [entry] * 200

    lake.change(edit)
    lake.reads_its_rows()
    assert (lake.outside / "secret").exists()


def test_broken_metadata_is_an_error_with_a_code(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the metadata is: cut, of other types, too deep, too large, in a circle."""
    valid, random_ = lake.metadata(), random.Random(3)
    content = valid.read_text()
    whole = json.loads(content)
    broken = [content[: random_.randrange(len(content))] for _ in range(FILES)]
    for key in whole:
        for value in random_.sample([None, [], {}, -1, "x", 1e400, [[]], {"a": {}}], 2):
            broken.append(json.dumps({**whole, key: value}))
    broken += ["[" * 100_000, "\ud800".encode("utf-8", "surrogatepass").decode("latin-1"), ""]
    path = valid.with_name("00009-broken.metadata.json")
    lake.name(f"file://{path}")
    for text in broken:
        path.write_text(text.replace("1e400", PLANTED))
        _opens_or_is_refused(lake)
    packed = valid.with_name("00009-x.gz.metadata.json")
    lake.name(f"file://{packed}")
    monkeypatch.setattr("connectors.iceberg.catalog.MAX_BYTES", 1 << 20)
    packed.write_bytes(gzip.compress(b" " * (8 << 20) + content.encode()))
    lake.refusals({"sink.bad_metadata"})
    packed.write_bytes(gzip.compress(content.encode()))
    lake.reads_its_rows()


def _opens_or_is_refused(lake: Lake) -> None:
    try:
        lake.writer().open(lake.model.number)
    except TidemarkError as error:
        assert PLANTED not in f"{error} {error.described}"
        assert error.code.startswith(("sink.", "path.")), error.code


def test_a_large_file_is_refused(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_files, "MAX_BYTES", 100)
    lake.refusals({"sink.bad_metadata"})
    monkeypatch.undo()


def test_snapshots_in_a_circle_end(lake: Lake) -> None:
    def edit(found: dict[str, Any]) -> None:
        for snapshot in found["snapshots"]:
            snapshot["summary"].pop(SINK, None)
            snapshot["parent-snapshot-id"] = found["current-snapshot-id"]

    lake.change(edit)
    with pytest.raises(TidemarkError, match=r"sink\.lost"):
        lake.writer().open(lake.model.number)


# --- the catalog's file ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "/in/%2e%2e/outside/x.db",
        "/in/../outside/x.db",
        "/in/x.db?vfs=unix-none",
        "/in/x.db#y",
        "/in/x\\y.db",
        "/in/x.db\n",
        "/in/x.db\0",
    ],
)
def test_a_catalog_is_named_by_a_plain_path(tmp_path: Path, path: str) -> None:
    table = Model().table
    options = {"path": f"{tmp_path}/in", "catalog": f"sqlite:///{tmp_path}{path}"}
    with pytest.raises(TidemarkError, match=r"sink\.bad_option"):
        make(options, table, new_identity(), "t")
    make({**options, "catalog": f"sqlite:///{tmp_path}/in/x y.db"}, table, new_identity(), "t")
    assert not list(tmp_path.iterdir())


def test_a_catalog_that_is_a_link_is_refused(lake: Lake) -> None:
    theirs = lake.outside / "theirs.db"
    shutil.move(lake.target.catalog, theirs)
    Path(lake.target.catalog).symlink_to(theirs)
    lake.refusals({"path.forbidden"})
    Path(lake.target.catalog).unlink()
    shutil.move(theirs, lake.target.catalog)
    lake.reads_its_rows()


TRIGGERS = [
    "CREATE TRIGGER x AFTER UPDATE ON iceberg_tables BEGIN"
    " UPDATE iceberg_namespace_properties SET property_value = 'ran'; END",
    "ALTER TABLE iceberg_tables RENAME TO them; CREATE VIEW iceberg_tables AS"
    " WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT them.* FROM them, n",
]


@pytest.mark.parametrize("script", TRIGGERS, ids=["trigger", "view"])
def test_code_in_the_catalog_does_not_run(lake: Lake, script: str) -> None:
    with sqlite3.connect(lake.target.catalog) as opened:
        opened.executescript(script)
    with pytest.raises(TidemarkError, match=r"sink\.unreachable"):
        lake.writer().open(lake.model.number)
    assert lake.sql("SELECT property_value FROM iceberg_namespace_properties") == [("true",)]


def test_the_connection_attaches_and_loads_nothing(lake: Lake) -> None:
    catalog = SinkCatalog(IcebergOptions.of(lake.target.chosen(lake.model.table), lake.model.table))
    with catalog.engine.connect() as connection:
        connection.exec_driver_sql("SELECT count(*) FROM iceberg_tables")
        for statement in (
            f"ATTACH '{lake.outside}/x.db' AS x",
            f"VACUUM INTO '{lake.outside}/x.db'",
            "SELECT load_extension('x')",
            "PRAGMA writable_schema = 1",
            "CREATE TEMP VIEW x AS SELECT 1",
        ):
            with pytest.raises(Exception, match=r"authorized|denied|prohibited"):
                connection.exec_driver_sql(statement)
    assert os.listdir(lake.outside) == ["secret"]


# --- a bucket --------------------------------------------------------------------------------


def test_a_bucket_is_reached_as_the_options_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, evil: Path
) -> None:
    monkeypatch.setattr(netguard, "_guard", netguard.Guard(writable=(str(tmp_path),)))
    with object_store(monkeypatch) as url:
        path, options, endpoint = bucket_facts(url, monkeypatch)
        target = IcebergTarget(path, options, endpoint, catalog=f"{tmp_path}/catalog.db")
        model, identity = Model(FINITE[:3]), new_identity()
        sink = target.sink(model.table, identity)
        sink.open(None)
        sink.write([model.epoch()])
        files = target.files()
        with sqlite3.connect(target.catalog) as opened:
            ((named,),) = opened.execute("SELECT metadata_location FROM iceberg_tables")
            hostile = named.rpartition("/")[0] + "/00009-hostile.metadata.json"
            with files.open_input_file(named.removeprefix("s3://")) as file:
                found = json.loads(file.readall())
            found["properties"] |= CODE
            with files.open_output_stream(hostile.removeprefix("s3://")) as file:
                file.write(json.dumps(found).encode())
            opened.execute("UPDATE iceberg_tables SET metadata_location = ?", (hostile,))
        again = target.sink(model.table, identity)
        assert again.open(model.number) == model.number
        again.write([model.epoch()])
        assert not evil.exists()
        own = SinkCatalog(IcebergOptions.of(target.chosen(model.table), model.table)).found()
        assert own is not None and own.stored.items() >= CODE.items()
        again.remove()
        lake = SqlCatalog("default", uri=f"sqlite:///{target.catalog}")
        assert not lake.table_exists(f"shop.{model.table.name}")
