"""The tables of the simulated database, views over them, and their answers by sqlite.

Oracle: sqlite replays the commits of a prefix and answers each view's query from scratch. Queries
are written in PostgreSQL's canonical form, which sqlite understands as well.
"""

from __future__ import annotations

import functools
import sqlite3
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from connectors.postgres.catalog.catalog import ViewRow
from dataflow.schema import Field, Relation, RelationName
from dataflow.types import INT4, INT8, TEXT, UTC
from tests.simulation import clock, moments, topics, zones
from tests.simulation.reads import SCHEMA, Read, is_alike, reads, with_reads


def _relation(name: str, oid: int, fields: list[Field], key: tuple[int, ...] = ()) -> Relation:
    numbers = tuple(range(1, len(fields) + 1))
    named = RelationName("source", SCHEMA, name)
    return Relation(named, oid, tuple(fields), key, is_full=not key, numbers=numbers)


TABLES = {
    r.name.name: r
    for r in (
        _relation(
            "accounts",
            1001,
            [
                Field("id", INT4, False),
                Field("owner", TEXT, False),
                Field("balance", INT4, False),
                Field("note", TEXT),
            ],
            (0,),
        ),
        _relation(
            "entries",
            1002,
            [Field("id", INT8, False), Field("account", INT4, False), Field("amount", INT4, False)],
            (0,),
        ),
        _relation("tags", 1003, [Field("tag", TEXT), Field("n", INT4)]),
    )
}

# With the one that nobody alters.
EVERY = {**TABLES, moments.NAME: moments.RELATION}

QUERIES = (
    " SELECT id, owner, balance FROM public.accounts WHERE (balance > 0)",
    " SELECT a.owner, count(*) AS entries, sum(e.amount) AS moved FROM (public.entries e JOIN"
    " public.accounts a ON ((a.id = e.account))) GROUP BY a.owner",
    " SELECT count(*) AS n, sum(balance) AS total FROM public.accounts",
    " SELECT tag, n FROM public.tags WHERE (n IS NOT NULL)",
    " SELECT DISTINCT owner, note FROM public.accounts",
    " SELECT a.id, a.owner, e.id AS entry, e.amount FROM (public.accounts a LEFT JOIN"
    " public.entries e ON ((a.id = e.account)))",
    " SELECT max(id) AS newest, min(amount) AS least FROM public.entries",
    " SELECT tag, count(n) AS known, max(n) AS most FROM public.tags GROUP BY tag",
    # Where all views of a table are like these, its rows are not stored.
    " SELECT t.tag, count(*) AS accounts, sum(a.balance) AS total FROM (public.tags t JOIN"
    " public.accounts a ON ((a.id = t.n))) GROUP BY t.tag",
    " SELECT a.id, a.owner, t.tag FROM (public.accounts a LEFT JOIN public.tags t ON"
    " ((t.n = a.id)))",
)
# Over the view called {0}, which has the columns of the first query.
NESTED = (
    " SELECT owner, sum(balance) AS rich FROM public.{0} GROUP BY owner",
    " SELECT id, balance FROM public.{0} WHERE (balance > 20)",
)


@dataclass(frozen=True)
class Failing:
    """A query that fails for some rows. fails: SQL that says for which; row: what of such a row is
    told, as SQL; message: what PostgreSQL says of it, under the state."""

    query: str
    fails: str
    row: str
    state: str = "22012"
    message: str = "division by zero"

    def guarded(self, query: str) -> str:
        """A query that asks the same, without the rows for which it fails."""
        kept = f"(SELECT * FROM {{}} WHERE ({self.fails}) IS NOT TRUE)"
        return with_reads(query, lambda read: kept.format(read.text))

    def failed(self, query: str) -> str:
        """Those rows, of the table as a query that asks the same has it."""
        [read] = reads(query)
        return f"SELECT {self.row} FROM {read.text} WHERE {self.fails}"


FAILING = (
    Failing(
        " SELECT id, (100 / (balance / 10)) AS share FROM public.accounts",
        *("balance / 10 = 0", "id, balance"),
    ),
    Failing(
        " SELECT owner, sum((100 / (balance / 10))) AS shares, count(*) AS n FROM public.accounts"
        " GROUP BY owner",
        *("balance / 10 = 0", "owner, balance"),
    ),
    Failing(" SELECT tag, (6 / (n - 2)) AS share FROM public.tags", *("n - 2 = 0", "tag, n")),
)

# (relation, kind, old row, new row): kind is "I", "U", "D" or "T".
Change = tuple[str, str, tuple[Any, ...] | None, tuple[Any, ...] | None]


@dataclass(frozen=True)
class Commit:
    """A transaction at the source. published: the relations whose changes are sent."""

    end: int
    xid: int
    at_us: int
    changes: tuple[Change, ...]
    published: frozenset[str]


