"""Idempotency keys: which were used, and the stored answers.

Invariant: of two requests with one key, caller and path, only one is carried out. The other gets
the first one's answer, or learns that it is still running. A request whose process died does not
block: its key is free once another process listens at its address.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from psycopg2.extras import Json

from connectors.postgres.catalog.catalog import Control

# Retention of an answer, and extra seconds before the key of a dead request expires.
ANSWER_RETENTION = "1 day"
MARGIN_S = 60
_KEY = "(service, caller, path, key) = (%s, %s, %s, %s)"


@dataclass(frozen=True)
class RequestKey:
    """A key, its caller and its path."""

    caller: str
    path: str
    key: str


@dataclass(frozen=True)
class Worker:
    """An API process: the address that it listens at, and which process in succession it is."""

    server: str
    process: str


@dataclass(frozen=True)
class StoredAnswer:
    """A stored answer; status None: still running. fingerprint: of the first request."""

    fingerprint: str
    status: int | None
    headers: Mapping[str, str]
    body: bytes


def free(control: Control, worker: Worker) -> int:
    """Forget the unfinished requests of earlier processes at this address; return their number."""
    forgotten = control.rows(
        "DELETE FROM tidemark.idempotency_keys "
        "WHERE service = %s AND status IS NULL AND server = %s AND process <> %s RETURNING 1",
        *(control.service, worker.server, worker.process),
    )
    return len(forgotten)


def claim(
    control: Control, worker: Worker, key: RequestKey, fingerprint: str, wait_s: float
) -> StoredAnswer | None:
    """Return None when the request is to be carried out, else the first request's answer."""
    control.rows("DELETE FROM tidemark.idempotency_keys WHERE good_until < now() RETURNING 1")
    claimed = control.rows(
        "INSERT INTO tidemark.idempotency_keys "
        "(service, caller, path, key, fingerprint, server, process, good_until) "
        "VALUES (%s, %s, %s, %s, %s, %s, %s, now() + make_interval(secs => %s)) "
        "ON CONFLICT DO NOTHING RETURNING 1",
        *(control.service, key.caller, key.path, key.key, fingerprint),
        *(worker.server, worker.process, wait_s + MARGIN_S),
    )
    if claimed:
        return None
    found = control.rows(
        f"SELECT fingerprint, status, headers, body FROM tidemark.idempotency_keys WHERE {_KEY}",
        *(control.service, key.caller, key.path, key.key),
    )
    if not found:
        return claim(control, worker, key, fingerprint, wait_s)
    first, status, headers, body = found[0]
    return StoredAnswer(first, status, headers or {}, bytes(body or b""))


def store_answer(control: Control, key: RequestKey, answer: StoredAnswer) -> None:
    """Store an answer."""
    control.rows(
        "UPDATE tidemark.idempotency_keys SET status = %s, headers = %s, body = %s, "
        f"good_until = now() + interval '{ANSWER_RETENTION}' "
        f"WHERE {_KEY} RETURNING 1",
        *(answer.status, Json(dict(answer.headers)), answer.body),
        *(control.service, key.caller, key.path, key.key),
    )


def forget(control: Control, key: RequestKey) -> None:
    """Forget a request that failed temporarily: the next one is carried out."""
    control.rows(
        f"DELETE FROM tidemark.idempotency_keys WHERE {_KEY} RETURNING 1",
        *(control.service, key.caller, key.path, key.key),
    )
