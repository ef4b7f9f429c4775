"""A workload that asks for memory: big transactions, and owners that each have many things.

One row of `owners` is in as many rows of the join as it has things. What the views must show is
PostgreSQL's own answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# What such a workload does in one epoch is more than one view may do beside others.
ANY_BUDGET: dict[str, Any] = {"view_budget_s": 0, "view_budget_rows": 0}
ANY_BUDGET_VARIABLES = {f"TIDEMARK_{k.upper()}": str(v) for k, v in ANY_BUDGET.items()}
TABLES = """
CREATE TABLE owners (id int PRIMARY KEY, name text NOT NULL, grp int NOT NULL);
CREATE TABLE things (id int PRIMARY KEY, owner int NOT NULL, amount int NOT NULL, note text);
"""
VIEWS = {
    "joined": """SELECT t.id, t.amount, t.note, o.name, o.grp
        FROM things t JOIN owners o ON o.id = t.owner""",
    "totals": """SELECT o.grp, count(*) AS n, sum(t.amount) AS total
        FROM things t JOIN owners o ON o.id = t.owner GROUP BY o.grp""",
    "notes": "SELECT note, amount % 10 AS digit FROM things",
}


def fill_owners(owners: int) -> str:
    """The statement that makes owners 1 to `owners`."""
    return f"INSERT INTO owners SELECT i, 'owner ' || i, i % 40 FROM generate_series(1, {owners}) i"


def steps(rows: int, fan_out: int, updated: int) -> dict[str, str]:
    """Statements, each one transaction, by what it does; needs rows / fan_out owners."""
    owners = max(rows // fan_out, 1)
    return {
        f"insert of {rows:,} rows": (
            f"INSERT INTO things SELECT i, i % {owners} + 1, i % 1000,"
            f" repeat('n', i % 90) || i FROM generate_series(1, {rows}) i"
        ),
        f"update of {updated:,} owners of {fan_out:,} things each": (
            f"UPDATE owners SET name = name || '!', grp = grp + 1 WHERE id <= {updated}"
        ),
        f"delete of {rows // 2:,} rows": "DELETE FROM things WHERE id % 2 = 0",
    }


def hot_steps(rows: int) -> dict[str, str]:
    """Statements, each one transaction, about one owner of that many things; needs owner 1."""
    return {
        f"insert of {rows:,} things of one owner": (
            f"INSERT INTO things SELECT i, 1, i % 1000, repeat('n', i % 90) || i"
            f" FROM generate_series(1, {rows}) i"
        ),
        "update of that owner": "UPDATE owners SET name = name || '!', grp = grp + 1 WHERE id = 1",
        "delete of that owner": "DELETE FROM owners WHERE id = 1",
        "the owner comes back": "INSERT INTO owners VALUES (1, 'back', 7)",
    }


def insert_some(number: int) -> str:
    """The statement of one more transaction of 1,000 rows."""
    first = 100_000_000 + number * 1000
    return (
        f"INSERT INTO things SELECT {first} + i, i, i, repeat('s', 100)"
        " FROM generate_series(1, 1000) i"
    )


@dataclass(frozen=True)
class Kind:
    """What meets very many rows at once: views by name over the tables of `hot_tables`, and
    statements, each one transaction. may_fail: some views may be too large, and say so."""

    views: Mapping[str, str]
    steps: Sequence[str]
    may_fail: bool = False


_OF_OWNER = "o.id = t.owner AND o.grp > t.amount % 50"
_CHANGES = (
    "UPDATE owners SET grp = 20, name = 'changed' WHERE id = 1",
    "DELETE FROM owners WHERE id = 1",
    "INSERT INTO owners VALUES (1, 'back', 33)",
)
# The last one takes away what the others are about.
KINDS = {
    "an outer join with a condition": Kind(
        {"padded": f"SELECT t.id, t.note, o.name FROM things t LEFT JOIN owners o ON {_OF_OWNER}"},
        _CHANGES,
    ),
    "EXISTS with a condition": Kind(
        {
            f"{name}ed": f"SELECT id, note FROM things t WHERE {sql} (SELECT FROM owners o"
            f" WHERE {_OF_OWNER})"
            for name, sql in (("match", "EXISTS"), ("unmatch", "NOT EXISTS"))
        },
        _CHANGES,
    ),
    "NOT IN and a NULL": Kind(
        {"allowed": "SELECT id, note FROM things WHERE amount NOT IN (SELECT v FROM excluded)"},
        ("INSERT INTO excluded VALUES (NULL), (7)", "DELETE FROM excluded WHERE v IS NULL"),
    ),
    "a round of a recursion": Kind(
        {
            "reached": "WITH RECURSIVE r(depth, id) AS (SELECT 0, v FROM excluded UNION ALL"
            " SELECT r.depth + 1, t.id FROM r JOIN things t ON t.owner = r.id AND r.depth < 1)"
            " SELECT * FROM r",
            "beside": "SELECT count(*) AS n FROM excluded",
        },
        ("INSERT INTO excluded VALUES (1)", "DELETE FROM excluded"),
        may_fail=True,
    ),
    "a partition of a window": Kind(
        {
            "shares": "SELECT id, note, sum(amount) OVER (PARTITION BY owner) AS total FROM things",
            "beside": "SELECT count(*) AS n FROM excluded",
        },
        ("UPDATE things SET amount = amount + 1 WHERE id = 1", "INSERT INTO excluded VALUES (1)"),
        may_fail=True,
    ),
    "a table that is truncated": Kind(
        VIEWS,
        (
            "TRUNCATE things",
            "INSERT INTO things SELECT i, 1, i, 'new' FROM generate_series(1, 10) i",
        ),
    ),
}


def hot_tables(rows: int) -> str:
    """Statements that make the tables, with one owner that has so many things."""
    return f"""{TABLES}
        CREATE TABLE excluded (v int);
        ALTER TABLE excluded REPLICA IDENTITY FULL;
        INSERT INTO owners VALUES (1, 'first', 40);
        INSERT INTO things SELECT i, 1, i % 1000, repeat('n', i % 90) || i
        FROM generate_series(1, {rows}) i;
    """


def differences(cursor: Any, views: Mapping[str, str] = VIEWS) -> dict[str, int]:
    """For each view the rows that are not in both, it and PostgreSQL's own answer."""
    found = {}
    for name, query in views.items():
        cursor.execute(
            f"SELECT (SELECT count(*) FROM (({query}) EXCEPT ALL TABLE {name}) a)"
            f" + (SELECT count(*) FROM (TABLE {name} EXCEPT ALL ({query})) b)"
        )
        found[name] = cursor.fetchone()[0]
    return found
