"""The source database of a simulation: a log of transactions, its tables, and one slot.

What the slot's reader has confirmed is forgotten. So a confirmation of what the state has not on
disk (P5) is told as it comes, and is felt after the next crash of the machine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.simulation.faults import Violation
from tests.simulation.shop import EVERY, Change, Commit

Row = tuple[Any, ...]


@dataclass
class Server:
    """log: all commits; confirmed: what the slot need not have any more, None without a slot.
    durable: up to where the service's state would survive the machine."""

    random: Random
    durable: Callable[[], int]
    log: list[Commit] = field(default_factory=list)
    end: int = 1000
    confirmed: int | None = None
    published: set[str] = field(default_factory=set)
    tables: dict[str, Counter[Row]] = field(
        default_factory=lambda: {name: Counter() for name in EVERY}
    )
    moved: int = 0

    def commit(self, changes: Sequence[Change], at: float) -> Commit:
        """A transaction of these changes."""
        for name, kind, old, new in changes:
            write_row(self.tables[name], kind, old, new)
        self.advance()
        made = Commit(
            self.end, len(self.log) + 700, int(at * 1e6), tuple(changes), frozenset(self.published)
        )
        self.log.append(made)
        return made

    def advance(self) -> int:
        """The WAL grows; where it ends."""
        self.end += self.random.randint(8, 200)
        self.moved += 1
        return self.end

    def confirm(self, position: int) -> None:
        """The reader of the slot has said that it needs nothing before."""
        if position > self.durable():
            raise Violation(
                f"position {position} was confirmed, the state is on disk up to {self.durable()}"
            )
        if self.confirmed is not None:
            self.confirmed = max(self.confirmed, position)


def write_row(rows: Counter[Row], kind: str, old: Row | None, new: Row | None) -> None:
    """Make a change of a table in its rows."""
    if kind == "T":
        rows.clear()
    if old is not None:
        rows[old] -= 1
        if not rows[old]:
            del rows[old]
    if new is not None:
        rows[new] += 1
