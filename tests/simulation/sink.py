"""The sink database of a simulation: tables of views, progress, catalog; no commit is ever lost.

Each commit of an epoch is checked as it is made: rows that go must be there (P3), progress
continues by one epoch and never back (P2), and what is shown is the batch answer over the prefix
that the progress names (P1). Views that stand still (paused, failed, not built yet) must stay as
they are.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any

from connectors.postgres.catalog.catalog import SourceRow, ViewRow
from connectors.postgres.catalog.sink_records import SinkRow
from connectors.sink import NOT_STAGED, Progress, SinkEpoch, SinkLagging, SinkTable, ViewChange
from connectors.view_states import is_legal
from dataflow.delta import Delta
from dataflow.errors import SinkError
from dataflow.notes import NOTES
from tests.simulation import clock
from tests.simulation.clock import SimClock
from tests.simulation.faults import Violation
from tests.simulation.lateness import (
    LateOracle,
    LateState,
    Shown,
    is_final,
    is_watched,
    without,
)
from tests.simulation.past import Act, Journal
from tests.simulation.rows import Rows, as_json
from tests.simulation.shop import Commit, Oracle, expanded
from tests.simulation.topics import FORGETFUL

JSON = {"options", "progress", "key", "fields", "plan", "warnings", "positions", "change"}
JSON |= {"replacing", "facts", "relations"}
ANNOUNCED = {"status", "desired", "change"}
STANDING = ("failed", "degraded", "paused", "backfilling", "analyzing")

# What the sink says of a table that was changed by hand.
SPOILT = ("sink.table_missing", "sink.table_changed")


@dataclass
class Table:
    """A view's table. moves: it is to show what the progress says; identity: of its view, or of
    first rows that are staged; spoilt: someone has altered it, so that nothing can be written to it
    any more."""

    table: SinkTable
    rows: Rows
    identity: str
    moves: bool = True
    spoilt: bool = False


@dataclass
class Database:
    """All of it. durable: the positions that the state would have after a crash of the machine;
    history: by identity, the rows of each epoch that changed anything, for a view of final rows
    those that its readers were sent until then; counts: how often the last view went; late: by
    identity, what is known of views that watch for late rows; clock: of the run, if it has one;
    journal: of all that is done to it, if anybody wants it, of which it has so much."""

    log: list[Commit]
    oracle: Oracle
    durable: Callable[[], Mapping[str, Any]] = dict
    tables: dict[tuple[str, str], Table] = field(default_factory=dict)
    staged: dict[tuple[str, str], Table] = field(default_factory=dict)
    progress: Progress | None = None
    views: list[ViewRow] = field(default_factory=list)
    sources: list[SourceRow] = field(default_factory=list)
    sinks: list[SinkRow] = field(default_factory=list)
    version: int = 0
    is_down: bool = False
    states: int = 0
    commits: int = 0
    counts: int = 0
    errors: Rows = field(default_factory=Rows)
    history: dict[str, list[tuple[int, SinkTable, Rows]]] = field(default_factory=dict)
    past: list[Database] = field(default_factory=list)
    has_standby: bool = False
    timeline: int = 1
    owner: str = ""
    lost: list[tuple[int, dict[str, list[tuple[int, SinkTable, Rows]]]]] = field(
        default_factory=list
    )
    journal: Journal | None = None
    journaled: int = 0
    now: Callable[[], float] = float
    late: dict[str, LateState] = field(default_factory=dict)
    clock: SimClock | None = None
    late_oracle: LateOracle = field(init=False)
    _joined: set[str] = field(default_factory=set)
    _final: dict[str, Rows] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.late_oracle = LateOracle(self.log)

    @property
    def prefix(self) -> int:
        """How many commits of the source the progress covers."""
        if self.progress is None:
            return 0
        return self.prefix_at(self.progress.positions.get("source", 0))

    @property
    def is_set_back(self) -> bool:
        """Whether it ever lost what it had."""
        return self.timeline > 1

    def prefix_at(self, position: int) -> int:
        """How many commits end at a position or before."""
        return bisect_right(self.log, position, key=lambda commit: commit.end)

    # --- the past --------------------------------------------------------------------------------

    def save(self) -> None:
        """Keep what is here now: a standby may have no more when it takes over."""
        if self.has_standby:
            self.past.append(self._copied())

    def _copied(self) -> Database:
        """Return the same, for itself; what changes in place is copied, all else is never
        changed."""
        copied = {"tables", "staged", "views", "sources", "sinks", "errors", "late"}
        own = {name: copy(getattr(self, name)) for name in copied}
        history = {identity: list(rows) for identity, rows in self.history.items()}
        return replace(self, **own, history=history, past=[])

    def rewound(self, offset: int) -> None:
        """A standby takes over that has not more than this."""
        found = self.past[offset]._copied()
        if self.progress is not None:
            self.lost.append((self.progress.epoch, self.history))
        del self.past[offset + 1 :]
        for name in ("tables", "staged", "views", "sources", "sinks", "errors", "history", "late"):
            setattr(self, name, getattr(found, name))
        self.progress, self.owner = found.progress, found.owner
        self.journaled = found.journaled
        if self.journal is not None:
            self.journal.cut(self.journaled)
        self.version += 1
        self.timeline += 1

    # --- epochs ----------------------------------------------------------------------------------

    def apply(self, epoch: SinkEpoch) -> None:
        """One transaction. SinkError as PostgresSink.write; Violation."""
        before, number = self.progress, epoch.progress.epoch
        # The first epoch may have any number.
        at = number - 1 if before is None else before.epoch
        if at != (number - 1 if epoch.repair is None else epoch.repair.follows):
            if at < number - 1 and epoch.repair is None:
                raise SinkLagging(at, number - 1)
            raise SinkError("sink.fenced", f"the sink is not at epoch {number - 1}")
        kept = dict(self.tables), dict(self.staged), list(self.views), self.version
        errors = self.errors.copy()
        self._joined, self._final = set(), {}
        try:
            self._apply(epoch)
        except SinkError:
            self.tables, self.staged, self.views, self.version = kept
            self.errors = errors
            raise
        positions = json.loads(json.dumps(dict(epoch.progress.positions)))
        self.progress = Progress(number, positions)
        self.commits += 1
        self._check_kept(positions)
        self._check_progress(before)
        if epoch.repair is None:
            self._check_clocks(before)
        self.check()
        if self.journal is not None:
            self.put_down("epoch", self.journal.of_epoch(epoch), kept[2])
        self.save()

    def put_down(self, kind: str, what: Any, views: Sequence[ViewRow] | None = None) -> None:
        """Put down what was done. views: the catalog before it, if it was changed."""
        if self.journal is None:
            return
        rows = {t.identity: (t.table, t.rows) for t in self.tables.values()}
        at_us = round(self.now() * 1e6)
        self.journal.acts.append(
            Act(kind, what, at_us, list(self.views) if views is None else views, rows)
        )
        self.journaled = len(self.journal.acts)

    def _apply(self, epoch: SinkEpoch) -> None:
        if epoch.repair is not None:
            self._recall_others(epoch.repair.live)
            self.late = {}
        for change in epoch.ddl.changes:
            self.change(change)
        for swap in epoch.ddl.swaps:
            self._swap(epoch.progress.epoch, swap.table, swap.token)
        for change in epoch.ddl.changes:
            if change.status in STANDING:
                # It has left the state since, also where it is called dropping.
                self.move(change.identity, moves=False)
        for table, error in epoch.ddl.refusals:
            self._tell_refusal(table, error.code)
        for part in epoch.rows.parts():
            for table, delta in part.deltas:
                self._add(epoch.progress.epoch, table, delta)
            if part.errors is not None:
                self._add_errors(epoch.progress.epoch, part.errors)

    def _recall_others(self, live: frozenset[str]) -> None:
        """Views that are called live, and are not, stand still."""
        for row in list(self.views):
            if row.status == "live" and row.desired != "dropped" and row.identity not in live:
                self.update(row.identity, {"status": "backfilling"})
        for name, table in self.tables.items():
            if table.identity not in live:
                self.tables[name] = replace(table, moves=False)

    def _add_errors(self, epoch: int, errors: Delta) -> None:
        for row, weight in errors.rows():
            self.errors[row] += weight
            if self.errors[row] < 0:
                raise Violation(f"epoch {epoch} takes back the error {row}, which was not told")
        self.errors = +self.errors

    def _add(self, epoch: int, table: SinkTable, delta: Delta) -> None:
        if table.final is not None:
            self._publish(epoch, table, delta)
            return
        found = self.tables.get((table.schema, table.name))
        if found is None:
            raise SinkError("sink.table_missing", table.title, relation=table.relation)
        if found.spoilt:
            raise SinkError("sink.table_changed", table.title, relation=table.relation)
        rows = found.rows.copy()
        for row, weight in delta.rows():
            rows[row] += weight
            if rows[row] < 0:
                raise Violation(f"epoch {epoch} takes {row} from {table.title}, which lacks it")
        rows = +rows
        if table.key:
            keys = {tuple(row[i] for i in table.key) for row in rows}
            if len(keys) != sum(rows.values()):
                raise Violation(f"epoch {epoch} gives {table.title} a key twice")
        self.tables[table.schema, table.name] = replace(found, rows=rows)
        self._remember(epoch, found.identity, table, rows)

    def _publish(self, epoch: int, table: SinkTable, delta: Delta) -> None:
        """The readers of a view get final rows, which go to no table."""
        row = self.view_named(table.schema, table.name)
        if row is None:
            raise Violation(f"{table.title} has final rows, and the catalog does not know it")
        found: Rows = Rows()
        for values, weight in delta.rows():
            if weight < 0:
                raise Violation(f"epoch {epoch} takes the final row {values} of {table.title} back")
            found[values] += weight
        self._final[row.identity] = self._final.get(row.identity, Rows()) + found
        history = self.history.setdefault(row.identity, [])
        sent = history[-1][2] if history else Rows()
        history.append((epoch, table, sent + found))

    def _remember(self, epoch: int, identity: str, table: SinkTable, rows: Rows) -> None:
        row = self.view(identity)
        if row is None or not is_final(row):
            self.history.setdefault(identity, []).append((epoch, table, rows))

    def _swap(self, epoch: int, table: SinkTable, token: str) -> None:
        name = table.schema, table.name
        staged = self.staged.pop(name, None)
        if staged is None or staged.identity != token:
            raise SinkError(NOT_STAGED, table.title, relation=table.relation)
        row = self.view_named(*name)
        if row is None and self.is_set_back:
            # It was asked for at the server that is gone; nobody is told of it here.
            self.tables.pop(name, None)
            return
        if row is None:
            raise Violation(f"{table.title} becomes visible, and the catalog does not know it")
        self._joined.add(row.identity)
        # To be rebuilt before it was ever seen.
        moves = row.status != "degraded"
        self.tables[name] = Table(table, staged.rows, row.identity, moves=moves)
        self._remember(epoch, row.identity, table, staged.rows)

    def change(self, change: ViewChange) -> None:
        """A view as a whole; see connectors/postgres/sink/cut_over.py."""
        before = change.before.schema, change.before.name
        after = change.table.schema, change.table.name
        found = self.tables.get(before)
        if before != after:
            if after in self.tables or self.view_named(*after):
                raise SinkError(
                    "sink.name_taken", change.table.title, relation=change.table.relation
                )
            if found is not None:
                del self.tables[before]
                self.tables[after] = replace(found, table=change.table)
        elif found is not None:
            row = self.view(change.identity)
            is_told_live = change.status == "live" or (row is not None and row.status == "live")
            moves = found.moves or (change.is_replaced and is_told_live)
            moves &= change.status != "paused"
            self.tables[after] = replace(found, table=change.table, moves=moves)
        if change.is_replaced:
            self.forget_errors(change.table)
        reported: dict[str, Any] = dict(change.facts)
        if before != after:
            reported |= {"schema": after[0], "name": after[1]}
        if change.is_replaced or change.status:
            self._joined.add(change.identity)
        row = self.view(change.identity)
        if row is None:
            return
        if change.ends and (row.change or row.replacing or {}).get("id") == change.ends:
            reported |= {"change": None, "replacing": None}
        if change.status and row.desired != "dropped":
            reported["status"] = change.status
        self.update(change.identity, reported)

    def _tell_refusal(self, table: SinkTable, code: str) -> None:
        row = self.view_named(table.schema, table.name)
        if row is not None:
            status = "degraded" if code == NOT_STAGED else "failed"
            self.update(row.identity, {"status": status, "code": code})

    # --- checks ----------------------------------------------------------------------------------

    def _check_progress(self, before: Progress | None) -> None:
        assert self.progress is not None
        if before is None:
            return
        for source, position in before.positions.items():
            now = self.progress.positions.get(source)
            if now is None or (source in clock.CLOCKS and not self._is_followed(source)):
                continue
            if isinstance(now, int):
                is_back = now < position
            else:
                is_back = any(_is_before(now[n], position[n]) for n in now.keys() & position.keys())
            if is_back:
                raise Violation(f"the position of {source} went back from {position} to {now}")

    def _is_followed(self, name: str) -> bool:
        """Whether a view reads a clock that has done so before; else it may begin at the present
        moment, and be forgotten before."""
        queries = {row.name: row.query for row in self.views}
        for table in self.tables.values():
            row = self.view(table.identity)
            if row is None or not table.moves or row.identity in self._joined:
                continue
            is_read = f"{name}.now" in expanded(row.query, queries)
            if is_read or (name == clock.CLOCK and is_watched(row)):
                return True
        return False

    def _check_clocks(self, before: Progress | None) -> None:
        """A clock that has moved tells of no time in which nothing ran."""
        assert self.progress is not None
        for name in clock.CLOCKS if before is not None and self.clock is not None else ():
            was, now = (clock.at_of(p.positions.get(name)) for p in (before, self.progress))  # type: ignore[union-attr]
            if was is not None and now is not None and now > was:
                self.clock.require_new(name, now)  # type: ignore[union-attr]

    def _places(self) -> Mapping[str, Any]:
        return {} if self.progress is None else self.progress.positions

    def _check_kept(self, positions: Mapping[str, Any]) -> None:
        """Check that changes which a source cannot replay are durable before they are shown."""
        shown, kept = (p.get(FORGETFUL, {}) for p in (positions, self.durable()))
        queries = {row.name: row.query for row in self.views}
        moving = [row for t in self.tables.values() if t.moves and (row := self.view(t.identity))]
        read = " ".join(expanded(row.query, queries) for row in moving)
        for name in shown.keys() & kept.keys():
            if f"{FORGETFUL}.{name}" in read and _is_before(kept[name], shown[name]):
                raise Violation(f"{FORGETFUL} is shown at {shown}, and on disk at {kept}")

    def check(self) -> None:
        """What is shown is the answer over the prefix that the progress names."""
        prefix, epoch = self.prefix, self.progress.epoch if self.progress else 0
        queries = {row.name: self.oracle.bound(row, epoch) for row in self.views}
        self.late = {i: s for i, s in self.late.items() if i not in self._joined}
        for table in self.tables.values():
            row = self.view(table.identity)
            if row is None or table.spoilt:
                continue
            if not table.moves:
                self.late.pop(table.identity, None)
                if row.status == "live":
                    raise Violation(f"{row.title} is called live and stands still")
                continue
            self.oracle.require_right(row, epoch, prefix)
            query = expanded(queries[row.name], queries)
            if is_watched(row):
                expected = self._expected_in_time(row, table, epoch)
            else:
                expected = self.oracle.answer(query, prefix, self._places())
            self.states += 1
            self._check_errors(table.table, query)
            if table.rows != expected:
                lacks, extra = expected - table.rows, table.rows - expected
                raise Violation(
                    f"{row.title} at epoch {epoch}, which names "
                    f"prefix {prefix}, lacks {dict(lacks)} and has {dict(extra)} too much\n"
                    f"{row.query}"
                )

    def _expected_in_time(self, row: ViewRow, table: Table, epoch: int) -> Rows:
        """The rows of a view that watches for late ones; what it tells of them is checked."""
        oracle, before = self.late_oracle, self.late.get(row.identity)
        told = Counter[tuple[str, str]]()
        for error, n in self.errors_of(table.table).items():
            told[str(error[2], "utf-8"), str(error[4], "utf-8")] += n
        at = clock.at_of(self._places().get(clock.CLOCK))
        sent = self._final.pop(row.identity, Rows())
        shown = Shown(row, table.rows, self.prefix, at, told, sent)
        state = self.late[row.identity] = oracle.next(before, shown)
        query = without(row.query, state.left_out)
        bound = self.oracle.bound(replace(row, query=query), epoch)
        answer = self.oracle.answer(bound, self.prefix, self._places())
        return oracle.expected(state, before, answer)

    def _check_errors(self, table: SinkTable, query: str) -> None:
        """What stands among the errors of a view are the rows that it lacks, and no others (P9)."""
        expected = self.oracle.errors(query, self.prefix)
        reported = self.errors_of(table)
        texts = Rows({tuple(str(v, "utf-8") for v in r[2:]): n for r, n in reported.items()})
        found = Rows({text: n for text, n in texts.items() if text[0] not in NOTES})
        if found != expected:
            lacks, extra = expected - found, found - expected
            raise Violation(f"the errors of {table.title} lack {dict(lacks)}, have {dict(extra)}")

    def errors_of(self, table: SinkTable) -> Rows:
        """The error rows of a view."""
        title = table.title.encode()
        return Rows({row: n for row, n in self.errors.items() if row[0] == title})

    def retitle_errors(self, before: SinkTable, after: SinkTable) -> None:
        """The error rows of a view that has another name now."""
        if before.title != after.title:
            found = self.errors_of(before)
            self.forget_errors(before)
            self.errors += Rows({(after.title.encode(), *r[1:]): n for r, n in found.items()})

    def forget_errors(self, table: SinkTable) -> None:
        """The error rows of a view go."""
        self.errors = self.errors - self.errors_of(table)

    def forget_progress(self) -> None:
        """The last view is gone; tables that are there stay."""
        newest = self.progress.epoch if self.progress is not None else 0
        self.progress = None
        self.counts += 1
        tables = self.tables.values()
        self.history = {t.identity: [(newest, t.table, t.rows)] for t in tables}

    def spoil(self, name: tuple[str, str]) -> None:
        """Someone alters a table by hand."""
        self.tables[name] = replace(self.tables[name], spoilt=True)

    def restarted(self, kept: set[str]) -> None:
        """A process begins with a state that has these views: the others stand still now."""
        for name, table in self.tables.items():
            if table.identity not in kept:
                self.tables[name] = replace(table, moves=False)

    # --- the catalog -----------------------------------------------------------------------------

    def view(self, identity: str) -> ViewRow | None:
        """A row by its identity."""
        return next((r for r in self.views if r.identity == identity), None)

    def view_named(self, schema: str, name: str) -> ViewRow | None:
        """A row by its name."""
        return next((r for r in self.views if (r.schema, r.name) == (schema, name)), None)

    def update(self, identity: str, reported: dict[str, Any]) -> bool:
        """Set columns of a row, told to all who wait; False when it is gone."""
        row = self.view(identity)
        if row is None:
            return False
        reported = {c: as_json(v) if c in JSON else v for c, v in reported.items()}
        after = reported.get("status", row.status)
        if "status" in reported and not is_legal(row.status, after):
            raise Violation(f"{row.title} goes from {row.status} to {after}, which is illegal")
        if reported.get("code") == "view.late_row":
            self.late_oracle.require_late(row)
        self.oracle.judge(row, self.views, reported)
        changed = replace(row, **reported)
        self.views = [changed if r.identity == identity else r for r in self.views]
        self.version += not ANNOUNCED.isdisjoint(reported)
        status = reported.get("status")
        if status == "live" or status in STANDING:
            # What is called live is held to its query from now on, whatever it was called before.
            self.move(identity, moves=status == "live")
        return True

    def move(self, identity: str, *, moves: bool) -> None:
        """Whether a view's table is to show what the progress says."""
        for name, table in self.tables.items():
            if table.identity == identity:
                self.tables[name] = replace(table, moves=moves)

    def drop(self, tables: Iterable[SinkTable]) -> None:
        """Tables, staged or not."""
        for table in tables:
            self.tables.pop((table.schema, table.name), None)
            self.staged.pop((table.schema, table.name), None)
            self.forget_errors(table)


def _is_before(offset: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether a position is before another one: a clock's value, or in any partition."""
    if "us" in other:
        return offset["us"] < other["us"]
    return any(offset["next"][p] < at for p, at in other["next"].items())
