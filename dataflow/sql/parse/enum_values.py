"""Rewrite the constants of a query after values of enums were renamed.

The user's text does not show which constants are of an enum, and PostgreSQL's own text does: there
each has its type. So that text is rewritten. An ambiguous constant is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

# Values within an array or a range: quoted, or up to the next sign.
_PARTS = re.compile(r'"((?:[^"\\]|\\.|"")*)"|[^{}()\[\],"]+')
_UNQUOTED = re.compile(r'\\(.)|""', re.DOTALL)


def with_enum_values(
    query: str, text: str, renamed: Mapping[str, Mapping[str, str]], unclear: Iterable[str] = ()
) -> str:
    """Return `text` with renamed values of enums, or `query` if no constant of it has one.

    text: PostgreSQL's own text of the query. renamed: by type, the new names of values by their old
    ones, for all types whose values consist of these. unclear: types whose values may contain them
    beside others. Raise ValueError with the reason if that is impossible.

    >>> low = {"public.m": {"lo": "low"}, "public.m[]": {"lo": "low"}}
    >>> with_enum_values("q", "SELECT 'lo'::public.m, '{lo,hi}'::public.m[], 'lo'::text", low)
    'SELECT \\'low\\'::public.m, \\'{"low",hi}\\'::public.m[], \\'lo\\'::text'
    >>> with_enum_values("q", "SELECT 'hi'::public.m", low)
    'q'
    >>> with_enum_values("q", "SELECT '(lo,1)'::public.c", low, ["public.c"])
    Traceback (most recent call last):
    ValueError: a constant of type public.c may contain the value 'lo'
    """
    names = sorted({*renamed, *unclear}, key=len, reverse=True)
    types = "|".join(map(re.escape, names))
    constants = re.compile(
        rf"""(E)?'((?:[^']|'')*)'(?:::({types})(?![\w.\[]))?|"(?:[^"]|"")*" """.rstrip()
    )
    is_changed = False

    def written(found: re.Match[str]) -> str:
        nonlocal is_changed
        escape, value, type = found.groups()
        if type is None:
            return found[0]
        value = value.replace("''", "'")
        changes = renamed.get(type)
        if changes is None or escape:
            for old in {old for one in renamed.values() for old in one}:
                if old in value:
                    raise ValueError(f"a constant of type {type} may contain the value '{old}'")
            return found[0]
        newer = _renamed(value, changes)
        is_changed |= newer != value
        return "'" + newer.replace("'", "''") + "'::" + type

    rewritten = constants.sub(written, text)
    return rewritten if is_changed else query


def _renamed(value: str, changes: Mapping[str, str]) -> str:
    """Return a value of an enum, or an array or range of them, with the new names."""
    if value in changes:
        return changes[value]

    def part(found: re.Match[str]) -> str:
        is_quoted = found[1] is not None
        label = _UNQUOTED.sub(lambda m: m[1] or '"', found[1]) if is_quoted else found[0].strip()
        if label not in changes:
            return found[0]
        return '"' + changes[label].replace("\\", "\\\\").replace('"', '\\"') + '"'

    return _PARTS.sub(part, value) if value[:1] in ("{", "[", "(") else value
