"""Accounts and transfers: money moves, none is made, so every state of a view can be checked."""

from __future__ import annotations

from random import Random

from tests.harness import draw
from tests.harness.schemas.base import TableSpec, TestSchema

ACCOUNTS = 20

DDL = """
CREATE TABLE accounts (
    account integer PRIMARY KEY,
    owner text NOT NULL,
    balance bigint NOT NULL,
    opened timestamp NOT NULL DEFAULT '2024-01-01'
);
CREATE TABLE transfers (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    payer integer NOT NULL,
    payee integer NOT NULL,
    amount bigint NOT NULL,
    at timestamptz NOT NULL,
    kind text GENERATED ALWAYS AS (CASE WHEN amount > 50 THEN 'large' ELSE 'small' END) STORED
);
"""


def transfer(rng: Random) -> list[str]:
    """Return money from one account to another, and the note of it."""
    payer, payee = rng.sample(range(ACCOUNTS), 2)
    amount = rng.randint(1, 99)
    return [
        f"UPDATE accounts SET balance = balance - {amount} WHERE account = {payer}",
        f"UPDATE accounts SET balance = balance + {amount} WHERE account = {payee}",
        f"INSERT INTO transfers (payer, payee, amount, at) "
        f"VALUES ({payer}, {payee}, {amount}, {draw.instants()(rng)})",
    ]


def undo(rng: Random) -> list[str]:
    """Return one transfer taken back."""
    chosen = f"(SELECT id FROM transfers ORDER BY md5(id::text || '{rng.randrange(999)}') LIMIT 1)"
    return [
        f"CREATE TEMP TABLE undone ON COMMIT DROP AS SELECT * FROM transfers WHERE id = {chosen}",
        "UPDATE accounts SET balance = balance + u.amount FROM undone u WHERE account = u.payer",
        "UPDATE accounts SET balance = balance - u.amount FROM undone u WHERE account = u.payee",
        "DELETE FROM transfers WHERE id IN (SELECT id FROM undone)",
        "DROP TABLE undone",
    ]


def rename(rng: Random) -> list[str]:
    """Return an owner's new name; balances stay."""
    owner, account = draw.words()(rng), rng.randrange(ACCOUNTS)
    return [f"UPDATE accounts SET owner = {owner} WHERE account = {account}"]


BANK = TestSchema(
    name="bank",
    ddl=DDL,
    tables=(
        TableSpec("accounts", {}, key=("account",)),
        TableSpec("transfers", {}, key=("id",)),
    ),
    templates=(transfer, transfer, transfer, undo, rename),
    changes_rows=False,
    rows={
        "accounts": [
            f"({number}, {draw.quote(draw.WORDS[number % 7])}, 0, DEFAULT)"
            for number in range(ACCOUNTS)
        ]
    },
)
