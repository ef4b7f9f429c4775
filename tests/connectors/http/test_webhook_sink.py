"""Oracle: the model of tests/harness/sink_contract.py; a plain HTTP server checks signatures by
Standard Webhooks 1.0, the order, and that a repeated id has the same body, and adds up the rows."""

from __future__ import annotations

import base64
import json
import os
import random
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from connectors import netguard
from connectors.http.sink import check, make
from connectors.netguard import Guard
from connectors.sink import SinkTable
from connectors.view_sink import ViewEpoch, ViewSink
from dataflow.errors import SinkError, TemporaryError, TidemarkError
from dataflow.types import TypeKind
from tests.harness import sink_contract
from tests.harness.proxy import Proxy
from tests.harness.sink_contract import ALL, POSITION, Model, Row, new_identity, require
from tests.harness.tiers import count
from tests.harness.webhook_receiver import KEY, SECRET, Receiver

KILLS = count("TIDEMARK_TEST_KILLS", 3, 20)
FAULTS = count("TIDEMARK_TEST_FAULTS", 3, 20)
SEED = int(os.environ.get("TIDEMARK_TEST_SEED", "7"))
PLAIN = (TypeKind.INT2, TypeKind.INT4, TypeKind.INT8)

pytestmark = pytest.mark.timeout(300 + 20 * (KILLS + FAULTS))


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    monkeypatch.setenv("SECRET_WEBHOOK", SECRET)
    monkeypatch.setattr("connectors.http.webhook_sink.RETRY_S", (0.01, 0.1))
    running = Receiver()
    yield running
    running.stop()


@dataclass
class WebhookTarget:
    """What the receiver holds."""

    receiver: Receiver
    more: dict[str, Any] = field(default_factory=dict)
    failpoints: Sequence[str] = ("webhook.message.after",)

    def options(self) -> dict[str, Any]:
        url = f"http://127.0.0.1:{self.receiver.port}/hooks"
        return {"url": url, "secret": "${env:SECRET_WEBHOOK}", **self.more}

    def sink(self, table: SinkTable, identity: str) -> ViewSink:
        return make(self.options(), table, identity, f"{table.title}/hook")

    def read(self, table: SinkTable) -> tuple[Counter[Row], int | None]:
        with self.receiver.lock:
            rows, epoch = self.receiver.rows.copy(), self.receiver.epoch
        found: Counter[Row] = Counter()
        for text, times in rows.items():
            row = json.loads(text)
            found[tuple(_shown(f.type.kind, row[f.name]) for f in table.fields)] += times
        return found, epoch


def _shown(kind: TypeKind, value: Any) -> str | None:
    """A value of JSON as PostgreSQL prints it."""
    if kind in (TypeKind.JSON, TypeKind.JSONB):
        return json.dumps(value, ensure_ascii=False)
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "t" if value else "f"
    return str(value)


# JSON has other texts for the same numbers; the topics' tests compare these byte by byte.
POOLS = tuple(
    (name, kind, pool)
    for name, kind, pool in ALL
    if kind.kind not in (TypeKind.FLOAT4, TypeKind.FLOAT8, TypeKind.JSONB)
)


def model_of(is_keyed: bool = True, seed: int = SEED) -> Model:
    return Model(POOLS, is_keyed=is_keyed, seed=seed)


@pytest.mark.parametrize("is_keyed", [True, False])
def test_every_epoch_is_the_view(receiver: Receiver, is_keyed: bool) -> None:
    target = WebhookTarget(receiver, {"part_rows": 7})
    sink_contract.check_life(target, model_of(is_keyed))
    assert receiver.repeated == 0
    assert max(int(name.split("/")[2]) for name in receiver.bodies) > 2, "no epoch had parts"


def test_changes_alone(receiver: Receiver) -> None:
    sink_contract.check_changes_only(WebhookTarget(receiver, {"initial": "changes"}), model_of())


def test_a_large_epoch_in_bounded_messages(receiver: Receiver) -> None:
    target = WebhookTarget(receiver, {"part_bytes": 20_000})
    sink_contract.check_large_epoch(target, model_of(), 1_000)
    assert receiver.largest < 30_000


