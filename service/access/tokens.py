"""Bearer tokens: made, shown once, kept as hashes, and looked up at next to no cost.

A token is 256 random bits, so one SHA-256 is enough: what makes passwords need slow, salted hashes
is that they can be guessed, and nobody can guess or tabulate 2**256 of these. Comparison takes the
same time whatever differs. Invariant: once a token was made, no request without one is let in,
also when all of them are revoked or the control tables cannot be read.
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
# How long a revoked token may still be taken by another API process than that which revoked it.
CACHE_S = 3.0
# An unknown token may have been made elsewhere: the table is read again for it, this often.
MISS_S = 0.5
# While the sink is away tokens that were known go on to be good this long.
STALE_S = 300.0
USED_EVERY_S = 300.0
_NOBODY = hashlib.sha256(b"").digest()


class Role(IntEnum):
    """What a caller may do; each includes those before it."""

    PUBLIC = 0
    READER = 1
    OPERATOR = 2
    ADMIN = 3

    @property
    def word(self) -> str:
        """As people write it."""
        return self.name.lower()


@dataclass(frozen=True)
class Caller:
    """Who asks for something. db_role: whose rights count, and who owns what is created, "" for
    the service itself; is_session: that role has logged in to PostgreSQL and asks by CALL."""

    name: str
    role: Role
    db_role: str = ""
    is_session: bool = False


ANYBODY = Caller("", Role.PUBLIC)
# Who calls a service on loopback that has no tokens: whoever is on this machine.
OPEN = Caller("local", Role.ADMIN)


def hash_of(token: str) -> bytes:
    """What is kept of a token."""
    return hashlib.sha256(token.encode()).digest()


class Tokens:
    """The tokens of one service; safe for several threads."""

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
        """(the token, what is kept of it). TidemarkError token.name_taken."""
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
        """All tokens that were ever made."""
        self._ensure()
        return token_records.list_tokens(self._control)

    def revoke(self, name: str, by: str = "") -> None:
        """End a token at once. TidemarkError token.not_found."""
        self._ensure()
        if not token_records.revoke_token(self._control, name):
            raise TidemarkError(
                "token.not_found", f'there is no token "{name}"', hint="see GET /tokens"
            )
        self.forget()
        log.info("token.revoked", name=name, by=by or OPEN.name)

    def forget(self) -> None:
        """Read the table again at the next look."""
        with self._lock:
            self._read_at = min(self._read_at, time.monotonic() - CACHE_S)
            self._tried_at = -STALE_S

    # --- looking up ----------------------------------------------------------------------------

    def is_fresh(self, token: str) -> bool:
        """Whether `find` and `is_any` would answer without asking the database."""
        now = time.monotonic()
        is_known = not token or _identity(token) in self._rows
        return now - self._read_at < CACHE_S and (is_known or now - self._tried_at < MISS_S)

    def is_any(self) -> bool:
        """Whether a token was ever made. TemporaryError when that is not known."""
        self._refresh(CACHE_S)
        return bool(self._rows)

    def find(self, token: str) -> Caller | None:
        """Who has this token; None when nobody has, or not any more."""
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
        return Caller(row.name, Role[row.role.upper()], row.db_role or "")

    def live_names(self) -> set[str]:
        """The names of the tokens that are good now. TemporaryError when that is not known."""
        self._refresh(CACHE_S)
        now = clock.utc()
        rows = [r for r in self._rows.values() if r.revoked_at is None]
        return {r.name for r in rows if r.expires_at is None or r.expires_at > now}

    def has_live(self) -> bool:
        """Whether some token is good now."""
        return bool(self.live_names())

    # --- inside --------------------------------------------------------------------------------

    def _refresh(self, oldest_s: float) -> None:
        with self._lock:
            now = time.monotonic()
            is_known = now - self._read_at < STALE_S
            if now - self._read_at < oldest_s or (is_known and now - self._tried_at < MISS_S):
                return
            self._tried_at = now
            try:
                self._ensure()
                rows = token_records.list_tokens(self._control)
                if self._unsaved:
                    token_records.mark_used(self._control, list(self._unsaved))
                    self._unsaved.clear()
            except TidemarkError as error:
                if is_known:
                    log.warning("tokens.stale", code=error.code)
                    return
                raise TemporaryError(
                    "auth.unavailable",
                    "who is asking cannot be looked up just now",
                    detail=error.what,
                    hint="the sink holds the tokens: see that it can be reached",
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
    """The part by which a token's row is found; it is no secret."""
    parts = token.split("_", 2)
    return parts[1] if len(parts) == 3 and parts[0] == PREFIX else ""
