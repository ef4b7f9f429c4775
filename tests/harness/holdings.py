"""What a service holds that others pay for: sessions of databases, descriptors, threads,
processes and files of its own. Repeating an operation must not add to any of it."""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from storage.process_title import title_of
from tests.harness.files import files_below
from tests.harness.postgres import Database, one_session
from tests.harness.service import RunningService
from tests.harness.waiting import WITHIN_S, wait_until

# Of every database of a server: a walsender has no query, but a name and a database.
_SESSIONS = """
SELECT a.application_name FROM pg_stat_activity AS a
WHERE a.datname = current_database() AND a.application_name LIKE 'tidemark%'
"""
# RocksDB opens, merges and deletes files as it likes.
_STORE = "/store/"


@dataclass(frozen=True)
class Holder:
    """A service, the databases that it uses, by what they are to it, and its folder for temporary
    files."""

    service: RunningService
    databases: Mapping[str, Database]
    temporary: Path

    def holdings(self) -> Counter[str]:
        """Count everything once."""
        found: Counter[str] = Counter()
        for role, database in self.databases.items():
            found[f"sessions of the {role}"] = len(database.rows(_SESSIONS))
        for process in self.service.processes():
            with contextlib.suppress(psutil.Error, OSError):
                found["processes"] += 1
                found += _process(process)
        found["temporary files"] = sum(1 for _ in files_below(self.temporary))
        mine = (p for p in files_below(self.service.state) if _STORE not in str(p))
        found["files of the state"] = sum(1 for _ in mine)
        return found

    def sessions(self) -> list[str]:
        """Return the owners of the sessions of all databases, for messages."""
        rows = (row for d in self.databases.values() for row in d.rows(_SESSIONS))
        return sorted(name for (name,) in rows)

    def require_no_growth(
        self,
        repeat: Callable[[], object],
        *,
        first: int,
        then: int,
        settles_s: float = 0.0,
        within_s: float = WITHIN_S,
    ) -> None:
        """Repeat an operation; all of it but the first times must add nothing that stays.

        Pools of threads grow to their limits when they like: less than one a time is theirs.
        settles_s: how long nothing has changed when that is counted from which nothing may grow.
        """
        for _ in range(first):
            repeat()
        before = self._settled(settles_s, within_s)
        for _ in range(then):
            repeat()

        def grown() -> Counter[str]:
            more = self.holdings() - before
            return Counter(
                {n: c for n, c in more.items() if c >= then or not n.startswith("threads")}
            )

        with one_session():
            wait_until(
                lambda: not grown(),
                within_s,
                lambda: f"{then} times have left {dict(grown())}: {self.sessions()}",
            )

    def _settled(self, for_s: float, within_s: float) -> Counter[str]:
        """Return the holdings once their sessions have been the same for so long."""
        found, since = self.holdings(), time.monotonic()
        deadline = since + within_s
        with one_session():
            while time.monotonic() - since < for_s and time.monotonic() < deadline:
                time.sleep(0.5)
                now = self.holdings()
                if any(now[n] != found[n] for n in now if n.startswith("sessions")):
                    since = time.monotonic()
                found = now
        return found


def _process(process: psutil.Process) -> Counter[str]:
    title = title_of(process.cmdline()) or "supervisor"
    found: Counter[str] = Counter({f"threads of {title}": process.num_threads()})
    for descriptor in os.listdir(f"/proc/{process.pid}/fd"):
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/{process.pid}/fd/{descriptor}")
            kind = target.partition(":")[0] if not target.startswith("/") else "file"
            if _STORE not in target and not target.startswith("/proc"):
                found[f"{kind}s of {title}"] += 1
    return found
