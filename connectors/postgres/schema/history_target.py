"""How the past of a view is stored in the sink: names, columns and the SQL that records a change.

The table of a history has the physical columns of the view's table and the period of each row:
[from_epoch, to_epoch), with the clocks of both. A row that is current ends at OPEN_EPOCH. The
statement that changes the view's table also records the change, from the rows that it has met: the
rows of these keys end, the new ones begin. Pure text: nothing here opens a connection.
Invariant: at each epoch the rows of the history whose period covers it are the view's rows then.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from connectors.postgres.schema.sink_target import Change, Target, key_hash, target_of
from connectors.postgres.session.quoting import NAME_BYTES, clip_name, quote_name, quote_text
from connectors.sink import SinkTable
from dataflow.types import SqlType, TypeKind
from dataflow.window_close import last_closed

# The epoch at which a row ends that is current.
OPEN_EPOCH = 2**63 - 1
SUFFIX = "_history"
# Kinds of types whose values have a small fixed size.
_NARROW = frozenset(
    {
        *(TypeKind.INT2, TypeKind.INT4, TypeKind.INT8, TypeKind.FLOAT4, TypeKind.FLOAT8),
        *(TypeKind.DATE, TypeKind.TIME, TypeKind.TIMESTAMP, TypeKind.TIMESTAMPTZ, TypeKind.UUID),
    }
)
_DAY_US = 86_400_000_000
# Days since 2000: the first of each type, and the first that is too late.
_FIRST_DAY, _DATE_END, _TIMESTAMP_END = -2_451_545, 2_145_031_949, 106_762_940
# Where a row begins whose past is not known: before the history.
_BEFORE = "0::bigint", "'-infinity'::timestamptz"
_STORED = ("from_epoch", "to_epoch", "valid_from", "valid_to")
_SHOWN = (*_STORED, "from_positions", "to_positions")


@dataclass(frozen=True)
class History:
    """The history of a view. rows: the table of the view; name: of the history's, in schema
    tidemark; period: names of its columns besides those of the view's table, as `period_of`.
    """

    rows: Target
    name: str
    period: tuple[str, ...]

    @property
    def sql(self) -> str:
        """Return the qualified name of its table."""
        return f"tidemark.{quote_name(self.name)}"

    @property
    def key(self) -> tuple[int, ...]:
        """Return the positions of the key among the physical columns."""
        return (0,) if self.rows.is_multiset else self.rows.key

    @property
    def is_plain(self) -> bool:
        """Return whether current rows are indexed by their key, which is never wide, or by the
        hash of it."""
        return all(c.type.kind in _NARROW for c in self.rows.key_columns) or self.rows.is_multiset

    def column(self, number: int) -> str:
        """Return the quoted name of a column of the period."""
        return quote_name(self.period[number])


@functools.lru_cache(1024)
def period_of(table: SinkTable) -> tuple[str, ...]:
    """Return the names of the columns of the period, distinct from those of the view's table."""
    taken = {c.name for c in target_of(table).columns}
    names = []
    for name in _SHOWN:
        while name in taken:
            name += "_"
        names.append(name)
    return tuple(names)


def view_name(table: SinkTable) -> str:
    """Return the name of the view of the history that users read, in the schema of the view."""
    return clip_name(table.name, NAME_BYTES - len(SUFFIX)) + SUFFIX


def create_table(history: History, source: Target) -> str:
    """Return the statement that creates the table with the rows of `source`, all current."""
    columns = ", ".join(quote_name(c.name) for c in history.rows.columns)
    from_epoch, to_epoch, valid_from, valid_to = map(quote_name, history.period[:4])
    return (
        f"CREATE TABLE {history.sql} AS SELECT {columns}, {_BEFORE[0]} AS {from_epoch}, "
        f"{OPEN_EPOCH}::bigint AS {to_epoch}, {_BEFORE[1]} AS {valid_from}, "
        f"'infinity'::timestamptz AS {valid_to} FROM ONLY {source.sql}"
    )


