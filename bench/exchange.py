"""`python -m bench.exchange`: what two workers of one pipeline would cost each other, for W1.

Measured are the parts of one process's epoch, and what two workers would add. They would partition
rows by a hash of the key, pass half of them through shared memory, and wait for each other. They
would also store the exchanged rows, because two stores do not commit at once. This bounds the gain
on idle cores. All figures are CPU time, which other load hardly affects. The result is printed and
written to bench/exchange.json (decision 19).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from bench import engine
from bench.engine import Job, Stage
from bench.generate import prepare
from bench.measure import in_child, percentile
from bench.plans import DEFAULT, planned
from bench.record import revision
from bench.rows import Generated
from bench.workloads import FULL, ORDERS, QUICK, WORKLOADS, Sizes
from dataflow.delta import KIND_BYTES, Column, Delta, hash_columns
from dataflow.shared import SharedDataflow
from service.engine.engine import Engine
from storage.rocks import RocksStore

RESULT = Path(__file__).parent / "exchange.json"
# Epochs of that many changes, and how often; each beside epochs of half as many.
EPOCHS = ((10_000, 5), (1_000, 40), (100, 300))
ROUNDS = 4
TABLE_KEY, JOIN_KEY = 0, 1
SEGMENT_BYTES = 16 << 20
# Waits for each other an epoch: after each exchange, and before the commit.
WAITS = 3
DECODE_US = 0.12  # a row, by decision 16: done once, whoever works on the rows
TARGET = 1.6


@dataclass(frozen=True)
class Parts:
    """CPU µs of one process's epoch: what workers could share, and the rest."""

    changes: int
    shared_us: float
    rest_us: float


@dataclass(frozen=True)
class Exchange:
    """CPU µs a row of an exchange of that many rows, and µs a wait.

    cut: hash and partition in two. hand_over: write one half to shared memory and read the other.
    join: combine both halves into one delta. write: store one half, for recovery.
    """

    rows: int
    cut_us: float
    hand_over_us: float
    join_us: float
    write_us: float

    def of_half(self) -> float:
        """Return a worker's CPU µs for each row of the whole, of which it handles half."""
        handled_us = self.cut_us + self.join_us
        return (handled_us + self.hand_over_us + self.write_us) / 2


class Clock:
    """CPU seconds of methods, by the size of the epoch in which they ran.

    Only of the newest engine: the earlier ones were warm-up.
    """

    def __init__(self) -> None:
        self.spent: dict[tuple[int, str], float] = {}
        self.epochs: dict[int, int] = {}
        self._engine: object = None
        self._size = 0
        for owner, name in (
            (Engine, "commit"),
            (SharedDataflow, "step"),
            (RocksStore, "commit"),
        ):
            self._time(owner, name)
        self._time(Engine, "step", self._begin)

    def _begin(self, engine: object, batch: Any) -> None:
        if engine is not self._engine:
            self._engine, self.spent, self.epochs = engine, {}, {}
        self._size = batch.transactions
        self.epochs[self._size] = self.epochs.get(self._size, 0) + 1

    def _time(self, owner: type, name: str, before: Callable[..., None] | None = None) -> None:
        method, label = getattr(owner, name), f"{owner.__name__}.{name}"

        def timed(*arguments: Any, **named: Any) -> Any:
            if before is not None:
                before(*arguments, **named)
            result = self._count(label, lambda: method(*arguments, **named))
            return self._turns(label, result) if isinstance(result, Iterator) else result

        setattr(owner, name, timed)

    def _turns(self, label: str, turns: Iterator[Any]) -> Iterator[Any]:
        """Time each step of a generator; the time of its consumer in between does not count."""
        end = object()
        while (turn := self._count(label, lambda: next(turns, end))) is not end:
            yield turn

    def _count(self, label: str, call: Callable[[], Any]) -> Any:
        started = time.process_time()
        result = call()
        key = self._size, label
        self.spent[key] = self.spent.get(key, 0.0) + time.process_time() - started
        return result

    def parts(self, changes: int) -> Parts:
        """Return the parts of epochs of this size; operators and their store can be divided."""
        step, whole, write, commit = (
            1e6 * self.spent[changes, label] / self.epochs[changes]
            for label in (
                "SharedDataflow.step",
                "Engine.step",
                "RocksStore.commit",
                "Engine.commit",
            )
        )
        return Parts(changes, step + write, whole - step + commit - write)


