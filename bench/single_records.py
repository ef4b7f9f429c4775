"""Sections of the page for benchmarks with one record: topics of views, and two workers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bench.cells import table

HOME = Path(__file__).parent
TOPICS, EXCHANGE = HOME / "topics.json", HOME / "exchange.json"


def topics(path: Path = TOPICS) -> list[str]:
    """Return the section on a view's topic; none before the first run."""
    if not path.exists():
        return []
    found: dict[str, Any] = json.loads(path.read_text())
    figures = found["figures"]
    peer = figures["kafka_python_a_second"]
    rows = [
        [f"written exactly once, {name}", f"{rate:,.0f} deltas/s", _beside(rate, peer.get(name))]
        for name, rate in figures["written_a_second"].items()
    ]
    rows += [
        [f"encoded, {name}", f"{rate:,.0f} deltas/s", ""]
        for name, rate in figures["encoded_a_second"].items()
    ]
    rows += [
        [f"commit at the source to a reader's record, {name.removesuffix('_ms')}", f"{ms} ms", ""]
        for name, ms in figures["commit_to_topic"].items()
    ]
    report = f"By `python -m bench.topics`, revision {found['revision']}; with a real broker."
    return ["", "## Delta topics", "", report, "", *table(("part", "takes", "peer"), rows)]


def exchange(path: Path = EXCHANGE) -> list[str]:
    """Return the bound of the gain of two workers in one pipeline; none before the first run."""
    if not path.exists():
        return []
    found: dict[str, Any] = json.loads(path.read_text())
    rows = []
    for epoch in found["epochs"]:
        bound = epoch["bound"]
        spent = [f"{bound[name]:.2f}" for name in ("one_us", "half_us", "exchange_us")]
        gains = [f"{bound[name]:.2f}" for name in ("without exchange", "gain")]
        rows.append([f"{bound['changes']:,}", *spent, *gains])
    reported = (
        f"W1, CPU µs a change, by `python -m bench.exchange`, revision {found['revision']}: a "
        "bound on idle cores (decision 19)."
    )
    titles = ("changes an epoch", "one worker", "half of it", "exchange", "gain without it", "gain")
    return ["", "## Two workers in one pipeline", "", reported, "", *table(titles, rows)]


def _beside(rate: float, peer: float | None) -> str:
    return "" if peer is None else f"kafka-python {peer:,.0f}: {rate / peer:.1f}x"
