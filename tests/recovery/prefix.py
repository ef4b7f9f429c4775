"""The check that all recovery tests share: every epoch names its prefix (RELIABILITY.md).

A single writer numbers its transactions in marker(id), moves money between accounts and touches
orders; a model in plain Python replays the same transactions. One view is max(id) of marker, so
each state of the sink names the prefix it claims; the rows seen with it must be the model's rows
at that prefix. Balances always sum to zero, also across two views read in one snapshot.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from psycopg2 import Error

from tests.harness.background_writer import BackgroundWriter
from tests.harness.postgres import Database
from tests.harness.state_reader import Rows, StateReader
from tests.harness.tiers import is_fast
from tests.harness.verdicts import WrongStateError

ACCOUNTS = 40
# In the fast tier most of the cores is left to the service.
BETWEEN_WRITES_S = (0, 0.002, 0.02) if is_fast() else (0, 0.001, 0.004)

SCHEMA = f"""
CREATE TABLE marker (id bigint PRIMARY KEY);
INSERT INTO marker VALUES (0);
CREATE TABLE accounts (id int PRIMARY KEY, owner text NOT NULL, balance bigint NOT NULL);
INSERT INTO accounts SELECT i, 'owner ' || i % 7, 0 FROM generate_series(1, {ACCOUNTS}) i;
CREATE TABLE entries (id bigint PRIMARY KEY, account int NOT NULL, amount bigint NOT NULL);
"""

VIEWS = {
    "prefix": "SELECT max(id) AS id FROM marker",
    "total": "SELECT sum(balance) AS total FROM accounts",
    "by_owner": """SELECT a.owner, count(*) AS entries, sum(e.amount) AS moved
        FROM entries e JOIN accounts a ON a.id = e.account GROUP BY a.owner""",
    "rich": "SELECT owner, balance FROM accounts WHERE balance > 0",
}


@dataclass
class Model:
    """What the views must show after each prefix; filled by the writer before it commits."""

    owners: dict[int, str] = field(
        default_factory=lambda: {i: f"owner {i % 7}" for i in range(1, ACCOUNTS + 1)}
    )
    balances: dict[int, int] = field(default_factory=lambda: dict.fromkeys(range(1, 41), 0))
    entries: dict[int, tuple[int, int]] = field(default_factory=dict)

    def by_owner(self) -> Counter:
        """Rows of the view by_owner as a multiset."""
        found: dict[str, list[int]] = {}
        for account, amount in self.entries.values():
            row = found.setdefault(self.owners[account], [0, 0])
            row[0] += 1
            row[1] += amount
        return Counter((owner, n, total) for owner, (n, total) in found.items())

    def rich(self) -> Counter:
        """Rows of the view rich as a multiset."""
        return Counter((self.owners[i], b) for i, b in self.balances.items() if b > 0)


class Writer(BackgroundWriter):
    """One connection, whole transactions, a snapshot of the expected rows after each."""

    def __init__(self, database: Database, seed: int) -> None:
        super().__init__(0)
        self._database = database
        self._random = random.Random(seed)
        self._model = Model()
        self._next_entry = 1
        self._connection = None
        self.expected: dict[int, tuple[Counter, Counter]] = {0: (Counter(), Counter())}

    def write(self) -> None:
        """One transaction."""
        number = self.number + 1
        statements = self._next_transaction(number)
        # Known before it can be seen: the sink may show it before commit returns.
        self.expected[number] = (self._model.by_owner(), self._model.rich())
        self._connection = self._commit(self._connection, number, statements)
        self.number = number
        time.sleep(self._random.choice(BETWEEN_WRITES_S))

    def _commit(self, connection, number: int, statements: list[tuple[str, tuple]]):
        while True:
            try:
                connection = connection or self._database.connect(autocommit=False)
                with connection.cursor() as cursor:
                    cursor.execute("SELECT 1 FROM marker WHERE id = %s", (number,))
                    if cursor.fetchone() is None:
                        for sql, values in statements:
                            cursor.execute(sql, values)
                    connection.commit()
                return connection
            except Error:
                # The server restarts; whether the commit was taken is looked up the next time.
                if connection is not None:
                    connection.close()
                connection = None
                time.sleep(0.05)

    def _next_transaction(self, number: int) -> list[tuple[str, tuple]]:
        pick, model = self._random, self._model
        statements: list[tuple[str, tuple]] = [("INSERT INTO marker VALUES (%s)", (number,))]
        giver, taker = pick.sample(range(1, ACCOUNTS + 1), 2)
        amount = pick.randint(1, 100)
        for account, change in ((giver, -amount), (taker, amount)):
            model.balances[account] += change
            statements.append(
                ("UPDATE accounts SET balance = balance + %s WHERE id = %s", (change, account))
            )
            entry, self._next_entry = self._next_entry, self._next_entry + 1
            model.entries[entry] = (account, change)
            values = (entry, account, change)
            statements.append(("INSERT INTO entries VALUES (%s, %s, %s)", values))
        if pick.random() < 0.3 and model.entries:
            entry = pick.choice(list(model.entries))
            del model.entries[entry]
            statements.append(("DELETE FROM entries WHERE id = %s", (entry,)))
        if pick.random() < 0.1:
            account, owner = pick.randint(1, ACCOUNTS), f"owner {pick.randint(0, 9)}"
            model.owners[account] = owner
            statements.append(("UPDATE accounts SET owner = %s WHERE id = %s", (owner, account)))
        return statements


class Checker(StateReader):
    """Reads all views in one snapshot of the sink, and holds them to the model."""

    queries = (
        "SELECT id FROM prefix",
        "SELECT total FROM total",
        "SELECT owner, entries, moved FROM by_owner",
        "SELECT owner, balance FROM rich",
    )

    def __init__(self, sink: Database, writer: Writer) -> None:
        super().__init__(sink)
        self._writer = writer

    def number_of(self, answers: Sequence[Rows]) -> int:
        """The prefix that a state claims, whose rows it has."""
        (prefix,), (total,) = answers[0][0], answers[1][0]
        if prefix not in self._writer.expected:
            raise WrongStateError(f"prefix {prefix} was never written")
        by_owner, rich = self._writer.expected[prefix]
        for what, found, expected in (
            ("total", int(total), 0),
            ("by_owner", Counter(answers[2]), by_owner),
            ("rich", Counter(answers[3]), rich),
        ):
            if found != expected:
                raise WrongStateError(f"{what} at prefix {prefix}: {found}, not {expected}")
        return prefix