def create_indexes(history: History) -> list[str]:
    """Return the statements that index current rows by key, and all by the ends of the period."""
    key = history.rows.key_columns
    parts = [quote_name(c.name) for c in key]
    current = ", ".join(parts)
    if not history.is_plain:
        current = f"({key_hash(history.rows, dict(enumerate(parts)))})"
    from_epoch, to_epoch = history.column(0), history.column(1)
    return [
        f"CREATE INDEX ON {history.sql} ({current}) WHERE {to_epoch} = {OPEN_EPOCH}",
        f"CREATE INDEX ON {history.sql} ({from_epoch})",
        f"CREATE INDEX ON {history.sql} ({to_epoch}) WHERE {to_epoch} < {OPEN_EPOCH}",
    ]


def create_view(history: History, name: str, sink_key: str, *, is_replaced: bool = False) -> str:
    """Return the view that users read: each row as often as its count says, with its period.

    name: in SQL. is_replaced: it exists, and stays with all that depends on it.
    """
    target = history.rows
    columns = [f"h.{quote_name(f.name)}" for f in target.fields]
    names = dict(zip(_SHOWN, map(quote_name, history.period), strict=True))
    shown = [
        *columns,
        f"h.{names['from_epoch']}",
        f"nullif(h.{names['to_epoch']}, {OPEN_EPOCH}) AS {names['to_epoch']}",
        f"h.{names['valid_from']}",
        f"h.{names['valid_to']}",
        f"f.positions AS {names['from_positions']}",
        f"t.positions AS {names['to_positions']}",
    ]
    key = quote_text(sink_key)
    repeated = ""
    if target.is_multiset:
        repeated = f" CROSS JOIN LATERAL generate_series(1, h.{quote_name(target.count)}) AS s(n)"
    return (
        f"CREATE {'OR REPLACE ' if is_replaced else ''}VIEW {name} AS "
        f"SELECT {', '.join(shown)} FROM {history.sql} AS h{repeated} "
        f"LEFT JOIN tidemark.epochs AS f ON f.sink_key = {key} "
        f"AND f.epoch = h.{names['from_epoch']} "
        f"LEFT JOIN tidemark.epochs AS t ON t.sink_key = {key} AND t.epoch = h.{names['to_epoch']}"
    )


