"""Oracle: Python's json, csv, datetime and Decimal, fastavro, and Protobuf's wire format."""

from __future__ import annotations

import csv
import datetime
import io
import json
import struct
import uuid
from contextlib import suppress
from decimal import ROUND_HALF_UP, Decimal
from itertools import pairwise

import fastavro
import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st
from tidemark_native import formats

from dataflow.delta import Column
from tests.unit.native.noise import damaged

NO_MASK = np.empty(0, np.bool_)
TEXTS = st.lists(st.text(max_size=9) | st.none(), max_size=6)
RANDOM = st.randoms(use_true_random=False)
EPOCH = datetime.datetime(2000, 1, 1)


def _column(values) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    column = Column.of("s", [v.encode() if isinstance(v, str) else v for v in values])
    return column.values, column.data, NO_MASK if column.valid is None else column.valid


def _values(offsets: np.ndarray, data: np.ndarray) -> list[bytes]:
    return [data[a:b].tobytes() for a, b in pairwise(offsets)]


# -- CSV


@given(st.lists(st.lists(st.text('ab,"\n ', max_size=5), min_size=2, max_size=2), max_size=5))
def test_cells(rows) -> None:
    out = [io.StringIO() for _ in rows]
    for row, one in zip(rows, out, strict=True):
        csv.writer(one, lineterminator="\r\n", quoting=csv.QUOTE_ALL).writerow(row)
    offsets, data, _ = _column([one.getvalue() for one in out])
    starts, ends, kinds, found = formats.split_cells(offsets, data, 2, 44, 34, 34)
    assert (found == 2).all()
    for k in range(2):
        null = np.frombuffer(b"ab", np.uint8)
        copied = formats.copy_cells(data, starts[k], ends[k], kinds[k], 34, 34, null)
        # A cell in quotes is never NULL.
        assert copied[2].all()
        assert _values(*copied[:2]) == [row[k].encode() for row in rows]


@given(
    st.lists(st.binary(max_size=20), max_size=4), st.sampled_from([(34, 34), (34, 92), (-1, -1)])
)
def test_any_bytes_are_cells_or_refused(records, quotes) -> None:
    offsets, data, _ = _column(records)
    starts, ends, kinds, found = formats.split_cells(offsets, data, 3, 44, *quotes)
    kinds[:, found != 3], starts[:, found != 3], ends[:, found != 3] = 0, 0, 0
    for k in range(3):
        formats.copy_cells(data, starts[k], ends[k], kinds[k], *quotes, NO_MASK.view(np.uint8))
    if quotes == (-1, -1):
        lines = [record.removesuffix(b"\n").removesuffix(b"\r") for record in records]
        assert found.tolist() == [line.count(b",") + 1 for line in lines]


# -- JSON

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda one: st.lists(one, max_size=3)
    | st.dictionaries(st.sampled_from(["a", "b", "c", "\u00e9"]), one, max_size=3),
    max_leaves=8,
)  # fmt: skip
# $, $.a, $.b, $.a.b
PARENTS, KEYS = np.array([-1, 0, 0, 1]), np.frombuffer(b"abb", np.uint8)
KEY_ENDS = np.array([0, 0, 1, 2, 3])
PATHS = ((), ("a",), ("b",), ("a", "b"))
SELECTED = np.arange(9) > formats.JSON_ABSENT


def _kind(value) -> int:
    kinds = {dict: formats.JSON_OBJECT, list: formats.JSON_ARRAY, type(None): formats.JSON_NULL}
    kinds |= {int: formats.JSON_NUMBER, float: formats.JSON_NUMBER, str: formats.JSON_STRING}
    if isinstance(value, bool):
        return formats.JSON_TRUE if value else formats.JSON_FALSE
    return kinds[type(value)]


