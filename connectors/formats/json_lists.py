"""Lists of rows within JSON texts: an answer, or a message, that has many rows.

Invariant: a row is the text that it was in the list, with every digit of its numbers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from connectors.formats.declared import DeclaredColumn, declared_type
from connectors.formats.fields import Fault
from connectors.formats.json_reader import JsonReader
from dataflow.schema import Field

_OPEN = b"["
# Of one message. Each row takes some hundred bytes, however short it is.
MAX_ROWS = 100_000
# What decides where an element ends: brackets, commas, and texts, which may have any of them.
_MARKS = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{},]', re.DOTALL)
_OPENING, _CLOSING, _COMMA = frozenset(b"[{"), frozenset(b"]}"), ord(",")


class JsonLists:
    """Finds the rows of JSON texts. path: of a list of rows, or of a row itself."""

    def __init__(self, path: tuple[str, ...]) -> None:
        self._path = path
        self._reader = JsonReader([DeclaredColumn(Field("rows", declared_type("json")[0]), path)])

    def cut(self, texts: Sequence[bytes]) -> tuple[list[list[bytes]], dict[int, Fault]]:
        """Return the rows of each text, and why some texts have none by their number."""
        fields = self._reader.read(texts)
        bad = dict(fields.bad)
        rows: list[list[bytes]] = []
        for number, found in enumerate(fields.columns[0].to_list()):
            rows.append([])
            if number in bad:
                continue
            if found is None:
                bad[number] = _malformed(f"there is nothing at {self.shown}")
            elif not found.lstrip().startswith(_OPEN):
                rows[-1] = [found]
            else:
                rows[-1] = elements(found, MAX_ROWS + 1)
                if len(rows[-1]) > MAX_ROWS:
                    rows[-1] = []
                    bad[number] = _malformed(f"it has more than {MAX_ROWS:,} rows")
        return rows, bad

    @property
    def shown(self) -> str:
        """The path, for people."""
        return ".".join(("$", *self._path))


def elements(text: bytes, most: int) -> list[bytes]:
    """Return the texts of the first elements of a list, which is valid JSON.

    most: how many. Nothing is made of what an element has within.

    >>> elements(b'[{"a": 1.10, "b": "]"}, [2], 3]', 2)
    [b'{"a": 1.10, "b": "]"}', b'[2]']
    """
    found: list[bytes] = []
    depth, start = 0, text.index(_OPEN) + 1
    for mark in _MARKS.finditer(text):
        letter = text[mark.start()]
        if letter in _OPENING:
            depth += 1
        elif letter in _CLOSING:
            depth -= 1
        if (letter == _COMMA and depth == 1) or not depth:
            element = text[start : mark.start()].strip()
            start = mark.end()
            if element:
                found.append(element)
            if not depth or len(found) == most:
                break
    return found


def _malformed(reason: str) -> Fault:
    return Fault(code="record.malformed", reason=reason)