@dataclass(frozen=True)
class Recorded:
    """A change of a view's table that its history records in the same statement.

    letter: as of `changes_of`. sink_key: whose newest epoch in tidemark.epochs is this one.
    """

    history: History
    sink_key: str
    letter: str

    def counted(self, change: Change, rows: str, *, is_looked_up: bool) -> str:
        """Return a SELECT of how many rows a change met, with `rows` as its FROM item."""
        parts, count, checked = self._statement(change, rows, is_looked_up=is_looked_up)
        return f"{parts} SELECT {count}{checked}"

    def expected(self, change: Change, rows: str) -> str:
        """Return `counted` with each row looked up; fails in the database unless it meets $1."""
        parts, count, checked = self._statement(change, rows, is_looked_up=True)
        title = quote_text(f"{self.history.rows.schema}.{self.history.rows.name}")
        return f"{parts} SELECT tidemark.expect({title}, {count}, $1){checked}"

    def _statement(self, change: Change, rows: str, *, is_looked_up: bool) -> tuple[str, str, str]:
        """Return (WITH list, rows met, more to select).

        The list has the rows met as `x`, and as `y` those that a multiset's deletes remove. What
        is selected fails unless the history has the rows that end.
        """
        body = change.over(rows, is_looked_up=is_looked_up, met=self._met())
        is_double = self.letter == "d" and self.history.rows.is_multiset
        count = "(SELECT count(*) FROM x)" + (" + (SELECT count(*) FROM y)" if is_double else "")
        is_ended = self.letter != "i" or self.history.rows.is_multiset
        is_begun = self.letter != "d" or self.history.rows.is_multiset
        parts = [f"x AS ({body})", self._now()]
        if is_ended:
            parts += self._ended(is_double, is_looked_up=is_looked_up)
        if is_begun:
            parts.append(self._begun())
        listed = f"WITH {', '.join(parts)}"
        if self.letter == "i":
            # Of a multiset, some rows are new and others are more of the same.
            return listed, count, ""
        title = quote_text(f"tidemark.{self.history.name}")
        ended = "(SELECT count(*) FROM ended)"
        return listed, count, f", tidemark.expect({title}, {ended}, (SELECT count(*) FROM gone))"

    def _met(self) -> str:
        """Return the columns of the rows met: all where rows begin, else those of the key."""
        target = self.history.rows
        qualified = "" if self.letter == "i" else "t."
        is_all = self.letter != "d" or target.is_multiset
        numbers = range(len(target.columns)) if is_all else self.history.key
        return ", ".join(
            f"{qualified}{quote_name(target.columns[i].name)} AS r{i}" for i in numbers
        )

    def _now(self) -> str:
        key = quote_text(self.sink_key)
        return (
            "now AS (SELECT e.epoch, e.committed_at FROM tidemark.epochs AS e "
            f"WHERE e.sink_key = {key} ORDER BY e.epoch DESC LIMIT 1)"
        )

    def _ended(self, is_double: bool, *, is_looked_up: bool) -> Iterable[str]:
        """Return the parts that end the rows of these keys.

        Deltas of an epoch never change a row twice, so none ends in the epoch in which it began.
        """
        history, target = self.history, self.history.rows
        keys = ", ".join(f"r{i}" for i in history.key)
        from_epoch, to_epoch = (f"h.{history.column(i)}" for i in range(2))
        stored = [f"h.{quote_name(c.name)}" for c in target.key_columns]
        passed = [f"g.r{i}" for i in history.key]
        same = list(zip(stored, passed, strict=True))
        if history.is_plain:
            first = same.pop(0)
        else:
            own, other = (key_hash(target, dict(enumerate(names))) for names in (stored, passed))
            first = own, other
        # As in Change.over: an equality that joins nothing forces the index.
        looked = f"ANY (ARRAY[{first[1]}])" if is_looked_up else first[1]
        equal = [f"{first[0]} = {looked}", *(f"{a} = {b}" for a, b in same)]
        met = " AND ".join([*equal, f"{to_epoch} = {OPEN_EPOCH}"])
        both = f" UNION ALL SELECT {keys} FROM y" if is_double else ""
        return (
            f"gone AS (SELECT {keys} FROM x{both})",
            f"ended AS (UPDATE ONLY {history.sql} AS h "
            f"SET {history.column(1)} = (SELECT epoch FROM now), "
            f"{history.column(3)} = (SELECT committed_at FROM now) FROM gone AS g "
            f"WHERE {met} AND {from_epoch} < (SELECT epoch FROM now) RETURNING 1)",
        )

    def _begun(self) -> str:
        history = self.history
        names = [quote_name(c.name) for c in history.rows.columns]
        period = [history.column(i) for i in range(4)]
        values = ", ".join(f"x.r{i}" for i in range(len(names)))
        return (
            f"begun AS (INSERT INTO {history.sql} ({', '.join([*names, *period])}) "
            f"SELECT {values}, (SELECT epoch FROM now), {OPEN_EPOCH}, "
            "(SELECT committed_at FROM now), 'infinity' FROM x RETURNING 1)"
        )


def is_damaged(history: History) -> str:
    """Return a query whether its current rows differ from those of the view's table."""
    names = [quote_name(c.name) for c in history.rows.columns]
    keys = [quote_name(c.name) for c in history.rows.key_columns]
    images = [f"ROW({', '.join(f'{side}.{name}' for name in names)})" for side in "hb"]
    return (
        f"SELECT EXISTS (SELECT FROM ONLY {history.rows.sql} AS b FULL JOIN (SELECT * FROM ONLY "
        f"{history.sql} WHERE {history.column(1)} = {OPEN_EPOCH}) AS h "
        f"ON {' AND '.join(f'h.{k} = b.{k}' for k in keys)} "
        f"WHERE h.{keys[0]} IS NULL OR b.{keys[0]} IS NULL "
        f"OR NOT record_image_eq({images[0]}, {images[1]}))"
    )


