"""A standby of an embedded server: a base backup that follows by streaming, and can be promoted."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from connectors.postgres.embedded.server import (
    _WATCH,
    EmbeddedPostgres,
    _temp_root,
    _unprivileged_user,
)
from tests.harness.postgres import SERVER_SETTINGS, Database
from tests.harness.waiting import wait_until

SLOT = "standby"


@dataclass(frozen=True)
class Either(Database):
    """The database on whichever of the two servers can be written."""

    standby: EmbeddedPostgres

    @property
    def dsn(self) -> str:
        """libpq's connection string of both."""
        ports = f"{self.server.port},{self.standby.port}"
        return (
            f"host=127.0.0.1,127.0.0.1 port={ports} user=postgres dbname={self.name}"
            " target_session_attrs=read-write"
        )


def alter_system(server: EmbeddedPostgres, settings: Mapping[str, str]) -> None:
    """Settings of a running server, which its standby does not inherit."""
    for name, value in settings.items():
        Database(server, "postgres").execute(f"ALTER SYSTEM SET {name} = '{value}'")
    Database(server, "postgres").execute("SELECT pg_reload_conf()")


class Standby(EmbeddedPostgres):
    """Of a running primary; follows it by the physical slot SLOT. settings: more of them; from
    PostgreSQL 17 on it copies failover slots, unless they say otherwise."""

    def __init__(
        self, primary: EmbeddedPostgres, settings: Mapping[str, object] | None = None
    ) -> None:
        is_new = primary.version >= 17
        copying = {"sync_replication_slots": "on", "hot_standby_feedback": "on"} if is_new else {}
        super().__init__(primary.version, {**SERVER_SETTINGS, **copying, **(settings or {})})
        self._primary = primary

    def promote(self) -> None:
        """Make it a primary."""
        Database(self, "postgres").execute("SELECT pg_promote()")
        wait_until(lambda: not self._is_in_recovery())

    def leave_behind(self) -> None:
        """It gets nothing more of what the primary does."""
        alter_system(self, {"primary_conninfo": ""})
        mine = Database(self, "postgres")
        wait_until(lambda: not mine.rows("SELECT FROM pg_stat_wal_receiver"))

    def await_copy(self, slot: str) -> None:
        """Wait until it has a copy of a slot that will outlive a promotion."""
        mine = Database(self, "postgres")
        # The primary's snapshot of running transactions lets the copy become whole.
        wait_until(
            lambda: bool(
                Database(self._primary, "postgres").rows("SELECT pg_log_standby_snapshot()")
                and mine.rows(
                    "SELECT FROM pg_replication_slots WHERE slot_name = %s AND NOT temporary",
                    (slot,),
                )
            )
        )

    def _is_in_recovery(self) -> bool:
        return Database(self, "postgres").rows("SELECT pg_is_in_recovery()")[0][0]

    def _make_directory(self) -> None:
        user = _unprivileged_user()
        self._directory = Path(tempfile.mkdtemp(prefix="tidemark-pg-", dir=_temp_root()))
        if user is not None:
            os.chown(self._directory, user.pw_uid, user.pw_gid)
        self._watch_pipe(_WATCH, "tidemark-pg-watch", self._surroundings())
        self._bin = self._readable_binaries(self._bin)
        dsn = self._primary.dsn
        command = [self._bin / "pg_basebackup", "-D", self._directory / "data", "-d", dsn]
        command += ["-R", "-X", "stream", "-C", "-S", SLOT, "-c", "fast", "--no-sync"]
        made = subprocess.run(
            command, capture_output=True, text=True, check=False, **self._surroundings()
        )
        assert made.returncode == 0, made.stderr
