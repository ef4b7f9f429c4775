"""The past of views, as the product's own sink records it in PostgreSQL.

The simulated sink has no SQL. So whatever was done to it is put down in a journal, and done again
by `PostgresSink` once the run is over, in a database of its own whose clock is the run's. A standby
that takes over cuts the journal off where it lags.
Oracle: the rows of each view at each epoch, as the simulated sink had them.
"""

from __future__ import annotations

import atexit
import functools
import itertools
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import numpy as np
import psycopg2

from connectors.postgres.catalog.catalog import Control, ViewRow
from connectors.postgres.embedded.server import EmbeddedPostgres
from connectors.postgres.query.history_rows import find_point, read_changes, read_difference
from connectors.postgres.schema import schema_setup
from connectors.postgres.session import copy_text
from connectors.postgres.session.quoting import quote_name
from connectors.postgres.sink.postgres_sink import PostgresSink
from connectors.postgres.sink.view_tables import ViewTables
from connectors.sink import SinkEpoch, SinkRows, SinkTable, ViewChange
from dataflow.delta import Delta
from dataflow.errors import TidemarkError
from dataflow.notes import WINDOW_EDGE
from tests.harness.postgres import SERVER_SETTINGS
from tests.simulation.faults import Violation
from tests.simulation.rows import Rows, delta_of

PERIODS = ("2 seconds", "10 seconds", "7 days")
_PORT, _TEMPLATE, _KEY = "TIDEMARK_SIMULATION_PORT", "simulation", "tidemark"
_numbers = itertools.count()
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# What of the product asks PostgreSQL what time it is.
_CLOCKED = ("note_epoch", "note_rewind", "prune_histories", "find_epoch")
_NOW = "tidemark.simulated_now()"
_SETUP = f"""
CREATE TABLE tidemark.simulated (at timestamptz);
INSERT INTO tidemark.simulated VALUES ('epoch');
CREATE FUNCTION {_NOW} RETURNS timestamptz LANGUAGE sql AS 'SELECT at FROM tidemark.simulated';
"""


@dataclass(frozen=True)
class Act:
    """Something done to the sink. at_us: when; views: the catalog before it; rows: by identity, the
    tables of views after it."""

    kind: str
    what: Any
    at_us: int
    views: Sequence[ViewRow]
    rows: Mapping[str, tuple[SinkTable, Rows]]


@dataclass
class Journal:
    """All of a run."""

    acts: list[Act] = field(default_factory=list)

    def cut(self, count: int) -> None:
        """Forget what came after the first acts: the server that knew of it is gone."""
        del self.acts[count:]

    @staticmethod
    def of_epoch(epoch: SinkEpoch) -> SinkEpoch:
        """Return an epoch as it can be written again later: with its views' rows, in memory, and
        the notes up to where windows are closed."""
        found: dict[SinkTable, list[Delta]] = {}
        edges = []
        for part in epoch.rows.parts():
            for table, delta in part.deltas:
                found.setdefault(table, []).append(delta)
            if part.errors is not None:
                codes = part.errors.columns[2].texts()
                is_edge = np.array([code == WINDOW_EDGE for code in codes], np.bool_)
                edges.append(part.errors.filter(is_edge))
        deltas = [(table, Delta.concat(parts).consolidate()) for table, parts in found.items()]
        return replace(epoch, rows=SinkRows(deltas, Delta.concat(edges) if edges else None))


def replay(journal: Journal, random: Random) -> None:
    """Do all of it again in PostgreSQL, and compare the past. Violation."""
    with _database() as dsn:
        history = _Replay(dsn, random)
        try:
            for act in journal.acts:
                history.do(act)
            history.compare_all()
        finally:
            history.close()


