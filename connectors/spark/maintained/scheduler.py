"""The contract between the driver of a distributed view and what runs its tasks.

A work is a chain of steps with a shuffle between them. Each step has the same number of tasks
("groups"), and task g of a step gets the rows that tasks of the step before have addressed to g.
Nothing is assumed of tasks but this: a scheduler may run one several times, at any time, even after
its work has ended; of those that finish, one's rows count. Start with `Work`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from connectors.spark.frame import Row


class Work(Protocol):
    """What a scheduler runs; picklable."""

    @property
    def steps(self) -> int:
        """How many steps it has, at least one."""
        ...

    @property
    def groups(self) -> int:
        """How many tasks each step has."""
        ...

    @property
    def nbytes(self) -> int:
        """Return how many bytes all tasks of a step read at worst: states that must be restored."""
        ...

    def group_of(self, slot: int, group: int) -> int:
        """Return the task of the next step that gets a row of task `group`."""
        ...

    def run(self, step: int, group: int, rows: Iterable[Row], folder: str) -> Iterable[Row]:
        """Run a task: take its rows, in any order, and return those for the next step.

        folder: local, where tasks of this group may find what earlier ones have cached.
        """
        ...


class Scheduler(Protocol):
    """Runs works, one at a time."""

    @property
    def tasks(self) -> int:
        """How many tasks it can run at a time, at present."""
        ...

    def run(self, work: Work) -> Sequence[Row]:
        """Return the rows of all tasks of the last step, each task's once.

        TemporaryError spark.job: tasks have failed repeatedly; the work may be run again.
        """
        ...


class SessionScheduler(Scheduler, Protocol):
    """Runs works on a Spark session, which starts at its first use."""

    def warm(self) -> None:
        """Start the session and the Python processes of its executors. TidemarkError spark.*."""
        ...


class InProcessScheduler:
    """Runs every task in this thread, one after the other, with one folder for all of them."""

    def __init__(self, folder: str, tasks: int = 1) -> None:
        self.tasks = tasks
        self._folder = folder

    def run(self, work: Work) -> Sequence[Row]:
        """See Scheduler."""
        given: list[list[Row]] = [[] for _ in range(work.groups)]
        for step in range(work.steps):
            addressed: list[list[Row]] = [[] for _ in range(work.groups)]
            for group in range(work.groups):
                for row in work.run(step, group, given[group], self._folder):
                    addressed[work.group_of(row[0], group)].append(row)
            given = addressed
        return [row for rows in given for row in rows]
