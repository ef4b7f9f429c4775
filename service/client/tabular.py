"""Answers as tables of other packages, and as a small table in a notebook.

Invariant: a table has all rows, and every value exactly or not at all. What a notebook shows is
bounded and escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from itertools import islice
from typing import TYPE_CHECKING, Any

from service.client.packages import package
from service.client.table import WEIGHT, Table

if TYPE_CHECKING:
    import pandas
    import polars  # pyright: ignore[reportMissingImports]
    import pyarrow

# What str() and a notebook show.
SHOWN_ROWS = 20
_SHOWN_COLUMNS = 50
_SHOWN_CHARACTERS = 200


class Tabular:
    """What has rows in memory; docs/PYTHON.md lists the types of each kind of table."""

    def _table(self) -> Table:
        raise NotImplementedError

    def to_arrow(self, types: Mapping[str, pyarrow.DataType] | None = None) -> pyarrow.Table:
        """Return the rows as an Arrow table; of changes with a last column `_weight` (int64).

        types: override those of some columns. TidemarkError rows.not_in_arrow for a value that the
        type cannot represent; package.missing without pyarrow.
        """
        package("pyarrow", "to_arrow()")
        from service.client.arrow import table_of

        fields, rows, weights = self._table()
        return table_of(fields, rows, types or {}, None if weights is None else (WEIGHT, weights))

    def to_pandas(self) -> pandas.DataFrame:
        """Return the rows as a pandas DataFrame; of changes with a last column `_weight`.

        Types that have NULL: Int64, Float64, boolean, string, datetime64[us]; numeric is a column
        of Decimal. TidemarkError rows.not_in_frame, package.missing.
        """
        package("pandas", "to_pandas()")
        from service.client.pandas_frame import frame_of

        return frame_of(self._table())

    def to_polars(self) -> polars.DataFrame:
        """Return the rows as a polars DataFrame; of changes with a last column `_weight`.

        numeric is polars' Decimal, timestamptz a Datetime in UTC, an array a List. TidemarkError
        rows.not_in_frame, package.missing.
        """
        package("polars", "to_polars()")
        from service.client.polars_frame import frame_of

        return frame_of(self._table())

    def _repr_html_(self) -> str:
        return html_of(self._table())


def lines_of(rows: Iterable[Any]) -> str:
    """Return the first rows as text, one a line, and "..." if there are more."""
    found = list(islice(rows, SHOWN_ROWS + 1))
    lines = [repr(row) for row in found[:SHOWN_ROWS]]
    lines += ["..."] if len(found) > SHOWN_ROWS else []
    return "\n".join(lines) or "(no rows)"


def html_of(table: Table, *, is_part: bool = False) -> str:
    """Return the first rows as an HTML table. is_part: there are more rows than the table has."""
    shown = table.rows[:SHOWN_ROWS]
    fields = list(table.fields[:_SHOWN_COLUMNS])
    names = [(f.name, f.type) for f in fields]
    columns = [[row[i] for row in shown] for i in range(len(fields))]
    if table.weights is not None:
        names.append((WEIGHT, "bigint"))
        columns.append(list(table.weights[: len(shown)]))
    head = "".join(f'<th title="{escape(kind)}">{escape(name)}</th>' for name, kind in names)
    body = "".join(
        f"<tr>{''.join(_cell(column[i]) for column in columns)}</tr>" for i in range(len(shown))
    )
    hidden = len(table.fields) - len(fields)
    more = f", {hidden} more columns" if hidden else ""
    return (
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        f"<p>{_count(len(table.rows), len(shown), is_part)}{more}</p>"
    )


def _count(rows: int, shown: int, is_part: bool) -> str:
    """
    >>> _count(1, 1, False), _count(1000, 20, False), _count(21, 20, True)
    ('1 row', 'first 20 of 1,000 rows', 'first 20 rows')
    """
    if is_part:
        return f"first {shown} rows"
    number = f"{rows:,} row" + ("" if rows == 1 else "s")
    return number if shown == rows else f"first {shown} of {number}"


def _cell(value: Any) -> str:
    """
    >>> _cell(None), _cell("<b>"), len(_cell("x" * 1000))
    ('<td><i>NULL</i></td>', '<td>&lt;b&gt;</td>', 212)
    """
    if value is None:
        return "<td><i>NULL</i></td>"
    text = str(value)
    if len(text) > _SHOWN_CHARACTERS:
        text = text[:_SHOWN_CHARACTERS] + "..."
    return f"<td>{escape(text)}</td>"
