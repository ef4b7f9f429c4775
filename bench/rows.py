"""Generated rows on disk, as our runs read them; `bench.generate` writes them.

Imports nothing heavy, so that a measured run's memory is the engine's.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.workloads import REGIONS, SEGMENTS, STATES, STATUSES, Answer, Table, Workload

INSERT, OLD, NEW, DELETE = (ord(letter) for letter in "IOND")
# Texts: the words that the numbers of a column stand for; a name is "p" and the number.
WORDS = {
    "region": REGIONS,
    "segment": SEGMENTS,
    "status": STATUSES,
    "state": STATES,
    "city": tuple(f"city{n}" for n in range(50)),
}
Columns = dict[str, np.ndarray]


@dataclass(frozen=True)
class Generated:
    """A folder of rows."""

    folder: Path

    def read(self, table: Table, part: str, names: list[str], low: int, high: int) -> Columns:
        """Return rows [low, high) of columns, copied so that the file does not stay in memory."""
        where = self.folder / f"{table.name}.{part}"
        return {n: np.load(where / f"{n}.npy", mmap_mode="r")[low:high].copy() for n in names}

    def count(self, table: Table, part: str) -> int:
        """Return the number of rows in a part; 0 if it does not exist."""
        counts: dict[str, int] = json.loads((self.folder / "counts.json").read_text())
        return counts.get(f"{table.name}.{part}", 0)

    def words(self, table: Table, column: str) -> list[str]:
        """Return the words for which the numbers of a text column stand."""
        if column in WORDS:
            return list(WORDS[column])
        return [f"p{n}" for n in range(self.count(table, "changes"))]

    def parquet(self, table: Table, part: str) -> Path:
        """Return the path of the same rows as Parquet, which may not exist."""
        return self.folder / f"{table.name}.{part}.parquet"

    def answer(self, workload: Workload) -> Answer:
        """Return the query's answer after the last change."""
        rows = json.loads((self.folder / f"answer_{workload.name}.json").read_text())
        return {tuple(key): tuple(values) for key, values in rows}