@given(st.lists(JSON, max_size=4), st.booleans(), st.sampled_from([None, 1]))
def test_declared_values(records, is_ascii: bool, indent) -> None:
    texts = [json.dumps(r, ensure_ascii=is_ascii, indent=indent) + "\n" for r in records]
    offsets, data, _ = _column(texts)
    starts, ends, kinds, marks = formats.scan_json(offsets, data, PARENTS, KEY_ENDS, KEYS)
    for row, record in enumerate(records):
        if marks[row]:
            # Only a key with an escape is not plain.
            assert "\\u00e9" in texts[row]
            continue
        for node, path in enumerate(PATHS):
            value, is_there = record, True
            for key in path:
                is_there = is_there and isinstance(value, dict) and key in value
                value = value[key] if is_there else None
            kind = kinds[node, row]
            if not is_there:
                assert kind == formats.JSON_ABSENT
                continue
            text = data[starts[node, row] : ends[node, row]].tobytes()
            if kind in (formats.JSON_STRING, formats.JSON_ESCAPED):
                text = b'"' + text + b'"'
                kind = formats.JSON_STRING
            assert (kind, json.loads(text)) == (_kind(value), value)


@given(JSON | st.text('{}[]",:\\u0123de.-+tfn ', max_size=20).map(str), RANDOM)
def test_what_is_not_marked_is_json(record, random) -> None:
    text = damaged(json.dumps(record, ensure_ascii=False).encode(), random)
    offsets, data, _ = _column([text + b"\n"])
    starts, ends, kinds, marks = formats.scan_json(offsets, data, PARENTS, KEY_ENDS, KEYS)
    for node in range(4):
        args = data, starts[node], ends[node], kinds[node], SELECTED
        found = formats.gather_json(*args)
        formats.unescape_json(*found, kinds[node] == formats.JSON_ESCAPED)
    formats.count_openings(data)
    if not marks[0]:
        json.loads(text.decode(errors="replace"), strict=True)


@given(TEXTS.map(lambda texts: [text for text in texts if text is not None]))
@example(["\U0001f600", 'a"\\/\b\f\n\r\t\u00e9'])
def test_escapes(texts) -> None:
    offsets, data, _ = _column([json.dumps(text)[1:-1] for text in texts])
    ends, found, marks = formats.unescape_json(offsets, data, np.ones(len(texts), np.bool_))
    assert (_values(ends, found), marks.any()) == ([text.encode() for text in texts], False)


@given(st.lists(st.text('\\"u0123dDeE8fn', max_size=20), max_size=4))
def test_any_escapes_are_read_or_marked(texts) -> None:
    offsets, data, _ = _column(texts)
    ends, found, marks = formats.unescape_json(offsets, data, np.ones(len(texts), np.bool_))
    for text, value, is_marked in zip(texts, _values(ends, found), marks, strict=True):
        try:
            expected = json.loads(f'"{text}"').encode()
        except ValueError:
            # Not JSON, which a scan refuses, or half of a surrogate pair.
            continue
        assert (value, is_marked) == (expected, False)


@given(JSON)
def test_openings(value) -> None:
    def count(value) -> int:
        if isinstance(value, list | dict):
            inner = [*value.values()] if isinstance(value, dict) else value
            return 1 + max(len(inner) - 1, 0) + sum(map(count, inner))
        return 0

    text = np.frombuffer(json.dumps(value).encode(), np.uint8)
    assert formats.count_openings(text) == count(value)


@given(TEXTS)
def test_json_texts(texts) -> None:
    found = _values(*formats.json_texts(*_column(texts)))
    assert [json.loads(text) for text in found] == texts


@given(st.lists(st.booleans() | st.none(), max_size=6))
def test_json_bools(values) -> None:
    valid = np.array([v is not None for v in values], np.bool_)
    found = formats.json_bools(np.array([bool(v) for v in values], np.bool_), valid)
    assert [json.loads(text) for text in _values(*found)] == values


# -- Avro

