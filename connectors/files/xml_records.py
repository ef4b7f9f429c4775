"""Rows of an XML file: elements of one name, read without storing the document.

A column is a child element or an attribute of the row's element; values are texts. Invariants: a
document type definition is refused, so nothing is fetched or expanded; what is held of a document
is one row, whose elements and attributes count with the memory that they take.
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
# Elements within each other: JSON of more could not be read either.
MOST_DEPTH = 200
# One tag or comment, which the parser holds, and reads again with each block, until it ends.
MOST_TAG_BYTES = 16 << 20
# What an element and an attribute take beside their texts.
_ELEMENT_BYTES, _ATTRIBUTE_BYTES = 400, 150


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
        self._row_tag = row_tag
        self._rows = 0
        self._row_bytes = 0
        self._depth = 0
        self._open: list[tuple[str, dict[str, str], dict[str, Any], list[str]]] = []

    def start(self, name: str, attributes: dict[str, str]) -> None:
        """An element begins."""
        self._depth += 1
        if self._depth > MOST_DEPTH:
            raise UnreadableFile(f"its elements are nested more than {MOST_DEPTH} deep")
        if self._open or name == self._row_tag:
            self._open.append((name, attributes, {}, []))
            texts = sum(map(len, attributes)) + sum(map(len, attributes.values()))
            self._count(_ELEMENT_BYTES + _ATTRIBUTE_BYTES * len(attributes) + texts)

    def text(self, text: str) -> None:
        """Text of the innermost element."""
        if self._open:
            self._open[-1][3].append(text)
            self._count(len(text))

    def end(self, _: str) -> None:
        """An element ends."""
        self._depth -= 1
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
            self._row_bytes = 0
            self._rows += 1
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

    def _count(self, more_bytes: int) -> None:
        self._row_bytes += more_bytes
        if self._row_bytes > MAX_RECORD_BYTES:
            most = f"{MAX_RECORD_BYTES >> 20} MB"
            raise UnreadableFile(f"row {self._rows + 1} is longer than {most}")


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
    number, fed, is_last = 0, 0, False
    while not is_last:
        block = stream.read(_BLOCK_BYTES)
        is_last = not block
        try:
            parser.Parse(block, is_last)
        except (expat.ExpatError, ValueError, LookupError) as error:
            # LookupError and ValueError: the document names an encoding that the parser does not
            # know.
            raise UnreadableFile(f"it is not well-formed XML: {error}") from None
        fed += len(block)
        if fed - parser.CurrentByteIndex > MOST_TAG_BYTES:
            raise UnreadableFile(f"a tag or comment is longer than {MOST_TAG_BYTES >> 20} MB")
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
