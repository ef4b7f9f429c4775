"""Subscribers of a run, which read views' changes through the product's Subscriptions.

Each stores the rows that it received; at every progress marker they must equal the sink's rows at
that epoch. It disconnects anywhere, resumes from its newest marker or restarts, and outlives the
API process, which is killed now and then, and with the machine.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Coroutine
from contextlib import suppress
from random import Random
from typing import Any

from connectors.postgres.catalog.catalog import ViewRow
from dataflow.errors import TidemarkError
from service.api.problems import problem_json
from service.subscriptions.change_feed import ChangeFeeds
from service.subscriptions.subscriptions import StreamOptions, Subscription, Subscriptions
from tests.simulation.change_files import rows_at, shown_before
from tests.simulation.event_loop import FiberEventLoop
from tests.simulation.faults import Faults, Violation
from tests.simulation.fibers import Loop, Process
from tests.simulation.lateness import is_final
from tests.simulation.rows import Rows, row_of
from tests.simulation.sink import Database

HEARTBEAT_S = 2.0
# What a reader may be told when it asks, or at the end of a stream.
EXPECTED = {
    *("changes.expired", "changes.interrupted", "changes.unavailable", "changes.too_slow"),
    *("changes.view_dropped", "changes.view_failed", "changes.view_replaced"),
    *("view.not_found", "view.not_live", "sink.unreachable", "sink.no_progress"),
    *("sink.table_missing", "sink.table_changed"),
}


class ApiProcess(Process):
    """Killed as a whole, at no step of its own. close: what the system does for a dead one."""

    def __init__(self, pid: int) -> None:
        super().__init__(pid)
        self.is_steady = True
        self.feeds: ChangeFeeds | None = None
        self.readers: list[Coroutine[Any, Any, None]] = []

    def close(self) -> None:
        """Its files are closed, and nothing of it continues."""
        for reader in self.readers:
            # Left to the collector they would end at some other time.
            with suppress(RuntimeError):
                reader.close()
        self.readers = []
        for feed in list(self.feeds._feeds.values()) if self.feeds is not None else ():
            feed.reader.close()


class Subscriber:
    """One reader, for the whole run. token: of its newest progress marker; marked: the rows at that
    marker."""

    def __init__(self, number: int, database: Database, faults: Faults, random: Random) -> None:
        self._number = number
        self._database = database
        self._faults = faults
        self._random = random
        self._identity = self._token = ""
        self._epoch = -1
        self._counts = 0
        self._marked: Rows = Rows()
        self._rows: Rows = Rows()
        self.marks = 0
        self._is_connected = False

    async def read(self, subscriptions: Subscriptions) -> None:
        """Connect, read for a while, hang up, again and again."""
        self._is_connected = False
        while True:
            await asyncio.sleep(self._random.choice((0.05, 0.3, 1.0)))
            row = self._chosen()
            if row is None:
                continue
            if row.identity != self._identity or self._random.random() < 0.1:
                self._forget(row)
            try:
                options = StreamOptions(resume=self._token, heartbeat_s=HEARTBEAT_S)
                await self._follow(await subscriptions.open(row.title, options))
            except TidemarkError as error:
                self._refused(error.code)
            self._is_connected = False

    def _chosen(self) -> ViewRow | None:
        """Mostly the view that it has read before."""
        # Of final rows one may have others than another that has begun before.
        views = self._database.views
        rows = [row for row in views if row.status == "live" and not is_final(row)]
        known = [row for row in rows if row.identity == self._identity]
        if known and (self._faults.is_calm or self._random.random() < 0.9):
            return known[0]
        return self._random.choice(rows) if rows else None

    def _forget(self, row: ViewRow | None = None) -> None:
        """Begin with the rows."""
        self._identity = row.identity if row is not None else ""
        self._token, self._epoch = "", -1
        self._marked = Rows()

    async def _follow(self, subscription: Subscription) -> None:
        self._rows = self._marked.copy()
        self._counts = self._database.counts
        self._is_connected = True
        until = self._faults.now + self._random.uniform(0.2, 6.0)
        frames = subscription.frames("sse", problem_json)
        try:
            async for pieces in frames:
                if self._take_some(pieces, until):
                    break
            await frames.aclose()
        finally:
            subscription.close()

    def _take_some(self, pieces: list[bytes], until: float) -> bool:
        """Take what has come; whether it hangs up in it."""
        for piece in pieces:
            self._take(piece)
            is_enough = self._faults.now > until and not self._faults.is_calm
            if is_enough and self._random.random() < 0.5:
                return True
        return False

    def _take(self, piece: bytes) -> None:
        for event in piece.decode().removesuffix("\n\n").split("\n\n"):
            reported = dict(line.split(": ", 1) for line in event.split("\n"))
            name, data = reported["event"], json.loads(reported["data"])
            if name == "snapshot":
                self._add(data["rows"], [1] * len(data["rows"]))
            elif name == "changes":
                self._add(data["rows"], data["weights"])
            elif name == "progress":
                self._mark(reported["id"], data)
            elif name == "error":
                self._refused(data["code"])

    def _add(self, rows: list[Any], weights: list[int]) -> None:
        for row, weight in zip(rows, weights, strict=True):
            key = row_of(row)
            self._rows[key] += weight
            if self._rows[key] < 0:
                raise Violation(f"subscriber {self._number} is told to take {key}, which it lacks")

    def _mark(self, token: str, mark: dict[str, Any]) -> None:
        epoch = mark["epoch"]
        if self._counts != self._database.counts:
            # Of views that were dropped, from before the last one went.
            return
        if epoch < self._epoch or token != mark["resume"]:
            raise Violation(f"subscriber {self._number} is told {mark} after epoch {self._epoch}")
        found = Counter({row: n for row, n in self._rows.items() if n})
        expected = rows_at(self._database.history.get(self._identity, []), epoch)
        if found not in (expected, *shown_before(self._database, self._identity, epoch)):
            raise Violation(
                f"subscriber {self._number} has at epoch {epoch} of {self._identity[-3:]} "
                f"{dict(found - expected)} too much and lacks {dict(expected - found)}"
            )
        self._token, self._epoch, self._marked = token, epoch, self._rows.copy()
        self.marks += 1
        self._faults.trace("marked", f"{self._number}: epoch {epoch}")

    def _refused(self, code: str) -> None:
        self._faults.trace("hung up on", f"{self._number}: {code}")
        if code not in EXPECTED:
            raise Violation(f"subscriber {self._number} is told {code}")
        if code.startswith("changes.") and code != "changes.unavailable":
            self._forget()

    def why_behind(self) -> str:
        """What it lacks of the view that it reads."""
        row = self._database.view(self._identity)
        found = None if row is None else self._database.tables.get((row.schema, row.name))
        if row is None or row.status != "live" or found is None:
            return ""
        if not self._is_connected or +self._marked != found.rows:
            return f"subscriber {self._number} is at epoch {self._epoch} of {row.title}"
        return ""


class Api:
    """The process that they read from, started again when it is gone."""

    def __init__(
        self, fibers: Loop, database: Database, faults: Faults, random: Random, parts: Any
    ) -> None:
        self._fibers = fibers
        self._faults = faults
        self._random = random
        self._parts = parts
        self.process: ApiProcess | None = None
        self.subscribers = [Subscriber(n, database, faults, random) for n in range(2)]

    def supervise(self) -> None:
        """Keep one running; kill it now and then."""
        while True:
            process = self.process = ApiProcess(1000)
            self._fibers.start(lambda p=process: self._serve(p), "api", process)
            life_s = self._random.uniform(1, 15)
            self._fibers.pause(life_s, lambda p=process: p.is_dead)
            while self._faults.is_calm and not process.is_dead:
                self._fibers.pause(1.0, lambda p=process: p.is_dead)
            self._faults.trace("api", "is killed")
            process.is_dead = True
            self._fibers.pause()
            process.close()
            self._fibers.pause(self._random.uniform(0, 1))

    def _serve(self, process: ApiProcess) -> None:
        try:
            FiberEventLoop(self._fibers).run(self._readers(process))
        except Exception as error:
            self._fibers.fail(error)

    async def _readers(self, process: ApiProcess) -> None:
        process.feeds = ChangeFeeds(lambda: False)
        subscriptions = Subscriptions(self._parts, process.feeds)
        process.readers = [one.read(subscriptions) for one in self.subscribers]
        await asyncio.gather(*process.readers)

    def why_behind(self) -> str:
        """What any of them lacks."""
        return next(filter(None, (one.why_behind() for one in self.subscribers)), "")