LONGS = st.integers(-(2**63), 2**63 - 1)
AVRO = {
    "type": "record",
    "name": "r",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "tags", "type": {"type": "array", "items": "null"}},
        {"name": "more", "type": {"type": "map", "values": "string"}},
        {"name": "next", "type": ["null", "r"]},
    ],
}
NODES = np.array(
    [
        (formats.AVRO_RECORD, 0, 4),
        (formats.AVRO_LONG, 0, 0),
        (formats.AVRO_ARRAY, 4, 1),
        (formats.AVRO_MAP, 5, 1),
        (formats.AVRO_UNION, 6, 2),
        (formats.AVRO_NULL, 0, 0),
        (formats.AVRO_BYTES, 0, 0),
    ],
    np.int64,
)
CHILDREN = np.array([1, 2, 3, 4, 5, 6, 5, 0])
RECORDS = st.recursive(
    st.none(),
    lambda one: st.fixed_dictionaries(
        {
            "id": LONGS,
            "tags": st.lists(st.none(), max_size=3),
            "more": st.dictionaries(st.text(max_size=2), st.text(max_size=3), max_size=2),
            "next": one,
        }
    ),
    max_leaves=3,
).filter(bool)


def _written(schema, value) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, value)
    return out.getvalue()


def _values_of(record) -> int:
    """Count a record and its fields, the branch of the union with its value."""
    inner = _values_of(record["next"]) if record["next"] else 1
    return 5 + len(record["tags"]) + len(record["more"]) + inner


@given(st.lists(RECORDS, max_size=4))
def test_values_of_avro(records) -> None:
    offsets, raw, _ = _column([_written(AVRO, record) for record in records])
    found = formats.count_values(offsets, raw, NODES, CHILDREN, 10**6, 128)
    assert found.tolist() == [_values_of(record) for record in records]


@given(RECORDS, RANDOM)
def test_a_damaged_avro_record_is_counted_or_broken(record, random) -> None:
    text = damaged(_written(AVRO, record), random)
    offsets, raw, _ = _column([text])
    (found,) = formats.count_values(offsets, raw, NODES, CHILDREN, 100, 9).tolist()
    assert found >= formats.AVRO_TOO_DEEP and found <= 100
    if found >= 0:
        with suppress(UnicodeDecodeError):
            read = fastavro.schemaless_reader(io.BytesIO(text), AVRO)
            assert found == _values_of(read)


@given(st.lists(LONGS | st.none(), max_size=6))
def test_avro_longs(values) -> None:
    valid = np.array([v is not None for v in values], np.bool_)
    column = np.array([v or 0 for v in values], np.int64)
    found = _values(*formats.avro_longs(column, valid, True))
    assert found == [_written(["null", "long"], v) for v in values]
    plain = _values(*formats.avro_longs(column, NO_MASK, False))
    assert plain == [formats.avro_long(v or 0) for v in values]
    assert plain == [_written("long", v or 0) for v in values]


@given(st.lists(st.floats(width=64, allow_nan=False) | st.none(), max_size=6), TEXTS)
def test_avro_doubles_and_texts(numbers, texts) -> None:
    raw = np.frombuffer(
        struct.pack(f"<{len(numbers)}d", *(0.0 if v is None else v for v in numbers)), np.uint8
    )
    valid = np.array([v is not None for v in numbers], np.bool_)
    found = _values(*formats.avro_fixed(raw.reshape(-1, 8), valid, True))
    assert found == [_written(["null", "double"], v) for v in numbers]
    found = _values(*formats.avro_texts(*_column(texts), True))
    assert found == [_written(["null", "string"], v) for v in texts]


# -- Protobuf


def _varint(value: int) -> bytes:
    found = b""
    while value >= 128:
        value, found = value >> 7, found + bytes([value & 127 | 128])
    return found + bytes([value])


