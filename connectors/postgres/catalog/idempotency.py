"""Requests that may come twice: which keys were used, and what was answered.

Invariant: of two requests with one key, one caller and one path, one alone is carried out; the
other gets the first one's answer, or is told that it is not there yet. A request whose process has
died is not waited for: the key is free once another process listens at its address.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from psycopg2.extras import Json

from connectors.postgres.catalog.catalog import Control

# How long an answer is kept, and what a request that died may take beyond what it waits for.
KEPT = "1 day"
MARGIN_S = 60


@dataclass(frozen=True)
class RequestKey:
    """Whose key for which path."""

    caller: str
    path: str
    key: str


@dataclass(frozen=True)
class Worker:
    """Who answers: the address that it listens at, and which of the processes that have, one after
    another, done so."""

    server: str
    process: str


@dataclass(frozen=True)
class StoredAnswer:
    """What was answered; status None: nothing yet. fingerprint: of the first request."""

    fingerprint: str
    status: int | None
    headers: Mapping[str, str]
    body: bytes


def free(control: Control, worker: Worker) -> int:
    """Forget what the processes before this one were at; how many requests that were."""
    forgotten = control.rows(
        "DELETE FROM tidemark.idempotency_keys "
        "WHERE status IS NULL AND server = %s AND process <> %s RETURNING 1",
        *(worker.server, worker.process),
    )
    return len(forgotten)


def claim(
    control: Control, worker: Worker, key: RequestKey, fingerprint: str, wait_s: float
) -> StoredAnswer | None:
    """None when the request is to be carried out, else what is known of the first one."""
    control.rows("DELETE FROM tidemark.idempotency_keys WHERE good_until < now() RETURNING 1")
    claimed = control.rows(
        "INSERT INTO tidemark.idempotency_keys "
        "(caller, path, key, fingerprint, server, process, good_until) "
        "VALUES (%s, %s, %s, %s, %s, %s, now() + make_interval(secs => %s)) "
        "ON CONFLICT DO NOTHING RETURNING 1",
        *(key.caller, key.path, key.key, fingerprint),
        *(worker.server, worker.process, wait_s + MARGIN_S),
    )
    if claimed:
        return None
    found = control.rows(
        "SELECT fingerprint, status, headers, body FROM tidemark.idempotency_keys "
        "WHERE caller = %s AND path = %s AND key = %s",
        *(key.caller, key.path, key.key),
    )
    if not found:
        return claim(control, worker, key, fingerprint, wait_s)
    first, status, headers, body = found[0]
    return StoredAnswer(first, status, headers or {}, bytes(body or b""))


def keep(control: Control, key: RequestKey, answer: StoredAnswer) -> None:
    """Remember an answer."""
    control.rows(
        "UPDATE tidemark.idempotency_keys SET status = %s, headers = %s, body = %s, "
        f"good_until = now() + interval '{KEPT}' "
        "WHERE caller = %s AND path = %s AND key = %s RETURNING 1",
        *(answer.status, Json(dict(answer.headers)), answer.body),
        *(key.caller, key.path, key.key),
    )


def forget(control: Control, key: RequestKey) -> None:
    """The request failed for a while: the next one is carried out."""
    control.rows(
        "DELETE FROM tidemark.idempotency_keys "
        "WHERE caller = %s AND path = %s AND key = %s RETURNING 1",
        *(key.caller, key.path, key.key),
    )
