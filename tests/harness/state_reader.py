"""Reads views in one snapshot of the sink, again and again: each state names the change after which
it is, and no later state names an earlier one."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from psycopg2 import Error

from tests.harness.postgres import Database
from tests.harness.tiers import is_fast
from tests.harness.verdicts import WrongStateError

# In the fast tier most of the cores is left to the service.
BETWEEN_LOOKS_S = 0.01 if is_fast() else 0.002

Rows = Sequence[tuple[Any, ...]]


class StateReader:
    """states: how many were read; distinct: how many differed from the one before."""

    queries: Sequence[str] = ()

    def __init__(self, sink: Database) -> None:
        self._sink = sink
        self._last = -1
        self.states = 0
        self.distinct = 0
        self._connection = None

    def number_of(self, answers: Sequence[Rows]) -> int | None:
        """Return the number of the change after which the queries have these answers.

        WrongStateError if there is none. None: the state is not to be judged.
        """
        raise NotImplementedError

    def check(self) -> int | None:
        """One look; the number of its state, or None when the sink could not be read just then."""
        try:
            self._connection = self._connection or self._sink.connect(autocommit=False)
            answers = self._read()
        except Error:
            if self._connection is not None:
                self._connection.close()
            self._connection = None
            return None
        number = self.number_of(answers)
        if number is None:
            return None
        if number < self._last:
            raise WrongStateError(f"the views went back from {self._last} to {number}")
        self.states += 1
        self.distinct += number != self._last
        self._last = number
        return number

    def shows(self, number: int) -> bool:
        """Whether the views are as after this change."""
        return self.check() == number

    def look_for(self, seconds: float) -> None:
        """Look again and again for so long, once at least."""
        end = time.monotonic() + seconds
        while True:
            self.check()
            if time.monotonic() >= end:
                return
            time.sleep(BETWEEN_LOOKS_S)

    def await_further(
        self, states: int, within_s: float = 60, log: Callable[[], str] = str
    ) -> float:
        """Look until so many further states were seen; how many seconds that took. log: what
        tells why they do not come."""
        started, expected = time.monotonic(), self.distinct + states
        while self.distinct < expected:
            passed_s = time.monotonic() - started
            assert passed_s < within_s, f"the views do not move on\n{log()}"
            self.check()
            time.sleep(BETWEEN_LOOKS_S)
        return time.monotonic() - started

    def settle(self, within_s: float, log: Callable[[], str]) -> None:
        """Look until the views follow again."""
        self.await_further(2, within_s, log)

    def close(self) -> None:
        """End the session."""
        if self._connection is not None:
            self._connection.close()

    def _read(self) -> list[Rows]:
        assert self._connection is not None
        with self._connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            answers = []
            for sql in self.queries:
                cursor.execute(sql)
                answers.append(cursor.fetchall())
        self._connection.rollback()
        return answers
