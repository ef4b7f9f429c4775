"""A whole simulated service: one seed, one thread, one run.

The product's own pipeline runs in processes that the product's own rules start again; source,
sink, disk and time are simulated. For a while things go wrong; then nothing does any more, and
within a bound of time every view must show the last commit.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from connectors.postgres.catalog.catalog import SourceRow
from connectors.sink import SinkLagging
from connectors.source import MAIN_SOURCE
from dataflow.errors import SinkError, TidemarkError
from dataflow.types import UTC
from service.pipeline.composition import compose
from service.pipeline.epochs import MAX_QUIET_S
from service.pipeline.pipeline import Pipeline
from service.pipeline.postponed_builds import MAX_S
from service.runtime.restart_policy import Restarts, exit_code
from storage.errors import StorageError
from tests.simulation import clock, features, moments, past, topics, zones
from tests.simulation.by_hand import Hand, Mender
from tests.simulation.change_files import check_logs, let_go, want_logs
from tests.simulation.clock import SimClock
from tests.simulation.ddl_oracle import DdlOracle
from tests.simulation.ddl_people import Changer, DdlApplication
from tests.simulation.ddl_tables import DdlServer
from tests.simulation.disk import Disk
from tests.simulation.failover import Standby
from tests.simulation.faults import Faults, Plan, Violation
from tests.simulation.fibers import FiberHost, Hang, Killed, Loop, Process
from tests.simulation.parts import SimParts, SimSettings
from tests.simulation.people import Application, Operator
from tests.simulation.rocks import RocksDisk
from tests.simulation.server import Server
from tests.simulation.shop import FAILING, QUERIES, Oracle
from tests.simulation.sink import Database
from tests.simulation.subscribers import Api
from tests.simulation.topics import Broker, declared
from tests.simulation.view_sinks import TOPIC_FAULTS, SinkPeople, Topics
from tests.simulation.well import reads_database, why_not_well

MAX_SWITCHES = 200_000
# Within so long of simulated time after the last fault all must be well: the longest pauses of
# supervisor, builds and sink follow one another, no more.
CALM_S = 240.0
# How long the sink may be without the position of an idle source.
SHOWN_S = MAX_QUIET_S + 5


@dataclass
class Outcome:
    """What a run came to. failure: None when nothing was wrong."""

    seed: int
    steps: int
    faults: dict[str, int]
    states: int
    epochs: int
    restarts: int
    digest: int
    failure: BaseException | None
    trace: list[str]
    parts: tuple[str, ...] = ()


class SimProcess(Process):
    """faults: of its run."""

    def __init__(self, pid: int, faults: Faults) -> None:
        super().__init__(pid)
        self.faults = faults


class World:
    """One run. steps: how many transactions and operations there are before it grows calm; parts:
    what it has beside the plain pipeline (features.py), drawn from the seed if nobody says."""

    def __init__(
        self,
        seed: int,
        *,
        steps: int | None = None,
        faults: int | None = None,
        parts: Iterable[str] | None = None,
    ) -> None:
        self.seed = seed
        self.parts = features.drawn(seed) if parts is None else features.named(parts)
        self.random = Random(seed)
        self.loop = Loop(self.random)
        self.folder = Path(tempfile.mkdtemp(prefix="tidemark-simulation-", dir=_memory_folder()))
        self.steps = steps if steps is not None else self.random.choice((8, 15, 25))
        self.faults = Faults(self.loop, self.random, Plan.drawn(self.random), faults)
        self.faults.on_crash = self._crashed
        self.disk = self._disk()
        self.broker = Broker(features.stream(seed, "topics"))
        self.server, self.oracle = self._source()
        durable = lambda: self.disk.durable.positions()  # noqa: E731
        self.database = Database(self.server.log, self.oracle, durable)
        epoch_bytes = self.random.choice((2_000, 20_000, 64 << 20))
        self.settings = SimSettings.model_validate(
            {
                "source": "simulated",
                "state": self.folder / "state",
                "epoch_bytes": epoch_bytes,
            }
        )
        self.restarts = Restarts()
        self.process: Process | None = None
        self.pipeline: Pipeline | None = None
        self._is_over = False
        self.is_reported = "feeds" not in self.parts
        self.is_written = not self.has_moments
        self.clock: SimClock | None = None
        self.api: Api | None = None
        self.topics: Topics | None = None
        self.pids = 0
        self._is_machine_down = False

    # --- the run ---------------------------------------------------------------------------------

    def run(self) -> Outcome:
        """To the end; never raises."""
        failure: BaseException | None = None
        (self.folder / "state").mkdir()
        try:
            for run in (self._supervise, self._write, self._operate, self._interfere, self._late):
                self.loop.start(self._guarded(run), run.__name__)
            self._begin_parts()
            self.loop.run(lambda: self._is_over, MAX_SWITCHES)
            if self.database.journal is not None:
                past.replay(self.database.journal, features.stream(self.seed, "past"))
        except Exception as error:
            failure = error
        finally:
            self.loop.close()
            self.close()
        progress = self.database.progress
        return Outcome(
            self.seed,
            self.faults.steps,
            self.faults.counts,
            self.database.states,
            progress.epoch if progress else 0,
            self.restarts.count,
            self.faults.digest,
            failure,
            list(self.faults.lines),
            self.parts,
        )

    def _begin_parts(self) -> None:
        """Whatever is beside the plain pipeline."""
        if "ddl" in self.parts:
            self.loop.start(self._guarded(self._changer().act_for_a_while), "ddl")
        if "errors" in self.parts:
            self._stream("source.evaluation")
        if "budgets" in self.parts:
            self._stream("view.slow")
        if "feeds" in self.parts:
            self._stream("feed.away")
            self._stream("feed.stall")
            self.database.sources += self._sources()
            self.loop.start(self._guarded(self._report), "topics")
        if not {"clock", "zones", "lateness"}.isdisjoint(self.parts):
            self.clock = self.database.clock = self._clock()
            self.database.sources += self._clocks()
        if self._has_past:
            self.database.journal = past.Journal()
            self.database.now = lambda: self.loop.now
        if self.has_moments:
            self.loop.start(self._guarded(self._write_moments), "moments")
        if "sinks" in self.parts:
            for kind in TOPIC_FAULTS:
                self._stream(kind)
            self.topics = Topics(self.loop, self.database, self.faults, self.seed)
            people = SinkPeople(self._api_parts(), self.topics, self.seed)
            self.loop.start(self._guarded(people.act_for_a_while), "sinks")
        if "subscribers" in self.parts:
            random, parts = features.stream(self.seed, "subscribers"), self._api_parts()
            self.api = Api(self.loop, self.database, self.faults, random, parts)
            self.loop.start(self._guarded(self.api.supervise), "api")
        if "failovers" in self.parts:
            standby = Standby(
                self.loop, self.database, self.faults, features.stream(self.seed, "failovers")
            )
            self.loop.start(self._guarded(standby.take_over), "failovers")
        if "refusals" in self.parts:
            hand = Hand(self.database, self.faults, self._stream("sink.by_hand"))
            self.loop.start(self._guarded(hand.act_for_a_while), "hand")

    def _source(self) -> tuple[Server, Oracle]:
        """The database, and who knows what queries over it say."""
        durable = lambda: self.disk.durable.position  # noqa: E731
        if "ddl" not in self.parts:
            server = Server(self.random, durable)
            return server, Oracle(server.log, self.broker)
        server = DdlServer(self.random, durable)
        oracle = DdlOracle(server.log, self.broker)
        self.disk.told = oracle.committed
        return server, oracle

    def _changer(self) -> Changer:
        """Someone who changes tables."""
        for kind in ("ddl.statement", "ddl.away"):
            self._stream(kind)
        server, oracle = self.server, self.oracle
        assert isinstance(server, DdlServer) and isinstance(oracle, DdlOracle)
        own = features.stream(self.seed, "ddl")
        return Changer(server, self.faults, oracle.past, own, has_keys="keys" in self.parts)

    def _disk(self) -> Disk:
        folder = self.folder / "state"
        if "rocks" in self.parts:
            return RocksDisk(folder, self.random, features.stream(self.seed, "rocks"))
        return Disk(folder, self.random)

    def _api_parts(self) -> Any:
        return SimParts(self, self.host(Process(0)))

    def _queries(self) -> list[str]:
        """What views ask."""
        failing = 2 * [f.query for f in FAILING] if "errors" in self.parts else []
        found = [*QUERIES, *failing, *(topics.QUERIES if "feeds" in self.parts else ())]
        found += 2 * clock.QUERIES if "clock" in self.parts else ()
        found += 2 * zones.QUERIES if "zones" in self.parts else ()
        return [
            *found,
            *(
                2 * (*moments.LATE_QUERIES, *2 * [moments.BY_MINUTE])
                if "lateness" in self.parts
                else ()
            ),
        ]

    def _sources(self) -> list[SourceRow]:
        """What there is beside the database, but for clocks."""
        return declared() if "feeds" in self.parts else []

    def _clock(self) -> SimClock:
        own = self._stream("clock.set")
        if "zones" not in self.parts:
            return SimClock(lambda: self.loop.now, self.faults, own)
        for kind in ("clock.still", "clock.week"):
            self._stream(kind)
        _, base_us = zones.drawn(features.stream(self.seed, "zones"))
        more: Any = {"zoned_us": base_us, "jumps": clock.LONG_JUMPS_S}
        return SimClock(lambda: self.loop.now, self.faults, own, **more)

    def _clocks(self) -> list[SourceRow]:
        """Those that some view may read."""
        is_zoned = "zones" in self.parts
        is_plain = not {"clock", "lateness"}.isdisjoint(self.parts)
        names = [*([clock.CLOCK] if is_plain else []), *([zones.ZONED] if is_zoned else [])]
        return [clock.declared(name) for name in names]

    @property
    def _has_past(self) -> bool:
        """Whether the past of views is compared; the journal has nothing of what is done by
        hand."""
        return "history" in self.parts and "refusals" not in self.parts

    @property
    def has_moments(self) -> bool:
        """Whether there is a table of moments, with rows."""
        return not {"zones", "lateness"}.isdisjoint(self.parts)

    def _options(self, random: Random) -> Callable[[str], dict[str, Any]]:
        """Return what gives the options of a view that asks a query."""
        home, _ = zones.drawn(features.stream(self.seed, "zones"))

        def options(query: str) -> dict[str, Any]:
            found: dict[str, Any] = {}
            if "lateness" in self.parts:
                found |= moments.late_options(query, random)
            if self._has_past:
                found["history"] = random.choice((*past.PERIODS, *past.PERIODS, "none"))
            if "zones" in self.parts:
                is_zoned = f"{zones.ZONED}." in query
                some = random.choice((home, home, random.choice(zones.ZONES)))
                found["time_zone"] = some if is_zoned else UTC
            return found

        return options

    def _stream(self, kind: str) -> Random:
        """Return the random numbers of a kind of fault that has its own; how likely it is comes
        first."""
        found = self.faults.streams[kind] = features.stream(self.seed, kind)
        self.faults.plan.odds[kind] = found.choice(features.ODDS[kind])
        return found

    def close(self) -> None:
        """Leave nothing behind."""
        let_go(self.pipeline)
        self.disk.close()
        if self.api is not None and self.api.process is not None:
            self.api.process.close()
        self.oracle.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _guarded(self, run: Any) -> Any:
        def guarded() -> None:
            try:
                run()
            except Exception as error:
                self.loop.fail(error)

        return guarded

    # --- the service -----------------------------------------------------------------------------

    def _supervise(self) -> None:
        """As service/supervisor/supervisor.py, with one process."""
        while True:
            now = self.loop.now
            if not self.restarts.is_due(now):
                if self.restarts.is_over:
                    raise Violation("the pipeline has been given up")
                self.loop.pause(self.restarts.start_at - now)
                continue
            self.restarts.started(now)
            process = self._begin()
            self.loop.pause(float("inf"), lambda p=process: p.code is not None)
            process.is_dead = True
            self.loop.pause()
            let_go(self.pipeline)
            crash = self.disk.crash_machine if self._is_machine_down else self.disk.crash_process
            crash()
            self._is_machine_down = False
            self.faults.trace("ended", f"{process.pid} with {process.code}")
            self.restarts.ended(process.code or 0, self.loop.now)

    def _begin(self) -> Process:
        self.pids += 1
        process = self.process = SimProcess(self.pids, self.faults)
        image = self.disk.start()
        self.database.restarted(image.views())
        self.faults.trace("started", f"{process.pid}, state at {image.epoch}")
        if self.clock is not None:
            if "zones" in self.parts and self.pids > 1 and self.faults.happens("clock.week"):
                self.clock.sleep_for_a_week()
            self.clock.started(image.positions())
        self.loop.start(lambda: self._main(process), "pipeline", process)
        return process

    def _main(self, process: Process) -> None:
        """As service/supervisor/run_pipeline.py."""
        try:
            parts: Any = SimParts(self, self.host(process))
            self.pipeline = compose(self.settings, parts)
            self.pipeline.run()
            process.code = 0
        except (TidemarkError, StorageError) as error:
            if not getattr(error, "is_temporary", False):
                self.refused(error)
            self.faults.trace("error", error.code)
            process.code = exit_code(error)
        except Killed:
            raise
        except Exception as error:
            self.loop.fail(error)

    def host(self, process: Process) -> FiberHost:
        more = []
        if "budgets" in self.parts:
            more = [lambda: self.faults.happens("view.slow")]
        return FiberHost(self.loop, process, self.random, self.disk.forced, *more)

    def refused(self, error: TidemarkError | StorageError) -> None:
        """The pipeline leaves word that it cannot continue."""
        # Where the sink is another one all of a sudden, who wrote to it may restart.
        if not (error.code == "sink.fenced" and "failovers" in self.parts):
            self.loop.fail(error)

    def _crashed(self, process: Process, is_machine: bool) -> None:
        self._is_machine_down = self._is_machine_down or is_machine
        self.loop.boots += is_machine
        if is_machine and self.api is not None and self.api.process is not None:
            self.api.process.is_dead = True

    # --- everyone else ---------------------------------------------------------------------------

    def _write(self) -> None:
        changing = isinstance(self.server, DdlServer)
        application = (DdlApplication if changing else Application)(self.server, self.random)  # type: ignore[arg-type]
        for _ in range(3 * self.steps):
            commit = self.server.commit(application.transaction(), self.loop.now)
            count = len(self.server.log)
            self.faults.trace("commit", f"{count} at {commit.end}, {len(commit.changes)} changes")
            self.loop.pause(self.random.choice((0.0, 0.01, 0.05, 0.4)))

    def _write_moments(self) -> None:
        """Moments come, in their own transactions."""
        random, server, found = features.stream(self.seed, "moments"), self.server, self.clock
        assert found is not None
        is_changing = isinstance(server, DdlServer)
        table = f"t{moments.RELATION.oid}" if is_changing else moments.NAME
        base_us = found.bases[zones.ZONED]
        writer = moments.Writer(
            *(lambda: list(server.tables[table]), table, random, found.shown),
            lambda now_us: zones.due_us(random, now_us + base_us),
        )
        for _ in range(3 * self.steps):
            commit = server.commit(writer.transaction(), self.loop.now)
            count = len(server.log)
            self.faults.trace("moments", f"{count} at {commit.end}, {len(commit.changes)} changes")
            self.loop.pause(random.choice((0.0, 0.02, 0.2, 0.6)))
        self.is_written = True

    def _report(self) -> None:
        """Records come to the topics."""
        random = self.broker.random
        for _ in range(3 * self.steps):
            self.faults.trace("records", self.broker.write(self.loop.now))
            self.loop.pause(random.choice((0.0, 0.02, 0.1, 0.5)))
        self.is_reported = True

    def _operate(self) -> None:
        parts = self._api_parts()
        sources = [*self._sources(), *self._clocks()]
        own = self._options(features.stream(self.seed, "options"))
        operator = Operator(parts, self.faults, self.random, self._queries(), sources, own)
        for _ in range(2):
            operator.act()
        for _ in range(self.steps):
            self.loop.pause(self.random.choice((0.05, 0.3, 1.5)))
            want_logs(self.settings.state, self.database, self.random, self.loop.now)
            operator.act()
        self.loop.pause(self.random.uniform(0, 3))
        self._grow_calm()

    def _interfere(self) -> None:
        """The sink's server is down for a while, the service is asked to stop, or killed."""
        while True:
            self.loop.pause(self.random.uniform(0.5, 6.0))
            if self.faults.is_calm:
                return
            kind = self.random.choice(("down", "stop", "kill", "nothing", "nothing"))
            process, pipeline = self.process, self.pipeline
            if kind == "down" and self.faults.happens("sink.error"):
                self.database.is_down = True
                self.loop.pause(self.random.uniform(0.1, 3.0))
                self.database.is_down = False
            elif kind == "stop" and process is not None and pipeline is not None:
                self.faults.trace("stop", str(process.pid))
                pipeline.stop()

    def _late(self) -> None:
        """What was sent when its session was lost."""
        while True:
            due = [late.epoch for late in self.faults.late if late.at <= self.loop.now]
            self.faults.late = [late for late in self.faults.late if late.at > self.loop.now]
            for epoch in due:
                try:
                    self.database.apply(epoch)
                    self.faults.trace("shown late", f"epoch {epoch.progress.epoch}")
                except (SinkError, SinkLagging) as error:
                    self.faults.trace("not late", f"epoch {epoch.progress.epoch}: {error.code}")
            soonest = min((late.at for late in self.faults.late), default=float("inf"))
            known = len(self.faults.late)
            self.loop.pause(soonest - self.loop.now, lambda n=known: len(self.faults.late) != n)

    def _grow_calm(self) -> None:
        """Nothing goes wrong from here on; then all must be well within a bound of time."""
        self.faults.is_calm = True
        self.faults.trace("calm", "")
        # A view that was over its budget again and again is built after a pause of its own.
        calm_s = CALM_S + (MAX_S if "budgets" in self.parts else 0)
        until = self.loop.now + calm_s
        parts = self._api_parts()
        stream = features.stream(self.seed, "mender")
        mender = Mender(parts, self.database, self.faults, stream)
        while why_not_well(self):
            mender.mend()
            if self.loop.now > until:
                raise Hang(f"not well {calm_s:.0f} s after the last fault: {why_not_well(self)}")
            self.loop.pause(0.25)
        self._await_shown()
        self.database.check()
        check_logs(self.settings.state, self.database)
        self._is_over = True

    def _await_shown(self) -> None:
        """The WAL grows by what no view reads: where it ends is shown, though nothing follows."""
        if not reads_database(self):
            return
        until, end = self.loop.now + SHOWN_S, self.server.advance()
        while (progress := self.database.progress) and progress.positions[MAIN_SOURCE] < end:
            if self.loop.now > until:
                raise Hang(f"{progress.positions[MAIN_SOURCE]} is shown, not {end}")
            self.loop.pause(0.25)


def _memory_folder() -> str | None:
    folder = Path("/dev/shm")
    return str(folder) if folder.is_dir() else None
