"""A view being built, stepped by changes of its base relations in bounded memory.

Invariant: its output adds up to its own change. Steps are cut like a live view's: by each table's
batch size, and in parts if a join multiplies rows.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from operator import sub
from typing import Protocol

from dataflow.changes import Changes, since_truncation
from dataflow.delta import Delta
from dataflow.schema import RelationName
from service.engine.batch_sizer import BatchSizer, rows_to_go
from service.engine.definition import View


class CatchUp(Protocol):
    """Steps a view that is being built, from its snapshot until it joins the live views."""

    def take(self, changes: Sequence[Changes]) -> Iterator[Delta]:
        """Yield the view's deltas; perhaps only with later changes. ViewError."""
        ...

    def finish(self) -> Iterator[Delta]:
        """Yield the deltas of all changes so far. ViewError."""
        ...

    def errors(self) -> Delta:
        """Return the error rows since the last call."""
        ...


class Replay:
    """A view in the engine's own store; see CatchUp.

    max_made: target of rows per step; from PARTS_FROM times that on, output comes in parts.
    """

    PARTS_FROM = 2

    def __init__(self, view: View, max_made: int) -> None:
        self._view = view
        self._batch_sizer = BatchSizer(max_made)
        self._part_rows = self.PARTS_FROM * max_made

    def take(self, changes: Sequence[Changes]) -> Iterator[Delta]:
        """Yield the view's deltas; the store may be relieved after each. ViewError."""
        with self._view.meter.epoch(sum(map(len, changes))):
            yield from self._taken(changes)

    def _taken(self, changes: Sequence[Changes]) -> Iterator[Delta]:
        view = self._view
        tables = [(name, state) for name, state in view.tables.items()]
        for some in self._batch_sizer.slices(changes):
            for at, rows in rows_to_go(tables, some, self._batch_sizer):
                name = tables[at][0]
                made = yield from self._step({name: view.needed(name, rows)})
                self._batch_sizer.learn_of(name, len(rows), made)
            inputs = view.resolve(since_truncation(some))
            if inputs:
                made = yield from self._step(inputs)
                self._batch_sizer.learn(some, made)

    def finish(self) -> Iterator[Delta]:
        """See CatchUp: nothing is held back."""
        return iter(())

    def errors(self) -> Delta:
        """See CatchUp."""
        return self._view.errors.take()

    def _step(self, inputs: Mapping[RelationName, Delta]) -> Generator[Delta, None, int]:
        """Step the view; return the rows made at its widest operator."""
        dataflow = self._view.dataflow
        before = list(dataflow.rows_out)
        yield from self._view.parts(inputs, self._part_rows)
        return max(map(sub, dataflow.rows_out, before))
