"""Lists in pages: `limit` and `after` in, some and `next` out."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Annotated, TypeVar

from fastapi import Query
from pydantic import BeforeValidator

T = TypeVar("T")


def _in_digits(value: object) -> object:
    """As its description has it: "2.0" is no integer, though one could take it for 2."""
    if isinstance(value, str) and not re.fullmatch("[+-]?[0-9]+", value):
        raise ValueError("an integer is written in digits")
    return value


# A query parameter.
Whole = Annotated[int, BeforeValidator(_in_digits)]
Limit = Annotated[Whole | None, Query(ge=1, le=1000, description="how many; by default all")]
After = Annotated[str, Query(max_length=200, description="`next` of the page before")]


def one_more(limit: int | None) -> int | None:
    """How many to ask for, to know whether there are more.

    >>> one_more(10), one_more(None)
    (11, None)
    """
    return None if limit is None else limit + 1


def paged(
    found: Sequence[T], limit: int | None, name: Callable[[T], str]
) -> tuple[list[T], str | None]:
    """What is shown of `one_more` found, and the name of the last one if there are more.

    >>> paged(["a", "b", "c"], 2, str)
    (['a', 'b'], 'b')
    """
    shown = list(found[:limit])
    has_more = limit is not None and len(found) > limit
    return shown, name(shown[-1]) if has_more else None
