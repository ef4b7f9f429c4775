"""Oracle: what another Positions reads from the same store after the commit."""

from __future__ import annotations

from connectors.feed_source import FeedStart
from connectors.source import MAIN_SOURCE, SourceBatch
from service.engine.positions import Positions
from storage.memory import MemoryStore


def test_sources_move_on_by_themselves() -> None:
    store = MemoryStore()
    positions = Positions(store, MAIN_SOURCE)
    assert (positions.epoch, positions.database, positions.offsets("web")) == (0, 0, {})
    positions.begin(MAIN_SOURCE, 10)
    positions.begin("web", {"a": FeedStart({"next": 1}, {"k": b"v"}), "b": FeedStart({"next": 2})})
    positions.pass_over(SourceBatch(20, [], 1, 1), 1)
    told = SourceBatch(
        0, [], 1, 1, source="web", positions={"a": {"next": 5}}, notes={"k": None, "m": b"w"}
    )
    positions.pass_over(told, 2)
    positions.save()
    store.commit()
    again = Positions(store, MAIN_SOURCE)
    assert (again.epoch, again.database) == (2, 20)
    assert again.offsets("web") == {"a": {"next": 5}, "b": {"next": 2}}
    assert again.notes("web") == {"m": b"w"}


def test_what_is_forgotten_leaves_nothing() -> None:
    store = MemoryStore()
    positions = Positions(store, MAIN_SOURCE)
    positions.begin("web", {"a": FeedStart({"n": 1}, {"k": b"v"}), "b": FeedStart({"n": 2})})
    positions.forget("web", ["a"])
    assert positions.offsets("web") == {"b": {"n": 2}} and positions.notes("web") == {"k": b"v"}
    positions.forget("web", ["b"])
    assert positions.by_source == {} and positions.notes("web") == {}
    positions.forget("web", ["b"])
    positions.begin("web", {"a": FeedStart({"n": 1}, {"k": b"v"})})
    positions.clear()
    store.commit()
    assert Positions(store, MAIN_SOURCE).progress is None
    assert Positions(store, MAIN_SOURCE).notes("web") == {}