def measure_parts(job: Job) -> list[Parts]:
    """Run the job; call it in a process of its own."""
    clock = Clock()
    fault = engine.run(job).fault
    if fault:
        raise RuntimeError(fault)
    return [clock.parts(size) for size in sorted({s.size for s in job.stages})]


def read_rows(rows: Generated, start: int, count: int) -> Delta:
    """Return rows of the stream of orders, whole, as the decoder produces them."""
    read = rows.read(ORDERS, "changes", ORDERS.names, start, start + count)
    return Delta(engine.columns_of(rows, ORDERS, read), np.ones(count, np.int64))


def cut(rows: Delta, key: int) -> tuple[Delta, Delta]:
    """Partition the rows between two workers by the hash of a column."""
    is_second = hash_columns([rows.columns[key]], len(rows)) >> np.uint64(63) != 0
    return rows.take(np.flatnonzero(~is_second)), rows.take(np.flatnonzero(is_second))


def put(segment: SharedMemory, rows: Delta) -> list[tuple[int, int, str]]:
    """Copy a delta's buffers; return each one's location (start, items, type)."""
    at, places = 0, []
    buffers = [b for c in rows.columns for b in (c.values, c.data) if b is not None]
    for buffer in (*buffers, rows.weights):
        target = np.ndarray(buffer.shape, buffer.dtype, segment.buf, at)
        target[:] = buffer
        places.append((at, len(buffer), buffer.dtype.str))
        at += (buffer.nbytes + 7) // 8 * 8
    return places


def take(segment: SharedMemory, kinds: str, places: list[tuple[int, int, str]]) -> Delta:
    """Return the delta over these buffers, without a copy."""
    buffers = [np.ndarray((n,), dtype, segment.buf, at) for at, n, dtype in places]
    columns = []
    for kind in kinds:
        values = buffers.pop(0)
        columns.append(Column(values, None, buffers.pop(0) if kind == KIND_BYTES else None))
    return Delta(columns, buffers[0])