def test_the_receiver_of_the_documentation(receiver: Receiver) -> None:
    page = (Path(__file__).parents[3] / "docs" / "WEBHOOK_SINK.md").read_text()
    names: dict[str, Any] = {}
    exec(page.split("```python\n")[1].split("```")[0], names)
    model = model_of(False)
    sink = WebhookTarget(receiver, {"part_rows": 5}).sink(model.table, new_identity())
    sink.open(None)
    sink.write([model.epoch() for _ in range(4)])
    sink.close()
    for headers, body in [*receiver.taken, *receiver.taken[-2:]]:
        assert names["receive"](headers, body, KEY)
    assert +names["rows"] == receiver.rows
    headers, body = receiver.taken[0]
    assert not names["receive"](headers, body + b" ", KEY)


@pytest.mark.parametrize("is_keyed", [True, False])
def test_lost_answers_and_busy_receivers(receiver: Receiver, is_keyed: bool) -> None:
    """What was taken without an answer comes again, with the same id and body."""
    pick, model = random.Random(SEED), model_of(is_keyed)
    busy = ((503, {"retry-after": "0"}), (429, {}), (500, {}), (0, {}), (408, {}))
    receiver.before = lambda _: pick.choice(busy) if pick.random() < 0.3 else (200, {})
    receiver.after = lambda _: pick.choice(busy) if pick.random() < 0.3 else (200, {})
    target = WebhookTarget(receiver, {"part_rows": 5})
    sink = target.sink(model.table, new_identity())
    sink.open(None)
    sink_contract.write_all(sink, [model.epoch() for _ in range(15)])
    require(target, model, model.number)
    assert receiver.repeated > 5
    sink.close()


def test_a_write_that_fails_in_the_middle(receiver: Receiver) -> None:
    sink_contract.check_unknown_outcome(WebhookTarget(receiver, {"part_rows": 5}), model_of())


def test_a_receiver_that_is_gone(receiver: Receiver) -> None:
    model = model_of()
    sink = WebhookTarget(receiver).sink(model.table, new_identity())
    sink.open(None)
    sink.write([model.epoch()])
    receiver.before = lambda _: (410, {})
    with pytest.raises(SinkError) as raised:
        sink.write([model.epoch()])
    assert raised.value.code == "webhook.gone"


@pytest.mark.parametrize(
    ("status", "on_refused", "code"),
    [
        (422, "stop", "webhook.refused"),
        (422, "skip", ""),
        (401, "skip", "webhook.refused"),
        (302, "skip", "webhook.refused"),
    ],
)
def test_a_message_that_is_refused(
    receiver: Receiver, status: int, on_refused: str, code: str
) -> None:
    model = model_of()
    sink: Any = WebhookTarget(receiver, {"on_refused": on_refused}).sink(model.table, "s")
    sink.open(None)
    sink.write([model.epoch()])
    receiver.before = lambda _: (status, {"location": "http://127.0.0.1:1/"})
    if code:
        with pytest.raises(SinkError) as raised:
            sink.write([model.epoch()])
        assert raised.value.code == code and f"HTTP {status}" in raised.value.detail
        assert sink.skipped_total == 0
    else:
        sink.write([model.epoch(), model.epoch()])
        assert sink.skipped_total == 2
    sink.close()


def test_retry_after_is_honoured(receiver: Receiver) -> None:
    """A receiver that asks for more time than a message may take is tried again by the worker."""
    model = model_of()
    sink = WebhookTarget(receiver).sink(model.table, "s")
    sink.open(None)
    receiver.before = lambda _: (503, {"retry-after": "3600"})
    with pytest.raises(TemporaryError) as raised:
        sink.write([model.epoch()])
    assert raised.value.code == "webhook.unavailable"
    assert receiver.requests == 1
    sink.close()


def test_an_interrupt_ends_the_pauses(receiver: Receiver) -> None:
    model = model_of()
    sink = WebhookTarget(receiver).sink(model.table, "s")
    sink.open(None)
    receiver.before = lambda _: (503, {"retry-after": "30"})
    threading.Timer(0.5, sink.interrupt).start()
    with pytest.raises(TemporaryError) as raised:
        sink.write([model.epoch()])
    assert raised.value.code == "sink.stopped"
    sink.close()


