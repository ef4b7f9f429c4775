"""Rows of an XML file: elements of one name, read without storing the document.

A column is a child element or an attribute of the row's element; values are texts. Invariant: a
document type definition is refused, so nothing is fetched or expanded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from xml.parsers import expat

import numpy as np
import orjson

from connectors.files.records import BLOCK_RECORDS, MAX_RECORD_BYTES, Records
from connectors.files.stream import UTF8, ByteStream, UnreadableFile

# The text of an element that also has attributes or children.
OWN_TEXT = "_value"
_BLOCK_BYTES = 256 << 10


@dataclass(frozen=True)
class XmlColumn:
    """A column and the path of its element or attribute below the row.

    is_whole: it takes whole elements, as JSON. is_text: an empty element is an empty text; in other
    columns it is NULL.
    """

    name: str
    path: tuple[str, ...]
    is_whole: bool
    is_text: bool


class _Rows:
    """The parser's callbacks. An open element is (name, attributes, children by name, texts)."""

    def __init__(self, row_tag: str) -> None:
        self.found: list[Any] = []
        self.text_size = 0
        self._row_tag = row_tag
        self._open: list[tuple[str, dict[str, str], dict[str, Any], list[str]]] = []

    def start(self, name: str, attributes: dict[str, str]) -> None:
        """An element begins."""
        if self._open or name == self._row_tag:
            self._open.append((name, attributes, {}, []))

    def text(self, text: str) -> None:
        """Text of the innermost element."""
        if self._open:
            self._open[-1][3].append(text)
            self.text_size += len(text)

    def end(self, _: str) -> None:
        """An element ends."""
        if not self._open:
            return
        name, attributes, children, texts = self._open.pop()
        inside: dict[str, Any] = {**attributes, **children}
        text = "".join(texts)
        value: Any = text
        if inside:
            value = inside
            if text.strip():
                inside[OWN_TEXT] = text
        if not self._open:
            self.found.append(value if inside else {OWN_TEXT: text})
            self.text_size = 0
            return
        outer = self._open[-1][2]
        earlier = outer.get(name)
        if earlier is None:
            outer[name] = value
        elif isinstance(earlier, list):
            earlier.append(value)
        else:
            outer[name] = [earlier, value]

    def doctype(self, *_: Any) -> None:
        """A document type definition."""
        raise UnreadableFile("it has a document type definition, which is not supported")


def xml_records(
    stream: ByteStream, row_tag: str, columns: Sequence[XmlColumn]
) -> Iterator[Records]:
    """Yield the outermost elements named row_tag, as JSON objects of texts by column."""
    rows = _Rows(row_tag)
    # A declared encoding overrides the document's own declaration.
    parser = expat.ParserCreate(UTF8 if stream.encoding else None)
    parser.buffer_text = True
    parser.StartElementHandler = rows.start
    parser.EndElementHandler = rows.end
    parser.CharacterDataHandler = rows.text
    parser.StartDoctypeDeclHandler = rows.doctype
    number, is_last = 0, False
    while not is_last:
        block = stream.read(_BLOCK_BYTES)
        is_last = not block
        try:
            parser.Parse(block, is_last)
        except (expat.ExpatError, ValueError, LookupError) as error:
            # LookupError and ValueError: the document names an encoding that the parser does not
            # know.
            raise UnreadableFile(f"it is not well-formed XML: {error}") from None
        if rows.text_size > MAX_RECORD_BYTES:
            raise UnreadableFile(f"row {number + 1} is longer than {MAX_RECORD_BYTES >> 20} MB")
        for start in range(0, len(rows.found), BLOCK_RECORDS):
            part = rows.found[start : start + BLOCK_RECORDS]
            values = [orjson.dumps(_flat(row, columns)) for row in part]
            numbers = np.arange(number + 1, number + len(values) + 1)
            number += len(values)
            yield Records(values, numbers, number, 0)
        rows.found.clear()


def _flat(row: dict[str, Any], columns: Sequence[XmlColumn]) -> dict[str, Any]:
    found = {}
    for column in columns:
        value: Any = row
        for key in column.path:
            value = value.get(key) if isinstance(value, dict) else None
        if isinstance(value, dict) and not column.is_whole:
            value = value.get(OWN_TEXT, value)
        if value is not None and (value != "" or column.is_text):
            found[column.name] = value
    return found
