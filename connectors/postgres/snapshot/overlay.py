"""Tables as of a moment after a snapshot, as queries over that snapshot.

The changes since the snapshot are collected by key. The query omits the rows under these keys and
adds the new ones. Invariant: the query returns exactly the table's rows after the last collected
change, whatever the order and number of changes. One thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from connectors.postgres.session.quoting import quote_name, quote_text
from dataflow.changes import Changes
from dataflow.delta import Column, Delta
from dataflow.schema import Relation
from dataflow.sql.bind.analysis import Table
from dataflow.types import SqlType
from dataflow.values import from_text, to_text

Texts = tuple[str | None, ...]


@dataclass(frozen=True)
class Unsent:
    """An unchanged value that was not sent: that of the snapshot's row under this key."""

    key: Texts


Row = tuple[str | Unsent | None, ...]


@dataclass
class Overlay:
    """The changes of one relation.

    rows: by key, None where the row is gone. For a relation without key, `moved` counts each added
    row (removed, where negative).
    """

    relation: Relation
    is_emptied: bool = False
    rows: dict[Texts, Row | None] = field(default_factory=dict)
    moved: Counter[Texts] = field(default_factory=Counter)

    def __len__(self) -> int:
        return len(self.rows) + len(self.moved)

    @property
    def is_changed(self) -> bool:
        """Return whether the table differs from the snapshot's, or may."""
        return self.is_emptied or bool(self.rows) or any(self.moved.values())

    def add(self, changes: Changes) -> None:
        """Add the changes that follow, in order."""
        columns = [
            to_text(f.type, c).texts()
            for f, c in zip(self.relation.fields, changes.columns, strict=True)
        ]
        old: Row | None = None
        for i, kind in enumerate(changes.kinds.tolist()):
            row: Row = tuple(texts[i] for texts in columns)
            if kind == Changes.TRUNCATE:
                self.is_emptied = True
                self.rows.clear()
                self.moved.clear()
            elif kind in (Changes.OLD, Changes.OLD_KEY):
                old = self._before(row, is_whole=kind == Changes.OLD)
                self._remove(row)
            elif kind in (Changes.DELETE, Changes.DELETE_KEY):
                self._remove(row)
            elif kind == Changes.NEW:
                missing = [c for c, flags in changes.unchanged.items() if flags[i]]
                before = old if old is not None else self._before(row, is_whole=False)
                self._put(tuple(before[c] if c in missing else x for c, x in enumerate(row)))
                old = None
            else:
                self._put(row)

    def resolve(self, fetch: Callable[[Relation, Delta], Iterable[Delta]]) -> None:
        """Look up the values that were not sent. fetch: the snapshot's rows under some keys."""
        unsent_keys = {
            cell.key: None
            for row in self.rows.values()
            for cell in row or ()
            if isinstance(cell, Unsent)
        }
        if not unsent_keys:
            return
        types = [self.relation.fields[i].type for i in self.relation.key]
        keys = [
            from_text(t, Column.of("s", [key[i] for key in unsent_keys]))
            for i, t in enumerate(types)
        ]
        requested = Delta(keys, Column.of("i", [1] * len(unsent_keys)).values)
        found = {}
        for delta in fetch(self.relation, requested):
            fields = zip(self.relation.fields, delta.columns, strict=True)
            for row in zip(*(to_text(f.type, c).texts() for f, c in fields), strict=True):
                found[self._key_of(row)] = row
        for key, row in self.rows.items():
            if row is not None:
                cells = enumerate(row)
                self.rows[key] = tuple(
                    found[x.key][c] if isinstance(x, Unsent) else x for c, x in cells
                )

    def query(self, table: Table) -> str:
        """Return a query of the table's rows, in its own columns."""
        parts = [] if self.is_emptied else [self._left(table)]
        if self.relation.key:
            new = [row for row in self.rows.values() if row is not None]
        else:
            new = [row for row, n in self.moved.items() for _ in range(max(n, 0))]
        if new or not parts:
            parts.append(self._added(table, new))
        return " UNION ALL ".join(parts)

    # --- inside --------------------------------------------------------------------------------

    def _key_of(self, row: Sequence[object]) -> Texts:
        return tuple(row[i] for i in self.relation.key)  # type: ignore[misc]

    def _before(self, row: Row, *, is_whole: bool) -> Row:
        """Return the previous row; `row` has at least its key."""
        if is_whole:
            return row
        key = self._key_of(row)
        current = self.rows.get(key)
        return current if current is not None else (Unsent(key),) * len(row)

    def _put(self, row: Row) -> None:
        if self.relation.key:
            self.rows[self._key_of(row)] = row
        else:
            self.moved[row] += 1  # type: ignore[index]

    def _remove(self, row: Row) -> None:
        if self.relation.key:
            self.rows[self._key_of(row)] = None
        else:
            self.moved[row] -= 1  # type: ignore[index]

    def _left(self, table: Table) -> str:
        """Return a query of the snapshot's rows that still exist."""
        shown = ", ".join(f"b.{quote_name(name)}" for name, _ in table.columns)
        name = self.relation.name
        base = f"{quote_name(name.schema)}.{quote_name(name.name)}"
        fields = self.relation.fields
        if self.relation.key:
            columns = [fields[i] for i in self.relation.key]
            gone = _rows([f.type for f in columns], list(self.rows))
            same = " AND ".join(
                f"g.c{i} = b.{quote_name(f.name)}" for i, f in enumerate(columns, 1)
            )
            is_gone = f"EXISTS (SELECT FROM ({gone}) g WHERE {same})"
            return f"SELECT {shown} FROM {base} b WHERE NOT {is_gone}"
        whole = ", ".join(f"b.{quote_name(f.name)}" for f in fields)
        types = [f.type for f in fields]
        gone = _rows(types, [row for row, n in self.moved.items() for _ in range(-min(n, 0))])
        cells = ", ".join(f"g.c{i}" for i in range(1, len(fields) + 1))
        return (
            f"SELECT {shown} FROM (SELECT b.*, ROW({whole})::text AS tidemark_row, row_number() "
            f"OVER (PARTITION BY ROW({whole})::text) AS tidemark_number FROM {base} b) b "
            f"LEFT JOIN (SELECT ROW({cells})::text AS tidemark_row, count(*) AS n FROM ({gone}) g "
            "GROUP BY 1) g USING (tidemark_row) WHERE b.tidemark_number > coalesce(g.n, 0)"
        )

    def _added(self, table: Table, rows: Sequence[Row]) -> str:
        """Return a query of new rows in the table's columns; generated columns are computed."""
        fields = self.relation.fields
        typed = _rows([f.type for f in fields], rows)  # type: ignore[arg-type]
        names = ", ".join(quote_name(f.name) for f in fields)
        shown = ", ".join(
            quote_name(fields[what].name)
            if isinstance(what, int)
            else f"({what}) AS {quote_name(n)}"
            for n, what in table.columns
        )
        return f"SELECT {shown} FROM ({typed}) AS n({names})"


def _rows(types: Sequence[SqlType], rows: Sequence[Texts]) -> str:
    """Return a query of the rows, in columns c1, c2 ... of the types."""
    arrays = [
        "ARRAY[" + ", ".join(_cell(row[i]) for row in rows) + "]::text[]" for i in range(len(types))
    ]
    raw = ", ".join(f"c{i}" for i in range(1, len(types) + 1))
    typed = ", ".join(
        f"(c{i}::{t.name})" + (f" COLLATE {t.collation}" if t.collation else "") + f" AS c{i}"
        for i, t in enumerate(types, 1)
    )
    return f"SELECT {typed} FROM unnest({', '.join(arrays)}) AS u({raw})"


def _cell(text: str | None) -> str:
    return "NULL" if text is None else quote_text(text)
