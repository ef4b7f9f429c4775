"""Answers of PostgreSQL that may change later, recorded so that a step can be repeated exactly.

A task may run twice, and a state is rebuilt by stepping old epochs again. A stable function may by
then have another result, which no reader has seen. So the first attempt of a step writes what it
was answered to a name that only one attempt can create, and all others use that. Answers are found
by expression and arguments: order and batches do not matter, because volatile functions are refused
(`sql.volatile_function`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import orjson

from connectors.pages import decode_delta, encode_delta
from connectors.spark.maintained.files import pack, unpack
from dataflow.delta import Column, Delta
from dataflow.errors import InvariantError
from dataflow.expressions.evaluator import Evaluator, RowErrors
from dataflow.operators.groups import touch
from dataflow.types import SqlType


class AnswerRecorder:
    """An evaluator that records the results of `evaluate`, or replays recorded ones.

    Groups and ranks are not recorded: their results never change (see `rules.remember_stable`).
    """

    def __init__(self, evaluator: Evaluator) -> None:
        self._evaluator = evaluator
        self._recorded: dict[str, list[Delta]] = {}
        self._replayed: dict[str, Delta] | None = None
        self.evaluate_groups = evaluator.evaluate_groups
        self.rank = evaluator.rank

    def record(self) -> None:
        """Ask PostgreSQL from now on."""
        self._recorded, self._replayed = {}, None

    def replay(self, answers: bytes) -> None:
        """Use these answers from now on."""
        self._recorded, self._replayed = {}, {}
        pages = list(unpack(answers))
        for (_, _, name), (_, _, rows) in zip(pages[::2], pages[1::2], strict=True):
            self._replayed[orjson.loads(name)] = decode_delta(bytearray(rows))

    @property
    def recorded(self) -> bytes | None:
        """What was answered since `record`; None for nothing."""
        if not self._recorded:
            return None
        pages = []
        for number, (name, rows) in enumerate(self._recorded.items()):
            pages.append((number, 0, orjson.dumps(name)))
            pages.append((number, 1, encode_delta(Delta.concat(rows))))
        return pack(pages)

    def evaluate(
        self,
        sql: str,
        types: Sequence[SqlType],
        columns: Sequence[Column],
        n: int,
        result: SqlType,
    ) -> tuple[Column, RowErrors]:
        """See Evaluator."""
        name = "\0".join([sql, *(t.name for t in types), result.name])
        if self._replayed is not None:
            return self._found(name, columns, n)
        column, errors = self._evaluator.evaluate(sql, types, columns, n, result)
        states: list[str | None] = [None] * n
        texts: list[str | None] = [None] * n
        for row, (state, text) in errors.by_row.items():
            states[row], texts[row] = state, text
        failures = [Column.of("s", states), Column.of("s", texts)]
        rows = Delta([*columns, column, *failures], np.ones(n, np.int64))
        self._recorded.setdefault(name, []).append(rows)
        return column, errors

    def _found(self, name: str, columns: Sequence[Column], n: int) -> tuple[Column, RowErrors]:
        assert self._replayed is not None
        rows = self._replayed.get(name)
        if rows is None:
            raise _unanswered(name)
        width = len(columns)
        pairs = zip(rows.columns[:width], columns, strict=True)
        group = touch([Column.concat(pair) for pair in pairs], len(rows) + n).group
        position = np.full(int(group.max(initial=0)) + 1, -1, np.int64)
        position[group[: len(rows)]] = np.arange(len(rows))
        at = position[group[len(rows) :]]
        if (at < 0).any():
            raise _unanswered(name)
        column, states, texts = (c.take(at) for c in rows.columns[width:])
        failed = zip(states.texts(), texts.texts(), strict=True)
        errors = RowErrors({i: (s, t or "") for i, (s, t) in enumerate(failed) if s is not None})
        return column, errors


def _unanswered(name: str) -> InvariantError:
    return InvariantError(
        "spark.answers",
        "a repeated step asks what the first attempt did not",
        detail=name.partition("\0")[0][:300],
    )
