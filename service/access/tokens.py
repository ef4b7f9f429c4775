"""Bearer tokens: created, shown once, stored as hashes, and verified at almost no cost.

A token is 256 random bits, so one SHA-256 is enough. Passwords need slow, salted hashes because
they can be guessed; nobody can guess or tabulate 2**256 values. Comparison takes constant time.
Invariant: once a token was created, a request without a valid one is refused, even if all are
revoked or the control tables cannot be read.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
import time
from dataclasses import dataclass
from datetime import timedelta
from enum import IntEnum

from connectors.postgres.catalog import token_records
from connectors.postgres.catalog.catalog import Control
from connectors.postgres.catalog.token_records import TokenRow
from dataflow.errors import TemporaryError, TidemarkError
from service.runtime.log import log
from storage import clock

PREFIX = "tdm"
# How long other API processes may still accept a revoked token: with the pause of
# `service/api/revocations.py` it stays below a second.
CACHE_S = 0.5
# An unknown token may have been created elsewhere: the table is read again, at most this often.
MISS_S = 0.5
# While the sink is down, cached tokens stay valid this long.
STALE_S = 300.0
USED_EVERY_S = 300.0
_NOBODY = hashlib.sha256(b"").digest()


class Role(IntEnum):
    """The API role of a caller; each includes those before it."""

    PUBLIC = 0
    READER = 1
    OPERATOR = 2
    ADMIN = 3

    @property
    def word(self) -> str:
        """Return the name that users write."""
        return self.name.lower()


@dataclass(frozen=True)
class Caller:
    """The caller of an operation.

    id: of its token: what the caller owns is compared by it, since a name may be given again.
    db_role: whose privileges count, and the owner of what it creates; "" for the service itself.
    db_role_oid: its OID in the sink, None if that role was dropped.
    is_session: the role logged in to PostgreSQL and calls a procedure.
    """

    name: str
    role: Role
    db_role: str = ""
    is_session: bool = False
    id: str = ""
    db_role_oid: int | None = None


ANYBODY = Caller("", Role.PUBLIC)
# The caller of a service on loopback without tokens: anyone on this machine.
OPEN = Caller("local", Role.ADMIN, id="local")


def hash_of(token: str) -> bytes:
    """Return the stored form of a token."""
    return hashlib.sha256(token.encode()).digest()


class Tokens:
    """The tokens of one service; thread-safe."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._lock = threading.Lock()
        self._rows: dict[str, TokenRow] = {}
        self._read_at = -STALE_S
        self._tried_at = -STALE_S
        self._used: dict[str, float] = {}
        self._unsaved: set[str] = set()
        self._is_ensured = False

    # --- making and ending -------------------------------------------------------------------

    def create(
        self,
        name: str,
        role: str,
        *,
        db_role: str = "",
        lifetime_s: float | None = None,
        by: str = "",
    ) -> tuple[str, TokenRow]:
        """Return (token, its stored row). TidemarkError token.name_taken."""
        identity = secrets.token_hex(6)
        token = f"{PREFIX}_{identity}_{secrets.token_urlsafe(32)}"
        ends = None if lifetime_s is None else clock.utc() + timedelta(seconds=lifetime_s)
        row = TokenRow(
            identity, name, role, hash_of(token), db_role or None, by or OPEN.name, expires_at=ends
        )
        self._ensure()
        token_records.insert_token(self._control, row)
        self.forget()
        log.info("token.created", name=name, role=role, by=row.created_by)
        return token, next(r for r in self.list() if r.id == identity)

    def list(self) -> list[TokenRow]:
        """Return all tokens ever created."""
        self._ensure()
        return token_records.list_tokens(self._control)

    def revoke(self, name: str, by: str = "") -> None:
        """Revoke a token at once. TidemarkError token.not_found."""
        self._ensure()
        if not token_records.revoke_token(self._control, name):
            raise TidemarkError(
                "token.not_found",
                f'token "{name}" does not exist',
                hint="check the name: the list of tokens has all of them",
            )
        self.forget()
        log.info("token.revoked", name=name, by=by or OPEN.name)

    def forget(self) -> None:
        """Make the next lookup read the table again."""
        with self._lock:
            self._read_at = min(self._read_at, time.monotonic() - CACHE_S)
            self._tried_at = -STALE_S

    # --- looking up ----------------------------------------------------------------------------

    def is_fresh(self, token: str) -> bool:
        """Return True if `find` and `is_any` would answer without a query."""
        now = time.monotonic()
        is_cached = not token or _identity(token) in self._rows
        return now - self._read_at < CACHE_S and (is_cached or now - self._tried_at < MISS_S)

    def is_any(self) -> bool:
        """Return True if a token was ever created. TemporaryError if that cannot be read."""
        self._refresh(CACHE_S)
        return bool(self._rows)

    def find(self, token: str) -> Caller | None:
        """Return the caller with this token; None if the token is not valid."""
        self._refresh(CACHE_S)
        identity = _identity(token)
        if identity not in self._rows:
            self._refresh(MISS_S)
        row = self._rows.get(identity)
        is_equal = hmac.compare_digest(hash_of(token), row.hash if row else _NOBODY)
        if row is None or not is_equal or row.revoked_at is not None:
            return None
        if row.expires_at is not None and row.expires_at <= clock.utc():
            return None
        self._note_used(row.id)
        return Caller(
            row.name,
            Role[row.role.upper()],
            row.db_role or "",
            id=row.id,
            db_role_oid=row.db_role_oid,
        )

    def live_ids(self) -> set[str]:
        """Return the ids of all valid tokens. TemporaryError if they cannot be read."""
        self._refresh(CACHE_S)
        now = clock.utc()
        rows = [r for r in self._rows.values() if r.revoked_at is None]
        return {r.id for r in rows if r.expires_at is None or r.expires_at > now}

    def has_live(self) -> bool:
        """Return True if any token is valid now."""
        return bool(self.live_ids())

    # --- inside --------------------------------------------------------------------------------

    def _refresh(self, oldest_s: float) -> None:
        with self._lock:
            now = time.monotonic()
            has_rows = now - self._read_at < STALE_S
            if now - self._read_at < oldest_s or (has_rows and now - self._tried_at < MISS_S):
                return
            self._tried_at = now
            try:
                self._ensure()
                rows = token_records.list_tokens(self._control)
                if self._unsaved:
                    token_records.mark_used(self._control, list(self._unsaved))
                    self._unsaved.clear()
            except TidemarkError as error:
                if has_rows:
                    log.warning("tokens.stale", code=error.code)
                    return
                raise TemporaryError(
                    "auth.unavailable",
                    "the token cannot be checked at the moment",
                    detail=error.what,
                    hint="tokens are stored in the sink: check that it is reachable",
                ) from None
            self._rows = {row.id: row for row in rows}
            self._read_at = time.monotonic()

    def _ensure(self) -> None:
        if not self._is_ensured:
            self._control.ensure()
            self._is_ensured = True

    def _note_used(self, identity: str) -> None:
        now = time.monotonic()
        if now - self._used.get(identity, -USED_EVERY_S) >= USED_EVERY_S:
            self._used[identity] = now
            self._unsaved.add(identity)


def _identity(token: str) -> str:
    """Return the part that identifies the token's row; it is not secret."""
    parts = token.split("_", 2)
    return parts[1] if len(parts) == 3 and parts[0] == PREFIX else ""
