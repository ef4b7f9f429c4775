"""Additional sinks of a run: simulated topics that record what they were sent.

Oracle: the rows of each view at each epoch, as the simulated sink has shown them. A topic must be
given just the epochs that change its view, in order, each once, never one that no table has shown;
and its rows after each are the view's. A transaction whose end was asked for and not heard of is
settled when the topic is opened the next time, as Kafka's coordinator does it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from connectors.postgres.catalog import sink_records
from connectors.postgres.catalog.catalog import ViewRow
from connectors.postgres.catalog.sink_records import SinkRow
from connectors.postgres.session.lsn import parse_lsn
from connectors.sink import SinkTable
from connectors.source import MAIN_SOURCE
from connectors.view_sink import Detachment, ViewEpoch
from dataflow.errors import SinkError, TemporaryError, TidemarkError
from service.access.authorization import Authorization
from service.access.tokens import OPEN
from service.api.sink_catalog import SinkCatalog
from tests.simulation import features
from tests.simulation.change_files import rows_at, shown_before
from tests.simulation.faults import Faults, Violation
from tests.simulation.fibers import Loop
from tests.simulation.lateness import is_final, is_watched
from tests.simulation.rows import Rows
from tests.simulation.shop import expanded
from tests.simulation.sink import SPOILT, Database

if TYPE_CHECKING:
    from tests.simulation.world import World

TOPIC_FAULTS = ("topic.away", "topic.unknown", "topic.answer_lost")
# Why a sink may have failed permanently: its view has, or its table was changed by hand.
FAILED = {"sink.view_failed", *SPOILT}


@dataclass
class Written:
    """One epoch as written to a topic."""

    number: int
    rows: Rows
    is_initial: bool
    positions: Mapping[str, Any]


@dataclass
class Topic:
    """writer: the newest that has opened it; epoch: of the newest mark; sent: what the writer has
    asked to be committed, and has not heard of; counts: of the database when it began."""

    view_identity: str
    has_rows: bool
    writer: object = None
    epoch: int | None = None
    rows: Rows = field(default_factory=Rows)
    sent: list[Written] = field(default_factory=list)
    counts: int = 0
    marks: int = 0


class Topics:
    """Everything that additional sinks of a run have written, by identity."""

    def __init__(self, loop: Loop, database: Database, faults: Faults, seed: int) -> None:
        self._loop = loop
        self.database = database
        self.faults = faults
        self.random = features.stream(seed, "topics that are written")
        self.found: dict[str, Topic] = {}

    def of(self, row: SinkRow) -> Topic:
        """The topic of a sink."""
        has_rows = row.options.get("initial", "rows") == "rows"
        return self.found.setdefault(row.identity, Topic(row.view_identity, has_rows))

    def settle(self, topic: Topic) -> None:
        """Complete or discard what was sent."""
        sent, topic.sent = topic.sent, []
        if sent and self.random.random() < 0.5:
            self.commit(topic, sent)

    def commit(self, topic: Topic, epochs: list[Written]) -> None:
        """One transaction; what is wrong with it ends the run."""
        try:
            self._take(topic, epochs)
        except Violation as error:
            # Who writes it takes whatever is raised for a fault of the sink's.
            self._loop.fail(error)
        self.faults.trace("topic", f"of {topic.view_identity[-3:]}: epoch {topic.epoch}")

    def _take(self, topic: Topic, epochs: list[Written]) -> None:
        for epoch in epochs:
            if epoch.is_initial != (topic.epoch is None):
                raise Violation(f"a topic at epoch {topic.epoch} is given {epoch} as its first")
            if topic.epoch is None:
                topic.counts = self.database.counts
            elif epoch.number <= topic.epoch:
                raise Violation(f"a topic at epoch {topic.epoch} is given {epoch.number}")
            view = self.database.view(topic.view_identity)
            if view is not None and is_final(view):
                self._check_final(topic, epoch)
                topic.epoch = epoch.number
                topic.marks += 1
                continue
            topic.epoch = epoch.number
            topic.rows = self._added(topic, epoch)
            topic.marks += 1
            self._check(topic, epoch)

    def _added(self, topic: Topic, epoch: Written) -> Rows:
        if epoch.is_initial and not topic.has_rows:
            if epoch.rows:
                raise Violation(f"a topic without first rows is given {dict(epoch.rows)}")
            return Rows(self._shown(topic)[0])
        rows = topic.rows.copy()
        for row, weight in epoch.rows.items():
            rows[row] += weight
            if rows[row] < 0:
                raise Violation(f"epoch {epoch.number} takes {row} from a topic that lacks it")
        return +rows

    def _shown(self, topic: Topic) -> list[Rows]:
        """Return what the view's table shows at the topic's epoch, or showed on servers that are
        lost."""
        database, epoch = self.database, topic.epoch or 0
        identity = topic.view_identity
        found = []
        if database.progress is not None and database.progress.epoch >= epoch:
            found.append(rows_at(database.history.get(identity, []), epoch))
        return found + shown_before(database, identity, epoch)

    def _check_final(self, topic: Topic, epoch: Written) -> None:
        """Final rows come in the epoch in which their window is closed, each once."""
        database, before = self.database, topic.epoch
        is_known = database.progress is not None and database.progress.epoch >= epoch.number
        if before is None or not is_known or topic.counts != database.counts:
            return
        history = database.history.get(topic.view_identity, [])
        sent = [rows_at(history, n) for n in (before, epoch.number - 1, epoch.number)]
        if sent[0] != sent[1] or sent[1] + epoch.rows != sent[2]:
            raise Violation(
                f"the topic of {topic.view_identity[-3:]} is given {dict(epoch.rows)} in epoch "
                f"{epoch.number} after {before}, not {dict(sent[2] - sent[0])}"
            )

    def _check(self, topic: Topic, epoch: Written) -> None:
        view = self.database.view(topic.view_identity)
        if topic.counts != self.database.counts or view is None or view.status == "failed":
            # Of a view that was dropped; or what its table did not take, if that was changed.
            return
        table = self.database.tables.get((view.schema, view.name))
        if view.desired == "dropped" and (table is None or table.spoilt):
            # The same, and it is not called failed any more.
            return
        expected = self._shown(topic)
        if self.database.is_set_back:
            # What the sink never got, or not as epochs, the topic got from the state.
            expected.append(self._answer(view, epoch))
        if not expected:
            raise Violation(f"a topic has epoch {topic.epoch}, which no table has shown")
        if topic.rows not in expected:
            raise Violation(
                f"the topic of {topic.view_identity[-3:]} has at epoch {topic.epoch} "
                f"{dict(topic.rows - expected[0])} too much, lacks {dict(expected[0] - topic.rows)}"
            )

    def _answer(self, view: ViewRow, epoch: Written) -> Rows:
        """The rows of a view over what the positions of an epoch name."""
        database = self.database
        queries = {row.name: database.oracle.bound(row, epoch.number) for row in database.views}
        # As service/sinks/sink_workers.py shows them, the other way round.
        offsets = {n: parse_lsn(p) if isinstance(p, str) else p for n, p in epoch.positions.items()}
        prefix = database.prefix_at(offsets.get(MAIN_SOURCE, 0))
        return database.oracle.answer(expanded(queries[view.name], queries), prefix, offsets)

    def why_behind(self) -> str:
        """What any of them lacks that it should have, or has not been told."""
        database = self.database
        for row in database.sinks:
            view, topic = database.view(row.view_identity), self.found.get(row.identity)
            if row.desired != "live":
                return f"sink {row.title} is not gone"
            if view is None:
                return f"sink {row.title} is of no view"
            # A sink that was set back may know one that was dropped, or erased, meanwhile.
            is_forgotten = database.is_set_back and row.code in ("sink.state_lost", "sink.lost")
            if row.status == "failed" and (row.code in FAILED or is_forgotten):
                continue
            table = database.tables.get((view.schema, view.name))
            if table is None or not table.moves or table.spoilt:
                return f"sink {row.title} is {row.status}, and its view stands still"
            if topic is not None and is_final(view):
                # It has no more than the windows that were closed since it began.
                history = database.history.get(view.identity, [])
                has_unread = rows_at(history, topic.epoch or 0) != rows_at(history, 1 << 62)
            else:
                has_unread = topic is None or topic.rows != table.rows
            if row.status != "live" or has_unread:
                at = None if topic is None else topic.epoch
                return f"sink {row.title} is {row.status} at epoch {at}: {row.code}"
        return ""


class SimViewSink:
    """As connectors/kafka/topic_sink.py."""

    def __init__(self, topics: Topics, row: SinkRow) -> None:
        self._topics = topics
        self._row = row
        self._faults = topics.faults
        self._is_interrupted = False

    def open(self, known: int | None = None) -> int | None:
        self._faults.step("topic.open")
        self._require_there()
        topic = self._topics.of(self._row)
        topic.writer = self
        self._topics.settle(topic)
        self._faults.step("topic.opened")
        self._require_there()
        return topic.epoch

    def write(self, epochs: Sequence[ViewEpoch]) -> None:
        topics, faults = self._topics, self._faults
        topic = topics.of(self._row)
        written = [self._read(epoch) for epoch in epochs]
        faults.step("topic.write")
        self._require_there()
        self._require_writer(topic)
        topic.sent = written
        faults.step("topic.sent")
        # Else it was settled by who opened the topic meanwhile.
        self._require_writer(topic)
        if faults.happens("topic.unknown"):
            raise _away()
        topic.sent = []
        topics.commit(topic, written)
        faults.step("topic.written")
        if faults.happens("topic.answer_lost"):
            raise _away()

    def detachment(self) -> Detachment:
        return Detachment()

    def detach(self) -> None:
        self._faults.step("topic.remove")

    def remove(self) -> None:
        self._faults.step("topic.remove")
        self._require_there()
        topic = self._topics.of(self._row)
        topic.writer, topic.epoch, topic.rows, topic.sent = self, None, Rows(), []
        self._faults.step("topic.removed")

    def interrupt(self) -> None:
        self._is_interrupted = True

    def close(self) -> None:
        """Nothing is open."""

    def _read(self, epoch: ViewEpoch) -> Written:
        rows: Rows = Rows()
        for delta in epoch.deltas:
            self._faults.step("topic.rows")
            for row, weight in delta.rows():
                rows[row] += weight
        return Written(epoch.number, rows, epoch.is_initial, epoch.positions)

    def _require_writer(self, topic: Topic) -> None:
        if topic.writer is not self:
            raise SinkError("sink.fenced", "another writer has opened the topic")

    def _require_there(self) -> None:
        if self._is_interrupted or self._faults.happens("topic.away"):
            raise _away()


class SinkPeople:
    """Who adds sinks to views and drops them. parts: as of the API."""

    def __init__(self, parts: Any, topics: Topics, seed: int) -> None:
        self._control = parts.control()
        self._catalog = SinkCatalog(parts, Authorization(parts))
        self._topics = topics
        self._random = features.stream(seed, "sinks")
        self._count = 0

    def act_for_a_while(self) -> None:
        """Now and then, until it grows calm."""
        faults = self._topics.faults
        while True:
            faults.pause(self._random.choice((0.1, 0.5, 2.0)))
            if faults.is_calm:
                return
            try:
                self._act()
            except TidemarkError as error:
                faults.trace("refused", error.code)

    def _act(self) -> None:
        random, faults = self._random, self._topics.faults
        sinks = sink_records.list_sinks(self._control)
        rows = self._control.list_views()
        if self._topics.database.has_standby:
            # What the sink never got of these cannot be told from what the topic got.
            rows = [row for row in rows if not is_watched(row)]
        views = [r for r in rows if (r.status, r.desired) == ("live",) * 2]
        if sinks and random.random() < 0.3:
            row = random.choice(sinks)
            faults.trace("people", f"drop sink {row.title}")
            is_erased = random.random() < 0.5
            self._catalog.drop(f"{row.schema}.{row.view}", row.name, OPEN, is_erased=is_erased)
        elif views and len(sinks) < 4:
            self._count += 1
            view = random.choice(views)
            options = {"initial": random.choice(("rows", "rows", "changes"))}
            faults.trace("people", f"add sink s{self._count} to {view.title}")
            # As service/api/sink_catalog.py, with a name of its own that the seed gives.
            identity, name = f"{self._count:032x}", f"s{self._count}"
            given = (view.schema, view.name, name, "simulated", identity, view.identity)
            sink_records.insert_sink(self._control, SinkRow(*given, "default", options))


def view_sink(world: World, row: SinkRow, table: SinkTable) -> SimViewSink:
    """As service.factory.service_factory.Parts.view_sink."""
    assert world.topics is not None, f"no sinks are asked for: {row.title}, {table.title}"
    return SimViewSink(world.topics, row)


def _away() -> TemporaryError:
    return TemporaryError("sink.unreachable", "the simulated topic cannot be reached")