def _message(depth: int):
    """A message of 7 fields with itself, which holds one in field 3 and as the group 5: (bytes,
    fields).
    """
    plain = st.one_of(
        st.integers(0, 2**64 - 1).map(lambda v: (_varint(1 << 3) + _varint(v), 0)),
        st.just((_varint(4 << 3 | 1) + bytes(8), 0)),
        st.just((_varint(4 << 3 | 5) + bytes(4), 0)),
        st.binary(max_size=5).map(lambda v: (_varint(9 << 3 | 2) + _varint(len(v)) + v, 0)),
    )
    parts = plain
    if depth:
        inner = _message(depth - 1)
        sized = inner.map(lambda m: (_varint(3 << 3 | 2) + _varint(len(m[0])) + m[0], m[1]))
        group = inner.map(lambda m: (_varint(5 << 3 | 3) + m[0] + _varint(5 << 3 | 4), m[1]))
        parts = plain | sized | group
    both = st.lists(parts, max_size=4)
    return both.map(lambda found: (b"".join(p for p, _ in found), 7 + sum(n for _, n in found)))


FIELDS = np.array([(3, formats.PROTOBUF_SIZED, 0), (5, formats.PROTOBUF_GROUP, 0)], np.int64)


def _fields(records, most: int) -> list[int]:
    offsets, raw, _ = _column(records)
    found = formats.count_fields(offsets, raw, np.array([0, 2]), FIELDS, np.array([7]), most, 9)
    return found.tolist()


@given(st.lists(_message(3), max_size=4), RANDOM)
def test_fields_of_protobuf(messages, random) -> None:
    found = _fields([raw for raw, _ in messages], 20)
    expected = [n if n == 7 or n <= 20 else formats.PROTOBUF_TOO_MANY for _, n in messages]
    assert found == expected
    for count in _fields([damaged(raw, random) for raw, _ in messages], 20):
        assert count == formats.PROTOBUF_TOO_MANY or 7 <= count <= 20


# -- Rows


@given(st.lists(st.binary(max_size=6), max_size=5), st.binary(max_size=3))
def test_rows_are_put_together(values, literal: bytes) -> None:
    offsets, data, _ = _column(values)
    sizes = np.diff(offsets) + len(literal)
    out, at = np.zeros(sizes.sum(), np.uint8), np.cumsum(sizes) - sizes
    formats.put_values(out, at, offsets, data)
    formats.put_literal(out, at, np.frombuffer(literal, np.uint8))
    assert out.tobytes() == b"".join(value + literal for value in values)
    assert at.tolist() == np.cumsum(sizes).tolist()


def test_murmur2_is_that_of_kafka() -> None:
    # UtilsTest.testMurmur2 of Kafka, made positive.
    known = {
        b"21": -973932308,
        b"foobar": -790332482,
        b"a-little-bit-long-string": -985981536,
        b"a-little-bit-longer-string": -1486304829,
        b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
        b"abc": 479470107,
    }
    offsets, data, _ = _column(list(known))
    assert formats.murmur2(offsets, data).tolist() == [v & 0x7FFFFFFF for v in known.values()]


# -- Texts


@given(st.lists(st.integers(-(10**19), 10**19) | st.none(), max_size=6))
def test_integers(numbers) -> None:
    found, marks = formats.read_ints(*_column([None if n is None else str(n) for n in numbers]),
                                     -(2**31), 2**31 - 1)  # fmt: skip
    fits = [n is None or -(2**31) <= n < 2**31 for n in numbers]
    assert marks.tolist() == [not fit for fit in fits]
    assert found.tolist() == [n if n and fit else 0 for n, fit in zip(numbers, fits, strict=True)]


@given(st.decimals(-(10**8), 10**8, places=5) | st.decimals(-10, 10, places=2))
def test_decimals(number: Decimal) -> None:
    (found,), (is_marked,) = formats.read_fixed(*_column([f"{number:f}"]), 9, 3)
    unit = int(number.scaleb(3).quantize(Decimal(1), ROUND_HALF_UP))
    assert (found, is_marked) == ((unit, False) if abs(unit) < 10**9 else (0, True))
    (is_odd,) = formats.odd_numerics(*_column([f"{number:f}"]), 20, 5)
    assert is_odd == (number.as_tuple().exponent != -5 or (number == 0 and number.is_signed()))


