"""What was done to the tables of a run, and whether that is a reason for a view to fail.

Names come and go; so a view may have meant any table that ever had a name of its query, and any
column of it likewise. Invariant: a view that uses nothing that was touched is not touched.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from tests.simulation.ddl_analysis import plain_columns_in, tables_in
from tests.simulation.ddl_tables import Shape, first_shapes
from tests.simulation.faults import Violation
from tests.simulation.reads import reads

# By code, the statements of which one must have touched what a view uses.
REASONS = {
    "source.table_missing": {"drop table"},
    "source.column_dropped": {"drop column"},
    "source.column_changed": {"type", "null"},
    # A column that was touched in a table that was rewritten, be it for another column.
    "source.table_rewritten": {"rewrite", "type"},
    "source.key_changed": {"identity", "key"},
    "source.not_published": {"unpublish"},
    "source.published_again": {"unpublish"},
    # Names alone are followed, from when a view was asked for.
    "sql.undefined_table": {"drop table"},
    "sql.undefined_column": {"drop table", "drop column"},
}
# These are for who uses a table, whatever of it was touched.
OF_TABLES = {"source.schema_changed", "source.name_in_use", "source.table_rewritten"}
OF_TABLES |= {"sql.undefined_table", "sql.undefined_column", "sql.undefined_function"}


class Past:
    """One for a run."""

    def __init__(self) -> None:
        self._labels: dict[str, set[str]] = defaultdict(set)
        self._numbers: dict[tuple[str, str], set[int]] = defaultdict(set)
        self._places: dict[tuple[str, int], set[int]] = defaultdict(set)
        self._keys: dict[str, set[int]] = defaultdict(set)
        self._done: list[tuple[str, str, int]] = []
        for shape in first_shapes():
            self._note(shape)

    def _note(self, shape: Shape) -> None:
        self._labels[shape.name].add(shape.label)
        # Whoever reads a table tells its rows apart by these.
        self._keys[shape.label].update(shape.key)
        for offset, column in enumerate(shape.columns):
            self._numbers[shape.label, column.field.name].add(column.number)
            self._places[shape.label, offset].add(column.number)

    def done(self, kind: str, before: Shape | None, after: Shape | None, number: int) -> None:
        """A statement of this kind on a table, and on a column of it where there is a number."""
        for shape in (before, after):
            if shape is not None:
                self._note(shape)
        changed = before or after
        assert changed is not None
        self._done.append((kind, changed.label, number))

    def require_reason(self, title: str, query: str, code: str) -> None:
        """Violation where a view fails, or is rebuilt, by this code and nothing that it may use was
        touched so."""
        if not code.startswith(("source.", "sql.")):
            return
        if code not in {*REASONS, *OF_TABLES}:
            raise Violation(f"{title} is told {code}, which no change of a table is a reason for")
        touched = [d for d in self._done if d[0] in REASONS.get(code, (d[0],))]
        labels = {label for name in tables_in(query) for label in self._labels[name]}
        columns = plain_columns_in(query)
        if code == "source.schema_changed" and sum(d[1] in labels for d in touched) < 2:
            raise Violation(f"{title} is told {code}, where one change alone could not be followed")
        for _, label, number in touched:
            if label not in labels:
                continue
            named = number in self._named(query, label, columns)
            if code in OF_TABLES or number in {0, *self._keys[label]} or named:
                return
        raise Violation(f"{title} is told {code}, and nothing was done that would be a reason")

    def _named(self, query: str, label: str, columns: Iterable[str]) -> set[int]:
        """The numbers of the columns that a query may mean by these names."""
        expected = set(columns)
        found = {n for column in expected for n in self._numbers[label, column]}
        for read in reads(query):
            offsets = (i for i, name in enumerate(read.columns) if name in expected)
            if label in self._labels[read.name]:
                found |= {n for offset in offsets for n in self._places[label, offset]}
        return found
