"""Lists of rows within JSON texts: an answer, or a message, that has many rows.

Invariant: a row is the text that it was in the list, with every digit of its numbers.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from connectors.formats.declared import DeclaredColumn, declared_type
from connectors.formats.fields import Fault
from connectors.formats.json_reader import JsonReader
from dataflow.schema import Field

_OPEN = b"["
_BLANKS = " \t\r\n"
_DECODER = json.JSONDecoder(parse_int=str, parse_float=str)


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
                try:
                    rows[-1] = elements(found.decode())
                except RecursionError:
                    bad[number] = _malformed("it is nested too deeply")
        return rows, bad

    @property
    def shown(self) -> str:
        """The path, for people."""
        return ".".join(("$", *self._path))


def elements(text: str) -> list[bytes]:
    """Return the texts of the elements of a list, which is valid JSON.

    >>> elements('[{"a": 1.10}, [2]]')
    [b'{"a": 1.10}', b'[2]']
    """
    found, at = [], text.index("[") + 1
    while True:
        while text[at] in _BLANKS or text[at] == ",":
            at += 1
        if text[at] == "]":
            return found
        _, end = _DECODER.raw_decode(text, at)
        found.append(text[at:end].encode())
        at = end


def _malformed(reason: str) -> Fault:
    return Fault(code="record.malformed", reason=reason)
