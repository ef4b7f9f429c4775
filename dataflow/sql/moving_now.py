"""now() that moves: the query reads the one row of a clock where it says now().

`MovingNow` stands before an analyzer. It has PostgreSQL analyze the canonical text once more, with
a scalar subquery over the clock's relation for each value of the current moment, in the query and
in the ordinary views below it. From there on nothing is special: a tick is a change of one row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dataflow.errors import SqlError
from dataflow.lexer import find_words
from dataflow.schema import Field
from dataflow.sql.bind.analysis import Analysis, Analyzer, Routine, Table
from dataflow.sql.parse.flatten import flattened
from dataflow.types import SqlType

# PostgreSQL's texts of the moment at which a transaction began, and what each is of now().
_OF_NOW = {
    "now()": "",
    "transaction_timestamp()": "",
    "CURRENT_TIMESTAMP": "",
    "CURRENT_DATE": "::date",
    "CURRENT_TIME": "::time with time zone",
    "LOCALTIMESTAMP": "::timestamp without time zone",
    "LOCALTIME": "::time without time zone",
}
_OTHER_MOMENTS = ("statement_timestamp", "clock_timestamp", "timeofday")


def texts_of_now(value: str) -> dict[str, str]:
    """Return what stands for each text of the current moment; value: SQL of a timestamptz.

    >>> texts_of_now("c.at")["CURRENT_DATE"]
    '(c.at)::date'
    """
    return {text: f"({value}){cast}" if cast else value for text, cast in _OF_NOW.items()}


class ClockMissingError(SqlError):
    """A view reads the clock, which is not declared yet. reader: what of the view."""

    def __init__(self, reader: str) -> None:
        super().__init__(
            code="sql.no_clock",
            what=f"{reader} needs the clock, which does not exist",
            hint='declare a source "clock" of type "clock", or use options.now "pinned"',
        )


class MovingNow:
    """An Analyzer for which now() is the clock's row.

    clock: its relation as SQL names it, "" if it does not exist.
    """

    def __init__(self, analyzer: Analyzer, clock: str) -> None:
        self._analyzer = analyzer
        self._clock = clock
        self._texts = texts_of_now(f"(SELECT tidemark_now.at FROM {clock} tidemark_now)")

    @property
    def time_zone(self) -> str:
        """As the analyzer."""
        return self._analyzer.time_zone

    def analyze(self, query: str) -> Analysis:
        """As the analyzer. SqlError for a moment that no epoch has; ClockMissingError."""
        found = self._analyzer.analyze(query)
        for routine in found.routines:
            name = routine.name.rpartition(".")[2]
            if name in _OTHER_MOMENTS:
                raise SqlError(
                    "sql.not_maintained",
                    f'"{name}" has no value that an epoch could have',
                    hint="write now(), which is the moment of the epoch",
                    position=find_words(query, [name]),
                )
        return self._moved(found)

    def relation(self, schema: str, name: str) -> Table | Analysis:
        """As the analyzer, with the queries of ordinary views moved too."""
        found = self._analyzer.relation(schema, name)
        return self._moved(found) if isinstance(found, Analysis) else found

    def types(self, columns: Sequence[SqlType], expressions: Sequence[str]) -> tuple[SqlType, ...]:
        """As the analyzer."""
        return self._analyzer.types(columns, expressions)

    def routines(self, columns: Sequence[SqlType], expression: str) -> tuple[Routine, ...]:
        """As the analyzer."""
        return self._analyzer.routines(columns, expression)

    def check_collations(self, columns: Sequence[SqlType], expressions: Sequence[str]) -> None:
        """As the analyzer."""
        self._analyzer.check_collations(columns, expressions)

    def columns(self, columns: Sequence[SqlType], function: str) -> tuple[Field, ...]:
        """As the analyzer."""
        return self._analyzer.columns(columns, function)

    def constants(self, expressions: Sequence[str], types: Sequence[SqlType]):
        """As the analyzer."""
        return self._analyzer.constants(expressions, types)

    def _moved(self, analysis: Analysis) -> Analysis:
        text = moved(analysis.text, self._texts)
        if text == analysis.text:
            return analysis
        if not self._clock:
            raise ClockMissingError("now()")
        return self._analyzer.analyze(text)


def moved(text: str, texts: Mapping[str, str]) -> str:
    """Return a canonical text with what stands for its texts of the current moment."""
    return flattened(text, lambda schema, name: None, texts)
