"""The effective status of views, sources and the service, as the service last decided it, for psql.

Invariant: only the service writes it. A row names the catalog status that it was derived from, so
an older decision never hides a newer status.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from connectors.postgres.catalog.catalog import Control

# The kinds in tidemark.standings (schema/0015_standing.sql).
VIEW, SOURCE, SERVICE = "view", "source", "service"


class ReportedStatus(NamedTuple):
    """One reported status, in the order of its row."""

    status: str
    of_status: str = ""
    code: str | None = None
    error: str | None = None
    hint: str | None = None
    reasons: tuple[str, ...] = ()


def digest(control: Control) -> tuple[Any, ...]:
    """Return a value that changes with the catalog status of any view, source or sink, also of
    other services."""
    standing = "hashtext(concat_ws('~', status, desired, code, detail))::bigint"
    return control.rows(
        f"SELECT (SELECT (count(*), max(updated_at), sum({standing}))::text FROM tidemark.views),"
        "(SELECT (count(*), max(updated_at), max(retry_at))::text FROM tidemark.sources),"
        f"(SELECT (count(*), sum({standing}))::text FROM tidemark.sinks)"
    )[0]


def write(control: Control, statuses: Mapping[tuple[str, str], ReportedStatus]) -> None:
    """Replace the service's rows of the table with these statuses."""
    found = control.rows(
        "SELECT kind, name, status, of_status, code, error, hint, reasons FROM tidemark.standings"
        " WHERE service = %s",
        control.service,
    )
    stored = {(row[0], row[1]): ReportedStatus._make((*row[2:7], tuple(row[7]))) for row in found}
    for (kind, name), now in statuses.items():
        if stored.get((kind, name)) != now:
            control.rows(
                "INSERT INTO tidemark.standings (service, kind, name, status, of_status, code, "
                "error, hint, reasons) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s) "
                "ON CONFLICT (service, kind, name) DO UPDATE SET status = excluded.status, "
                "of_status = excluded.of_status, code = excluded.code, error = excluded.error, "
                "hint = excluded.hint, reasons = excluded.reasons, decided_at = now() RETURNING 1",
                *(control.service, kind, name, *now[:-1], list(now.reasons)),
            )
    for kind, name in stored.keys() - statuses.keys():
        sql = (
            "DELETE FROM tidemark.standings WHERE (service, kind, name) = (%s, %s, %s) RETURNING 1"
        )
        control.rows(sql, control.service, kind, name)
