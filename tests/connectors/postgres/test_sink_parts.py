"""Oracle: a dictionary of rows as PostgreSQL prints them, changed beside a sink that gets its
epochs in parts, from disk."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

import pytest

from connectors.postgres.sink import apply_deltas
from connectors.postgres.sink.postgres_sink import PostgresSink
from connectors.sink import Progress, SinkEpoch, SinkPart, SinkRows, SinkTable
from dataflow.delta import Delta
from dataflow.errors import ViewError
from service.engine.epoch_buffer import EpochBuffer
from tests.harness.postgres import Database
from tests.harness.sink_rows import SETUP, Oracle, bag_table, delta_of, keyed_table


class Reversed:
    """Parts in the opposite order: any order must do."""

    def __init__(self, inner: EpochBuffer) -> None:
        self._inner = inner

    @property
    def rows(self) -> Mapping[SinkTable, int]:
        return self._inner.rows

    def __iter__(self) -> Iterator[SinkPart]:
        yield from reversed(list(self._inner))

    def close(self) -> None:
        self._inner.close()


def _failing(function, after: int):
    """The function, failing once, the `after`-th time that it is called."""
    calls = itertools.count(1)

    def called(*arguments):
        if next(calls) == after:
            raise ZeroDivisionError
        return function(*arguments)

    return called


@pytest.mark.parametrize("copy_rows", [5_000, 3])
def test_an_epoch_in_parts_is_one_transaction(
    every_database: Database, copy_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after a write that failed half way."""
    every_database.execute(SETUP)
    sink = PostgresSink(every_database.dsn)
    monkeypatch.setattr(apply_deltas, "COPY_ROWS", copy_rows)
    monkeypatch.setattr(apply_deltas, "COPIED_ROWS", copy_rows)
    oracles = [Oracle(keyed_table(), 1), Oracle(bag_table(), 2)]
    for oracle in oracles:
        sink.load(oracle.table, [oracle.change(100)], None)

    def differences() -> list[int]:
        held = [Delta.concat(list(sink.read_rows(o.table))) for o in oracles]
        wanted = [delta_of(o.table, o.rows).negate() for o in oracles]
        both = zip(held, wanted, strict=True)
        return [len(Delta.concat(list(pair)).consolidate()) for pair in both]

    for number in range(1, 5):
        gathered = EpochBuffer(20_000)
        for _ in range(4):
            for oracle in oracles:
                gathered.add(oracle.table, oracle.change(60))
        assert gathered.is_spilled and len(list(gathered)) > 20
        later = Reversed(gathered) if number % 2 else gathered
        epoch = SinkEpoch(Progress(number, {}), SinkRows(later=later))
        behind = differences()
        with monkeypatch.context() as patch:
            patch.setattr(apply_deltas, "_counts", _failing(apply_deltas._counts, 30))
            with pytest.raises(ViewError) as caught:
                sink.write(epoch)
            assert isinstance(caught.value.__cause__, ZeroDivisionError)
        assert differences() == behind and min(behind) > 50
        sink.write(epoch)
        assert differences() == [0, 0], number
        gathered.close()
    sink.close()