def test_what_check_refuses(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    table = model_of().table
    good = WebhookTarget(receiver).options()
    assert check(good, table, "t") == good
    assert receiver.tests == 1 and receiver.rows == Counter()
    monkeypatch.setenv("SECRET_BAD", "no secret of webhooks")
    for more, code in (
        ({"url": "ftp://x/"}, "sink.bad_option"),
        ({"url": "http://me:pw@x/"}, "sink.bad_option"),
        ({"url": "http://127.0.0.1:1/"}, "webhook.unreachable"),
        ({"secret": "plain"}, "secret.plain"),
        ({"secret": None}, "sink.bad_option"),
        ({"secret": "${env:SECRET_BAD}"}, "sink.bad_option"),
        ({"secret": "${env:SECRET_NOSUCH}"}, "secret.missing"),
        ({"headers": {"webhook-id": "1"}}, "sink.bad_option"),
        ({"headers": {"Authorization": "Bearer plain"}}, "sink.bad_option"),
        ({"on_refused": "maybe"}, "sink.bad_option"),
        ({"part_rows": 0}, "sink.bad_option"),
        ({"nosuch": 1}, "sink.bad_option"),
    ):
        with pytest.raises(TidemarkError) as raised:
            check({**good, **more}, table, "t")
        assert raised.value.code == code, more
        assert SECRET not in str(raised.value.described)
    receiver.before = lambda _: (404, {})
    with pytest.raises(SinkError) as raised:
        check(good, table, "t")
    assert raised.value.code == "webhook.refused"


def test_a_host_that_is_forbidden_is_not_reached(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(netguard, "_guard", Guard(hosts=("only.this.example",)))
    with pytest.raises(TidemarkError) as raised:
        check(WebhookTarget(receiver).options(), model_of().table, "t")
    assert raised.value.code == "host.forbidden"
    assert receiver.requests == 0


def test_two_secrets_while_one_is_replaced(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_NEW", "whsec_" + base64.b64encode(b"the next one").decode())
    both = ["${env:SECRET_NEW}", "${env:SECRET_WEBHOOK}"]
    target, model = WebhookTarget(receiver, {"secret": both}), model_of()
    sink = target.sink(model.table, "s")
    sink.open(None)
    sink.write([model.epoch()])
    require(target, model, model.number)
    sink.close()


def test_first_rows_in_another_order_begin_again(receiver: Receiver) -> None:
    """An attempt that ended in the middle is not mixed with the next one."""
    target, model = WebhookTarget(receiver, {"part_rows": 3}), model_of()
    sink = target.sink(model.table, "s")
    sink.open(None)
    first = model.epoch(40)
    receiver.after = lambda _: (401, {}) if len(receiver.bodies) == 4 else (200, {})
    with pytest.raises(SinkError):
        sink.write([first])
    receiver.after = lambda _: (200, {})
    again = target.sink(model.table, "s")
    again.open(None)
    rows = next(iter(first.deltas))
    other = rows.take(rows.weights.nonzero()[0][::-1])
    again.write([ViewEpoch(first.number, POSITION, [other], len(other), True)])
    require(target, model, model.number)
    again.close()
    sink.close()


def test_kills(receiver: Receiver) -> None:
    """The state may be behind what was sent: then it comes again, with the same ids."""
    target = WebhookTarget(receiver, {"part_rows": 5})
    sink_contract.check_kills(target, lambda: model_of(False), KILLS, SEED, lag=3)
    assert receiver.repeated > 0


def test_faults_of_the_network(receiver: Receiver) -> None:
    with Proxy(receiver.port) as proxy:
        url = f"http://127.0.0.1:{proxy.port}/hooks"
        target = WebhookTarget(receiver, {"url": url, "part_rows": 5, "timeout_ms": 2_000})
        sink_contract.check_faults(target, model_of(), proxy, FAULTS, SEED)
