"""Oracle: the model's rows at each epoch; the engine itself shows them through the view `_now`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from connectors.clickhouse.clickhouse_sink import ClickHouseSink, lasting
from connectors.clickhouse.sink import check, make
from connectors.loopback import free_port
from connectors.sink import SinkTable
from connectors.view_sink import ViewEpoch
from dataflow.errors import SinkError, TemporaryError
from dataflow.schema import Field
from dataflow.types import DATE, INT4, TEXT, TIMESTAMPTZ
from storage.failpoints import set_failpoints
from tests.connectors.clickhouse.reading import ClickHouseTarget
from tests.harness import sink_contract as contract
from tests.harness.clickhouse_engine import ClickHouse, clickhouse
from tests.harness.proxy import Proxy
from tests.harness.sink_contract import FINITE, POSITION, Model, delta_of, new_identity
from tests.harness.tiers import count

KILLS = count("TIDEMARK_TEST_KILLS", 2, 20)
FAULTS = count("TIDEMARK_TEST_FAULTS", 3, 20)
MODES = ("changes", "rows")
# ClickHouse's dates begin in 1900 and end in 2299.
DAYS = ("day", DATE, ("2024-02-29", "1900-01-01", "2299-12-31", None))
POOLS = [DAYS if pool[0] == "day" else pool for pool in FINITE]
FEW = POOLS[:4]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClickHouse]:
    with clickhouse(tmp_path_factory.mktemp("clickhouse") / "data") as running:
        yield running


@pytest.fixture(params=MODES)
def target(request: pytest.FixtureRequest, server: ClickHouse) -> ClickHouseTarget:
    return ClickHouseTarget(server, {"mode": request.param})


@pytest.fixture
def changes(server: ClickHouse) -> ClickHouseTarget:
    return ClickHouseTarget(server, {"mode": "changes"})


def test_every_epoch_is_the_view(target: ClickHouseTarget) -> None:
    contract.check_life(target, Model(POOLS))


def test_a_multiset_view_has_its_changes(server: ClickHouse) -> None:
    contract.check_life(ClickHouseTarget(server), Model(POOLS, is_keyed=False))


def test_large_epochs_and_changes_only(changes: ClickHouseTarget) -> None:
    contract.check_large_epoch(changes, Model(POOLS), 1_000)
    contract.check_changes_only(changes, Model(POOLS))


def test_torn_and_unknown_writes_show_whole_epochs(changes: ClickHouseTarget) -> None:
    contract.check_torn_write(changes, Model(POOLS))
    contract.check_unknown_outcome(changes, Model(POOLS))


def test_rows_that_are_written_again_change_nothing(server: ClickHouse) -> None:
    target, model = ClickHouseTarget(server, {"mode": "rows"}), Model(POOLS)
    sink = target.sink(model.table, new_identity())
    sink.open(None)
    sink.write([model.epoch()])
    for _ in range(3):
        epochs = [model.epoch(), model.epoch()]
        set_failpoints("clickhouse.rows.written=error@1")
        with pytest.raises(TemporaryError):
            sink.write(epochs)
        set_failpoints("")
        sink.close()
        assert sink.open(epochs[0].number - 1) == epochs[0].number - 1
        # In other batches than before.
        sink.write(epochs[:1])
        sink.write(epochs[1:])
        contract.require(target, model, model.number)
    sink.close()


def test_first_rows_that_were_not_finished_are_not_shown(target: ClickHouseTarget) -> None:
    table = SinkTable(
        "public", f"first_{target.options['mode']}", (Field("id", INT4, False),), (0,)
    )
    identity = new_identity()
    sink = target.sink(table, identity)
    sink.open(None)
    set_failpoints("clickhouse.rows.written=error@1")
    with pytest.raises(TemporaryError):
        rows = {("1",): 1, ("2",): 1}
        sink.write([ViewEpoch(5, POSITION, [delta_of(table, rows)], 2, True)])
    set_failpoints("")
    # Row 1 is gone from the view when its rows are read again.
    again = target.sink(table, identity)
    assert again.open(None) is None
    rows = {("2",): 1, ("3",): 1}
    again.write([ViewEpoch(7, POSITION, [delta_of(table, rows)], 2, True)])
    assert target.read(table) == (Counter([("2",), ("3",)]), 7)
    again.close()


def test_of_two_writers_the_later_continues(target: ClickHouseTarget) -> None:
    contract.check_fencing(target, Model(POOLS))


def test_a_takeover_that_fails_is_tried_again(
    target: ClickHouseTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, identity = Model(FEW), new_identity()
    insert = ClickHouseSink._insert

    def fail(sink: ClickHouseSink, *args: Any) -> None:
        raise TemporaryError("sink.unreachable", "gone")

    def lose_the_reply(sink: ClickHouseSink, *args: Any) -> None:
        insert(sink, *args)
        fail(sink)

    for known in (None, 3):
        sink = target.sink(model.table, identity)
        for fault in (fail, lose_the_reply, fail):
            monkeypatch.setattr(ClickHouseSink, "_insert", fault)
            with pytest.raises(TemporaryError):
                sink.open(known)
            monkeypatch.undo()
        assert sink.open(known) == known
        sink.write([model.epoch()])
        contract.require(target, model, model.number)
        sink.close()


def test_removal_and_loss(target: ClickHouseTarget) -> None:
    model = Model(POOLS)
    contract.check_removal(target, model, lambda: not target.tables(model.table))
    for suffix in ("", "_progress"):
        lost = Model(FEW)
        drop = f"DROP TABLE {lost.table.name}{suffix}"
        contract.check_loss(target, lost, lambda drop=drop: target.server.query(drop))


def test_what_was_written_stays_when_the_service_leaves(target: ClickHouseTarget) -> None:
    model = Model(POOLS)
    name = model.table.name
    contract.check_detachment(
        target,
        model,
        lambda: sorted(target.server.query(f"SELECT * FROM {name}_now").splitlines()),
        lambda: f"{name}_progress" not in target.tables(model.table),
    )


def test_kills(changes: ClickHouseTarget) -> None:
    assert contract.check_kills(changes, lambda: Model(FEW), KILLS, 5) > 3


@pytest.mark.whole
@pytest.mark.parametrize("mode", MODES)
def test_the_server_is_killed(tmp_path: Path, mode: str) -> None:
    with clickhouse(tmp_path / "data") as server:
        target, model = ClickHouseTarget(server, {"mode": mode}), Model(FEW)
        sink = target.sink(model.table, new_identity())
        sink.open(None)
        sink.write([model.epoch()])
        for _ in range(KILLS):
            server.kill()
            epoch = model.epoch()
            with pytest.raises(TemporaryError):
                sink.write([epoch])
            sink.close()
            server.start()
            contract.write_all(sink, [epoch], epoch.number - 1)
            contract.require(target, model, model.number)
        sink.close()


@pytest.mark.whole
@pytest.mark.parametrize("mode", MODES)
def test_network_faults(server: ClickHouse, mode: str) -> None:
    with Proxy(server.port) as proxy:
        target = ClickHouseTarget(server, {"mode": mode, "url": f"http://127.0.0.1:{proxy.port}"})
        contract.check_faults(target, Model(FEW), proxy, FAULTS, 7)


def test_tables_of_others_are_refused(target: ClickHouseTarget) -> None:
    model = Model(FEW)
    chosen = target.chosen(model.table)
    contract.check_others_are_refused(target, model, lambda: check(chosen, model.table, "t"))


def test_check_leaves_nothing(server: ClickHouse) -> None:
    target = ClickHouseTarget(server)
    for is_keyed, mode in ((True, "rows"), (False, "changes")):
        table = Model(FEW, is_keyed=is_keyed).table
        found = check(target.chosen(table), table, "t")
        assert (found["mode"], found["table"], found["max_delay_s"]) == (mode, table.name, 1.0)
        assert target.tables(table) == []


def test_check_names_what_the_user_can_change(server: ClickHouse) -> None:
    table = Model(FEW).table
    with pytest.raises(SinkError) as raised:
        check({"url": server.url, "database": "nowhere"}, table, "t")
    assert raised.value.code == "sink.database"
    with pytest.raises(TemporaryError) as raised:
        check({"url": f"http://127.0.0.1:{free_port()}"}, table, "t")
    assert raised.value.code == "sink.unreachable"
    denied = TemporaryError("sink.unreachable", "no", detail="Code: 516. AUTHENTICATION_FAILED")
    assert lasting(denied).code == "sink.login"


def test_names_are_quoted(server: ClickHouse) -> None:
    table = SinkTable("public", "odd", (Field("a `b\\ 'c", INT4, False), Field("d", TEXT)), (0,))
    target = ClickHouseTarget(server, {"table": "o`dd"})
    sink = target.sink(table, new_identity())
    sink.open(None)
    sink.write([ViewEpoch(1, POSITION, [delta_of(table, {("1", "x"): 1})], 1, True)])
    assert server.query("SELECT * FROM `o\\`dd_now`") == b"1\tx\n"
    sink.remove()
    sink.close()


@pytest.mark.parametrize(
    ("kind", "text"), [(DATE, "1899-12-31"), (TIMESTAMPTZ, "2300-01-01 00:00:00+00")]
)
def test_dates_that_it_lacks_are_refused(server: ClickHouse, kind: Any, text: str) -> None:
    table = SinkTable("public", f"odd{kind.kind.value}", (Field("id", INT4), Field("at", kind)), ())
    sink: ClickHouseSink = ClickHouseTarget(server).sink(table, new_identity())
    sink.open(None)
    with pytest.raises(SinkError) as raised:
        sink.write([ViewEpoch(1, POSITION, [delta_of(table, {("1", text): 1})], 1, True)])
    assert raised.value.code == "sink.value_unfit" and text in raised.value.detail
    sink.close()


OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({}, '"url" is missing'),
    ({"url": "host:8123"}, "must be http://"),
    ({"url": "http://me:pw@host:8123"}, "must not contain a login"),
    ({"url": "http://host", "mode": "rows"}, "cannot be rows"),
    ({"url": "http://host", "max_delay_s": 1e9}, "between"),
    ({"url": "http://host", "speed": 1}, "unknown"),
]


@pytest.mark.parametrize(("options", "why"), OPTIONS)
def test_bad_options_are_refused(options: dict[str, Any], why: str) -> None:
    table = Model(is_keyed=False).table
    contract.require_refused(lambda o: make(o, table, new_identity(), "t"), options, why)


def test_the_password_is_a_reference() -> None:
    made = lambda options: make(options, Model().table, new_identity(), "t")  # noqa: E731
    contract.require_reference(made, {"url": "http://host"}, "password")
