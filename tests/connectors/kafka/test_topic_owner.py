"""Oracle: a bag of rows in plain Python that kafka-python holds at every END mark; of which sink a
topic is, and what of a commit was lost, the test knows."""

from __future__ import annotations

import pytest

from connectors.kafka import epoch_markers, topic_sink
from connectors.kafka.embedded import EmbeddedKafka
from dataflow.errors import SinkError, TemporaryError
from tests.connectors.kafka.writing import (
    KEYED,
    QUICK,
    Model,
    compare,
    has_no_open_transaction,
    options,
    sink_of,
)
from tests.harness.broker import (
    drop_topic,
    new_topic,
    read_all,
    topic_names,
)
from tests.harness.proxied_broker import ProxiedKafka
from tests.harness.proxy import DOWN, HALF_OPEN, UP, Fault, Proxy
from tests.harness.waiting import wait_until


@pytest.fixture
def chosen(broker: EmbeddedKafka) -> dict:
    return options(broker, partitions=3)


@pytest.mark.parametrize(
    "what", ["rows gone", "rows anew", "markers gone", "markers anew", "both gone"]
)
def test_topics_that_were_deleted_are_not_gone_on_with(
    broker: EmbeddedKafka, chosen: dict, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_sink, "STALLED_S", 1.0)
    model, topic = Model(KEYED, 10), chosen["topic"]
    sink = sink_of(KEYED, chosen, f"id-{topic}")
    sink.open()
    sink.write([model.epoch()])
    gone = {"rows": [topic], "markers": [f"{topic}.markers"], "both": [topic, f"{topic}.markers"]}
    which, how = what.split()
    for name in gone[which]:
        drop_topic(broker, name)
        if how == "anew":
            wait_until(lambda n=name: n not in topic_names(broker))
            settings = {"cleanup.policy": "delete", "retention.ms": "-1"}
            new_topic(broker, 3 if which == "rows" else 1, settings, name=name)
    with pytest.raises(TemporaryError):
        sink.write([model.epoch()])
    with pytest.raises(SinkError) as raised:
        sink.open()
    assert raised.value.code == "sink.lost"
    sink.close()
    # Nor by the next service; of topics that are both gone it knows by the state alone.
    heir = sink_of(KEYED, chosen, f"id-{topic}")
    if which == "both":
        assert heir.open() is None
    else:
        with pytest.raises(SinkError, match="sink.lost" if which == "rows" else "topic_not_empty"):
            heir.open()
    heir.close()
    if topic in topic_names(broker):
        left = [r for r in read_all(broker, topic) if dict(r.headers)["epoch"] != b"1"]
        assert not left, "rows went on in another topic"


@pytest.mark.whole
def test_of_two_sinks_that_begin_at_once_one_has_the_topic(
    broker: EmbeddedKafka, chosen: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each found the topic empty before the other one left its mark: as two services may."""
    monkeypatch.setattr(epoch_markers, "ANSWER_S", 1.0)
    first, second, model = sink_of(KEYED, chosen), sink_of(KEYED, chosen, "its"), Model(KEYED, 11)
    claim, commit = first._claim, second._commit
    undecided: list[str] = []

    def claim_last() -> None:
        monkeypatch.setattr(second, "_commit", lambda: undecided.append("") or second._flush())
        with pytest.raises(TemporaryError):  # its own mark is there, and not decided
            second.open()
        claim()

    monkeypatch.setattr(first, "_claim", claim_last)
    with pytest.raises(TemporaryError) as told:  # whose mark comes first is not known yet
        first.open()
    assert told.value.code == "sink.unreachable" and undecided
    commit()
    monkeypatch.setattr(first, "_claim", claim)
    monkeypatch.setattr(second, "_commit", commit)
    for _ in range(2):
        with pytest.raises(SinkError, match="topic_not_empty"):
            first.open()
    with pytest.raises(SinkError, match="topic_not_ours"):
        first.remove()
    first.close()
    assert second.open() is None
    second.write([model.epoch()])
    second.close()
    heir = sink_of(KEYED, chosen, "its")
    assert heir.open() == 1
    heir.write([model.epoch()])
    compare(broker, chosen, model)
    heir.close()
    heir.remove()
    assert chosen["topic"] not in topic_names(broker)


@pytest.mark.whole
def test_a_commit_of_which_nothing_was_heard_is_there_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its answer is lost, or the commit itself; then more time passes than a transaction has."""
    monkeypatch.setattr(topic_sink, "STALLED_S", 1.0)
    with Proxy(0) as proxy, ProxiedKafka(proxy, QUICK) as broker:
        chosen = options(broker, bootstrap_servers=broker.proxied, transaction_timeout_ms=1000)
        chosen["client"] = {"socket.timeout.ms": 1000}
        sink, model, faults = sink_of(KEYED, chosen), Model(KEYED, 12), list[Fault]()

        def pass_place(place: str) -> None:
            if place == "topic.commit.before" and faults:
                sink._flush()
                proxy.begin(faults.pop())

        monkeypatch.setattr(topic_sink, "failpoint", pass_place)
        sink.open()
        sink.write([model.epoch()])
        for lost, is_there in ((DOWN, True), (UP, False)):
            epoch = model.epoch()
            faults.append(Fault(HALF_OPEN, (lost,)))
            with pytest.raises(TemporaryError):
                sink.write([epoch])
            # Taken, or given up by the broker: what still tries to commit it comes too late.
            wait_until(lambda: has_no_open_transaction(broker, chosen["topic"]))
            proxy.heal()
            assert sink.open() == epoch.number - (not is_there)
            if not is_there:
                sink.write([epoch])
        sink.close()
        compare(broker, chosen, model)
