"""Oracle: by hand. A database that is away is asked for until it answers, and no further."""

from __future__ import annotations

import threading

from dataflow.errors import SourceError, TemporaryError, TidemarkError
from service.pipeline.reconnect import Reconnect
from service.runtime.runtime import Runtime

AWAY = TemporaryError("source.unreachable", "it is away")


class Quick(Runtime):
    """Pauses are none."""

    def draw(self, low: float, high: float) -> float:
        return 0.0


class ScriptedProbe:
    """Answers in turn; the last one is no error."""

    def __init__(self, *errors: TidemarkError) -> None:
        self.errors = list(errors)
        self.found = threading.Event()
        self.reconnect = Reconnect(self._ask, self.found.set, runtime=Quick())

    def _ask(self) -> None:
        if self.errors:
            raise self.errors.pop(0)


def test_it_is_probed_until_it_answers() -> None:
    asked = ScriptedProbe(AWAY, AWAY, TemporaryError("source.busy", "it is full"))
    assert asked.reconnect.is_open and asked.reconnect.error is None
    asked.reconnect.lost(AWAY)
    assert asked.found.wait(10) and asked.reconnect.is_open
    # It was found, and nobody has opened it yet: it still counts as away.
    error = asked.reconnect.error
    assert error is not None and error.code == "source.busy" and not asked.errors
    asked.reconnect.regained()
    assert asked.reconnect.error is None


def test_a_refusal_is_for_the_pipeline_to_meet() -> None:
    asked = ScriptedProbe(SourceError("source.login", "no"), AWAY)
    asked.reconnect.lost(AWAY)
    assert asked.found.wait(10) and asked.reconnect.is_open and len(asked.errors) == 1


def test_pauses_grow_until_it_is_read_again() -> None:
    asked = ScriptedProbe()
    pauses = []
    for _ in range(3):
        asked.found.clear()
        pauses.append(asked.reconnect.lost(AWAY))
        assert asked.found.wait(10)
    asked.reconnect.regained()
    assert pauses == [0.1, 0.2, 0.4] and asked.reconnect.lost(AWAY) == 0.1
    asked.reconnect.close()


def test_what_an_old_search_finds_says_nothing() -> None:
    """Nothing depends on the source any more while it is being asked for."""
    asks, go_on = threading.Event(), threading.Event()

    def ask() -> None:
        asks.set()
        go_on.wait(10)
        raise AWAY

    reconnect = Reconnect(ask, lambda: None, runtime=Quick())
    reconnect.lost(AWAY)
    assert asks.wait(10)
    reconnect.regained()
    go_on.set()
    for thread in threading.enumerate():
        if thread.name == "way-back":
            thread.join(10)
    assert reconnect.error is None and reconnect.is_open
