"""A service under fire: views of the shared check over a writer that never rests, operations on
further views, failpoints that are set while it runs, and what nothing may leave behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import psutil

from storage.failpoints import CLOCK, REACHED
from storage.process_title import title_of
from tests.harness.change_stream import Fold, events, until
from tests.harness.failpoints import arm
from tests.harness.files import files_below
from tests.harness.postgres import Database
from tests.harness.service import RunningService
from tests.harness.verdicts import LeakError, judged, require_same_rows
from tests.harness.waiting import wait_until
from tests.recovery.prefix import SCHEMA, VIEWS, Checker, Writer

TABLES = """
CREATE TABLE big (id int PRIMARY KEY, grp int NOT NULL, v int NOT NULL);
INSERT INTO big SELECT i, i % 50, i FROM generate_series(1, 5000) i;
CREATE TABLE wide (id int PRIMARY KEY, v int NOT NULL, note text);
INSERT INTO wide SELECT i, i % 9, 'n' FROM generate_series(1, 500) i;
"""
SUMS = [
    "SELECT grp, count(*) AS n, sum(v) AS s FROM big GROUP BY grp",
    "SELECT grp, count(*) AS n, sum(v) AS s FROM big WHERE v % 3 = 0 GROUP BY grp",
    "SELECT grp, count(*) AS n, sum(v) AS s, max(v) AS most FROM big GROUP BY grp",
]
# Reads what the writer changes: its build has to catch up.
BUSY = (
    "SELECT a.owner, count(*) AS n, sum(e.amount * b.v) AS s FROM entries e "
    "JOIN accounts a ON a.id = e.account JOIN big b ON b.id = a.id GROUP BY a.owner"
)
OF_WIDE = "SELECT count(*) AS n FROM wide WHERE v > 3"
# What a state directory has while nothing is in progress.
STATE_FILES = {"version.json", "store", "builds", "changes", "groups"}
TEMPORARY = (".new", ".draft", ".spool", ".tmp", ".part")
# A child that has built a view waits for the next one.
_IDLE = "backfill"


class Scene:
    """One running service; `database` is source and sink."""

    def __init__(self, database: Database, folder: Path, seed: int, **settings: Any) -> None:
        self.database = database
        self.points = folder / "points"
        self.points.mkdir(parents=True)
        self.spilled = folder / "spilled"
        self.spilled.mkdir()
        self.service = RunningService(
            database.dsn, folder / "service", failpoints_folder=self.points, **settings
        )
        self.service.set_variable("TMPDIR", str(self.spilled))
        self.writer = Writer(database, seed)
        self.checker = Checker(database, self.writer)
        self.queries: dict[str, str] = dict(VIEWS)
        self._is_writing = False

    # --- failpoints ------------------------------------------------------------------------

    def arm(self, points: Iterable[str], action: str = "kill") -> None:
        """Set failpoints, once each; a point may have its own @N."""
        for point in points:
            arm(self.points, point, action)

    def are_reached(self, points: Iterable[str]) -> bool:
        """Whether each was reached; they may have their own @N."""
        return all((self.points / f"{p.partition('@')[0]}{REACHED}").exists() for p in points)

    def await_reached(self, points: Iterable[str], timeout_s: float = 90) -> None:
        """Until each was reached; the states of the sink are compared meanwhile."""
        names = [point.partition("@")[0] for point in points]
        deadline = time.monotonic() + timeout_s
        for name in names:
            path = self.points / f"{name}{REACHED}"
            while not path.exists():
                assert time.monotonic() < deadline, f"{name} not reached\n{self.log()}"
                self.look()
            path.unlink()

    def log(self) -> str:
        """The end of the service's log."""
        return self.service.log_tail()

    def set_clock(self, seconds: float) -> None:
        """The service's wall clock from now on, against the machine's."""
        draft = self.points / "draft"
        draft.write_text(str(seconds))
        draft.rename(self.points / CLOCK)

    # --- the shared check ------------------------------------------------------------------

    def begin(self) -> None:
        """Tables, views and the writer."""
        self.database.execute(SCHEMA + TABLES)
        self.service.start()
        for name, query in VIEWS.items():
            self.service.create(name, query, backfill="local")
        self.writer.start()
        self._is_writing = True

    def look(self, seconds: float = 0.01) -> None:
        """Compare states of the sink with the model, for so long."""
        self.checker.look_for(seconds)

    def move_on(self, prefixes: int = 3, timeout_s: float = 90) -> None:
        """Until so many further prefixes were seen."""
        self.checker.await_further(prefixes, timeout_s, self.log)

    # --- operations ------------------------------------------------------------------------

    def create(self, name: str, query: str, **options: str) -> None:
        """Ask for a view; `settled` waits for it."""
        self.queries[name] = query
        body = {"name": name, "query": query, "options": {"backfill": "local", **options}}
        answer = self.service.call("POST", "/views?wait_s=0", body)
        # Repeated after a cut connection, it may be there already.
        assert answer.status_code in (201, 409), answer.text

    def ask(self, path: str, body: Any = None) -> None:
        """POST to a view; what was asked for already is no error."""
        answer = self.service.call("POST", f"/views/{path}", body)
        assert answer.status_code in (200, 202, 409), answer.text

    def settled(self, name: str, status: str = "live", timeout_s: float = 120) -> dict[str, Any]:
        """The view once nothing is in progress; states are compared meanwhile."""
        deadline = time.monotonic() + timeout_s
        while True:
            view = self.service.call("GET", f"/views/{name}").json()
            going = view.get("replacing") or {}
            if view.get("status") == status and going.get("status") != "in progress":
                return view
            assert time.monotonic() < deadline, f"{view}\n{self.log()}"
            self.look(0.05)

    def drop(self, name: str) -> None:
        """Drop a view and wait until nothing of it is left."""
        answer = self.service.call("DELETE", f"/views/{name}")
        assert answer.status_code in (202, 204, 404), answer.text
        deadline = time.monotonic() + 90
        while self.service.call("GET", f"/views/{name}").status_code != 404:
            assert time.monotonic() < deadline, self.log()
            self.look(0.05)
        self.queries.pop(name, None)

    def subscribed(self, name: str, fold: Fold, timeout_s: float = 60) -> None:
        """Read a view's changes up to the source's position of now, through lost connections."""
        high, low = self.position().split("/")
        position, deadline = (int(high, 16) << 32) + int(low, 16), time.monotonic() + timeout_s
        lost = (OSError, EOFError, asyncio.IncompleteReadError, TimeoutError)
        while fold.position < position:
            assert time.monotonic() < deadline, self.log()
            with contextlib.suppress(*lost):
                stream = events(self.service.url, name, token=fold.token)
                asyncio.run(until(fold, stream, position, 10))
            fold.lose()
            self.look()

    # --- the end ---------------------------------------------------------------------------

    def position(self) -> str:
        """What is committed now lies before it."""
        return self.database.rows("SELECT pg_current_wal_flush_lsn()::text")[0][0]

    def finish(self, *, of_spark: bool = False) -> int:
        """Stop the writer; every view is PostgreSQL's own answer, and nothing is left behind.

        of_spark: its processes may run on.
        """
        last, self._is_writing = self.writer.stop(), False
        self.assert_answers()
        assert self.checker.check() == last
        self.checker.close()
        self.assert_nothing_left(of_spark=of_spark)
        return self.checker.distinct

    def assert_answers(self) -> None:
        """Each view at the position of now is the answer to its query."""
        position = self.position()
        for name, query in self.queries.items():
            self.service.wait(name, position, timeout_s=90)
            require_same_rows(self.database, name, query)

    @judged(LeakError)
    def assert_nothing_left(self, *, of_spark: bool = False) -> None:
        """No staged table, no file of something interrupted, one slot, three processes."""
        staged = self.database.rows("SELECT * FROM tidemark.tables WHERE is_staged")
        assert not staged, staged
        views = self.database.rows("SELECT schema, name FROM tidemark.tables")
        assert sorted(name for _, name in views) == sorted(self.queries), views
        slots = self.database.rows(
            "SELECT slot_name FROM pg_replication_slots WHERE database = current_database() "
            # A view may be verified just now: that has one for as long as it takes.
            "AND NOT temporary"
        )
        assert len(slots) == 1, slots
        if not of_spark:
            self.assert_files()
            self.assert_processes()

    def assert_files(self) -> None:
        """What was spilled, spooled or drafted is gone."""
        wait_until(lambda: not self.left_files(), why=self.left_files)

    def left_files(self) -> list[str]:
        """Files that no finished work needs."""
        state = self.service.state
        left = [str(p) for p in self.spilled.iterdir()]
        for name in ("builds", "store/unfinished"):
            folder = state / name
            left += [str(p) for p in folder.iterdir()] if folder.is_dir() else []
        left += [str(p) for p in files_below(state) if p.name.endswith(TEMPORARY)]
        # A merge continues with the rows that come, and may wait for as long as none do.
        in_hand = set().union(*map(_open_files, self.processes()))
        return [path for path in left if path not in in_hand]

    def assert_processes(self) -> None:
        """Nobody works on this state but the four, and who waits for views to build."""
        deadline = time.monotonic() + 60
        while True:
            found = [p.cmdline() for p in self.processes()]
            titles = sorted(title for title in map(title_of, found) if title != _IDLE)
            others = [command for command in found if not title_of(command)]
            if titles == ["", "api", "groups", "pipeline"] and "service.cli.main" in others[0]:
                return
            assert time.monotonic() < deadline, found
            time.sleep(0.1)

    def processes(self) -> Iterator[psutil.Process]:
        """All with this state in their environment, children of the dead as well."""
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if process.environ().get("TIDEMARK_STATE") == str(self.service.state):
                    process.cmdline()[0]
                    yield process

    def drop_all(self) -> None:
        """After the last view is gone nothing is there that would keep WAL for nobody."""
        for name in list(self.queries):
            self.drop(name)
        for what, sql in (
            ("slots", "SELECT slot_name FROM pg_replication_slots"
             " WHERE database = current_database()"),
            ("publications", "SELECT pubname FROM pg_publication"),
            ("progress", "SELECT sink_key FROM tidemark.progress"),
            ("tables", "SELECT name FROM tidemark.tables"),
            ("errors", "SELECT view FROM tidemark.errors"),
        ):  # fmt: skip
            found = self.await_none(sql)
            assert not found, f"{what}: {found}"
        self.assert_files()

    def await_none(self, sql: str) -> list[tuple]:
        """The rows of a query, once there are none or after a while."""
        deadline = time.monotonic() + 60
        while (found := self.database.rows(sql)) and time.monotonic() < deadline:
            time.sleep(0.1)
        return found

    def close(self) -> None:
        """End what runs."""
        if self._is_writing:
            self.writer.stop()
        self.checker.close()
        self.service.__exit__()


def repeat_command(file: str, **variables: object) -> str:
    """What repeats a run."""
    place = os.path.relpath(file)
    return " ".join([*(f"{k}={v}" for k, v in variables.items()), "pytest", place])


def _open_files(process: psutil.Process) -> set[str]:
    with contextlib.suppress(psutil.Error, OSError):
        return {file.path for file in process.open_files()}
    return set()
