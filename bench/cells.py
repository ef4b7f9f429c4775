"""Format figures as cells of Markdown tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from bench.record import Record


def measured(record: Record, newest: str) -> str:
    """Return date, revision and other load of a record."""
    older = "" if record.revision == newest else " **older**"
    return f"{record.date}, {record.revision}{older}, others {record.other_cores:.1f}"


def table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table."""
    lines = [f"| {' | '.join(titles)} |", "|" + "---|" * len(titles)]
    return lines + [f"| {' | '.join(row)} |" for row in rows]


def number(value: float | None, unit: str = "") -> str:
    """Format a number for readers."""
    if value is None:
        return ""
    shown = f"{value:,.0f}" if value >= 100 else f"{value:.2f}"
    return f"{shown} {unit}".rstrip()


def answer(fault: str | None) -> str:
    """Return the oracle's verdict."""
    return "right" if fault is None else f"**wrong**: {fault}"


def rates(figures: dict[str, Any]) -> tuple[float, float]:
    """Return changes a second of wall time, and of CPU time."""
    changes = figures["changes"]
    return changes / max(figures["wall_s"], 1e-9), changes / max(figures["cpu_s"], 1e-9)
