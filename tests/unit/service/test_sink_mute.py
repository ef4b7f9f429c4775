"""Oracle: by hand, how far the sink stays muted and which places are left, for reads of a kind."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from connectors.feed_source import FeedStart
from connectors.source import MAIN_SOURCE
from dataflow.schema import Field, Relation, RelationName
from dataflow.types import TEXT
from service.backfill.builds import Builds
from service.engine.positions import Positions
from service.pipeline.sink_mute import SinkMute
from service.pipeline.source_subscriptions import SourceSubscriptions
from storage.memory import MemoryStore

KNOWN = {"stock": {"next": 1}, "visits": {"next": 2}}


def core_of(*names: str, are_resumed: bool = True) -> Any:
    """A state that stands at KNOWN, of which these topics are read."""
    positions = Positions(MemoryStore(), MAIN_SOURCE)
    positions.begin(MAIN_SOURCE, 10)
    positions.begin("events", {name: FeedStart(position) for name, position in KNOWN.items()})
    titled = [RelationName("events", "events", name) for name in names]
    reads = [(Relation(name, 1, (Field("a", TEXT),)), (0,)) for name in titled]
    builds = Builds()
    if are_resumed:
        builds.note_resumed()
    return SimpleNamespace(
        engine=SimpleNamespace(positions=positions, position=10, epoch=3),
        failures=SimpleNamespace(reads=lambda: reads),
        sides=SimpleNamespace(is_any=bool(names)),
        host=None,
        builds=builds,
    )


def muted(core: Any) -> SinkMute:
    """The sink is ahead by one record of visits."""
    mute = SinkMute(core.engine.positions, core.failures, core.builds, core.sides)
    mute.by_source = {"events": {**KNOWN, "visits": {"next": 3}}}
    return mute


def test_a_topic_mutes_while_an_interrupted_build_may_read_it() -> None:
    core = core_of(are_resumed=False)
    mute = muted(core)
    mute.unmute_reached(3)
    assert mute
    core.builds.note_resumed()
    mute.unmute_reached(3)
    assert not mute


def test_a_topic_that_is_read_mutes_until_it_is_there() -> None:
    core = core_of("visits")
    mute = muted(core)
    mute.unmute_reached(3)
    assert mute
    core.engine.positions.begin("events", {"visits": FeedStart({"next": 3})})
    mute.unmute_reached(3)
    assert not mute


def test_what_nothing_reads_has_no_position() -> None:
    for names in (("stock",), ("stock", "visits"), ()):
        core = core_of(*names)
        rest: Any = dict.fromkeys(
            ("epochs", "mute", "schema_recovery", "database", "external_sources", "sink_workers")
        )
        # No source is declared that retains changes for its readers.
        rest["reconciler"] = SimpleNamespace(sources=SimpleNamespace(rows=[]))
        subscriptions = SourceSubscriptions(
            engine=core.engine, builds=core.builds, failures=core.failures, reset=rest, **rest
        )
        subscriptions.forget_unread()
        left = {"events": {name: KNOWN[name] for name in names}} if names else {}
        assert core.engine.positions.by_source == {MAIN_SOURCE: 10, **left}
