"""How views, sources and the service stand, as the service decided last, for psql.

Invariant: nobody but the service writes it; a row is of the catalog's status that it was decided
for, so that a newer status is never hidden by an older decision.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from connectors.postgres.catalog.catalog import Control

# The kinds in tidemark.standings (schema/0015_standing.sql).
VIEW, SOURCE, SERVICE = "view", "source", "service"


class Told(NamedTuple):
    """One decision, as its row has it."""

    status: str
    of_status: str = ""
    code: str | None = None
    error: str | None = None
    hint: str | None = None
    reasons: tuple[str, ...] = ()


def digest(control: Control) -> tuple[Any, ...]:
    """What is another one as soon as a view, source or sink stands differently in the catalog."""
    standing = "hashtext(concat_ws('~', status, desired, code, detail))::bigint"
    return control.rows(
        f"SELECT (SELECT (count(*), max(updated_at), sum({standing}))::text FROM tidemark.views),"
        "(SELECT (count(*), max(updated_at), max(retry_at))::text FROM tidemark.sources),"
        f"(SELECT (count(*), sum({standing}))::text FROM tidemark.sinks)"
    )[0]


def write(control: Control, told: Mapping[tuple[str, str], Told]) -> None:
    """Make the table say this and nothing else."""
    found = control.rows(
        "SELECT kind, name, status, of_status, code, error, hint, reasons FROM tidemark.standings"
    )
    known = {(row[0], row[1]): Told._make((*row[2:7], tuple(row[7]))) for row in found}
    for (kind, name), now in told.items():
        if known.get((kind, name)) != now:
            control.rows(
                "INSERT INTO tidemark.standings VALUES (%s, %s, %s, %s, %s, %s, %s, %s, now()) "
                "ON CONFLICT (kind, name) DO UPDATE SET status = excluded.status, "
                "of_status = excluded.of_status, code = excluded.code, error = excluded.error, "
                "hint = excluded.hint, reasons = excluded.reasons, decided_at = now() RETURNING 1",
                *(kind, name, *now[:-1], list(now.reasons)),
            )
    for kind, name in known.keys() - told.keys():
        sql = "DELETE FROM tidemark.standings WHERE kind = %s AND name = %s RETURNING 1"
        control.rows(sql, kind, name)
