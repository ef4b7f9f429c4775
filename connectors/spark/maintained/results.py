"""The rows that the tasks of a work have returned to the driver, by kind.

Invariant: the rows of a work of which a task has failed are not used.
"""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from connectors.spark.frame import Row
from connectors.spark.maintained.layout import (
    ANSWERED,
    COUNTED,
    FAILED,
    LOGGED,
    MEASURED,
    STORED,
    WRITTEN,
)
from connectors.spark.maintained.output import SHOWN
from connectors.spark.maintained.skew import KeyReport
from connectors.spark.maintained.tasks import Figures
from connectors.spark.records import decode_error


def without_failures(rows: Sequence[Row]) -> Sequence[Row]:
    """Return the rows of tasks. TidemarkError of a failed one."""
    failures = [decode_error(page) for slot, _, page in rows if slot == FAILED]
    if failures:
        raise failures[0]
    return rows


class Results:
    """The rows that an epoch's tasks have returned, by kind. TidemarkError of a failed one."""

    def __init__(self, rows: Sequence[Row]) -> None:
        without_failures(rows)
        self.shown = [row for row in rows if row[0] in SHOWN]
        self.outs = sorted(page.decode() for slot, _, page in rows if slot == STORED)
        logged = [orjson.loads(page) for slot, _, page in rows if slot == LOGGED]
        self.logs = [entry for entry, _ in logged]
        self.log_bytes = [pair for _, sizes in logged for pair in sizes.items()]
        self.answered = [orjson.loads(page) for slot, _, page in rows if slot == ANSWERED]
        measured = [orjson.loads(page) for slot, _, page in rows if slot == MEASURED]
        self.figures = [Figures(**facts) for facts in measured]
        counted = [orjson.loads(page) for slot, _, page in rows if slot == COUNTED]
        self.counted = [KeyReport.from_facts(facts) for facts in counted]
        self.written = [orjson.loads(page) for slot, _, page in rows if slot == WRITTEN]

    def bases(self) -> tuple[dict[str, list[str]], dict[str, int]]:
        """Return the bases of each bucket "level-bucket", and their bytes."""
        names: dict[str, list[str]] = {}
        nbytes: dict[str, int] = {}
        for key, name, size in self.written:
            names.setdefault(key, []).append(name)
            nbytes[key] = nbytes.get(key, 0) + size
        return names, nbytes
