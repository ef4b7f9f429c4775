"""Who changes tables in a simulation, and who writes to tables that change.

Invariant: what is done is what PostgreSQL would let them do: nobody writes to a table that somebody
else is changing, nobody changes one that is being read, and rows fit the table as it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from random import Random
from typing import Any

from dataflow.schema import Field
from dataflow.types import INT4, INT8
from tests.simulation.ddl_past import Past
from tests.simulation.ddl_tables import ALTER, Column, DdlServer, Shape, first_shapes, rewritten
from tests.simulation.faults import Faults
from tests.simulation.people import Application
from tests.simulation.server import Row
from tests.simulation.shop import TABLES, Change

# A statement: its kind, the table before and after, the column that it is about or 0.
Statement = tuple[str, Shape | None, Shape | None, int]
FIRST_OWN_KEY = 1_000_000
MAX_COLUMNS = 12


class DdlApplication(Application):
    """As Application, to all tables that nobody changes."""

    def __init__(self, server: DdlServer, random: Random, first_key: int = 1) -> None:
        super().__init__(server, random)
        self._tables = server
        self._next = first_key
        self._shapes: dict[str, Shape] = {}
        self._held: dict[str, Any] = {}

    def transaction(self) -> list[Change]:
        random = self._random
        kind = random.random()
        if kind < 0.05:
            return []
        size = random.randint(20, 60) if kind < 0.1 else random.choice((1, 1, 2, 3, 6))
        self.begin(label for label in self._tables.now if self._tables.is_free([label]))
        return self.changes(size)

    def begin(self, labels: Iterable[str]) -> None:
        """A transaction that may write to these tables."""
        now = self._tables.now
        self._shapes = {label: now[label] for label in sorted(labels) if now[label].is_altered}
        self._held = {label: self._rows_of(label) for label in self._shapes}

    def _rows_of(self, label: str) -> Any:
        rows = self._tables.tables[label]
        return dict.fromkeys(rows.elements()) if self._shapes[label].key else rows.copy()

    def changes(self, size: int) -> list[Change]:
        """Some rows, legal after what the transaction has done."""
        found: list[Change] = []
        for _ in range(size if self._shapes else 0):
            label = self._random.choice(list(self._shapes))
            write = self._keyed if self._shapes[label].key else self._tag
            found.append(write(label, self._held[label]))
        return found

    def alter(self, before: Shape | None, after: Shape | None) -> Change:
        """A statement in the transaction."""
        made = before or after
        assert made is not None
        if after is None:
            self._shapes.pop(made.label)
            self._held.pop(made.label)
        else:
            rows = self._held.get(made.label, {} if after.key else Counter())
            moved = {rewritten(row, before, after): n for row, n in rows.items()}
            self._held[made.label] = moved if after.key else Counter(moved)
            self._shapes[made.label] = after
        return (made.label, ALTER, before, after)  # type: ignore[return-value]

    def _row(self, name: str, number: int, old: Row | None = None) -> Row:
        return self._filled(name, super()._row(self._shapes[name].template, number, old))

    def _tag_row(self, name: str) -> Row:
        return self._filled(name, super()._tag_row(name))

    def _filled(self, label: str, row: Row) -> Row:
        """With values for the columns that were added, and NULLs where there may be some now."""
        random, shape = self._random, self._shapes[label]
        first = TABLES[shape.template].fields
        values: list[Any] = list(row)
        for number in range(1, shape.width + 1):
            column = shape.column(number)
            may_be_null = column is not None and column.field.is_nullable
            if number > len(first):
                values.append(self._added(column, may_be_null=may_be_null))
            elif may_be_null and not first[number - 1].is_nullable and random.random() < 0.2:
                values[number - 1] = None
        return tuple(values)

    def _added(self, column: Column | None, *, may_be_null: bool) -> Any:
        if column is None or (may_be_null and self._random.random() < 0.3):
            return None
        number = self._random.randint(1, 9)
        return number if column.field.type in (INT4, INT8) else f"added {number}"


class Changer:
    """Someone who changes tables, one transaction after the other. has_keys: their keys too."""

    def __init__(
        self, server: DdlServer, faults: Faults, past: Past, random: Random, *, has_keys: bool
    ) -> None:
        self._server = server
        self._faults = faults
        self._past = past
        self._random = random
        self._has_keys = has_keys
        self._writer = DdlApplication(server, random, FIRST_OWN_KEY)
        self._oid = max(r.oid for r in TABLES.values()) + 100

    def act_for_a_while(self) -> None:
        """Now and then, until it grows calm."""
        while True:
            self._faults.pause(self._random.uniform(0.1, 4.0))
            if self._faults.is_calm:
                return
            if self._faults.happens("ddl.statement"):
                change = self._publish if self._random.random() < 0.1 else self._change
                change()

    def _change(self) -> None:
        """One transaction, with the locks that it takes and what it waits for."""
        server, random = self._server, self._random
        statements = self._drawn()
        labels = {s.label for _, *both, _ in statements for s in both if isinstance(s, Shape)}
        self._faults.pause(random.uniform(1, 8), lambda: not server.is_read(labels))
        if server.is_read(labels) or not statements:
            return
        server.locked = labels
        if random.random() < 0.3:
            # The transaction continues for a while, with its locks.
            self._faults.pause(random.uniform(0, 1.2))
        changes = self._written(statements)
        commit = server.commit(changes, self._faults.now)
        reported = "; ".join(self._told(*statement) for statement in statements)
        self._faults.trace("ddl", f"{len(server.log)} at {commit.end}: {reported}")
        # The catalog shows it a moment after the WAL has it.
        self._faults.pause(random.choice((0.0, 0.001, 0.02, 0.2)))
        server.show()

    def _publish(self) -> None:
        """Someone takes a table out of the publication, and puts it in again or not."""
        server, random = self._server, self._random
        found = server.memberships.keys() & server.now.keys() - server.locked
        labels = sorted(label for label in found if server.now[label].is_altered)
        if not labels:
            return
        shape = server.now[random.choice(labels)]
        server.unpublish(shape.label)
        self._past.done("unpublish", shape, shape, 0)
        self._faults.trace("ddl", f"{len(server.log)}: unpublish {shape.label} {shape.name}")
        if random.random() < 0.5:
            self._faults.pause(random.choice((0.001, 0.1, 2.0)))
            if shape.label in server.now:
                server.publish(shape.label)
                self._faults.trace("ddl", f"{len(server.log)}: publish {shape.label}")

    def _written(self, statements: list[Statement]) -> list[Change]:
        """The statements with rows before, between and after them."""
        random, writer = self._random, self._writer
        writer.begin(self._server.now)
        changes = writer.changes(random.choice((0, 0, 1, 3)))
        for kind, before, after, number in statements:
            changes.append(writer.alter(before, after))
            self._past.done(kind, before, after, number)
            changes += writer.changes(random.choice((0, 0, 1, 3)))
        return changes

    def _told(self, kind: str, before: Shape | None, after: Shape | None, number: int) -> str:
        shown = []
        for shape in (before, after):
            column = shape.column(number) if shape is not None and number else None
            name = "nothing" if shape is None else f"{shape.label} {shape.name}"
            shown.append(f"{name}.{column.field.name}" if column is not None else name)
        return f"{kind} {' -> '.join(shown)}"

    # --- what is done ----------------------------------------------------------------------------

    def _drawn(self) -> list[Statement]:
        """Statements that follow one another."""
        random, now = self._random, {n: s for n, s in self._server.now.items() if s.is_altered}
        found: list[Statement] = []
        for _ in range(random.choice((1, 1, 1, 2, 3))):
            for statement in self._one(now):
                _, before, after, _ = statement
                if before is not None:
                    del now[before.label]
                if after is not None:
                    now[after.label] = after
                found.append(statement)
        return found

    def _one(self, now: dict[str, Shape]) -> list[Statement]:
        random = self._random
        ways: list[Callable[[Shape, dict[str, Shape]], list[Statement]]] = [
            *(3 * [self._rename_table]),
            *(4 * [self._rename_column]),
            *(3 * [self._add_column]),
            *(2 * [self._drop_column]),
            *(2 * [self._touch_column]),
            *(2 * [self._change_column]),
            self._make_column_again,
            self._change_identity,
            self._drop_table,
            *([self._change_key] if self._has_keys else []),
        ]
        lacking = TABLES.keys() - {shape.template for shape in now.values()}
        if lacking and random.random() < 0.5:
            return self._create_table(random.choice(sorted(lacking)), now)
        table = random.choice([now[label] for label in sorted(now)])
        return random.choice(ways)(table, now)

    def _rename_table(self, table: Shape, now: dict[str, Shape]) -> list[Statement]:
        taken = {shape.name for shape in now.values()}
        name = self._name(table.template, taken)
        return [("rename table", table, replace(table, name=name), 0)]

    def _rename_column(self, table: Shape, now: dict[str, Shape]) -> list[Statement]:
        column = self._random.choice(table.columns)
        names = [f.name for f in TABLES[table.template].fields]
        first = names[column.number - 1] if column.number <= len(names) else "extra"
        if self._random.random() < 0.2:
            # One that another column has had.
            first = self._random.choice(names)
        taken = {c.field.name for c in table.columns}
        field = replace(column.field, name=self._name(first, taken))
        return [("rename column", *self._with(table, column, field=field), column.number)]

    def _add_column(self, table: Shape, now: dict[str, Shape]) -> list[Statement]:
        if table.width >= MAX_COLUMNS:
            return []
        random, number = self._random, table.width + 1
        taken = {c.field.name for c in table.columns}
        first = random.choice(("extra", *(f.name for f in TABLES[table.template].fields)))
        default = random.choice((None, 7))
        is_nullable = default is None or random.random() < 0.5
        field = Field(self._name(first, taken), INT4, is_nullable)
        columns = (*table.columns, Column(number, field, default=default))
        after = replace(table, columns=columns, width=number)
        return [("add column", table, after, number)]

    def _drop_column(self, table: Shape, now: dict[str, Shape]) -> list[Statement]:
        first = len(TABLES[table.template].fields)
        others = [c for c in table.columns if c.number not in table.key]
        added = [c for c in others if c.number > first]
        if added and self._random.random() < 0.6:
            others = added
        if len(others) < 2:
            return []
        column = self._random.choice(others)
        after = replace(table, columns=tuple(c for c in table.columns if c is not column))
        return [("drop column", table, after, column.number)]

    def _touch_column(self, table: Shape, now: dict[str, Shape]) -> list[Statement]:
        """As SET DEFAULT: nothing that a view could see."""
        column = self._random.choice(table.columns)
        return [("touch", *self._with(table, column), column.number)]

    def _change_column(self, table: Shape, now: dict[str, Shape]) -> list[Statement]:
        random, column = self._random, self._random.choice(table.columns)
        is_key, field = column.number in table.key, column.field
        ways = []
        if field.type == INT4:
            ways.append(("type", {"field": replace(field, type=INT8)}))
        if not field.is_nullable and not is_key:
            ways.append(("null", {"field": replace(field, is_nullable=True)}))
        if field.type in (INT4, INT8) and not is_key:
            ways.append(("rewrite", {"raised": column.raised + 1}))
        if not ways:
            return []
        kind, changes = random.choice(ways)
        before, after = self._with(table, column, **changes)
        file = table.file if kind == "null" else table.file + 1
        return [(kind, before, replace(after, file=file), column.number)]

    def _change_identity(self, table: Shape, now: dict[str, Shape]) -> list[Statement]:
        """REPLICA IDENTITY FULL, or DEFAULT again."""
        if not table.key:
            return []
        return [("identity", table, replace(table, tells_all=not table.tells_all), 0)]

    def _change_key(self, table: Shape, now: dict[str, Shape]) -> list[Statement]:
        """Another primary key: the second column comes to it, or leaves it."""
        second = table.column(2)
        if not table.key or second is None or second.field.is_nullable:
            return []
        key = table.key[:1] if len(table.key) > 1 else (*table.key, second.number)
        return [("key", table, replace(table, key=key), 0)]

    def _make_column_again(self, table: Shape, now: dict[str, Shape]) -> list[Statement]:
        dropped = self._drop_column(table, now)
        if not dropped or table.width >= MAX_COLUMNS:
            return []
        [(_, _, between, number)] = dropped
        gone = table.column(number)
        assert between is not None and gone is not None
        field = replace(gone.field, is_nullable=True)
        columns = (*between.columns, Column(between.width + 1, field))
        after = replace(between, columns=columns, width=between.width + 1)
        return [*dropped, ("add column", between, after, after.width)]

    def _drop_table(self, table: Shape, now: dict[str, Shape]) -> list[Statement]:
        dropped: list[Statement] = [("drop table", table, None, 0)]
        if self._random.random() < 0.3:
            return dropped if len(now) > 2 else []
        left = {label: shape for label, shape in now.items() if shape is not table}
        name = table.name if self._random.random() < 0.7 else ""
        return [*dropped, *self._create_table(table.template, left, name)]

    def _create_table(
        self, template: str, now: dict[str, Shape], name: str = ""
    ) -> list[Statement]:
        taken = {shape.name for shape in now.values()}
        first = next(s for s in first_shapes() if s.template == template)
        self._oid += 1
        name = name or self._name(template, taken)
        return [("create table", None, replace(first, oid=self._oid, name=name), 0)]

    def _with(self, table: Shape, column: Column, **changes: Any) -> tuple[Shape, Shape]:
        """The table before and after a column of it is touched."""
        touched = replace(column, version=column.version + 1, **changes)
        columns = tuple(touched if c is column else c for c in table.columns)
        return table, replace(table, columns=columns)

    def _name(self, first: str, taken: set[str]) -> str:
        """Mostly the first one where that is free; else one that is."""
        if first not in taken and self._random.random() < 0.6:
            return first
        free = [n for n in (f"{first}_{i}" for i in range(1, 9)) if n not in taken]
        return self._random.choice(free[:3])
