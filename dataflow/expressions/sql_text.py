"""Substitution of the arguments $1, $2 ... in PostgreSQL's text of an expression.

Invariant: a "$1" inside a string literal or a quoted name is no argument.
"""

from __future__ import annotations

import re
from collections.abc import Callable

_TOKENS = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|\$(\d+)""")


def with_arguments(sql: str, name: Callable[[int], str]) -> str:
    """Return the text with each argument $i written as name(i).

    >>> with_arguments("f($1, '$1', $12)", lambda i: f"c{i}")
    "f(c1, '$1', c12)"
    """
    return _TOKENS.sub(lambda t: t[0] if t[1] is None else name(int(t[1])), sql)
