"""Oracle: the model's rows at each epoch; DuckDB finds them through the newest manifest."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

from connectors import netguard
from connectors.parquet import manifests
from connectors.parquet.sink import check, make
from connectors.sink import SinkTable
from connectors.view_sink import ViewEpoch
from dataflow.errors import SinkError, SourceError
from dataflow.schema import Field
from dataflow.types import DATE, FLOAT8, INT4, TEXT, TIMESTAMPTZ, fixed
from tests.connectors.parquet.reading import ParquetTarget, folder_target
from tests.harness import sink_contract as contract
from tests.harness.lake_files import bucket_facts, killed
from tests.harness.object_store import object_server, object_store
from tests.harness.proxy import Proxy
from tests.harness.sink_contract import ALL, FINITE, POSITION, Model, delta_of, new_identity
from tests.harness.tiers import count

PAGE = Path(__file__).parents[3] / "docs" / "LAKE_SINKS.md"
KILLS = count("TIDEMARK_TEST_KILLS", 1, 20)
FAULTS = count("TIDEMARK_TEST_FAULTS", 3, 20)
PLACES = ("folder", "server")


def bucket_target(url: str, monkeypatch: pytest.MonkeyPatch, **more: Any) -> ParquetTarget:
    path, options, endpoint = bucket_facts(url, monkeypatch)
    return ParquetTarget(path, {**options, **more}, endpoint)


@pytest.fixture(params=PLACES)
def target(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ParquetTarget]:
    if request.param == "folder":
        yield folder_target(tmp_path)
        return
    with object_server(tmp_path / "bucket", monkeypatch) as url:
        yield bucket_target(url, monkeypatch)


@pytest.mark.parametrize("is_keyed", [True, False])
def test_every_epoch_is_the_view(target: ParquetTarget, is_keyed: bool) -> None:
    model = Model(is_keyed=is_keyed)
    contract.check_life(target, model)
    for epoch, rows in model.after.items():
        assert target.at(model.table, epoch) == rows
    manifest = target.manifest(model.table)
    assert manifest is not None and manifest["positions"] == POSITION
    assert manifest["first_epoch"] == 3


def test_changes_only_and_large_epochs(target: ParquetTarget) -> None:
    contract.check_changes_only(target, Model())
    contract.check_large_epoch(target, Model(), 1_000)


def test_torn_and_unknown_writes(target: ParquetTarget) -> None:
    contract.check_torn_write(target, Model())
    model = Model()
    contract.check_unknown_outcome(target, model)
    listed = {f["path"] for f in target.listed(model.table)}
    assert listed == set(target.names(model.table, "data")), "garbage was not removed"


def test_of_two_writers_the_later_continues(target: ParquetTarget) -> None:
    contract.check_fencing(target, Model())


def test_removal_and_loss(target: ParquetTarget) -> None:
    model = Model()
    contract.check_removal(target, model, lambda: not target.names(model.table))
    lost = Model()
    contract.check_loss(target, lost, lambda: target.lose(lost.table))


@pytest.mark.whole
def test_a_bucket_of_another_server(monkeypatch: pytest.MonkeyPatch) -> None:
    with object_store(monkeypatch) as url:
        target = bucket_target(url, monkeypatch, partition_by=["flag"])
        contract.check_life(target, Model())


def test_kills(tmp_path: Path) -> None:
    killed(folder_target(tmp_path), KILLS, 5)


@pytest.mark.whole
def test_kills_with_a_bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with object_server(tmp_path / "bucket", monkeypatch) as url:
        killed(bucket_target(url, monkeypatch), KILLS, 6)


@pytest.mark.whole
def test_network_faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with object_server(tmp_path / "bucket", monkeypatch) as url:
        target = bucket_target(url, monkeypatch)
        with Proxy(int(target.endpoint.rpartition(":")[2])) as proxy:
            target.options["endpoint"] = f"http://127.0.0.1:{proxy.port}"
            contract.check_faults(target, Model(FINITE[:4]), proxy, FAULTS, 7)


def test_partitions_are_folders(tmp_path: Path) -> None:
    fields = (Field("id", INT4, False), Field("region", TEXT), Field("day", DATE))
    table = SinkTable("public", "v", fields, (0,))
    target = folder_target(tmp_path, partition_by=["region", "day"])
    rows = {("1", "a/b", "2024-01-01"): 1, ("2", None, "2024-01-01"): 1, ("3", "a/b", None): 1}
    sink = target.sink(table, new_identity())
    sink.open(None)
    sink.write([ViewEpoch(1, POSITION, [delta_of(table, rows)], 3, True)])
    gone = {("1", "a/b", "2024-01-01"): -1, ("4", "a/b", "2024-01-01"): 1}
    sink.write([ViewEpoch(2, POSITION, [delta_of(table, gone)], 2)])
    assert target.read(table) == (Counter([*rows, ("4", "a/b", "2024-01-01")][1:]), 2)
    folders = {os.path.dirname(name) for name in target.names(table, "data")}
    null = "__HIVE_DEFAULT_PARTITION__"
    assert folders == {
        "data/region=a%2Fb/day=2024-01-01",
        f"data/region={null}/day=2024-01-01",
        f"data/region=a%2Fb/day={null}",
    }
    assert {json.dumps(f["partition"]) for f in target.listed(table)} == {
        '{"region": "a/b", "day": "2024-01-01"}',
        '{"region": null, "day": "2024-01-01"}',
        '{"region": "a/b", "day": null}',
    }
    sink.close()


def test_files_are_bounded(tmp_path: Path) -> None:
    table = SinkTable("public", "v", (Field("id", INT4, False), Field("note", TEXT)), (0,))
    target = folder_target(tmp_path, max_file_mb=1)
    sink = target.sink(table, new_identity())
    sink.open(None)
    deltas = [
        delta_of(table, {(str(n * 10_000 + k), os.urandom(60).hex()): 1 for k in range(10_000)})
        for n in range(6)
    ]
    sink.write([ViewEpoch(1, POSITION, deltas, 60_000, True)])
    files = target.listed(table)
    assert len(files) > 2 and sum(f["rows"] for f in files) == 60_000
    assert all(f["bytes"] < 20 << 20 for f in files)
    sink.close()


def test_manifests_stay_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("MAX_FILES", 5), ("MAX_CHECKPOINTS", 3), ("KEEP_VERSIONS", 8)):
        monkeypatch.setattr(manifests, name, value)
    target, model, identity = folder_target(tmp_path), Model(FINITE[:2]), new_identity()
    sink = target.sink(model.table, identity)
    sink.open(None)
    for _ in range(60):
        sink.write([model.epoch(3)])
        contract.require(target, model, model.number)
    kept = [n for n in target.names(model.table, "_tidemark") if "manifest-" in n]
    assert len(kept) <= 9
    sink.close()
    sink.open(model.number)
    manifest = target.manifest(model.table)
    assert manifest is not None and len(manifest["checkpoints"]) <= 4
    assert len(target.names(model.table, "_tidemark")) <= 9 + 12
    contract.require(target, model, model.number)
    sink.close()


def test_values_that_a_lake_lacks_are_refused_by_name(tmp_path: Path) -> None:
    cases: list[tuple[Any, str]] = [(fixed(12, 2), "NaN"), (DATE, "infinity")]
    for kind, text in [*cases, (TIMESTAMPTZ, "-infinity"), (DATE, "0044-03-15 BC")]:
        table = SinkTable("public", f"v{len(text)}", (Field("id", INT4), Field("odd", kind)), ())
        sink = folder_target(tmp_path / text.replace(" ", "")).sink(table, new_identity())
        sink.open(None)
        with pytest.raises(SinkError) as raised:
            sink.write([ViewEpoch(1, POSITION, [delta_of(table, {("1", text): 1})], 1, True)])
        assert raised.value.code == "sink.value_unfit" and '"odd"' in raised.value.what


def test_special_values_that_fit(tmp_path: Path) -> None:
    pools = [pool for pool in ALL if pool[0] in ("total", "x", "y", "clock")]
    contract.check_life(folder_target(tmp_path), Model(pools, is_keyed=False))


OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({}, '"path" is missing'),
    ({"path": "lake"}, "an absolute path"),
    ({"path": "/lake/../etc"}, 'has ".." in it'),
    ({"path": "s3://a b/x"}, "valid bucket"),
    ({"path": "/x", "endpoint": "http://a"}, "options of a bucket"),
    ({"path": "s3://bucket/x", "access_key": "${env:SECRET_A}"}, "require each other"),
    ({"path": "s3://bucket/x", "endpoint": "a:9000"}, "must be http://"),
    ({"path": "/x", "partition_by": ["colour"]}, "no column"),
    ({"path": "/x", "partition_by": ["x"]}, "bytes or floats"),
    ({"path": "/x", "partition_by": ["id", "id"]}, "twice"),
    ({"path": "/x", "max_file_mb": 0}, "between"),
    ({"path": "/x", "max_delay_s": -1}, "between"),
    ({"path": "/x", "speed": 1}, "unknown"),
]


@pytest.mark.parametrize(("options", "why"), OPTIONS)
def test_bad_options_are_refused(options: dict[str, Any], why: str) -> None:
    table = SinkTable("public", "v", (Field("id", INT4), Field("x", FLOAT8)), ())
    with pytest.raises(SinkError) as raised:
        make(options, table, new_identity(), "t")
    assert raised.value.code == "sink.bad_option" and why in str(raised.value)


def test_secrets_are_references() -> None:
    options = {"path": "s3://bucket/x", "access_key": "AKID"}
    made = lambda options: make(options, Model().table, new_identity(), "t")  # noqa: E731
    contract.require_reference(made, options, "secret_key")


def test_check_leaves_nothing(target: ParquetTarget) -> None:
    model = Model()
    found = check(target.chosen(model.table), model.table, "t")
    assert found["max_delay_s"] == 10.0
    assert target.names(model.table) == []
    if not target.endpoint:
        assert not os.path.exists(found["path"])


def test_check_refuses_what_is_in_use(target: ParquetTarget, tmp_path: Path) -> None:
    model = Model()
    chosen = target.chosen(model.table)
    contract.check_others_are_refused(target, model, lambda: check(chosen, model.table, "t"))


def test_columns_with_our_names_are_refused(tmp_path: Path) -> None:
    for names in (("_epoch",), ("a", "A")):
        table = SinkTable("public", "v", tuple(Field(n, INT4) for n in names), ())
        with pytest.raises(SinkError) as raised:
            check({"path": str(tmp_path)}, table, "t")
        assert raised.value.code == "sink.column_name"


def test_a_folder_must_be_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(netguard, "_guard", netguard.Guard(folders=(str(tmp_path),)))
    target = folder_target(tmp_path)
    with pytest.raises(SourceError) as raised:
        target.sink(Model().table, new_identity()).open(None)
    assert raised.value.code == "path.forbidden" and "TIDEMARK_SINK_FOLDERS" in raised.value.hint
    assert list(tmp_path.iterdir()) == []


def test_the_reader_of_the_documentation(tmp_path: Path) -> None:
    example = PAGE.read_text().split("```python\n")[1].split("```")[0]
    names: dict[str, Any] = {"duckdb": duckdb}
    exec(example, names)
    target, model = folder_target(tmp_path), Model([FINITE[7]], is_keyed=False)
    sink = target.sink(model.table, new_identity())
    sink.open(None)
    for _ in range(8):
        sink.write([model.epoch()])
    sink.close()
    for epoch, rows in model.after.items():
        found = names["rows_at"](target.chosen(model.table)["path"], epoch).fetchall()
        assert Counter({(str(i), name): n for i, name, n in found}) == rows
