"""Values between PostgreSQL's text form and our physical columns, whole columns at a time.

PostgreSQL's text output under types.SESSION_SETTINGS is the one exchange form: the replication
stream, COPY, literals, the evaluator, error rows and the sink all go through here. Both
directions are exact: to_text(from_text(x)) is x for every text that PostgreSQL prints.
"""

from __future__ import annotations

from dataflow.delta import Column
from dataflow.types import SqlType


def from_text(type: SqlType, texts: Column) -> Column:
    """Physical column of `type` from a bytes column of PostgreSQL's text output; NULL stays NULL.

    ValueError names the first text that is not of the type.
    """
    raise NotImplementedError


def to_text(type: SqlType, column: Column) -> Column:
    """Bytes column of PostgreSQL's text output of each value; NULL stays NULL."""
    raise NotImplementedError
