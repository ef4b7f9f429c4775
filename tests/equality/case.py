"""A failing case as a file: schema, rows, transactions, the query, what differed.

Invariant: a file says all that is needed to play the case again; nothing of it is drawn. One
statement a line; parts begin with `-- schema`, `-- rows`, `-- transaction`, `-- query` and
`-- differed`; what stands before them is for people, but for `-- open: <who>` under which the
case is known to fail, `-- restarts` before each transaction, `-- together` in one engine, and
`-- time zone: <name>` of the query.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dataflow.types import UTC
from storage.store import Store
from tests.equality.history import Asked, History, Outcome, run_history
from tests.harness.changes import Statement, Transaction
from tests.harness.maintained import Maintained
from tests.harness.postgres import Database
from tests.harness.schemas import TestSchema
from tests.harness.together import Together

ROOT = Path(__file__).resolve().parents[2]
ZONE = "time zone:"
RESTARTS = "restarts"
TOGETHER = "together"
_PARTS = ("schema", "rows", "transaction", "query", "differed")


@dataclass(frozen=True)
class Case:
    """Statements and a query. head: lines of comment without their dashes."""

    schema: tuple[str, ...]
    rows: tuple[str, ...]
    transactions: tuple[tuple[str, ...], ...]
    query: str
    differed: str = ""
    head: tuple[str, ...] = field(default=())

    @property
    def open(self) -> str:
        """Whose it is while it still fails, else ""."""
        found = [line for line in self.head if line.startswith("open:")]
        return found[0].removeprefix("open:").strip() if found else ""

    @property
    def time_zone(self) -> str:
        """The query's; UTC if it is not said."""
        found = [line for line in self.head if line.startswith(ZONE)]
        return found[0].removeprefix(ZONE).strip() if found else UTC

    def text(self) -> str:
        """As a file."""
        lines = [f"-- {line}" for line in self.head]
        lines += ["-- schema", *_ended(self.schema), "-- rows", *_ended(self.rows)]
        for statements in self.transactions:
            lines += ["-- transaction", *_ended(statements)]
        lines += ["-- query", self.query + ";", "-- differed"]
        # A traceback names the files of this repository, not where it lies on one machine.
        differed = self.differed.replace(f"{ROOT}/", "")
        lines += [f"-- {line}" for line in differed.splitlines()]
        return "\n".join(lines) + "\n"

    def history(self) -> History:
        """What is played: the rows are there at first, each transaction is compared."""
        ddl = ";\n".join((*self.schema, *self.rows)) + ";"
        chosen = tuple(
            Transaction(tuple(Statement(s, True) for s in statements))
            for statements in self.transactions
        )
        restarts = RESTARTS in self.head
        schema = TestSchema("case", ddl, ())
        return History(schema, 0, singles=len(chosen), batches=0, chosen=chosen, restarts=restarts)


def read_case(path: Path) -> Case:
    """A case from its file."""
    parts: dict[str, list[str]] = {name: [] for name in ("head", *_PARTS)}
    transactions: list[tuple[str, ...]] = []
    part = "head"
    statement: list[str] = []
    for line in path.read_text().splitlines():
        name = line.removeprefix("-- ")
        if line.startswith("-- ") and name in _PARTS and part != "differed":
            part = name
            if part == "transaction":
                transactions.append(())
        elif part in ("head", "differed"):
            parts[part].append(line.removeprefix("--").strip())
        else:
            statement.append(line)
            if not line.endswith(";"):
                continue
            whole = "\n".join(statement).removesuffix(";")
            statement = []
            if part == "transaction":
                transactions[-1] = (*transactions[-1], whole)
            else:
                parts[part].append(whole)
    return Case(
        schema=tuple(parts["schema"]),
        rows=tuple(parts["rows"]),
        transactions=tuple(transactions),
        query=parts["query"][0],
        differed="\n".join(parts["differed"]),
        head=tuple(parts["head"]),
    )


def run_case(database: Database, case: Case, store: Store) -> Outcome:
    """Play a case in an empty database."""
    asked = {"case": Asked(case.query, case.time_zone)}
    maintained = Together if TOGETHER in case.head else Maintained
    return run_history(database, store, case.history(), asked, maintained)


def _ended(statements: Sequence[str]) -> list[str]:
    return [statement + ";" for statement in statements]