def measure_exchange(rows: Generated, changes: int, repeats: int) -> Exchange:
    """Exchange that many rows, several times; call it in a process of its own."""
    spent = np.zeros(4)
    most = rows.count(ORDERS, "changes") - changes
    segment = SharedMemory(create=True, size=SEGMENT_BYTES)
    with TemporaryDirectory(prefix="tidemark-bench-") as folder:
        store = RocksStore(Path(folder) / "store")
        try:
            for turn in range(-max(repeats // 4, 2), repeats):
                delta = read_rows(rows, abs(turn) * changes % most, changes)
                took = _one_exchange(delta, segment, store)
                if turn >= 0:
                    spent += took
        finally:
            store.close()
            segment.close()
            segment.unlink()
    cut_us, hand_over_us, join_us, write_us = (1e6 * spent / (repeats * changes)).tolist()
    # Each handed over and wrote half of the rows.
    return Exchange(changes, cut_us, hand_over_us, join_us, write_us)


def _one_exchange(delta: Delta, segment: SharedMemory, store: RocksStore) -> np.ndarray:
    """Return the CPU seconds of the four steps: cut, hand over, join, write."""
    marks = [time.process_time()]
    mine, theirs = cut(delta, JOIN_KEY)
    marks.append(time.process_time())
    places = put(segment, theirs)
    came = take(segment, delta.kinds, places)
    marks.append(time.process_time())
    joined = Delta.concat([mine, came])
    marks.append(time.process_time())
    store.put("exchanged", bytes(segment.buf[: places[-1][0] + 8 * places[-1][1]]))
    store.commit()
    marks.append(time.process_time())
    assert len(joined) == len(delta)
    return np.diff(marks)


def _answer(channel: Connection) -> None:
    """Run the other worker: answer each message, until "end"; then send its CPU seconds."""
    while channel.recv_bytes() != b"end":
        channel.send_bytes(b"here")
    channel.send(time.process_time())


def measure_waits(count: int) -> dict[str, float]:
    """Return the CPU µs of both sides and the elapsed µs of one wait of two processes for each
    other.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    other = context.Process(target=_answer, args=(theirs,))
    other.start()
    for _ in range(100):
        ours.send_bytes(b"here")
        ours.recv_bytes()
    elapsed, cpu = [], time.process_time()
    for _ in range(count):
        started = time.perf_counter()
        ours.send_bytes(b"here")
        ours.recv_bytes()
        elapsed.append(time.perf_counter() - started)
    cpu = time.process_time() - cpu
    ours.send_bytes(b"end")
    ours.recv()
    other.join()
    p50, p99 = (1e6 * percentile(elapsed, share) for share in (0.5, 0.99))
    return {"cpu_us": 1e6 * cpu / count, "p50_us": p50, "p99_us": p99}


def bound(whole: Parts, half: Parts, exchanges: list[Exchange], wait_us: float) -> dict[str, float]:
    """Return the largest gain of two workers on two idle cores, with decoding and without."""
    n = whole.changes
    one_us = whole.shared_us + whole.rest_us
    exchange_us = sum(e.of_half() for e in exchanges) * n
    two_us = whole.rest_us + half.shared_us + exchange_us + WAITS * wait_us
    decode_us = DECODE_US * n
    return {
        "changes": n,
        "one_us": one_us / n,
        "rest_us": whole.rest_us / n,
        "half_us": half.shared_us / n,
        "exchange_us": exchange_us / n,
        "waits_us": WAITS * wait_us / n,
        "without exchange": one_us / (whole.rest_us + half.shared_us),
        "gain": one_us / two_us,
        "gain with decoding": (one_us + decode_us) / (two_us + decode_us),
    }


def run(sizes: Sizes, *, is_quick: bool) -> dict[str, Any]:
    """Measure everything."""
    workload = WORKLOADS["w1"]
    rows, small = prepare(workload.rows, sizes), prepare(workload.rows, QUICK)
    epochs = tuple((n // 10, 3) for n, _ in EPOCHS) if is_quick else EPOCHS
    stages = [Stage(epochs[0][0], 2)]
    for size, count in epochs * (1 if is_quick else ROUNDS):
        stages += [Stage(size, count), Stage(size // 2, 2 * count)]
    with planned([(workload, DEFAULT)]) as plans:
        job = Job(workload, plans["w1", DEFAULT], rows, small, (*stages, Stage(epochs[0][0])))
    parts = {p.changes: p for p in in_child(measure_parts, job)}
    waits = measure_waits(200 if is_quick else 5_000)
    found = []
    for size, count in epochs:
        exchange = in_child(measure_exchange, rows, size, 20 * count)
        # By the table's key, then by the join's: the rows of two exchanges are much alike.
        figures = bound(parts[size], parts[size // 2], [exchange] * 2, waits["p50_us"])
        found.append({"bound": figures, "exchange": asdict(exchange)})
    return {"revision": revision(), "wait": waits, "epochs": found, "target": TARGET}


def text_of(result: dict[str, Any]) -> str:
    """Return the tables of decision 19."""
    lines = ["| changes an epoch | " + " | ".join(list(result["epochs"][0]["bound"])[1:]) + " |"]
    lines.append("|---" * (lines[0].count("|") - 1) + "|")
    for epoch in result["epochs"]:
        size, *figures = epoch["bound"].values()
        lines.append(f"| {size:,} | " + " | ".join(f"{x:.2f}" for x in figures) + " |")
    for epoch in result["epochs"]:
        lines.append(", ".join(f"{name} {x:.3f}" for name, x in epoch["exchange"].items()))
    lines.append(", ".join(f"{name} {x:.1f}" for name, x in result["wait"].items()))
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    """Measure, print, and write the file."""
    parser = argparse.ArgumentParser(prog="python -m bench.exchange", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes: a smoke test")
    options = parser.parse_args(arguments)
    result = run(QUICK if options.quick else FULL, is_quick=options.quick)
    print(text_of(result))
    if not options.quick:
        RESULT.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
