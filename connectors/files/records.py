"""Records of a file, in blocks of bounded size: lines, CSV records, elements of JSON.

A record's number is the line in which it starts for formats of lines, else its index among the
records, from 1. Invariant: numbers depend on the file alone, never on block boundaries.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from tidemark_native import files

from connectors.files.stream import BLOCK_BYTES, ByteStream, UnreadableFile

BLOCK_RECORDS = 16_384
MAX_RECORD_BYTES = 64 << 20
_MARK = b"\xef\xbb\xbf"
_OPEN_LIST = b"["
_BLANKS = b" \t\r\n"


@dataclass(frozen=True)
class Records:
    """A block of records.

    values[i] is record numbers[i]. reach: the greatest number that was read, including blank lines.
    offset: where the next record starts in a plain file of lines, else 0.
    """

    values: list[bytes]
    numbers: np.ndarray
    reach: int
    offset: int


@dataclass(frozen=True)
class Stretch:
    """The range from byte `offset`, after `after` lines, to byte `stop` (None: the end)."""

    offset: int = 0
    after: int = 0
    stop: int | None = None


@dataclass(frozen=True)
class LineForm:
    """How records are delimited; -1 for a character that is not used."""

    delimiter: int = -1
    quote: int = -1
    escape: int = -1


@dataclass(frozen=True)
class _Lines:
    """Records of one block: each row of `found` is start, end and lines before, from
    `at` in data.
    """

    data: bytes
    at: int
    found: np.ndarray
    before: int
    reach: int
    offset: int


def line_records(stream: ByteStream, form: LineForm, stretch: Stretch) -> Iterator[Records]:
    """Yield records that end with a line, without blank ones."""
    for part in _line_blocks(stream, form, stretch):
        bounds = (part.found[:, :2] + part.at).tolist()
        values = [part.data[start:end] for start, end in bounds]
        numbers = part.found[:, 2] + (part.before + 1)
        yield Records(*_without_blanks(values, numbers), part.reach, part.offset)


def line_ends(stream: ByteStream, form: LineForm) -> Iterator[tuple[int, int]]:
    """Yield (offset, lines before it) after every few records of the whole file."""
    for part in _line_blocks(stream, form, Stretch()):
        yield part.offset, part.reach


def _line_blocks(stream: ByteStream, form: LineForm, stretch: Stretch) -> Iterator[_Lines]:
    offset, lines, rest = stretch.offset, stretch.after, b""
    left = None if stretch.stop is None else stretch.stop - offset
    if offset:
        stream.seek(offset)
    is_last = False
    while not is_last:
        size = BLOCK_BYTES if left is None else min(BLOCK_BYTES, left)
        block = stream.read(size)
        left = None if left is None else left - len(block)
        is_last = len(block) < size or left == 0
        if offset == 0 and not rest and block.startswith(_MARK):
            block, offset = block[3:], 3
        data, at = rest + block, 0
        if is_last and data and not data.endswith(b"\n"):
            data += b"\n"
        view = np.frombuffer(data, np.uint8)
        is_full = True
        while is_full:
            found, end, passed = files.csv_records(
                view[at:], form.delimiter, form.quote, form.escape, BLOCK_RECORDS
            )
            if len(found):
                before, lines = lines, lines + passed
                yield _Lines(data, at, found, before, lines, offset + at + end)
            at += end
            is_full = len(found) == BLOCK_RECORDS
        rest, offset = data[at:], offset + at
        if is_last and rest:
            raise UnreadableFile(f"a quote that opens in line {lines + 1} is never closed")
        _check_size(rest, f"the record of line {lines + 1}")


def json_records(stream: ByteStream) -> Iterator[Records]:
    """Yield the elements of a JSON array, or consecutive JSON values."""
    data = _first_block(stream)
    in_list = data.startswith(_OPEN_LIST)
    rest, number = data[1:] if in_list else data, 0
    state, is_last = files.FIRST, False
    if not data:
        return
    while not is_last:
        block = stream.read()
        is_last = not block
        data, at = rest + block, 0
        view = np.frombuffer(data, np.uint8)
        while True:
            found, end, state, wrong = files.json_elements(
                view[at:], in_list, state, is_last, BLOCK_RECORDS
            )
            if len(found):
                values = [data[at + a : at + b] for a, b in found.tolist()]
                numbers = np.arange(number + 1, number + len(values) + 1)
                number += len(values)
                yield Records(values, numbers, number, 0)
            if wrong >= 0:
                raise UnreadableFile(f"the text after element {number} is not JSON")
            at += end
            if len(found) < BLOCK_RECORDS:
                break
        rest = data[at:]
        _check_size(rest, f"element {number + 1}")
    if rest.strip(_BLANKS) or (in_list and state != files.ENDED):
        raise UnreadableFile(f"the JSON text ends unexpectedly after element {number}")


def first_record(stream: ByteStream, form: LineForm) -> bytes | None:
    """Return the first record that is not blank; None if there is none."""
    for records in line_records(stream, form, Stretch()):
        if records.values:
            return records.values[0]
    return None


def _without_blanks(values: list[bytes], numbers: np.ndarray) -> tuple[list[bytes], np.ndarray]:
    keep = [i for i, value in enumerate(values) if value and not value.isspace()]
    if len(keep) == len(values):
        return values, numbers
    return [values[i] for i in keep], numbers[keep]


def _first_block(stream: ByteStream) -> bytes:
    """Return the first block, without a byte order mark and leading blanks."""
    data = stream.read().removeprefix(_MARK).lstrip(_BLANKS)
    while not data and (block := stream.read()):
        data = block.lstrip(_BLANKS)
    return data


def _check_size(rest: bytes, what: str) -> None:
    if len(rest) > MAX_RECORD_BYTES:
        raise UnreadableFile(f"{what} is longer than {MAX_RECORD_BYTES >> 20} MB")
