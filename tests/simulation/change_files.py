"""The logs of changes that subscribers read, held to what the sink has shown.

Oracle: the rows of a view at each epoch, as the simulated sink kept them.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

from service.pipeline.pipeline import Pipeline
from service.subscriptions.change_log import (
    ENDED,
    FOLDER,
    INDEX,
    RECORD,
    REQUESTED,
    ROWS,
    read_head,
    segment_floors,
)
from tests.simulation.faults import Violation
from tests.simulation.rows import Rows, row_of
from tests.simulation.sink import Database


def want_logs(state: Path, database: Database, random: Random, now: float) -> None:
    """A subscriber asks for the log of some view, as `service.subscriptions` does."""
    live = [row.identity for row in database.views if row.status == "live"]
    if not live or random.random() < 0.5:
        return
    folder = state / FOLDER / random.choice(live)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / REQUESTED).touch()
    os.utime(folder / REQUESTED, (now, now))


def let_go(pipeline: Pipeline | None) -> None:
    """Close the files of its logs, as the system does for a dead process."""
    logs = {} if pipeline is None else pipeline._sink._epochs._change_logs._logs
    for followed in logs.values():
        followed.log.close()


def check_logs(state: Path, database: Database) -> None:
    """Each log tells exactly what has changed between the epochs that it names."""
    for row in database.views:
        folder = state / FOLDER / row.identity
        head = read_head(folder)
        if head is None or (folder / ENDED).exists():
            continue
        history = database.history.get(row.identity, [])
        for epoch, lines in _epochs(folder):
            if epoch <= head.floor:
                raise Violation(f"the log of {row.title} began at {head.floor} and tells {epoch}")
            if history and epoch <= history[0][0]:
                # From before the last view went, or all were paused.
                continue
            before, after = rows_at(history, epoch - 1), rows_at(history, epoch)
            reported = _told(lines)
            expected = Counter(after)
            expected.subtract(before)
            expected = Counter({r: n for r, n in expected.items() if n})
            if reported != expected:
                raise Violation(
                    f"the log of {row.title} has {dict(reported)} of epoch {epoch}, which changed "
                    f"{dict(expected)}"
                )


def _epochs(folder: Path) -> list[tuple[int, list[dict[str, Any]]]]:
    """The epochs of a log in order, each with its lines but for the mark."""
    found = []
    for floor in segment_floors(folder):
        raw = (folder / f"{floor:020d}{INDEX}").read_bytes()
        rows = (folder / f"{floor:020d}{ROWS}").read_bytes()
        start = 0
        for at in range(0, len(raw) - RECORD.size + 1, RECORD.size):
            epoch, end, *_ = RECORD.unpack(raw[at : at + RECORD.size])
            try:
                lines = [json.loads(line) for line in rows[start:end].splitlines()]
            except ValueError as error:
                raise Violation(f"{folder} has a line that is not JSON") from error
            if not lines or lines[-1].get("epoch") != epoch:
                raise Violation(f"{folder} has no mark of epoch {epoch}")
            found.append((epoch, lines[:-1]))
            start = end
    epochs = [epoch for epoch, _ in found]
    if epochs != sorted(set(epochs)):
        raise Violation(f"{folder} tells epochs {epochs}")
    return found


def rows_at(history: list[tuple[int, Any, Rows]], epoch: int) -> Rows:
    """The rows that a view showed at an epoch."""
    found: Rows = Rows()
    for number, _, rows in history:
        if number <= epoch:
            found = rows
    return found


def shown_before(database: Database, identity: str, epoch: int) -> list[Rows]:
    """What a view showed at an epoch on servers that are lost."""
    lost = [history for newest, history in database.lost if newest >= epoch]
    return [rows_at(history[identity], epoch) for history in lost if identity in history]


def _told(lines: list[dict[str, Any]]) -> Rows:
    found: Rows = Rows()
    for line in lines:
        for row, weight in zip(line["rows"], line["weights"], strict=True):
            found[row_of(row)] += weight
    return Rows({row: n for row, n in found.items() if n})
