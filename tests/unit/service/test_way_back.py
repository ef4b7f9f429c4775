"""Oracle: by hand. A database that is away is asked for until it answers, and no further."""

from __future__ import annotations

import threading

from dataflow.errors import SourceError, TemporaryError, TidemarkError
from service.pipeline.reconnect import WayBack
from service.runtime.runtime import Host

AWAY = TemporaryError("source.unreachable", "it is away")


class Quick(Host):
    """Pauses are none."""

    def draw(self, low: float, high: float) -> float:
        return 0.0


class Asked:
    """Answers in turn; the last one is no error."""

    def __init__(self, *errors: TidemarkError) -> None:
        self.errors = list(errors)
        self.found = threading.Event()
        self.way_back = WayBack(self._ask, self.found.set, host=Quick())

    def _ask(self) -> None:
        if self.errors:
            raise self.errors.pop(0)


def test_it_is_asked_until_it_answers() -> None:
    asked = Asked(AWAY, AWAY, TemporaryError("source.busy", "it is full"))
    assert asked.way_back.is_open and asked.way_back.error is None
    asked.way_back.lost(AWAY)
    assert asked.found.wait(10) and asked.way_back.is_open
    # It was found, and nobody has opened it yet: it still counts as away.
    error = asked.way_back.error
    assert error is not None and error.code == "source.busy" and not asked.errors
    asked.way_back.regained()
    assert asked.way_back.error is None


def test_a_refusal_is_for_the_pipeline_to_meet() -> None:
    asked = Asked(SourceError("source.login", "no"), AWAY)
    asked.way_back.lost(AWAY)
    assert asked.found.wait(10) and asked.way_back.is_open and len(asked.errors) == 1


def test_pauses_grow_until_it_is_read_again() -> None:
    asked = Asked()
    pauses = []
    for _ in range(3):
        asked.found.clear()
        pauses.append(asked.way_back.lost(AWAY))
        assert asked.found.wait(10)
    asked.way_back.regained()
    assert pauses == [0.1, 0.2, 0.4] and asked.way_back.lost(AWAY) == 0.1
    asked.way_back.close()


def test_what_an_old_search_finds_says_nothing() -> None:
    """Nothing depends on the source any more while it is being asked for."""
    asks, go_on = threading.Event(), threading.Event()

    def ask() -> None:
        asks.set()
        go_on.wait(10)
        raise AWAY

    way_back = WayBack(ask, lambda: None, host=Quick())
    way_back.lost(AWAY)
    assert asks.wait(10)
    way_back.regained()
    go_on.set()
    for thread in threading.enumerate():
        if thread.name == "way-back":
            thread.join(10)
    assert way_back.error is None and way_back.is_open
