"""An operator who never rests: random actions on a service under load, and what must hold then.

Each action is one that an operator, a reader or a machine takes on some day. Refusals that tell of
a moment (busy, restarting, gone) are taken as they are; any other answer is a fault. `check`
pauses for a moment and compares every view with PostgreSQL's answer at its position.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
from psycopg2 import Error

from tests.harness import http
from tests.harness.postgres import Database
from tests.harness.service import RunningService
from tests.harness.verdicts import differing_rows
from tests.recovery.soak_load import QUERIES, Load, number_of

MAX_VIEWS = 8
SETTLED_S = 240.0
# How often each action is taken, in proportion.
WEIGHTS = {
    "create": 5,
    "drop": 2,
    "replace": 3,
    "rebuild": 1,
    "pause": 1,
    "resume": 2,
    "rename": 2,
    "verify": 2,
    "read": 3,
    "subscribe": 4,
    "change_table": 3,
    "kill_pipeline": 1,
    "kill_api": 1,
    "restart_service": 0.5,
    "kill_service": 0.5,
    "restart_postgres": 0.5,
}
# What an operation may be answered at an awkward moment.
MOMENTS = (404, 409, 429, 503, 504)


class Soak:
    """faults: what was not as promised. done: actions by name. compared: views, each time. asked:
    what was, with its answer, and when."""

    def __init__(self, service: RunningService, database: Database, load: Load, seed: int) -> None:
        self.faults: list[str] = []
        self.done: Counter[str] = Counter()
        self.asked: list[str] = []
        self.compared = 0
        self._service = service
        self._database = database
        self._load = load
        self._pick = random.Random(seed)
        self._numbers = itertools.count()
        self._readers: list[threading.Thread] = []

    def begin(self) -> None:
        """Some views to begin with, so that the first actions meet something."""
        for _ in range(4):
            self._create()

    def act(self) -> None:
        """One random action."""
        name = self._pick.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        if name not in ("read", "subscribe", "verify"):
            self._note(name)
        with contextlib.suppress(Error):
            getattr(self, f"_{name}")()
        self.done[name] += 1

    def check(self) -> None:
        """Wait until nothing is in progress, and compare."""
        with self._load.held():
            position = self._position()
            for view in self._settled():
                name, status = view["name"], view["status"]
                if status == "failed":
                    self.faults.append(f"{name} failed: {view['error']}")
                    self._compare(name, view["query"])
                elif status == "live":
                    self._service.wait(name, position, timeout_s=SETTLED_S)
                    self._compare(name, view["query"])

    def finish(self) -> None:
        """Drop everything; what is left then is a fault."""
        for reader in self._readers:
            reader.join(30)
        for view in self._views():
            self._service.call("DELETE", f"/views/{view['name']}?wait_s=0")
        deadline = time.monotonic() + SETTLED_S
        left = "SELECT count(*) FROM tidemark.views"
        while self._database.rows(left) != [(0,)]:
            assert time.monotonic() < deadline, f"not dropped\n{self._service.log_tail()}"
            time.sleep(0.2)
        for what, sql in (
            ("slots", "SELECT slot_name FROM pg_replication_slots"),
            (
                "tables",
                "SELECT relname FROM pg_class WHERE relname ~ '^_?v[0-9]' AND relkind = 'r'",
            ),
            ("staged", "SELECT relname FROM pg_class WHERE relname LIKE '\\_tidemark\\_%'"),
            ("errors", "SELECT view FROM tidemark.errors"),
        ):
            found = self._database.rows(sql)
            if found:
                self.faults.append(f"{what} left behind: {found}")

    # --- what is asked of views ----------------------------------------------------------------

    def _create(self) -> None:
        if len(self._views()) < MAX_VIEWS:
            name = f"v{next(self._numbers)}"
            body = {"name": name, "query": self._query(), "options": {"backfill": "local"}}
            self._call("POST", f"/views?wait_s={self._pick.choice((0, 0, 5))}", body)

    def _drop(self) -> None:
        self._on_view("DELETE", "?wait_s=0")

    def _replace(self) -> None:
        self._on_view("POST", "/replace?wait_s=0", {"query": self._query()})

    def _rebuild(self) -> None:
        self._on_view("POST", "/rebuild?wait_s=0")

    def _pause(self) -> None:
        self._on_view("POST", "/pause?wait_s=0")

    def _resume(self) -> None:
        for view in self._views():
            if view["status"] == "paused":
                self._call("POST", f"/views/{view['name']}/resume?wait_s=0")

    def _rename(self) -> None:
        self._on_view("POST", "/rename?wait_s=0", {"name": f"v{next(self._numbers)}"})

    def _verify(self) -> None:
        answer = self._on_view("POST", "/verify")
        if answer is not None and answer.status_code == 200:
            found = answer.json()
            self.compared += 1
            if found["result"] == "different":
                self.faults.append(f"verify: {found}")

    def _read(self) -> None:
        self._on_view("GET", "/rows?limit=50")

    def _subscribe(self) -> None:
        views = self._views()
        if views:
            url = f"{self._service.url}/views/{self._pick.choice(views)['name']}/changes"
            reader = threading.Thread(target=_listen, args=(url, self._pick.uniform(0.2, 4)))
            reader.start()
            self._readers = [r for r in self._readers if r.is_alive()] + [reader]

    # --- what befalls it -----------------------------------------------------------------------

    def _change_table(self) -> None:
        self._load.change_table(self._pick)

    def _kill_pipeline(self) -> None:
        self._service.kill_child("pipeline")

    def _kill_api(self) -> None:
        self._service.kill_child("api")

    def _restart_service(self) -> None:
        self._service.stop()
        self._service.start()

    def _kill_service(self) -> None:
        self._service.kill()
        self._service.start()

    def _restart_postgres(self) -> None:
        self._database.server.restart(immediate=self._pick.random() < 0.5)

    # --- how -----------------------------------------------------------------------------------

    def _query(self) -> str:
        return self._load.names.query(self._pick.randrange(len(QUERIES)))

    def _views(self) -> list[dict[str, Any]]:
        answer = self._call("GET", "/views")
        return answer.json()["views"] if answer.status_code == 200 else []

    def _on_view(self, method: str, path: str, body: Any = None) -> httpx.Response | None:
        views = self._views()
        if not views:
            return None
        return self._call(method, f"/views/{self._pick.choice(views)['name']}{path}", body)

    def _call(self, method: str, path: str, body: Any = None) -> httpx.Response:
        answer = self._answer(method, path, body)
        if method != "GET":
            self._note(f"{method} {path} {body}: {answer.status_code}")
        if not answer.is_success and answer.status_code not in MOMENTS:
            # A table may be renamed between the choice of a query and its analysis.
            code, is_asked = answer.json().get("code", ""), "query" in (body or {})
            if not (is_asked and answer.status_code == 400 and code.startswith("sql.undefined")):
                self.faults.append(f"{method} {path} {body}: {answer.status_code} {answer.text}")
        return answer

    def _note(self, what: str) -> None:
        self.asked.append(f"{datetime.now(UTC):%H:%M:%S.%f} {what}")

    def _answer(self, method: str, path: str, body: Any) -> httpx.Response:
        """As long as an API process may take to come back on a busy machine."""
        deadline = time.monotonic() + SETTLED_S
        while True:
            try:
                return self._service.call(method, path, body)
            except httpx.TransportError as error:
                told = f"{error}\n{self._service.log_tail(20_000)}"
                assert time.monotonic() < deadline, told

    def _settled(self) -> list[dict[str, Any]]:
        """The views once none is on its way to somewhere."""
        deadline = time.monotonic() + SETTLED_S
        while True:
            answer = self._answer("GET", "/views", None)
            views = answer.json()["views"] if answer.status_code == 200 else None
            going = [v for v in views or () if _is_in_progress(v)]
            if views is not None and not going:
                return views
            told = [f"{going}", *self.asked[-100:], self._service.log_tail(20_000)]
            assert time.monotonic() < deadline, "\n".join(told)
            time.sleep(0.1)

    def _position(self) -> str:
        return self._database.rows("SELECT pg_current_wal_flush_lsn()::text")[0][0]

    def _compare(self, name: str, query: str) -> None:
        wanted = self._load.names.query(number_of(query))
        found = differing_rows(self._database, name, wanted)
        self.compared += 1
        if found:
            self.faults.append(f"{name} is not {wanted}: {found[:5]}")


def _is_in_progress(view: dict[str, Any]) -> bool:
    going = view.get("replacing") or {}
    return (
        view["status"] not in ("live", "paused", "failed") or going.get("status") == "in progress"
    )


def _listen(url: str, seconds: float) -> None:
    """A reader who comes, and goes without a word."""
    until = time.monotonic() + seconds
    with contextlib.suppress(httpx.HTTPError), http.stream("GET", url, timeout=5) as stream:
        for _ in stream.iter_bytes():
            if time.monotonic() > until:
                return


def temporary_folder(folder: Path) -> Path:
    """Where the service's temporary files go, so that they can be counted."""
    made = folder / "temporary"
    made.mkdir()
    return made
