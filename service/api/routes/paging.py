"""Pages of lists: parameters `limit` and `after`, and `next` in the response."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Annotated, TypeVar

from fastapi import Query
from pydantic import BeforeValidator

T = TypeVar("T")


def _in_digits(value: object) -> object:
    """Accept integers written in digits only. ValueError for "2.0", which pydantic would accept."""
    if isinstance(value, str) and not re.fullmatch("[+-]?[0-9]+", value):
        raise ValueError("Input should be an integer written in digits")
    return value


# A query parameter.
Whole = Annotated[int, BeforeValidator(_in_digits)]
Limit = Annotated[Whole | None, Query(ge=1, le=1000, description="page size; default: all")]
After = Annotated[str, Query(max_length=200, description="`next` of the previous page")]


def one_more(limit: int | None) -> int | None:
    """Return how many to read in order to know whether there are more.

    >>> one_more(10), one_more(None)
    (11, None)
    """
    return None if limit is None else limit + 1


def paged(
    found: Sequence[T], limit: int | None, name: Callable[[T], str]
) -> tuple[list[T], str | None]:
    """Return the page out of `one_more` items, and the name of its last item if there are more.

    >>> paged(["a", "b", "c"], 2, str)
    (['a', 'b'], 'b')
    """
    shown = list(found[:limit])
    has_more = limit is not None and len(found) > limit
    return shown, name(shown[-1]) if has_more else None