@functools.cache
def server_port() -> int:
    """Return the port of a server with the template of a sink, started if there is none."""
    if _PORT in os.environ:
        return int(os.environ[_PORT])
    server = EmbeddedPostgres(settings=SERVER_SETTINGS)
    server.start()
    atexit.register(server.stop)
    with _session(server.dsn) as session:
        session.cursor().execute(f"CREATE DATABASE {_TEMPLATE} TEMPLATE template0")
    dsn = server.dsn_of(_TEMPLATE)
    connection = psycopg2.connect(dsn)
    try:
        schema_setup.ensure(connection)
    finally:
        connection.close()
    with _session(dsn) as session:
        cursor = session.cursor()
        cursor.execute(_SETUP)
        cursor.execute(
            "SELECT pg_get_functiondef(p.oid) FROM pg_proc AS p WHERE p.proname = ANY (%s)"
            " AND p.pronamespace = 'tidemark'::regnamespace",
            (list(_CLOCKED),),
        )
        texts = [text for (text,) in cursor.fetchall()]
        assert len(texts) == len(_CLOCKED) and all("clock_timestamp()" in t for t in texts)
        for text in texts:
            cursor.execute(text.replace("clock_timestamp()", _NOW))
    # Of the processes that this one starts.
    os.environ[_PORT] = str(server.port)
    return server.port


def _dsn(database: str) -> str:
    return f"host=127.0.0.1 port={server_port()} user=postgres dbname={database}"


@contextmanager
def _database() -> Iterator[str]:
    name = f"s{os.getpid()}_{next(_numbers)}"
    with _session(_dsn("postgres")) as admin:
        admin.cursor().execute(f"CREATE DATABASE {name} TEMPLATE {_TEMPLATE}")
    try:
        yield _dsn(name)
    finally:
        with _session(_dsn("postgres")) as admin:
            admin.cursor().execute(f"DROP DATABASE {name} WITH (FORCE)")


@contextmanager
def _session(dsn: str) -> Iterator[Any]:
    session = psycopg2.connect(dsn)
    session.autocommit = True
    try:
        yield session
    finally:
        session.close()


@dataclass
class _Past:
    """What a view had: (epoch, rows), with the table of each; begun: the epoch of its history.

    published: by the table of final rows, (epoch, rows) of what its readers were sent; since: the
    epoch in which this version of the view began.
    """

    table: SinkTable
    epochs: list[tuple[int, Rows]] = field(default_factory=list)
    published: dict[SinkTable, list[tuple[int, Rows]]] = field(default_factory=dict)
    since: int = 0
    begun: int | None = None
    oldest: int = 0

    def at(self, epoch: int) -> Rows:
        """The rows at an epoch."""
        found: Rows = Rows()
        for number, rows in self.epochs:
            if number <= epoch:
                found = rows
        return found