def rows_as_of(history: History, epoch: int) -> str:
    """Return a FROM item `t` with the physical columns of the view's table at an epoch."""
    columns = ", ".join(quote_name(c.name) for c in history.rows.columns)
    return (
        f"(SELECT {columns} FROM ONLY {history.sql} "
        f"WHERE {history.column(0)} <= {epoch} AND {history.column(1)} > {epoch}) AS t"
    )


def rows_as_of_counted(history: History, epoch: int) -> str:
    """Return a query of the view's rows at an epoch: (epoch, count, columns)."""
    fields = ", ".join(f"t.{quote_name(f.name)}" for f in history.rows.fields)
    count = f"t.{quote_name(history.rows.count)}" if history.rows.is_multiset else "1::bigint"
    return f"SELECT {epoch}::bigint, {count}, {fields} FROM {rows_as_of(history, epoch)}"


def difference(history: History, from_epoch: int, to_epoch: int) -> str:
    """Return a query of what an epoch of a view has less another one: (hash, weight, columns).

    hash: of the key, as text, to order by. A row that both have, in different periods, is left out.
    """
    target = history.rows
    begins, ends = history.column(0), history.column(1)
    old = (
        f"SELECT * FROM ONLY {history.sql} WHERE {begins} <= {from_epoch} "
        f"AND {ends} > {from_epoch} AND {ends} <= {to_epoch} AND {ends} < {OPEN_EPOCH}"
    )
    new = (
        f"SELECT * FROM ONLY {history.sql} WHERE {begins} > {from_epoch} "
        f"AND {begins} <= {to_epoch} AND {ends} > {to_epoch}"
    )
    fields = [quote_name(f.name) for f in target.fields]
    if target.is_multiset:
        hash_name, count = quote_name(target.hash), quote_name(target.count)
        changed = f"coalesce(b.{count}, 0) - coalesce(a.{count}, 0)"
        shown = ", ".join(
            f"CASE WHEN b.{hash_name} IS NULL THEN a.{f} ELSE b.{f} END" for f in fields
        )
        return (
            f"SELECT coalesce(b.{hash_name}, a.{hash_name})::text, {changed}, {shown} "
            f"FROM ({old}) AS a FULL JOIN ({new}) AS b ON b.{hash_name} = a.{hash_name} "
            f"WHERE {changed} <> 0"
        )
    keys = [quote_name(c.name) for c in target.key_columns]
    same = " AND ".join(f"a.{k} = b.{k}" for k in keys)
    image = [f"ROW({', '.join(f'{side}.{f}' for f in fields)})" for side in "ab"]

    def part(side: str, weight: int, own: str, other: str) -> str:
        own_hash = key_hash(target, {i: f"{side}.{k}" for i, k in enumerate(keys)})
        shown = ", ".join(f"{side}.{f}" for f in fields)
        return (
            f"SELECT {own_hash}::text, {weight}::bigint, {shown} FROM ({own}) AS {side} "
            f"WHERE NOT EXISTS (SELECT FROM ({other}) AS {'b' if side == 'a' else 'a'} "
            f"WHERE {same} AND record_image_eq({image[0]}, {image[1]}))"
        )

    return f"{part('a', -1, old, new)} UNION ALL {part('b', 1, new, old)}"


def changes_between(history: History, after: int, until: int) -> str:
    """Return a query of the changes of each epoch in (after, until]: (epoch, weight, columns).

    Ordered by epoch, retractions first; the changes of one epoch are consolidated.
    """
    target = history.rows
    begins, ends = history.column(0), history.column(1)
    ended = f"{ends} > {after} AND {ends} <= {until} AND {ends} < {OPEN_EPOCH}"
    # A row of the first epoch had begun before.
    old = f"SELECT * FROM ONLY {history.sql} WHERE {ended}"
    new = f"SELECT * FROM ONLY {history.sql} WHERE {begins} > {after} AND {begins} <= {until}"
    a, b = (", ".join(f"{side}.{quote_name(f.name)}" for f in target.fields) for side in "ab")
    if not target.is_multiset:
        removed = f"SELECT a.{ends}, -1::bigint, {a} FROM ({old}) AS a"
        added = f"SELECT b.{begins}, 1::bigint, {b} FROM ({new}) AS b"
    else:
        hash_name, count = quote_name(target.hash), quote_name(target.count)
        same = f"a.{hash_name} = b.{hash_name} AND a.{ends} = b.{begins}"
        added = (
            f"SELECT b.{begins}, b.{count} - coalesce(a.{count}, 0), {b} "
            f"FROM ({new}) AS b LEFT JOIN ({old}) AS a ON {same}"
        )
        removed = (
            f"SELECT a.{ends}, -a.{count}, {a} FROM ({old}) AS a "
            f"WHERE NOT EXISTS (SELECT FROM ({new}) AS b WHERE {same})"
        )
    return f"{removed} UNION ALL {added} ORDER BY 1, 2"


