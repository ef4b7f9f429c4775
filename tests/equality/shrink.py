"""Makes a failing case smaller: less query, then fewer transactions, while it still fails.

Invariant: what is handed back has failed. All smaller queries of one step are tried together in
one history, so a step costs about as much as a single try.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from connectors.postgres.embedded import EmbeddedPostgres
from storage.memory import MemoryStore
from tests.equality.history import History, Outcome, run_history
from tests.harness.changes import Transaction
from tests.harness.grammar import Select
from tests.harness.maintained import Fault
from tests.harness.postgres import new_database

MOST_CANDIDATES = 40


@dataclass(frozen=True)
class Case:
    """A query, a history of chosen transactions, and how the query failed in it."""

    query: Select
    history: History
    fault: Fault

    def text(self) -> str:
        """For people."""
        script = "\n".join(t.text() for t in self.history.chosen or ())
        return f"{self.query.text()}\n{self.fault.what}\n{script}"


def shrink(
    server: EmbeddedPostgres, outcome: Outcome, query: Select, fault: Fault, *, budget_s: float
) -> Case:
    """The smallest failing case found within the budget."""
    until = time.monotonic() + budget_s
    chosen = tuple(outcome.transactions[: fault.transaction])
    history = replace(outcome.history, chosen=chosen, singles=len(chosen), batches=0)
    case = Case(query, history, fault)
    case = _shrink_query(server, case, until)
    return _shrink_history(server, case, until)


def _shrink_query(server: EmbeddedPostgres, case: Case, until: float) -> Case:
    while time.monotonic() < until:
        candidates = case.query.smaller()[:MOST_CANDIDATES]
        named = {f"q{i}": candidate.text() for i, candidate in enumerate(candidates)}
        found = _faults(server, case.history, named)
        if not found:
            return case
        index, fault = min((int(f.query[1:]), f) for f in found)
        case = replace(case, query=candidates[index], fault=fault)
    return case


def _shrink_history(server: EmbeddedPostgres, case: Case, until: float) -> Case:
    """Leave out halves, then quarters, down to single transactions."""
    chosen = list(case.history.chosen or ())[: case.fault.transaction]
    size = max(len(chosen) // 2, 1)
    while chosen and time.monotonic() < until:
        for start in range(0, len(chosen), size):
            fewer = chosen[:start] + chosen[start + size :]
            fault = _fault_of(server, case, tuple(fewer))
            if fault is not None:
                history = _with(case.history, tuple(fewer))
                case, chosen = replace(case, history=history, fault=fault), fewer
                break
        else:
            if size == 1:
                break
            size //= 2
    return case


def _fault_of(
    server: EmbeddedPostgres, case: Case, chosen: tuple[Transaction, ...]
) -> Fault | None:
    found = _faults(server, _with(case.history, chosen), {"q": case.query.text()})
    return found[0] if found else None


def _with(history: History, chosen: tuple[Transaction, ...]) -> History:
    return replace(history, chosen=chosen, singles=len(chosen))


def _faults(server: EmbeddedPostgres, history: History, queries: dict[str, str]) -> list[Fault]:
    with new_database(server) as database:
        outcome = run_history(database, MemoryStore(), history, queries)
    return [f for f in outcome.faults if f.query in queries]
