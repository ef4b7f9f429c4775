"""Oracle: the model's rows at each epoch; a scan by pyiceberg, in another process, shows them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from connectors import netguard
from connectors.iceberg.sink import check, make
from dataflow.errors import SourceError
from tests.connectors.iceberg.reading import IcebergTarget
from tests.harness import sink_contract as contract
from tests.harness.lake_files import bucket_facts, killed
from tests.harness.lake_texts import apart
from tests.harness.object_store import object_server
from tests.harness.proxy import Proxy
from tests.harness.sink_contract import FINITE, Model, new_identity
from tests.harness.tiers import count

KILLS = count("TIDEMARK_TEST_KILLS", 1, 20)
FAULTS = count("TIDEMARK_TEST_FAULTS", 3, 20)


@pytest.fixture
def target(tmp_path: Path) -> IcebergTarget:
    return IcebergTarget(str(tmp_path), catalog=f"{tmp_path}/catalog.db")


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[IcebergTarget]:
    with object_server(tmp_path / "bucket", monkeypatch) as url:
        path, options, endpoint = bucket_facts(url, monkeypatch)
        yield IcebergTarget(path, options, endpoint, catalog=f"{tmp_path}/catalog.db")


@pytest.mark.parametrize("is_keyed", [True, False])
def test_every_epoch_is_the_view(target: IcebergTarget, is_keyed: bool) -> None:
    contract.check_life(target, Model(is_keyed=is_keyed))


@pytest.mark.whole
def test_a_bucket(bucket: IcebergTarget) -> None:
    contract.check_life(bucket, Model(FINITE[:6]))
    gone = Model(FINITE[:2])
    below = f"wh/shop/{gone.table.name}/"
    bucket_names = lambda: [n for n in _all(bucket) if below in n]  # noqa: E731
    contract.check_removal(bucket, gone, lambda: not bucket_names())


def _all(target: IcebergTarget) -> list[str]:
    from pyarrow import fs

    selector = fs.FileSelector(target.path.removeprefix("s3://"), recursive=True)
    return apart(
        lambda: [
            i.path for i in target.files().get_file_info(selector) if i.type == fs.FileType.File
        ]
    )


def test_large_torn_and_unknown_writes(target: IcebergTarget) -> None:
    contract.check_changes_only(target, Model())
    contract.check_large_epoch(target, Model(), 1_000)
    contract.check_torn_write(target, Model())
    contract.check_unknown_outcome(target, Model())


def test_of_two_writers_the_later_continues(target: IcebergTarget) -> None:
    contract.check_fencing(target, Model())


def test_removal_and_loss(target: IcebergTarget) -> None:
    model, lost = Model(FINITE[:3]), Model(FINITE[:3])
    contract.check_removal(
        target, model, lambda: not [n for n in _all(target) if f"/{model.table.name}/" in n]
    )
    drop = lambda: apart(lambda: target.lake().drop_table(f"shop.{lost.table.name}"))  # noqa: E731
    contract.check_loss(target, lost, drop)


def test_removal_takes_drafts_of_a_killed_process(target: IcebergTarget) -> None:
    model, identity = Model(FINITE[:3]), new_identity()
    sink = target.sink(model.table, identity)
    sink.open(None)
    sink.write([model.epoch(5)])
    (folder,) = {Path(n).parent for n in _all(target) if n.endswith(".metadata.json")}
    (folder / ".62a83f04ce6649d5be55e5badf973bda").write_bytes(b"half a file")
    sink.remove()
    assert not [n for n in _all(target) if f"/{model.table.name}/" in n]


@pytest.mark.whole
def test_kills(target: IcebergTarget) -> None:
    killed(target, KILLS, 5)


@pytest.mark.whole
def test_network_faults(bucket: IcebergTarget) -> None:
    with Proxy(int(bucket.endpoint.rpartition(":")[2])) as proxy:
        bucket.options["endpoint"] = f"http://127.0.0.1:{proxy.port}"
        contract.check_faults(bucket, Model(FINITE[:4]), proxy, FAULTS, 7)


def test_tables_of_others_are_refused(target: IcebergTarget) -> None:
    model = Model(FINITE[:2])
    found = check(target.chosen(model.table), model.table, "t")
    assert found["max_delay_s"] == 30.0
    chosen = target.chosen(model.table)
    contract.check_others_are_refused(target, model, lambda: check(chosen, model.table, "t"))


def test_the_catalog_s_folder_must_be_allowed(
    target: IcebergTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(netguard, "_guard", netguard.Guard(writable=(f"{target.path}/wh",)))
    with pytest.raises(SourceError, match=r"path\.forbidden"):
        target.sink(Model().table, new_identity()).open(None)


OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"path": "/x"}, '"catalog" is missing'),
    ({"path": "/x", "catalog": "mysql://me@host/x"}, "not the URL"),
    ({"path": "/x", "catalog": "postgresql://me:pw@host/x"}, "not the URL"),
    ({"path": "/x", "catalog": "postgresql://host/x"}, "a user and a host"),
    ({"path": "/x", "catalog": "sqlite:///x.db"}, "absolute path"),
    ({"path": "/x", "catalog": "sqlite:////x.db", "table": "v"}, "a namespace and a name"),
    ({"path": "/x", "catalog": "sqlite:////x.db", "py-io-impl": "a.B"}, "unknown"),
    ({"path": "s3://bucket/x", "catalog": "sqlite:////x.db", "ca_file": "/a"}, "not supported"),
]


@pytest.mark.parametrize(("options", "why"), OPTIONS)
def test_bad_options_are_refused(options: dict[str, Any], why: str) -> None:
    table = Model().table
    contract.require_refused(lambda o: make(o, table, new_identity(), "t"), options, why)


def test_the_password_is_a_reference() -> None:
    options = {"path": "/x", "catalog": "postgresql://me@host/x"}
    made = lambda options: make(options, Model().table, new_identity(), "t")  # noqa: E731
    contract.require_reference(made, options, "password")