@dataclass(frozen=True)
class ClosedWindows:
    """Epochs that closed windows of a view, in order, each up to a later edge than the one before.

    column, width_us: as SinkTable.final. after_us: up to where windows were closed before; None if
    none was. edges: (epoch, up to where it closed them), in microseconds since 2000 UTC.
    """

    column: int
    width_us: int
    after_us: int | None
    edges: Sequence[tuple[int, int]]


def final_rows(history: History, closed: ClosedWindows) -> str:
    """Return a query of the rows of windows that epochs closed: (epoch, count, columns).

    Each row has the values that it had in the epoch that closed its window. Ordered by epoch.
    """
    target = history.rows
    window = target.fields[closed.column]
    type, width_us = window.type, closed.width_us
    last = [last_closed(type, width_us, edge_us) for _, edge_us in closed.edges]
    first = None if closed.after_us is None else last_closed(type, width_us, closed.after_us)
    # As many of these bounds as are not after a value number the epoch that closed its window.
    bounds = [None if first is None else first + 1, *(value + 1 for value in last)]
    epochs = ", ".join(str(epoch) for epoch, _ in closed.edges)
    begins, ends = history.column(0), history.column(1)
    fields = ", ".join(f"h.{quote_name(f.name)}" for f in target.fields)
    count = f"h.{quote_name(target.count)}" if target.is_multiset else "1::bigint"
    value = quote_name(window.name)
    shown = f"ARRAY[{', '.join(_bound(bound, type) for bound in bounds)}]"
    return (
        f"SELECT e.epoch, {count}, {fields} FROM ONLY {history.sql} AS h "
        f"CROSS JOIN LATERAL (SELECT width_bucket(h.{value}, {shown})) AS w(number) "
        f"JOIN unnest(ARRAY[{epochs}]::bigint[]) WITH ORDINALITY AS e(epoch, number) "
        f"ON e.number = w.number WHERE h.{begins} <= {closed.edges[-1][0]} "
        f"AND h.{ends} > {closed.edges[0][0]} AND h.{begins} <= e.epoch AND h.{ends} > e.epoch "
        "ORDER BY 1"
    )


def _bound(value: int | None, type: SqlType) -> str:
    """Return a date or timestamp in SQL; None is before all, as is what PostgreSQL cannot have."""
    days, rest_us = (value or 0, 0)
    if type.kind is not TypeKind.DATE:
        days, rest_us = divmod(days, _DAY_US)
    if value is None or days <= _FIRST_DAY:
        return f"'-infinity'::{type.name}"
    if days >= (_DATE_END if type.kind is TypeKind.DATE else _TIMESTAMP_END):
        return f"'infinity'::{type.name}"
    if type.kind is TypeKind.DATE:
        return f"(date '2000-01-01' + {days})"
    moment = (
        f"timestamp '2000-01-01' + make_interval(days => {days}) "
        f"+ {rest_us} * interval '1 microsecond'"
    )
    return (
        f"(({moment}) AT TIME ZONE 'UTC')" if type.kind is TypeKind.TIMESTAMPTZ else f"({moment})"
    )


def history_target(table: SinkTable, name: str, period: Sequence[str]) -> History:
    """Return the history of a view from its facts in the catalog."""
    return History(target_of(table), name, tuple(period))
