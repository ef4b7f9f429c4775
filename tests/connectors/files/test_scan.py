"""Oracle: Python's csv and json modules, which read the same bytes with nothing of ours."""

from __future__ import annotations

import csv
import gzip
import io
import json
import random
from collections.abc import Iterator

import pytest

from connectors.files import records
from connectors.files.records import LineForm, Records, Stretch
from connectors.files.stream import ByteStream, UnreadableFile
from connectors.formats.csv_reader import Dialect, split_record

CSV = LineForm(*Dialect().bytes())
PLAIN = LineForm()
INSIDE = ["", "x,y", "two\nlines"]
CELLS = ["", "a", 'q"q', "x,y", "two\nlines", "cr\r\nlf", "é🎉", '"', "\\", " "]


def stream_of(content: bytes, compression: str = "auto") -> ByteStream:
    return ByteStream(io.BytesIO(content), compression)


def flat(found: Iterator[Records]) -> list[tuple[int, bytes]]:
    out = []
    for part in found:
        assert len(part.values) == len(part.numbers)
        out += zip(part.numbers.tolist(), part.values, strict=True)
        assert not out or out[-1][0] <= part.reach
    return out


@pytest.fixture(autouse=True, params=[(3, 7), (16_384, 2 << 20)], ids=["small", "large"])
def blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "BLOCK_RECORDS", request.param[0])
    monkeypatch.setattr(records, "BLOCK_BYTES", request.param[1])


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_csv_records_are_those_of_the_csv_module(seed: int, end: str) -> None:
    found = random.Random(seed)
    rows = [[found.choice(CELLS) for _ in range(3)] for _ in range(found.randrange(30))]
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator=end).writerows(rows)
    content = text.getvalue().encode()
    if seed % 3 == 0:
        content = content.removesuffix(end.encode())
    told = flat(records.line_records(stream_of(content), CSV, Stretch()))
    reader = csv.reader(io.StringIO(content.decode(), newline=""))
    wanted, line = [], 1
    for row in reader:
        wanted.append((line, row))
        line = reader.line_num + 1
    assert [(number, split_record(value, Dialect())) for number, value in told] == wanted


@pytest.mark.parametrize("seed", range(10))
def test_a_file_in_stretches_is_the_file(seed: int) -> None:
    found = random.Random(seed)
    content = "".join(f'{i},"{found.choice(INSIDE)}\n"\n\n' for i in range(60)).encode()
    whole = flat(records.line_records(stream_of(content), CSV, Stretch()))
    cuts = [(0, 0), *records.line_ends(stream_of(content), CSV)]
    some = sorted({cuts[0], *found.sample(cuts, min(4, len(cuts)))})
    stops = [offset for offset, _ in some[1:]] + [None]
    told = []
    for (offset, after), stop in zip(some, stops, strict=True):
        stretch = Stretch(offset, after, stop)
        told += flat(records.line_records(stream_of(content), CSV, stretch))
    assert told == whole


def test_lines_are_numbered_through_blanks_marks_and_missing_ends() -> None:
    content = b"\xef\xbb\xbf{}\r\n\n  \n[1]\n\n5"
    told = flat(records.line_records(stream_of(content), PLAIN, Stretch()))
    assert told == [(1, b"{}"), (4, b"[1]"), (6, b"5")]
    packed = gzip.compress(content[:9]) + gzip.compress(content[9:])
    assert flat(records.line_records(stream_of(packed), PLAIN, Stretch())) == told


@pytest.mark.parametrize("seed", range(20))
def test_json_elements_are_those_of_the_json_module(seed: int) -> None:
    found = random.Random(seed)

    def value(depth: int) -> object:
        kind = found.randrange(7 if depth else 5)
        simple = [None, True, -12.5e3, 'br}ack]e"t\\', "é,[{"]
        if kind < 5:
            return simple[kind]
        if kind == 5:
            return [value(depth - 1) for _ in range(found.randrange(4))]
        return {str(k): value(depth - 1) for k in range(found.randrange(4))}

    values = [value(3) for _ in range(found.randrange(20))]
    indent = found.choice([None, 1])
    whole = json.dumps(values, indent=indent).encode()
    told = flat(records.json_records(stream_of(b" \n" + whole + b"\n ")))
    assert [json.loads(v) for _, v in told] == values
    assert [n for n, _ in told] == list(range(1, len(values) + 1))
    apart = b"\n".join(json.dumps(v, indent=indent).encode() for v in [{}, *values])
    told = flat(records.json_records(stream_of(apart)))
    assert [json.loads(v) for _, v in told] == [{}, *values]
    # Without its end it is refused, wherever it is cut.
    with pytest.raises(UnreadableFile):
        flat(records.json_records(stream_of(whole[: found.randrange(1, len(whole))])))


def test_a_record_without_end_is_refused_and_not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "MAX_RECORD_BYTES", 100)
    monkeypatch.setattr(records, "BLOCK_BYTES", 60)
    monkeypatch.setattr(ByteStream.read, "__defaults__", (60,))
    for content in (b"x" * 5000, b'[{"a":"' + b"x" * 5000):
        read = records.json_records if content[:1] == b"[" else None
        with pytest.raises(UnreadableFile):
            if read is None:
                list(records.line_records(stream_of(content), PLAIN, Stretch()))
            else:
                list(read(stream_of(content)))
