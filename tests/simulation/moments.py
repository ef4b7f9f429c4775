"""A table of moments whose rows come late, its writer, and views that watch how late they come.

Nobody alters the table. `at` is when a row says that it happened, in microseconds since 2000 by the
run's clock; `minute` is the window that it belongs to; `due` is what queries in a zone compare.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

from dataflow.schema import Field, Relation, RelationName
from dataflow.types import INT4, INT8, TEXT, TIMESTAMPTZ

NAME = "moments"
RELATION = Relation(
    RelationName("source", "public", NAME),
    1004,
    (
        Field("id", INT8, False),
        Field("at", TIMESTAMPTZ),
        Field("minute", TIMESTAMPTZ),
        Field("kind", TEXT, False),
        Field("amount", INT4, False),
        Field("due", TIMESTAMPTZ, False),
    ),
    (0,),
    numbers=tuple(range(1, 7)),
)
SECOND_US = 1_000_000
WINDOW_US = SECOND_US
COLUMN = f"{NAME}.at"

# By query, the columns of the table that its late rows are told with; those that are windows.
LATE_QUERIES: Mapping[str, tuple[str, ...]] = {
    " SELECT id, at, kind, amount FROM public.moments": ("id", "at", "kind", "amount"),
    " SELECT minute, count(*) AS n, sum(amount) AS total FROM public.moments GROUP BY minute": (
        *("id", "at", "minute", "amount"),
    ),
    " SELECT max(at) AS newest, count(*) AS n FROM public.moments": ("id", "at"),
    " SELECT a.id AS account, a.owner, m.id, m.at FROM (public.accounts a JOIN public.moments m ON"
    " ((a.id = m.amount)))": ("id", "at", "amount"),
}
BY_MINUTE = list(LATE_QUERIES)[1]
# What a view has of these where it has no lateness.
NO_LATENESS: Mapping[str, Any] = {
    "lateness": {},
    "lateness_by": {},
    "late": "applied",
    "idle_timeout_s": None,
    "emit": "changes",
    "window": {},
    "retain": None,
}
KINDS = ("x", "x", "x", "y", "y", "z")


def late_options(query: str, random: Random) -> dict[str, Any]:
    """Return the options of a view about late rows; none where its query has no such table."""
    if query not in LATE_QUERIES:
        return dict(NO_LATENESS)
    found: dict[str, Any] = {
        **NO_LATENESS,
        "lateness": {COLUMN: random.choice(("0 s", "300 ms", "1 s", "3 s"))},
        "late": random.choice(("applied", "dead-letter", "dead-letter", "error")),
    }
    if random.random() < 0.5:
        found["lateness_by"] = {COLUMN: "kind"}
        found["idle_timeout_s"] = random.choice((None, 1.0, 4.0, 12.0))
    if query == BY_MINUTE and random.random() < 0.8:
        found["window"] = {"minute": "1 s"}
        is_retained, is_final = random.choice(((True, False), (False, True), (True, True)))
        found["retain"] = random.choice(("0 s", "1 s", "4 s")) if is_retained else None
        found["emit"] = "final" if is_final else "changes"
    return found


class Writer:
    """An application that writes moments, some of them late.

    table: what the log calls the table. now_us: the run's clock, in microseconds since 2000. due:
    gives what a row is due at, from the present moment.
    """

    def __init__(
        self,
        rows: Callable[[], Sequence[tuple[Any, ...]]],
        table: str,
        random: Random,
        now_us: Callable[[], int],
        due: Callable[[int], int],
    ) -> None:
        self._rows = rows
        self._table = table
        self._random = random
        self._now_us = now_us
        self._due = due
        self._next = 1
        self._gone: list[int] = []

    def transaction(self) -> list[Any]:
        """Some changes, legal one after the other."""
        random = self._random
        rows = {row[0]: row for row in self._rows()}
        if random.random() < 0.06:
            return self._reloaded(rows)
        changes = []
        for _ in range(random.choice((1, 1, 2, 3, 12))):
            kind = random.choice("IIIIUUDR") if rows else "I"
            if kind == "I":
                # Sometimes one that was there before.
                number = random.choice([*self._gone, self._next, self._next])
                if number == self._next:
                    self._next += 1
                else:
                    self._gone.remove(number)
                new = self._row(number)
                changes.append((self._table, "I", None, new))
            else:
                old = rows.pop(random.choice(sorted(rows)))
                # Some updates change nothing that says when it was.
                new = self._row(old[0], old if random.random() < 0.4 else None)
                if kind == "U":
                    changes.append((self._table, "U", old, new))
                else:
                    changes.append((self._table, "D", old, None))
                if kind == "D":
                    self._gone = [*self._gone[-2:], old[0]]
                    continue
                if kind == "R":
                    changes.append((self._table, "I", None, new))
            rows[new[0]] = new
        return changes

    def _reloaded(self, rows: dict[int, tuple[Any, ...]]) -> list[Any]:
        """The table is emptied, and filled with what it had."""
        random = self._random
        if random.random() < 0.5:
            changes: list[Any] = [(self._table, "T", None, None)]
        else:
            changes = [(self._table, "D", row, None) for row in rows.values()]
        for number, row in rows.items():
            new = row if random.random() < 0.8 else self._row(number, row)
            changes.append((self._table, "I", None, new))
        return changes

    def _row(self, number: int, old: tuple[Any, ...] | None = None) -> tuple[Any, ...]:
        random, now_us = self._random, self._now_us()
        amount, due = random.randint(1, 9), self._due(now_us)
        kind = random.choice(KINDS)
        if old is not None:
            return (number, *old[1:3], kind, amount, due)
        late_us = random.choice((0, 0, 0, 200_000, 700_000, 2_000_000, 5_000_000, -2_000_000))
        at = None if random.random() < 0.03 else now_us - late_us - random.randrange(100_000)
        minute = None if at is None else at - at % WINDOW_US
        return (number, at, minute, kind, amount, due)