class _Replay:
    """One database while the journal is done again."""

    def __init__(self, dsn: str, random: Random) -> None:
        self._dsn = dsn
        self._random = random
        self._sink = PostgresSink(dsn, key=_KEY)
        self._tables = ViewTables(dsn)
        self._control = Control(dsn)
        self._session = psycopg2.connect(dsn)
        self._session.autocommit = True
        self._past: dict[str, _Past] = {}
        self._newest = 0
        self._at_us = 0
        # Epochs that a rewound sink has lost: after the first and before the second.
        self._lost: list[tuple[int, int]] = []
        # Clocks of epochs that changed a view with a history.
        self._clocks: dict[int, int] = {}

    def close(self) -> None:
        """End the sessions."""
        self._sink.close()
        self._control.close()
        self._session.close()

    def do(self, act: Act) -> None:
        """One act, and a look at the past now and then."""
        self._set_clock(act.at_us)
        is_pruned = self._random.random() < 0.2
        if act.kind == "epoch":
            self._sink._histories._pruned_at = -1e9 if is_pruned else 1e18
            if act.what.ddl or act.what.repair is not None:
                self._set_views(act.views)
            self._sink.write(act.what)
            self._note(act, is_pruned=is_pruned)
        else:
            self._set_views(act.views)
            self._do_between(act)
        if self._random.random() < 0.05:
            self.compare(3)

    def _do_between(self, act: Act) -> None:
        sink, what = self._sink, act.what
        if act.kind == "stage":
            table, rows, token = what
            sink.stage(table, [delta_of(table, rows)], token)
        elif act.kind == "drop":
            sink.drop(what)
        elif act.kind == "drop staged":
            sink.drop_staged(what)
        elif act.kind == "change":
            self._tables.change(what)
            self._follow(what)
        else:
            assert act.kind == "forget", act.kind
            sink.forget_progress()
        for identity in self._past.keys() - act.rows.keys():
            del self._past[identity]

    def _set_clock(self, at_us: int) -> None:
        self._at_us = at_us
        at = _EPOCH + timedelta(microseconds=at_us)
        self._ask("UPDATE tidemark.simulated SET at = %s", at)

    def _set_views(self, views: Sequence[ViewRow]) -> None:
        """The catalog as the simulated sink had it."""
        self._ask("DELETE FROM tidemark.views")
        for row in views:
            self._control.insert_view(row)

    def _ask(self, sql: str, *values: Any) -> list[Any]:
        cursor = self._session.cursor()
        cursor.execute(sql, values)
        return cursor.fetchall() if cursor.description else []

    # --- what is expected ------------------------------------------------------------------------

    def _follow(self, changes: Sequence[ViewChange]) -> None:
        for change in changes:
            found = self._past.get(change.identity)
            if found is not None:
                new = change.table
                found.table = replace(found.table, schema=new.schema, name=new.name)

    def _note(self, act: Act, *, is_pruned: bool) -> None:
        """An epoch, as it should be recorded."""
        epoch: SinkEpoch = act.what
        number = epoch.progress.epoch
        if epoch.repair is not None and epoch.repair.follows < number - 1:
            self._lost.append((epoch.repair.follows, number))
        for identity in self._past.keys() - act.rows.keys():
            del self._past[identity]
        swapped = {(s.table.schema, s.table.name) for s in epoch.ddl.swaps}
        for identity, (table, rows) in act.rows.items():
            past = self._past.setdefault(identity, _Past(table))
            is_new = (table.schema, table.name) in swapped
            if is_new or not _is_alike(past.table, table):
                past.begun = None
            past.table = table
            if not past.epochs or past.epochs[-1][1] != rows or is_new:
                past.epochs.append((number, rows))
        for change in epoch.ddl.changes:
            if change.is_replaced and (past := self._past.get(change.identity)):
                past.published, past.since = {}, number
        by_name = {(p.table.schema, p.table.name): p for p in self._past.values()}
        for table, delta in epoch.rows.deltas:
            if table.final is not None and (past := by_name.get((table.schema, table.name))):
                rows = Rows(dict(delta.rows()))
                past.published.setdefault(table, []).append((number, rows))
        self._newest = number
        self._learn_clocks(epoch)
        self._learn_histories(act, number, is_pruned=is_pruned)

    def _learn_clocks(self, epoch: SinkEpoch) -> None:
        """The clock of an epoch that is recorded: its source's, never back, never of the future."""
        number = epoch.progress.epoch
        found = self._ask(
            "SELECT committed_at FROM tidemark.epochs WHERE (sink_key, epoch) = (%s, %s)",
            *(_KEY, number),
        )
        if not found:
            return
        before = [us for known, us in self._clocks.items() if known < number]
        at_us = min(self._at_us, epoch.commit_time_us or self._at_us)
        self._clocks = {n: us for n, us in self._clocks.items() if n < number}
        self._clocks[number] = max([at_us, *before])
        if _us_of(found[0][0]) != self._clocks[number]:
            raise Violation(f"epoch {number} is of {found[0][0]}, not {self._clocks[number]}")

    def _learn_histories(self, act: Act, number: int, *, is_pruned: bool) -> None:
        rows = {row.identity: row for row in act.views}
        recorded = {
            (schema, name): (begun, oldest, retained)
            for schema, name, begun, oldest, retained in self._ask(
                "SELECT schema, name, begun_epoch, oldest_epoch, extract(epoch FROM retained)"
                " FROM tidemark.histories WHERE NOT is_staged"
            )
        }
        for identity, past in self._past.items():
            found = recorded.pop((past.table.schema, past.table.name), None)
            row = rows.get(identity)
            if found is None:
                is_changed = bool(act.what.ddl)
                if past.begun is not None and row is not None and not is_changed:
                    raise Violation(f"the history of {past.table.title} is gone")
                past.begun = None
                continue
            begun, oldest, retained_s = found
            if past.begun is not None and begun != past.begun:
                raise Violation(f"the history of {past.table.title} began anew in epoch {begun}")
            if past.begun is None:
                past.oldest = begun
            past.begun = begun
            self._check_oldest(past, oldest, float(retained_s), is_pruned=is_pruned)
            has_changed = past.at(number) != past.at(number - 1)
            if has_changed and number not in self._clocks:
                raise Violation(f"epoch {number} changed {past.table.title}, and is not recorded")
        if recorded:
            raise Violation(f"there is a history of {recorded}, and no such view")

    def _check_oldest(
        self, past: _Past, oldest: int, retained_s: float, *, is_pruned: bool
    ) -> None:
        """Nothing goes before its time; when it is pruned, all goes whose time has come."""
        until_us = self._at_us - round(retained_s * 1e6)
        over = [n for n, us in self._clocks.items() if us <= until_us]
        newest = max([past.oldest, *over])
        if not past.oldest <= oldest <= newest or (is_pruned and oldest != newest):
            raise Violation(
                f"the history of {past.table.title} begins with {oldest}, not {newest}"
                f" (before: {past.oldest})"
            )
        past.oldest = oldest

    # --- what is there ---------------------------------------------------------------------------

    def compare_all(self) -> None:
        """Every epoch of every view."""
        self.compare(None)

    def compare(self, most: int | None) -> None:
        """Hold the past of each view to what it was. most: epochs, all if None."""
        for past in self._past.values():
            if past.begun is None or past.oldest > self._newest:
                continue
            numbers = list(range(past.oldest, self._newest + 1))
            count = len(numbers) if most is None else min(most, len(numbers))
            for number in self._random.sample(numbers, count):
                self._compare_epoch(past, number)
            self._compare_before(past)
            self._compare_periods(past)
            for _ in range(2):
                self._compare_time(past)
                self._compare_difference(past, sorted(self._random.choices(numbers, k=2)))
            if most is None:
                self._compare_changes(past)
                self._compare_published(past)

    def _is_lost(self, number: int) -> bool:
        return any(after < number < until for after, until in self._lost)

    def _compare_epoch(self, past: _Past, number: int) -> None:
        if self._is_lost(number):
            self._require_refused(past, str(number), "history.lost")
            return
        found = self._rows_at(past.table, str(number))
        if found != past.at(number):
            expected = past.at(number)
            raise Violation(
                f"{past.table.title} as of epoch {number} lacks {dict(expected - found)} and has"
                f" {dict(found - expected)} too much"
            )

    def _compare_before(self, past: _Past) -> None:
        """Before the oldest and after the newest epoch there is nothing to be read."""
        if past.oldest > 0:
            self._require_refused(past, str(past.oldest - 1), "history.too_old")
        self._require_refused(past, str(self._newest + 1), "history.not_reached")

    def _require_refused(self, past: _Past, point: str, code: str) -> None:
        try:
            find_point(self._session.cursor(), past.table, point)
        except TidemarkError as error:
            if error.code == code:
                return
            raise Violation(f"{past.table.title} as of {point} is {error.code}") from error
        raise Violation(f"{past.table.title} can be read as of {point}: not {code}")

    def _compare_time(self, past: _Past) -> None:
        """A moment is the newest epoch that had committed by then."""
        at_us = self._random.randint(min(self._clocks.values(), default=0), self._at_us)
        known = [n for n, us in self._clocks.items() if us <= at_us and n >= past.oldest]
        point = str(_EPOCH + timedelta(microseconds=at_us))
        if not known:
            self._require_refused(past, point, "history.too_old")
            return
        number = max(known)
        if any(until > number >= 0 and after >= number for after, until in self._lost):
            # What was lost may have been of before or after.
            return
        found = find_point(self._session.cursor(), past.table, point)
        if found.epoch != number:
            raise Violation(f"{past.table.title} at {point} is epoch {found.epoch}, not {number}")

    def _compare_difference(self, past: _Past, numbers: Sequence[int]) -> None:
        begin, end = numbers
        if self._is_lost(begin) or self._is_lost(end):
            return
        page = read_difference(
            self._dsn, past.table, (str(begin), str(end)), (0, 100_000), timeout_s=60
        )
        found: Rows = Rows()
        for row, weight in [] if page.rows is None else page.rows.rows():
            found[row] += weight
        _require_change(past, found, (begin, end))

    def _compare_changes(self, past: _Past) -> None:
        """The changes of each epoch since the oldest one."""
        if self._is_lost(past.oldest):
            return
        at = past.oldest
        by_epoch: dict[int, Rows] = {}
        for number, _, delta in read_changes(self._dsn, past.table, past.oldest, 1_000_000):
            rows = by_epoch.setdefault(number, Rows())
            for row, weight in [] if delta is None else delta.rows():
                rows[row] += weight
        for number, rows in by_epoch.items():
            _require_change(past, rows, (at, number))
            at = number
        if past.at(at) != past.at(self._newest):
            raise Violation(f"the changes of {past.table.title} end with epoch {at}")

    def _compare_published(self, past: _Past) -> None:
        """The final rows of each epoch since the oldest one, as readers were sent them."""
        after = max(past.oldest, past.since)
        if self._is_lost(after) or after > self._newest:
            return
        for table, sent in past.published.items():
            if table.relation != past.table.relation:
                continue
            found: dict[int, Rows] = {}
            for number, _, delta in read_changes(self._dsn, table, after, 1_000_000):
                for row, weight in [] if delta is None else delta.rows():
                    found.setdefault(number, Rows())[row] += weight
            expected = {n: rows for n, rows in sent if n > after and rows}
            if found != expected:
                raise Violation(f"{table.title} published {expected}, and is read as {found}")

    def _compare_periods(self, past: _Past) -> None:
        """Each row has the clocks of the epochs that it is from and until."""
        name = f"{quote_name(past.table.schema)}.{quote_name(past.table.name + '_history')}"
        sql = "SELECT from_epoch, to_epoch, valid_from::text, valid_to::text FROM"
        for begin, end, valid_from, valid_to in self._ask(f"{sql} {name}"):
            expected = "-infinity" if begin == 0 else self._text_of(begin)
            until = "infinity" if end is None else self._text_of(end)
            if (valid_from, valid_to) != (expected or valid_from, until or valid_to):
                raise Violation(
                    f"a row of {past.table.title} of epochs {begin} to {end} is of {valid_from} to"
                    f" {valid_to}, not {expected} to {until}"
                )

    def _text_of(self, number: int) -> str | None:
        us = self._clocks.get(number)
        if us is None:
            raise Violation(f"a row is from or until epoch {number}, which is not recorded")
        [(text,)] = self._ask("SELECT %s::timestamptz::text", _EPOCH + timedelta(microseconds=us))
        return text

    def _rows_at(self, table: SinkTable, point: str) -> Rows:
        name = f"{quote_name(table.schema)}.{quote_name(table.name)}"
        sql = f"SELECT * FROM tidemark.as_of(NULL::{name}, '{point}')"
        found: Rows = Rows()
        types = [f.type for f in table.fields]
        for columns in copy_text.copy_out(self._session.cursor(), sql, types):
            rows = Delta(columns, np.ones(len(columns[0]), np.int64))
            found += Counter(row for row, _ in rows.rows())
        return found


def _require_change(past: _Past, found: Rows, epochs: tuple[int, int]) -> None:
    expected = Rows(past.at(epochs[1]))
    expected.subtract(past.at(epochs[0]))
    found, expected = (Rows({r: n for r, n in rows.items() if n}) for rows in (found, expected))
    if found != expected:
        raise Violation(
            f"{past.table.title} changed {dict(found)} from epoch {epochs[0]} to {epochs[1]}, not"
            f" {dict(expected)}"
        )


def _is_alike(before: SinkTable, after: SinkTable) -> bool:
    """Whether a table has the same columns and key as another one."""
    both = ((tuple((f.name, f.type) for f in t.fields), t.key) for t in (before, after))
    return len(set(both)) == 1


def _us_of(moment: datetime) -> int:
    return round((moment - _EPOCH) / timedelta(microseconds=1))