@given(st.datetimes(datetime.datetime(1, 1, 1), datetime.datetime(9999, 12, 31)),
       st.integers(-15 * 60, 15 * 60))  # fmt: skip
def test_dates_and_times(at: datetime.datetime, minutes: int) -> None:
    def of(step, value, *more):
        (found,), (is_marked,) = step(*_column([value]), *more)
        assert not is_marked
        return found

    us = datetime.timedelta(microseconds=1)
    assert of(formats.read_dates, at.date().isoformat()) == (at.date() - EPOCH.date()).days
    midnight = datetime.datetime.combine(at.date(), datetime.time())
    assert of(formats.read_times, at.time().isoformat()) == (at - midnight) // us
    zone = f"{'-' if minutes < 0 else '+'}{abs(minutes) // 60:02}:{abs(minutes) % 60:02}"
    east = datetime.timedelta(minutes=minutes)
    for text in (at.isoformat() + zone, at.isoformat(" ") + zone.replace(":", "")):
        assert of(formats.read_stamps, text, True) == (at - EPOCH - east) // us
        assert of(formats.read_stamps, text, False) == (at - EPOCH) // us


@given(st.text("0123456789-:. TZ+", max_size=22) | st.binary(max_size=36))
def test_no_text_is_taken_for_another_value(text) -> None:
    column = _column([text])
    plain = text if isinstance(text, str) else text.decode(errors="replace")
    (found,), (is_marked,) = formats.read_ints(*column, -(2**63), 2**63 - 1)
    if not is_marked:
        assert found == int(plain)
    (found,), (is_marked,) = formats.read_fixed(*column, 18, 18)
    if not is_marked:
        assert found == Decimal(plain).scaleb(18).quantize(Decimal(1), ROUND_HALF_UP)
    (found,), (is_marked,) = formats.read_dates(*column)
    if not is_marked:
        assert found == (datetime.date.fromisoformat(plain) - EPOCH.date()).days
    for read in (formats.read_times, formats.read_bools, formats.odd_uuids):
        read(*column)
    formats.read_stamps(*column, True)


@given(st.lists(st.uuids() | st.text("0123456789abcdef-", max_size=36), max_size=4))
def test_uuids(values) -> None:
    odd = formats.odd_uuids(*_column([str(value) for value in values]))
    assert odd.tolist() == [not isinstance(value, uuid.UUID) for value in values]


@given(TEXTS, st.integers(-1, 5))
def test_odd_and_padded_texts(texts, width: int) -> None:
    texts = [text and text.replace("a", "\0") for text in texts]
    odd = formats.odd_texts(*_column(texts), width)
    sizes = [len((text or "").encode()) for text in texts]
    assert odd.tolist() == [
        text is not None and ("\0" in text or 0 <= width < size)
        for text, size in zip(texts, sizes, strict=True)
    ]
    offsets, data, _ = _column(texts)
    padded = formats.pad_texts(offsets, data, width)
    assert _values(*padded) == [(text or "").ljust(width).encode() for text in texts]


def test_booleans_and_plain_json() -> None:
    texts = ["t", "true", "f", "false", "T", "truth", "", None]
    found, marks = formats.read_bools(*_column(texts))
    assert found.tolist() == [True, True] + [False] * 6
    assert marks.tolist() == [False] * 4 + [True] * 3 + [False]
    plain = formats.json_plain(*_column(["1.5", "NaN", "-Infinity", "-1", "{}", None]))
    assert _values(*plain) == [b"1.5", b'"NaN"', b'"-Infinity"', b"-1", b"{}", b"null"]
