"""Text functions one row at a time, for the less frequent ones: Python strings in and out.

A function returns NotImplemented for a row that PostgreSQL must compute: errors, very long results,
letters beyond ASCII whose treatment depends on the locale.
"""

from __future__ import annotations

import hashlib

_LONGEST = 10_000_000


def text_arguments(function: str, count: int) -> tuple[bool, ...]:
    """Return which arguments are text, the others being integers; () when there is no such form."""
    for form in _FORMS.get(function, ()):
        if len(form) == count:
            return tuple(letter == "t" for letter in form)
    return ()


_FORMS = {
    "||": ("tt",),
    "lower": ("t",),
    "upper": ("t",),
    "initcap": ("t",),
    "substr": ("ti", "tii"),
    "substring": ("ti", "tii"),
    "left": ("ti",),
    "right": ("ti",),
    "strpos": ("tt",),
    "position": ("tt",),
    "starts_with": ("tt",),
    "trim": ("t", "tt"),
    "btrim": ("t", "tt"),
    "ltrim": ("t", "tt"),
    "rtrim": ("t", "tt"),
    "lpad": ("ti", "tit"),
    "rpad": ("ti", "tit"),
    "replace": ("ttt",),
    "repeat": ("ti",),
    "reverse": ("t",),
    "split_part": ("tti",),
    "md5": ("t",),
    "ascii": ("t",),
    "translate": ("ttt",),
}


def _pad(text: str, size: int, fill: str, is_left: bool):
    size = max(size, 0)
    if size > _LONGEST:
        return NotImplemented
    missing = size - len(text)
    if missing <= 0:
        return text[:size]
    if not fill:
        return text
    padding = (fill * (missing // len(fill) + 1))[:missing]
    return padding + text if is_left else text + padding


def _lpad(text: str, size: int, fill: str = " "):
    return _pad(text, size, fill, True)


def _rpad(text: str, size: int, fill: str = " "):
    return _pad(text, size, fill, False)


def _replace(text: str, old: str, new: str):
    return text.replace(old, new) if old else text


def _repeat(text: str, count: int):
    if len(text) * count > _LONGEST:
        return NotImplemented
    return text * max(count, 0)


def _split_part(text: str, separator: str, number: int):
    """
    >>> _split_part("a,b,c", ",", -1), _split_part("abc", "", 2)
    ('c', '')
    """
    if number == 0:
        return NotImplemented
    if not text:
        return ""
    parts = text.split(separator) if separator else [text]
    position = number - 1 if number > 0 else len(parts) + number
    return parts[position] if 0 <= position < len(parts) else ""


def _initcap(text: str):
    """
    >>> _initcap("hello wORLD 1st o'neil")
    "Hello World 1st O'Neil"
    """
    if not text.isascii():
        return NotImplemented
    out, is_inside = [], False
    for letter in text:
        out.append(letter.lower() if is_inside else letter.upper())
        is_inside = letter.isalnum()
    return "".join(out)


def _translate(text: str, old: str, new: str):
    table: dict[int, str | None] = {}
    for i, letter in enumerate(old):
        table.setdefault(ord(letter), new[i] if i < len(new) else None)
    return text.translate(table)


SCALARS = {
    "lpad": _lpad,
    "rpad": _rpad,
    "replace": _replace,
    "repeat": _repeat,
    "reverse": lambda text: text[::-1],
    "split_part": _split_part,
    "initcap": _initcap,
    "translate": _translate,
    "md5": lambda text: hashlib.md5(text.encode()).hexdigest(),
    "ascii": lambda text: ord(text[0]) if text else 0,
    "btrim": lambda text, to_drop=" ": text.strip(to_drop) if to_drop else text,
    "ltrim": lambda text, to_drop=" ": text.lstrip(to_drop) if to_drop else text,
    "rtrim": lambda text, to_drop=" ": text.rstrip(to_drop) if to_drop else text,
}
