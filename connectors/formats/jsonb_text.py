"""JSON texts: validated as PostgreSQL's json does, and printed as its jsonb prints them.

jsonb stores the last value of a repeated key, orders keys by length and then by bytes, stores
numbers as numeric with their scale, and holds no NUL characters (src/backend/utils/adt/jsonb.c).
"""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
from tidemark_native import formats

from connectors.formats.numerals import join_numeral, split_numeral

_SHORT = {
    '"': '\\"',
    "\\": "\\\\",
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
}
_SPECIAL = re.compile('["\\\\\x00-\x1f]')
# Values of one text: they are objects of more than a hundred bytes each.
MOST_VALUES = 1_000_000
# Digits of its numbers beyond those that are written: 1e131071 has 131,072.
MOST_DIGITS = 1_000_000


class Numeral(str):
    """The text of a JSON number."""


def check_json(text: str) -> None:
    """Raise ValueError if the text is not JSON (RFC 8259)."""
    load_json(text)


def jsonb_text(text: str) -> bytes:
    """Return the text as PostgreSQL prints it as jsonb; ValueError if it is not JSON.

    >>> jsonb_text('{"bb":1.50,"a":[1e2,null],"bb":2}')
    b'{"a": [100, null], "bb": 2}'
    """
    loaded = load_json(text)
    try:
        return _Printer().printed(loaded).encode()
    except UnicodeEncodeError:
        raise ValueError("not JSON text: half of a surrogate pair") from None
    except RecursionError:
        raise ValueError("JSON nested too deeply") from None


def load_json(text: str) -> Any:
    """Return the value of a JSON text, numbers as Numeral; ValueError."""
    # Each value but the first one follows a comma or is the first of its list or object.
    is_long = text.count(",") + text.count("[") + text.count("{") >= MOST_VALUES
    if is_long and formats.count_openings(np.frombuffer(text.encode(), np.uint8)) >= MOST_VALUES:
        raise ValueError(f"it has more than {MOST_VALUES:,} values")
    try:
        return json.loads(
            text,
            parse_int=Numeral,
            parse_float=Numeral,
            parse_constant=_refuse,
        )
    except RecursionError:
        raise ValueError("JSON nested too deeply") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at character {error.pos}") from None


def _refuse(name: str) -> Any:
    raise ValueError(f"not JSON: {name}")


class _Printer:
    """Prints one value. ValueError: it cannot be jsonb, or its numbers have too many digits."""

    def __init__(self) -> None:
        self._digits = MOST_DIGITS

    def printed(self, value: Any) -> str:
        """Return a value as jsonb prints it."""
        if isinstance(value, Numeral):
            found = join_numeral(*split_numeral(value))
            self._digits -= max(0, len(found) - len(value))
            if self._digits < 0:
                raise ValueError(f"its numbers have more than {MOST_DIGITS:,} digits in full")
            return found
        if isinstance(value, str):
            return _string(value)
        if value is None:
            return "null"
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, list):
            return f"[{', '.join(map(self.printed, value))}]"
        pairs = sorted(
            ((key.encode(), key, inner) for key, inner in value.items()),
            key=lambda pair: (len(pair[0]), pair[0]),
        )
        inside = (f"{_string(key)}: {self.printed(inner)}" for _, key, inner in pairs)
        return "{" + ", ".join(inside) + "}"


def _string(text: str) -> str:
    if "\0" in text:
        raise ValueError("jsonb cannot hold a NUL character")
    return '"' + _SPECIAL.sub(_escape, text) + '"'


def _escape(found: re.Match[str]) -> str:
    return _SHORT.get(found[0]) or f"\\u{ord(found[0]):04x}"
