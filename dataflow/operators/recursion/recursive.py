"""WITH RECURSIVE: all rounds of a recursion, maintained together.

Invariant: after each step the output is the sum of all rounds, as PostgreSQL computes them from the
current inputs. Round 0 is the base. Round i + 1 is the step over the rows of round i, for UNION
without those found before. Rounds are resolved in increasing order, each once, so no row is derived
from a row that is gone, even in cycles.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dataflow.delta import Column, Delta
from dataflow.errors import ViewError
from dataflow.expressions.evaluator import RowErrors
from dataflow.operators.base import Context, Traits, kinds_of, types_of
from dataflow.operators.recursion.first_rounds import FirstRounds
from dataflow.operators.recursion.loop_body import Body
from dataflow.operators.recursion.round_queue import RoundQueue
from dataflow.plan.nodes import LOOP_INPUT, LOOP_ROUNDS, LOOP_ROWS, Loop

# PostgreSQL would never return; these limits end an infinite recursion.
MAX_ROUNDS = 10_000
MAX_ROWS = 10_000_000


class RecursiveOperator:
    """Group: a loop over the rounds that change.

    State: that of its body's operators, whose rows carry their round; for UNION every derived row
    with its rounds; if the step makes rows from nothing, also the number of rows of each round.
    Cost: O(rows newly derived or no longer derived), and one step of the body for each round that
    has any. NULL: equals NULL under UNION.

    Rows beyond MAX_ROUNDS are error rows, and nothing is derived from them. A step that finds
    more than MAX_ROWS rows raises ViewError view.recursion_too_large: the view fails.
    """

    traits = Traits()

    def __init__(self, plan: Loop, context: Context, body: Body) -> None:
        self._context = context
        self._name = plan.name
        self._body = body
        self._kinds = kinds_of(plan.fields)
        self._row_kinds = kinds_of(plan.inputs[0].fields)
        self._types = types_of(plan.fields)
        self._first: FirstRounds | None = None
        if plan.keys:
            self._first = FirstRounds(plan, context)
        self._counts = None
        if LOOP_ROUNDS in body.leaves:
            self._counts = context.arrange_sums("rounds", "i", 1)
        self._queue = RoundQueue()
        self._derived: dict[int, list[Delta]] = {}

    def step(self, base: Delta, *inputs: Delta) -> Delta:
        """Return the change of the rows of all rounds."""
        self._queue, self._derived = RoundQueue(), {}
        if self._first is not None:
            self._first.begin(self._queue)
        if len(base):
            self._await(0, base)
        feeds = {f"{LOOP_INPUT} {i}": delta for i, delta in enumerate(inputs) if len(delta)}
        self._derive(feeds | self._first_round())
        found: list[Delta] = []
        total = 0
        while self._queue:
            number = self._queue.pop()
            rows = self._resolve(number)
            if len(rows) == 0:
                continue
            total += int(np.abs(rows.weights).sum())
            if total > MAX_ROWS:
                raise self._too_large()
            if number > MAX_ROUNDS:
                self._refuse(rows)
                continue
            self._context.meter.check(total)
            found.append(rows)
            # Found rows are in memory until the end, and a second time while they are consolidated.
            self._context.store.require_space(rows.nbytes())
            self._derive({LOOP_ROWS: _in_round(rows, number)} | self._turned(number, rows))
        if not found:
            return Delta.empty(self._kinds)
        return found[0] if len(found) == 1 else Delta.concat(found).consolidate()

    def _derive(self, feeds: Mapping[str, Delta]) -> None:
        """Step the body: rows derived from a round belong to the next one."""
        if not feeds:
            return
        out = self._body.step(feeds)
        rows = Delta(out.columns[:-1], out.weights)
        rounds = out.columns[-1].values
        numbers = np.unique(rounds).tolist()
        for number in numbers:
            part = rows if len(numbers) == 1 else rows.take(np.flatnonzero(rounds == number))
            self._await(number + 1, part)

    def _await(self, number: int, rows: Delta) -> None:
        self._derived.setdefault(number, []).append(rows)
        self._queue.add(number)

    def _resolve(self, number: int) -> Delta:
        """Return the change of the rows found in a round; everything derived in it must be
        known."""
        parts = self._derived.pop(number, [])
        derived = Delta.concat(parts).consolidate() if parts else Delta.empty(self._row_kinds)
        return derived if self._first is None else self._first.resolve(number, derived)

    def _first_round(self) -> dict[str, Delta]:
        """Compute the step at least once, even over an empty base."""
        return {} if self._counts is None else self._count(0, 1, only_once=True)

    def _turned(self, number: int, rows: Delta) -> dict[str, Delta]:
        """Record that a round has gained its first row or lost its last."""
        if self._counts is None or number == 0:
            return {}
        return self._count(number, int(rows.weights.sum()))

    def _count(self, number: int, change: int, *, only_once: bool = False) -> dict[str, Delta]:
        assert self._counts is not None
        key = (Column(np.array([number], np.int64)),)
        old = int(self._counts.lookup(key)[0, 0])
        if only_once and old:
            return {}
        self._counts.add(key, np.array([[change]], np.int64))
        turn = (old + change > 0) - (old > 0)
        return {LOOP_ROUNDS: Delta(key, np.array([turn], np.int64))} if turn else {}

    def _refuse(self, rows: Delta) -> None:
        text = f"the recursion {self._name} does not end within {MAX_ROUNDS} rounds"
        failed = RowErrors({i: ("54000", text) for i in range(len(rows))})
        self._context.collect(self._types, rows, failed)

    def _too_large(self) -> ViewError:
        return ViewError(
            "view.recursion_too_large",
            f"the recursion {self._name} found more than {MAX_ROWS} rows at once",
            hint="end it with a condition, or write UNION instead of UNION ALL if the rows "
            "form cycles",
        )


def _in_round(rows: Delta, number: int) -> Delta:
    column = Column(np.full(len(rows), number, np.int64))
    return Delta((*rows.columns, column), rows.weights)