class Oracle:
    """Answers of views over prefixes of the log, and of topics; both only grow."""

    def __init__(self, log: list[Commit], broker: topics.Broker | None = None) -> None:
        self._log = log
        self._broker = broker
        self._at = 0
        self._places: dict[tuple[str, str], str] = {}
        self._answers: dict[tuple[int, str, str], Counter[tuple[Any, ...]]] = {}
        self._session = sqlite3.connect(":memory:", isolation_level=None)
        for schema in (SCHEMA, *topics.SOURCES, *clock.CLOCKS):
            self._session.execute(f"ATTACH ':memory:' AS {schema}")
        zones.add_functions(self._session)
        self._create()

    def _create(self) -> None:
        for name, relation in EVERY.items():
            columns = ", ".join(f.name for f in relation.fields)
            self._session.execute(f"CREATE TABLE public.{name} ({columns})")
        for name in clock.CLOCKS:
            self._session.execute(f"CREATE TABLE {name}.now (id, at)")
        for relation in topics.RELATIONS:
            columns = ", ".join(f.name for f in relation.fields)
            self._session.execute(f"CREATE TABLE {relation.name} ({columns})")

    def answer(
        self, query: str, prefix: int, offsets: Mapping[str, Any] | None = None
    ) -> Counter[tuple[Any, ...]]:
        """Return the rows of a query over the first `prefix` commits, and what lies before the
        places."""
        read = {
            key: (offsets or {})[key[0]][key[1]]
            for key in (self._broker.topics if self._broker else ())
            if ".".join(key) in query
        }
        at = {n: clock.at_of((offsets or {}).get(n)) for n in clock.CLOCKS if f"{n}.now" in query}
        shown = repr((sorted(read.items()), at))
        found = self._answers.get((prefix, query, shown))
        if found is None:
            self._go_to(prefix)
            self._fill(read)
            self._set_clocks(at)
            failing = failing_like(query)
            guarded = failing.guarded(query) if failing else query
            rows = self._session.execute(guarded).fetchall()
            found = Counter(tuple(map(_physical, row)) for row in rows)
            self._answers[prefix, query, shown] = found
        return found

    def _set_clocks(self, at: Mapping[str, int | None]) -> None:
        for name, us in at.items():
            self._session.execute(f"DELETE FROM {name}.now")
            if us is not None:
                self._session.execute(f"INSERT INTO {name}.now VALUES (1, ?)", (us,))

    def errors(self, query: str, prefix: int) -> Counter[tuple[Any, ...]]:
        """(state, message, row) of the rows for which a query fails, with their counts."""
        found = self._failing(query)
        if found is None:
            return Counter()
        failing, statement = found
        self._go_to(prefix)
        rows = self._session.execute(statement)
        reported = (f"({','.join(map(_in_record, row))})" for row in rows)
        return Counter((failing.state, failing.message, row) for row in reported)

    def _failing(self, query: str) -> tuple[Failing, str] | None:
        """A query that fails for some rows, and what finds these."""
        failing = failing_like(query)
        return failing and (failing, failing.failed(query))

    def close(self) -> None:
        """End the session."""
        self._session.close()

    # --- for runs whose tables change ------------------------------------------------------------

    def bound(self, row: ViewRow, epoch: int) -> str:
        """Return the query of a view over what its names stand for, as of an epoch that shows
        it, in sqlite's words."""
        return zones.in_sqlite(self._over_tables(row, epoch), row.options.get("time_zone", UTC))

    def _over_tables(self, row: ViewRow, epoch: int) -> str:
        """Return the query over what its names stand for."""
        return row.query

    def require_right(self, row: ViewRow, epoch: int, prefix: int) -> None:
        """Violation where a view should have stopped before a prefix."""

    def judge(self, row: ViewRow, rows: Iterable[ViewRow], reported: Mapping[str, Any]) -> None:
        """Violation where a view is told to fail, or to be rebuilt, without a reason."""

    def committed(self, values: Mapping[str, bytes]) -> None:
        """The state has these named values from now on."""

    def _go_to(self, prefix: int) -> None:
        if prefix < self._at:
            for name in EVERY:
                self._session.execute(f"DELETE FROM public.{name}")
            self._at = 0
        for commit in self._log[self._at : prefix]:
            for change in commit.changes:
                self._apply(*change)
        self._at = prefix

    def _fill(self, read: Mapping[tuple[str, str], Any]) -> None:
        """The tables of topics as of these places."""
        assert self._broker is not None or not read
        for key, offset in read.items():
            if self._places.get(key) == repr(offset):
                continue
            self._places[key] = repr(offset)
            name = ".".join(key)
            self._session.execute(f"DELETE FROM {name}")
            for row in self._broker.topics[key].rows_at(offset).elements():  # type: ignore[union-attr]
                marks = ", ".join("?" * len(row))
                self._session.execute(f"INSERT INTO {name} VALUES ({marks})", row)

    def _apply(self, name: str, kind: str, old: Any, new: Any) -> None:
        if kind == "T":
            self._session.execute(f"DELETE FROM public.{name}")
        if kind in "UD":
            names = [f.name for f in EVERY[name].fields]
            same = " AND ".join(f"{n} IS ?" for n in names)
            found = f"SELECT rowid FROM public.{name} WHERE {same} LIMIT 1"
            done = self._session.execute(f"DELETE FROM public.{name} WHERE rowid = ({found})", old)
            assert done.rowcount == 1
        if kind in "UI":
            marks = ", ".join("?" * len(new))
            self._session.execute(f"INSERT INTO public.{name} VALUES ({marks})", new)


def _in_record(value: Any) -> str:
    """A value in the text of a row, as PostgreSQL writes it."""
    text = "" if value is None else str(value)
    return f'"{text}"' if " " in text else text


def _physical(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value


@functools.lru_cache(maxsize=4096)
def failing_like(query: str) -> Failing | None:
    """Return the query that fails for some rows which this one is, whatever its table is called in
    it."""
    return next((f for f in FAILING if is_alike(f.query, query)), None)


def expanded(query: str, views: Mapping[str, str]) -> str:
    """A query over tables alone. views: the queries of all views by name."""

    def inlined(read: Read) -> str:
        if read.schema != SCHEMA or read.name not in views:
            return read.text
        return f"({expanded(views[read.name], views)}) {read.alias}".rstrip()

    return with_reads(query, inlined)
