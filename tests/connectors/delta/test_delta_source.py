"""Oracle: the rows that Delta's own client reads of a table's newest version."""

from __future__ import annotations

import shutil
from collections import Counter
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from connectors import netguard
from connectors.delta import ranges
from connectors.delta.file_part import CHANGE_TYPE
from connectors.delta.table_options import read_options
from connectors.sink import SinkTable
from connectors.view_sink import ViewEpoch
from dataflow.errors import SourceError
from dataflow.schema import Field
from dataflow.types import INT4, TEXT
from tests.connectors.delta.reading import DeltaTarget
from tests.connectors.delta.table_source import (
    FEED,
    Orders,
    Reader,
    Row,
    declared,
    rows_of,
    source_of,
)
from tests.connectors.delta.written_table import WrittenTable, column, metadata, remove, without
from tests.harness.lake_files import bucket_facts
from tests.harness.object_store import object_server
from tests.harness.sink_contract import POSITION, delta_of, new_identity
from tests.harness.tiers import count


@pytest.mark.parametrize("seed", range(count("TIDEMARK_TEST_DELTA_TABLES", 6, 60)))
def test_any_commits_are_the_newest_version(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    path = tmp_path / "orders"
    orders = Orders(path, random, is_partitioned=seed % 2 == 0, has_feed=seed % 3 != 0)
    for _ in range(random.randrange(4)):
        orders.change()
    reader = Reader(source_of(path))
    for _ in range(8):
        for _ in range(random.randrange(4)):
            orders.change()
        # A run that ends early is one that was killed.
        reader.read(random.choice([1, 4, 1000]), random.randrange(1, 4), random.choice([1, 2, 99]))
    reader.read()
    assert reader.rows == rows_of(path), f"seed {seed}"
    assert reader.read() == 0


def test_one_process_reads_it_too(tmp_path: Path) -> None:
    path = tmp_path / "orders"
    orders = Orders(path, Random(4), is_partitioned=False, has_feed=True)
    source = source_of(path)
    reader = Reader(source)
    positions: Any = {"orders": source.first_position(source.relations()[0]).position}
    for change in (orders.append, orders.update, orders.delete):
        change()
        end = source.current_end(source.relations())
        for batch in source.read_until(source.relations(), positions, {}, end, 4):
            for changes in batch.changes:
                reader.add(changes)
            positions = batch.positions
        assert +reader.rows == rows_of(path)


def test_columns_that_are_in_no_file(tmp_path: Path) -> None:
    path = tmp_path / "orders"
    Orders(path, Random(3), is_partitioned=True, has_feed=True)
    reader = Reader(source_of(path, {"region": "text"}))
    reader.read()
    expected: Counter[Any] = Counter()
    for (_, region, *_), times in rows_of(path).items():
        expected[(region,)] += times
    assert reader.rows == expected


def test_a_table_that_is_replaced_in_its_log_is_read(tmp_path: Path) -> None:
    """CREATE OR REPLACE TABLE gives it another id. Oracle: the rows as written."""
    path = tmp_path / "orders"
    table = WrittenTable(path)
    first = table.add(pa.table({"id": [1, 2]}))
    table.commit(metadata([column("id", "long")]), first)
    reader = Reader(source_of(path, {"id": "bigint"}))
    reader.read()
    replaced = metadata([column("id", "long")])
    replaced["metaData"]["id"] = "00000000-0000-0000-0000-000000000002"
    table.commit(replaced, remove(first), table.add(pa.table({"id": [3]})))
    reader.read()
    table.commit(table.add(pa.table({"id": [4]})))
    reader.read()
    assert reader.rows == {(3,): 1, (4,): 1}


def test_a_large_file_is_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Oracle: the rows as written."""
    path = tmp_path / "orders"
    table = WrittenTable(path)
    rows = pa.table({"id": range(20)})
    changed = pa.table({"id": range(10), CHANGE_TYPE: ["delete", "update_preimage"] * 5})
    table.commit(metadata([column("id", "long")]), table.add(rows))
    monkeypatch.setattr(ranges, "PART_BYTES", 300)
    reader = Reader(source_of(path, {"id": "bigint"}))
    batches = 0
    while reader.read(max_rows=8, batches=1):
        batches += 1
    assert batches > 1
    assert reader.rows == Counter((n,) for n in range(20))
    table.commit(table.cdc(changed), remove(table.add(rows)))
    assert reader.read(max_rows=4) > 2
    assert reader.rows == Counter((n,) for n in range(10, 20))


def test_deletion_vectors_hide_rows(tmp_path: Path) -> None:
    """Oracle: the client's own reader, and its change feed."""
    path = tmp_path / "orders"
    table = WrittenTable(path, ["deletionVectors"])
    first = table.add(pa.table({"id": range(10)}))
    table.commit(metadata([column("id", "long")]), first)
    early = Reader(source_of(path, {"id": "bigint"}))
    early.read()
    old = first
    for rows in ([2, 7], [2, 4, 7, 8], [4], [0, 4, 9]):
        new = without(first, rows)
        table.commit(remove(old), new)
        old = new
        late = Reader(source_of(path, {"id": "bigint"}))
        for reader in (early, late):
            reader.read(max_rows=3)
            expected = pa.table(DeltaTable(path).scan())["id"].to_pylist()
            assert reader.rows == Counter((n,) for n in expected)
    table.commit(remove(old))
    early.read()
    assert not early.rows


def mapped(*names: tuple[str, str]) -> dict[str, Any]:
    columns = [column(n, "long", physical, at) for at, (n, physical) in enumerate(names, start=1)]
    return metadata(columns, delta_columnMapping_mode="name")


def test_mapped_columns_are_found_by_their_names_in_files(tmp_path: Path) -> None:
    """Oracle: the client's own reader."""
    path = tmp_path / "orders"
    table = WrittenTable(path, ["columnMapping"])
    table.commit(mapped(("id", "c1"), ("x", "c2")), table.add(pa.table({"c1": [1], "c2": [2]})))
    reader = Reader(source_of(path, {"id": "bigint"}))
    reader.read()
    # Another column is renamed, which is none of ours.
    table.commit(mapped(("id", "c1"), ("y", "c2")))
    rows = pa.table({"c1": [3, 1], "c2": [4, 2], CHANGE_TYPE: ["insert", "delete"]})
    table.commit(table.cdc(rows))
    reader.read()
    assert reader.rows == {(3,): 1}
    table.commit(mapped(("number", "c1"), ("y", "c2")))
    with pytest.raises(SourceError, match=r"source\.column_dropped"):
        reader.read()


def test_a_column_that_was_dropped_and_added_again_is_another(tmp_path: Path) -> None:
    path = tmp_path / "orders"
    table = WrittenTable(path, ["columnMapping"])
    table.commit(mapped(("id", "c1"), ("x", "c2")), table.add(pa.table({"c1": [1], "c2": [2]})))
    reader = Reader(source_of(path, {"id": "bigint", "x": "bigint"}))
    reader.read()
    table.commit(mapped(("id", "c1")))
    table.commit(mapped(("id", "c1"), ("x", "c3")))
    with pytest.raises(SourceError, match=r"source\.column_dropped") as found:
        reader.read()
    assert "version 1" in found.value.detail
    # A reader that begins now finds the new one.
    late = Reader(source_of(path, {"id": "bigint", "x": "bigint"}))
    late.read()
    assert late.rows == {(1, None): 1}


@pytest.mark.parametrize(
    ("old", "new", "type", "values"),
    [
        ("integer", "long", "bigint", (pa.int32(), 5, pa.int64(), 2**40)),
        ("integer", "long", "text", (pa.int32(), 5, pa.int64(), 2**40)),
        ("float", "double", "float8", (pa.float32(), 0.1, pa.float64(), 0.3)),
        ("decimal(8,2)", "decimal(12,4)", "numeric(14,4)",
         (pa.decimal128(8, 2), Decimal("1.25"), pa.decimal128(12, 4), Decimal("1.2345"))),
    ],
)  # fmt: skip
def test_a_widened_type_is_read_as_before(
    tmp_path: Path, old: str, new: str, type: str, values: tuple[Any, ...]
) -> None:
    """Oracle: the old row, read with its new type, is removed by its rewritten form."""
    path = tmp_path / "orders"
    table = WrittenTable(path, ["typeWidening"])
    narrow, first, wide, second = values
    added = table.add(pa.table({"v": pa.array([first], narrow)}))
    table.commit(metadata([column("v", old)]), added)
    reader = Reader(source_of(path, {"v": type}))
    reader.read()
    changed = pa.concat_arrays([pa.array([first], narrow).cast(wide), pa.array([second], wide)])
    table.commit(metadata([column("v", new)]))
    table.commit(table.cdc(pa.table({"v": changed, CHANGE_TYPE: ["delete", "insert"]})))
    reader.read()
    assert sum(reader.rows.values()) == 1 and len(reader.rows) == 1


@pytest.mark.parametrize(
    ("old", "new", "type"),
    [("float", "double", "text"), ("decimal(8,2)", "decimal(12,4)", "numeric"),
     ("integer", "double", "float8"), ("long", "string", "text")],
)  # fmt: skip
def test_a_type_that_would_be_read_otherwise_is_refused(
    tmp_path: Path, old: str, new: str, type: str
) -> None:
    table = WrittenTable(tmp_path / "orders", ["typeWidening"])
    table.commit(metadata([column("v", old)]))
    reader = Reader(source_of(tmp_path / "orders", {"v": type}))
    reader.read()
    table.commit(metadata([column("v", new)]))
    with pytest.raises(SourceError, match=r"source\.column_changed"):
        reader.read()


def test_a_new_column_is_null_in_old_rows(tmp_path: Path) -> None:
    """Columns that nobody declared come and go."""
    path = tmp_path / "orders"
    write_deltalake(path, pa.table({"id": [1]}), configuration=FEED)
    reader = Reader(source_of(path, {"id": "bigint"}))
    reader.read()
    rows = pa.table({"id": [2], "x": [3]})
    write_deltalake(path, rows, mode="append", schema_mode="merge")
    reader.read()
    assert reader.rows == {(1,): 1, (2,): 1}
    late = Reader(source_of(path, {"id": "bigint", "x": "bigint"}))
    late.read()
    assert late.rows == {(1, None): 1, (2, 3): 1}
    write_deltalake(path, pa.table({"id": [4]}), mode="overwrite", schema_mode="overwrite")
    reader.read()
    assert reader.rows == {(4,): 1}
    with pytest.raises(SourceError, match=r"source\.column_dropped"):
        late.read()


def test_what_vacuum_deleted_is_an_error_by_name(tmp_path: Path) -> None:
    path = tmp_path / "orders"
    write_deltalake(path, pa.table({"id": [1, 2]}), configuration=FEED)
    reader = Reader(source_of(path, {"id": "bigint"}))
    reader.read()
    DeltaTable(path).delete("id = 1")
    write_deltalake(path, pa.table({"id": [3]}), mode="overwrite")
    DeltaTable(path).vacuum(0, dry_run=False, enforce_retention_duration=False)
    for name in path.rglob("_change_data/*"):
        name.unlink()
    with pytest.raises(SourceError, match=r"delta\.version_gone"):
        reader.read()
    again = Reader(source_of(path, {"id": "bigint"}))
    again.read()
    assert again.rows == {(3,): 1}


@pytest.mark.parametrize("first", [1, 2])
def test_a_log_that_was_cleaned_up_is_an_error_by_name(tmp_path: Path, first: int) -> None:
    path = tmp_path / "orders"
    write_deltalake(path, pa.table({"id": [0]}), configuration=FEED)
    reader = Reader(source_of(path, {"id": "bigint"}))
    reader.read()
    for number in (1, 2, 3):
        write_deltalake(path, pa.table({"id": [number]}), mode="append")
    DeltaTable(path).create_checkpoint()
    for number in range(first):
        (path / "_delta_log" / f"{number:020}.json").unlink()
    with pytest.raises(SourceError, match=r"delta\.version_gone"):
        reader.read()


def test_a_table_of_the_same_path_is_another_one(tmp_path: Path) -> None:
    path = tmp_path / "orders"
    write_deltalake(path, pa.table({"id": [0]}))
    write_deltalake(path, pa.table({"id": [1]}), mode="append")
    reader = Reader(source_of(path, {"id": "bigint"}))
    reader.read()
    for commits in (1, 4):
        shutil.rmtree(path)
        for number in range(commits):
            write_deltalake(path, pa.table({"id": [number]}), mode="append")
        with pytest.raises(SourceError, match=r"delta\.table_replaced"):
            reader.read()
    shutil.rmtree(path)
    with pytest.raises(SourceError, match=r"source\.table_missing"):
        reader.read()


@pytest.mark.parametrize("feature", ["variantType", "of another year"])
def test_features_that_are_not_known_are_refused(tmp_path: Path, feature: str) -> None:
    table = WrittenTable(tmp_path / "orders", [feature])
    table.commit(metadata([column("id", "long")]))
    with pytest.raises(SourceError, match=r"delta\.feature"):
        Reader(source_of(tmp_path / "orders", {"id": "bigint"})).read()


def test_a_feature_that_comes_later_is_refused(tmp_path: Path) -> None:
    table = WrittenTable(tmp_path / "orders")
    table.commit(metadata([column("id", "long")]))
    reader = Reader(source_of(tmp_path / "orders", {"id": "bigint"}))
    reader.read()
    table.protocol["readerFeatures"] = table.protocol["writerFeatures"] = ["variantType"]
    table.commit({"protocol": table.protocol})
    with pytest.raises(SourceError, match=r"delta\.feature"):
        reader.read()


@pytest.mark.parametrize("path", ["s3://other/a.parquet", "../a.parquet", "file:///etc/passwd"])
def test_files_outside_of_the_table_are_refused(tmp_path: Path, path: str) -> None:
    table = WrittenTable(tmp_path / "orders")
    table.commit(metadata([column("id", "long")]))
    reader = Reader(source_of(tmp_path / "orders", {"id": "bigint"}))
    reader.read()
    added = table.add(pa.table({"id": [1]}))
    added["add"]["path"] = path
    table.commit(added)
    with pytest.raises(SourceError, match=r"delta\.feature"):
        reader.read()


def test_a_folder_that_is_not_allowed_is_not_read(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "orders", pa.table({"id": [0]}))
    before = netguard.installed()
    netguard.install(netguard.Guard(folders=(str(tmp_path / "other"),)))
    try:
        with pytest.raises(SourceError, match=r"path\.forbidden"):
            Reader(source_of(tmp_path / "orders", {"id": "bigint"})).read()
    finally:
        netguard.install(before)


def test_append_only_relations_refuse_deletions(tmp_path: Path) -> None:
    path = tmp_path / "orders"
    write_deltalake(path, pa.table({"id": [0]}), configuration=FEED)
    reader = Reader(source_of(path, {"id": "bigint"}, append_only=True))
    reader.read()
    write_deltalake(path, pa.table({"id": [1]}), mode="append")
    DeltaTable(path).optimize.compact()
    reader.read()
    assert reader.rows == {(0,): 1, (1,): 1}
    DeltaTable(path).delete("id = 1")
    with pytest.raises(SourceError, match=r"delta\.append_only"):
        reader.read()


def test_rows_that_do_not_fit_are_named_or_left_out(tmp_path: Path) -> None:
    """A row that is left out is left out again when it is deleted."""
    path = tmp_path / "orders"
    write_deltalake(path, pa.table({"id": [1, 70_000]}), configuration=FEED)
    with pytest.raises(SourceError, match=r"source\.bad_record") as found:
        Reader(source_of(path, {"id": "smallint"})).read()
    assert "row 2" in found.value.detail
    reader = Reader(source_of(path, {"id": "smallint"}, on_error="skip"))
    reader.read()
    assert reader.rows == {(1,): 1}
    DeltaTable(path).delete("true")
    reader.read()
    assert not reader.rows


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    table = WrittenTable(tmp_path / "orders")
    added = table.add(pa.table({"id": [1]}))
    table.commit(metadata([column("id", "long")]), added)
    (tmp_path / "orders" / "part 1.parquet").write_bytes(b"PAR1 no more")
    with pytest.raises(SourceError, match=r"delta\.file"):
        Reader(source_of(tmp_path / "orders", {"id": "bigint"})).read()


def test_timestamps_of_any_writer_are_equal(tmp_path: Path) -> None:
    """INT96 and microseconds; declared as text, a value has one form too."""
    table = WrittenTable(tmp_path / "orders")
    at = pa.array([datetime(2024, 1, 2, 3, 4, 5, 600)], pa.timestamp("us", "UTC"))
    added = table.add(pa.table({"t": at}))
    table.commit(metadata([column("t", "timestamp")]), added)
    reader = Reader(source_of(tmp_path / "orders", {"t": "text"}))
    reader.read()
    changed = pa.table({"t": at, CHANGE_TYPE: ["delete"]})
    action = table.cdc(changed)
    path = tmp_path / "orders" / action["cdc"]["path"].replace("%20", " ")
    pq.write_table(changed, path, use_deprecated_int96_timestamps=True)
    table.commit(action)
    reader.read()
    assert not reader.rows


@pytest.mark.parametrize(
    ("more", "named"),
    [({"path": "orders"}, "path"), ({"colums": []}, "colums"), ({"columns": []}, "columns"),
     ({"on_error": "ignore"}, "on_error"), ({"ca_file": "/a", "path": "s3://bucket/a"}, "ca_file")],
)  # fmt: skip
def test_options_are_refused_by_name(more: dict[str, Any], named: str) -> None:
    options = {"path": "/lake/orders", "columns": declared({"id": "bigint"}), **more}
    with pytest.raises(SourceError, match=r"source\.bad_option") as found:
        read_options({"relations": {"orders": options}})
    assert f"relations.orders.{named}" in found.value.what


def test_columns_that_the_table_lacks_are_named(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "orders", pa.table({"id": [0]}))
    with pytest.raises(SourceError, match=r"source\.bad_option") as found:
        Reader(source_of(tmp_path / "orders", {"no": "bigint"})).read()
    assert found.value.hint == "its columns are: id"


def test_the_table_of_our_own_sink(tmp_path: Path) -> None:
    """It has no change feed, so whole files are compared. Oracle: the rows written."""
    table = SinkTable("public", "v", (Field("id", INT4, False), Field("name", TEXT)), (0,))
    target = DeltaTarget(str(tmp_path), {"mode": "rows", "partition_by": ["name"]})
    sink = target.sink(table, new_identity())
    sink.open(None)
    reader = Reader(source_of(target.chosen(table)["path"], {"id": "integer", "name": "text"}))
    steps: list[tuple[dict[Row, int], Counter[Any]]] = [
        ({("1", "a"): 1, ("2", "b"): 1}, Counter([(1, b"a"), (2, b"b")])),
        ({("1", "a"): -1, ("2", "b"): -1, ("2", "x"): 1}, Counter([(2, b"x")])),
        ({("2", "x"): -1, ("2", "y"): 1, ("3", "y"): 1}, Counter([(2, b"y"), (3, b"y")])),
    ]
    for number, (step, expected) in enumerate(steps, start=1):
        delta = delta_of(table, step)
        sink.write([ViewEpoch(number, POSITION, [delta], len(delta), number == 1)])
        reader.read()
        assert reader.rows == expected
    sink.close()


def test_a_table_in_a_bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Oracle: the rows written. Executors get references to secrets, no secrets."""
    with object_server(tmp_path / "bucket", monkeypatch) as url:
        path, options, _ = bucket_facts(url, monkeypatch)
        path = f"{path}/orders"
        own = {"path": path, "columns": declared({"id": "bigint", "r": "text"}), **options}
        (found,) = read_options({"relations": {"orders": own}})
        write = {"storage_options": found.client(), "partition_by": ["r"]}
        write_deltalake(path, pa.table({"id": [1, 2], "r": ["a b", None]}), **write)
        reader = Reader(source_of(path, {"id": "bigint", "r": "text"}, **options))
        reader.read()
        assert reader.rows == {(1, b"a b"): 1, (2, None): 1}
        DeltaTable(path, storage_options=found.client()).delete("id = 1")
        reader.read()
        assert reader.rows == {(2, None): 1}
