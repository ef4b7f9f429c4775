"""Runs seeds: `python -m tests.simulation.run SEED` one with its trace, `--seeds N` many.

A seed that fails is made small: fewer steps and faults, as long as it still fails. Then the
command that repeats it is printed, and the last lines of its trace.
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from unittest.mock import patch

import structlog
from greenlet import getcurrent

from service.factory import planning
from service.subscriptions import change_feed, subscriptions
from storage import failpoints
from tests.harness import figures
from tests.simulation import event_loop, past
from tests.simulation.analysis import plan_once
from tests.simulation.fibers import Fiber
from tests.simulation.world import Outcome, SimProcess, World

SHARE = 50
TRACE_LINES = 60
SMALLER_STEPS = (1, 2, 3, 4, 6, 8, 12, 16)


def _at_failpoint(name: str, error: Callable[[str], Exception]) -> None:
    """A named place in the product: a step of the run whose fiber passes it."""
    fiber = getcurrent()
    if isinstance(fiber, Fiber) and isinstance(fiber.process, SimProcess):
        fiber.process.faults.step(name)


@contextmanager
def simulated() -> Iterator[None]:
    """The product's log goes nowhere, its plans are made once, its failpoints are steps."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    try:
        with (
            patch.object(planning, "plan_view", plan_once),
            patch.object(failpoints, "_SET", {"simulation": None}),
            patch.object(failpoints, "_pass", _at_failpoint),
            patch.object(subscriptions, "run_in_threadpool", event_loop.in_fiber),
            patch.object(subscriptions, "touch", event_loop.touch),
            patch.object(change_feed, "touch", event_loop.touch),
            patch.object(change_feed, "FolderWatch", event_loop.SilentWatch),
        ):
            yield
    finally:
        structlog.configure(**before)


def run(
    seed: int,
    *,
    steps: int | None = None,
    faults: int | None = None,
    parts: Iterable[str] | None = None,
) -> Outcome:
    """One seed."""
    with simulated():
        return World(seed, steps=steps, faults=faults, parts=parts).run()


def small(seed: int, parts: Sequence[str] | None = None) -> tuple[Outcome, str]:
    """Return a failure of a seed with as few parts, steps and faults as may be, and what repeats
    it."""
    steps = faults = None
    found = run(seed, parts=parts)
    parts = found.parts
    for part in parts:
        fewer_parts = tuple(name for name in parts if name != part)
        tried = run(seed, parts=fewer_parts)
        if tried.failure is not None:
            parts, found = fewer_parts, tried
    for fewer in SMALLER_STEPS:
        tried = run(seed, steps=fewer, parts=parts)
        if tried.failure is not None:
            steps, found = fewer, tried
            break
    for fewer in range(sum(found.faults.values())):
        tried = run(seed, steps=steps, faults=fewer, parts=parts)
        if tried.failure is not None:
            faults, found = fewer, tried
            break
    words = f" --parts {','.join(parts) or '-'}"
    words += f" --steps {steps}" if steps is not None else ""
    words += f" --faults {faults}" if faults is not None else ""
    return found, f"python -m tests.simulation.run {seed}{words}"


def told(outcome: Outcome, command: str) -> str:
    """A failure for who looks into it."""
    assert outcome.failure is not None
    lines = [*outcome.trace[-TRACE_LINES:], *traceback.format_exception(outcome.failure)[-4:]]
    return "\n".join([*lines, f"seed {outcome.seed} fails; repeat: {command}"])


def run_all(
    seeds: Sequence[int], parts: Sequence[str] | None = None
) -> tuple[Counter[str], list[str]]:
    """Figures of some seeds, and what failed. parts: of each; what it has drawn if None."""
    figures: Counter[str] = Counter()
    failed: list[str] = []
    for seed in seeds:
        found = run(seed, parts=parts)
        figures += Counter(count=1, epochs=found.states, steps=found.steps)
        figures += Counter(restarts=found.restarts, faults=sum(found.faults.values()))
        if found.failure is not None:
            failed.append(told(*small(seed, parts)))
    return figures, failed


def _many(first: int, count: int, parts: Sequence[str] | None) -> int:
    """On all cores; how many failed."""
    shares = [range(n, min(n + SHARE, first + count)) for n in range(first, first + count, SHARE)]
    started, total, failed = time.monotonic(), Counter[str](), 0
    if parts is None or "history" in parts:
        # One for all processes, which ends with this one.
        past.server_port()
    context = multiprocessing.get_context("spawn")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with context.Pool(os.cpu_count(), maxtasksperchild=20) as pool:
            work = functools.partial(run_all, parts=parts)
            for found, faults in pool.imap_unordered(work, shares):
                total += found
                failed += len(faults)
                for fault in faults:
                    print(fault, flush=True)
                print(f"{total['count']} of {count} seeds, {failed} failed", file=sys.stderr)
    finally:
        # Of a run that is interrupted as well.
        _add_figures(first, total, failed, parts)
    print(f"{count} seeds from {first} on in {time.monotonic() - started:.0f} s, {failed} failed")
    return failed


def _add_figures(first: int, total: Counter[str], failed: int, parts: Sequence[str] | None) -> None:
    more = dict(total)
    count = more.pop("count", 0)
    command = f"make simulate SEED={first} SEEDS={count}"
    if parts is not None:
        words = f"{first} --seeds {count} --parts {','.join(parts) or '-'}"
        command = f"python -m tests.simulation.run {words}"
    figures.add(
        "seeds",
        count=count,
        wrong=failed,
        command=command,
        **more,  # type: ignore[arg-type]
    )


def main() -> int:
    """The command line; ends with 1 when a seed has failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seed", type=int, nargs="?", default=1, help="the first one")
    parser.add_argument("--seeds", type=int, default=0, help="how many, on all cores")
    parser.add_argument("--steps", type=int, help="transactions and operations by three")
    parser.add_argument("--faults", type=int, help="leave out all after so many")
    parser.add_argument("--parts", help="of features.py, with commas between; - for none")
    given = parser.parse_args()
    parts = None if given.parts is None else [p for p in given.parts.split(",") if p not in "-"]
    if given.seeds:
        return int(_many(given.seed, given.seeds, parts) > 0)
    outcome = run(given.seed, steps=given.steps, faults=given.faults, parts=parts)
    print("\n".join(outcome.trace))
    if outcome.failure is not None:
        traceback.print_exception(outcome.failure)
    print(
        f"seed {outcome.seed}: {outcome.steps} steps, {outcome.epochs} epochs, "
        f"{outcome.states} states, {outcome.restarts} restarts, faults {outcome.faults}, "
        f"parts {', '.join(outcome.parts) or 'none'}, "
        f"digest {outcome.digest:08x}: {outcome.failure!r}"
    )
    return int(outcome.failure is not None)


if __name__ == "__main__":
    raise SystemExit(main())
