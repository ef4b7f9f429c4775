"""Oracle: the model's rows at each epoch; the table's log and files show them, read without the
client that wrote them, and so does that client."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from connectors import extras
from connectors.delta import delta_sink
from connectors.delta.sink import check, make
from connectors.sink import SinkTable
from connectors.view_sink import ViewEpoch
from dataflow.errors import SinkError, TemporaryError, TidemarkError
from dataflow.schema import Field
from dataflow.types import INT4, TEXT
from tests.connectors.delta.reading import DeltaTarget
from tests.harness import sink_contract as contract
from tests.harness.lake_files import bucket_facts, killed
from tests.harness.lake_texts import counted
from tests.harness.object_store import object_server
from tests.harness.proxy import Proxy
from tests.harness.sink_contract import FINITE, POSITION, Model, delta_of, new_identity
from tests.harness.tiers import count

KILLS = count("TIDEMARK_TEST_KILLS", 1, 20)
FAULTS = count("TIDEMARK_TEST_FAULTS", 3, 20)
MODES = ("changes", "rows")


def bucket_target(url: str, monkeypatch: pytest.MonkeyPatch, mode: str) -> DeltaTarget:
    path, options, endpoint = bucket_facts(url, monkeypatch)
    return DeltaTarget(path, {**options, "mode": mode}, endpoint)


@pytest.fixture(params=MODES)
def target(request: pytest.FixtureRequest, tmp_path: Path) -> DeltaTarget:
    return DeltaTarget(str(tmp_path), {"mode": request.param})


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with object_server(tmp_path / "bucket", monkeypatch) as url:
        yield url


def test_every_epoch_is_the_view(target: DeltaTarget) -> None:
    model = Model()
    contract.check_life(target, model)
    # By the client, which knows the table's types.
    table = DeltaTable(target.chosen(model.table)["path"]).to_pyarrow_table()
    names = [f.name for f in model.table.fields]
    values = zip(*(table[name].to_pylist() for name in names), strict=True)
    is_rows = target.options["mode"] == "rows"
    weights = [1] * len(table) if is_rows else table["_weight"].to_pylist()
    found = counted(model.table.fields, zip(values, weights, strict=True))
    assert found == model.after[model.number]


def test_a_multiset_view_has_its_changes(tmp_path: Path) -> None:
    contract.check_life(DeltaTarget(str(tmp_path)), Model(is_keyed=False))


def test_changes_only(tmp_path: Path) -> None:
    contract.check_changes_only(DeltaTarget(str(tmp_path)), Model())


def test_large_torn_and_unknown_writes(target: DeltaTarget) -> None:
    contract.check_large_epoch(target, Model(), 1_000)
    contract.check_torn_write(target, Model())
    contract.check_unknown_outcome(target, Model())


def test_of_two_writers_the_later_continues(target: DeltaTarget) -> None:
    contract.check_fencing(target, Model())


def test_removal_and_loss(target: DeltaTarget) -> None:
    model, lost = Model(), Model()
    contract.check_removal(target, model, lambda: not target.names(model.table))
    contract.check_loss(target, lost, lambda: target.lose(lost.table))


@pytest.mark.parametrize("mode", MODES)
def test_a_bucket(server: str, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    target, model = bucket_target(server, monkeypatch, mode), Model()
    assert check(target.chosen(model.table), model.table, "t")["mode"] == mode
    assert target.names(model.table) == []
    contract.check_life(target, model)
    contract.check_fencing(target, Model())
    contract.check_removal(target, removed := Model(), lambda: not target.names(removed.table))


def test_kills(target: DeltaTarget) -> None:
    killed(target, KILLS, 5)


@pytest.mark.whole
@pytest.mark.parametrize("mode", MODES)
def test_kills_with_a_bucket(server: str, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    killed(bucket_target(server, monkeypatch, mode), KILLS, 6)


@pytest.mark.whole
@pytest.mark.parametrize("mode", MODES)
def test_network_faults(server: str, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    target = bucket_target(server, monkeypatch, mode)
    with Proxy(int(target.endpoint.rpartition(":")[2])) as proxy:
        target.options["endpoint"] = f"http://127.0.0.1:{proxy.port}"
        contract.check_faults(target, Model(FINITE[:4]), proxy, FAULTS, 7)


def test_a_table_that_others_compact(target: DeltaTarget) -> None:
    model = Model(FINITE[:4])
    sink = target.sink(model.table, new_identity())
    sink.open(None)
    for _ in range(4):
        contract.write_all(sink, [model.epoch()], model.number - 1)
        DeltaTable(target.chosen(model.table)["path"]).optimize.compact()
        contract.require(target, model, model.number)
    sink.close()


def test_a_takeover_whose_reply_is_lost_is_no_other_writer(
    target: DeltaTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, identity = Model(FINITE[:2]), new_identity()
    first = target.sink(model.table, identity)
    first.open(None)
    first.write([model.epoch()])
    commit = DeltaTable.create_write_transaction

    def lose_the_reply(table: DeltaTable, *args: Any, **options: Any) -> None:
        commit(table, *args, **options)
        raise OSError("the connection is gone")

    for sink in (target.sink(model.table, identity), first):
        if sink is first:
            # Another one has taken over: that is no lost reply.
            with pytest.raises(SinkError) as raised:
                sink.open(model.number)
            assert raised.value.code == "sink.fenced"
            continue
        for _ in range(2):
            monkeypatch.setattr(DeltaTable, "create_write_transaction", lose_the_reply)
            with pytest.raises(TemporaryError):
                sink.open(model.number)
            monkeypatch.undo()
            sink.close()
            assert sink.open(model.number) == model.number
        sink.write([model.epoch()])
        contract.require(target, model, model.number)
        sink.close()


def test_many_epochs_are_merged_as_one(tmp_path: Path) -> None:
    table = SinkTable("public", "v", (Field("id", INT4, False), Field("name", TEXT)), (0,))
    target = DeltaTarget(str(tmp_path), {"mode": "rows", "partition_by": ["name"]})
    sink = target.sink(table, new_identity())
    sink.open(None)
    first = {("1", "a"): 1, ("2", "b"): 1, ("3", "c"): 1}
    sink.write([ViewEpoch(1, POSITION, [delta_of(table, first)], 3, True)])
    steps: list[dict] = [
        {("1", "a"): -1, ("2", "b"): -1, ("2", "x"): 1, ("4", "d"): 1},
        {("1", "z"): 1, ("4", "d"): -1, ("3", "c"): -1},
        {("2", "x"): -1, ("2", "y"): 1},
    ]
    epochs = [ViewEpoch(n, POSITION, [delta_of(table, s)], 9) for n, s in enumerate(steps, 2)]
    sink.write(epochs)
    found = DeltaTable(target.chosen(table)["path"])
    rows = found.to_pyarrow_table().select(["id", "name"]).to_pylist()
    assert Counter((r["id"], r["name"]) for r in rows) == Counter([(1, "z"), (2, "y")])
    assert found.version() == 2 and target.log(table).numbers[f"tidemark-{target.identity}"] == 4
    # Keys that are not there change nothing but the epoch.
    gone = delta_of(table, {("9", "q"): -1})
    sink.write([ViewEpoch(5, POSITION, [gone], 1)])
    assert target.log(table).numbers[f"tidemark-{target.identity}"] == 5
    sink.close()


def test_epochs_of_many_rows_are_merged_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta_sink, "MERGE_ROWS", 10)
    contract.check_life(DeltaTarget(str(tmp_path), {"mode": "rows"}), Model(FINITE[:2]))


OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({}, '"path" is missing'),
    ({"path": "/x", "mode": "rows"}, "cannot be rows"),
    ({"path": "/x", "mode": "all"}, "must be one of"),
    ({"path": "/x", "partition_by": ["colour"]}, "no column"),
    ({"path": "s3://bucket/x", "ca_file": "/a"}, "not supported"),
    ({"path": "/x", "max_file_mb": 1}, "unknown"),
]


@pytest.mark.parametrize(("options", "why"), OPTIONS)
def test_bad_options_are_refused(options: dict[str, Any], why: str) -> None:
    table = Model(is_keyed=False).table
    contract.require_refused(lambda o: make(o, table, new_identity(), "t"), options, why)


def test_a_table_of_others_is_refused(target: DeltaTarget) -> None:
    model = Model()
    chosen = target.chosen(model.table)
    contract.check_others_are_refused(target, model, lambda: check(chosen, model.table, "t"))


def test_without_the_library_its_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(TidemarkError) as raised:
        make({"path": "/x"}, Model().table, new_identity(), "t")
    assert raised.value.code == "package.missing" and "tidemarkdb[lake]" in raised.value.hint
