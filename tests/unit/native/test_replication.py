"""Oracle: struct, and PostgreSQL's manual on message formats and COPY, in plain Python."""

from __future__ import annotations

import struct
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidemark_native import replication

from dataflow.delta import Column
from tests.unit.native.noise import damaged

NO_MASK = np.empty(0, np.bool_)
NOT_SENT = object()
VALUES = st.binary(max_size=12) | st.none()
ROWS = st.lists(VALUES | st.just(NOT_SENT), min_size=3, max_size=3)
NOT_A_NUMBER = 2**63 - 1


def _tuple(row) -> bytes:
    forms = [
        b"u"
        if value is NOT_SENT
        else b"n"
        if value is None
        else struct.pack(">cI", b"t", len(value)) + value
        for value in row
    ]
    return struct.pack(">H", len(row)) + b"".join(forms)


def _payload(kind: bytes, parts: dict[bytes, list]) -> bytes:
    return kind + bytes(4) + b"".join(letter + _tuple(row) for letter, row in parts.items())


PAYLOADS = st.one_of(
    ROWS.map(lambda row: (b"I", {b"N": row})),
    ROWS.map(lambda row: (b"U", {b"N": row})),
    st.tuples(st.sampled_from([b"K", b"O"]), ROWS, ROWS).map(
        lambda found: (b"U", {found[0]: found[1], b"N": found[2]})
    ),
    st.tuples(st.sampled_from([b"K", b"O"]), ROWS).map(lambda found: (b"D", {found[0]: found[1]})),
)
ROW_KINDS = {
    (b"I", b"N"): b"I",
    (b"U", b"N"): b"N",
    (b"U", b"K"): b"K",
    (b"U", b"O"): b"O",
    (b"D", b"O"): b"D",
    (b"D", b"K"): b"E",
}


def _walked(payloads: list[bytes], slots: list[int], width: int):
    data = np.frombuffer(b"".join(payloads), np.uint8)
    ends = np.cumsum([len(payload) for payload in payloads], dtype=np.int64)
    starts = ends - [len(payload) for payload in payloads]
    return data, *replication.walk_tuples(data, starts, np.array(slots, np.int64), width)


@given(st.lists(PAYLOADS, min_size=1, max_size=8))
def test_tuples(sent) -> None:
    payloads = [_payload(*payload) for payload in sent]
    data, starts, lengths, kinds, unchanged = _walked(payloads, [1, -1, 0], 2)
    expected, letters = [], b""
    for kind, parts in sent:
        for letter, row in parts.items():
            letters += ROW_KINDS[kind, letter]
            whole = parts[b"O"] if kind == b"U" and letter == b"N" and b"O" in parts else row
            expected.append([w if v is NOT_SENT else v for v, w in zip(row, whole, strict=True)])
    assert kinds.tobytes() == letters
    for slot, column in ((1, 0), (0, 2)):
        values = [
            NOT_SENT if n == replication.UNCHANGED else None if n < 0 else bytes(data[s : s + n])
            for s, n in zip(starts[slot].tolist(), lengths[slot].tolist(), strict=True)
        ]
        assert values == [row[column] for row in expected]
        texts = [b"" if v is NOT_SENT else v or b"" for v in values]
        offsets, raw, valid, nulls = replication.gather_bytes(data, starts[slot], lengths[slot])
        assert raw.tobytes() == b"".join(texts)
        assert np.diff(offsets).tolist() == [len(text) for text in texts]
        assert nulls == (~valid).sum() == (lengths[slot] < 0).sum()
    assert unchanged.tolist() == (lengths == replication.UNCHANGED).any(axis=1).tolist()


def test_heads() -> None:
    payloads = [b"I" + struct.pack(">I", 16_384) + b"x", b"B", b"R" + b"\xff" * 4]
    ends = np.cumsum([len(payload) for payload in payloads], dtype=np.int64)
    tags, words = replication.heads(np.frombuffer(b"".join(payloads), np.uint8), ends)
    assert (tags.tobytes(), words.tolist()) == (b"IBR", [16_384, -1, 2**32 - 1])


@given(st.lists(PAYLOADS, min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_damaged_payloads_are_refused_or_read_within_their_bytes(sent, random) -> None:
    payloads = [_payload(*payload) for payload in sent]
    payloads[-1] = damaged(payloads[-1], random) or b"I"
    try:
        data, starts, lengths, _, _ = _walked(payloads, [1, -1, 0], 2)
    except ValueError as error:
        assert "is not well formed" in str(error)
        return
    assert (starts + lengths.clip(0) <= len(data)).all()


NUMERICS = st.tuples(st.integers(-(10**18) + 1, 10**18 - 1), st.integers(0, 6))


def _numeric(unit: int, scale: int) -> bytes:
    """Return numeric_send's bytes of unit * 10^-scale."""
    digits, fraction = [], -(-scale // 4)
    rest = abs(unit) * 10 ** (4 * fraction - scale)
    while rest:
        rest, digit = divmod(rest, 10_000)
        digits.insert(0, digit)
    sign = 0x4000 if unit < 0 else 0
    words = struct.pack(f">{len(digits)}H", *digits)
    return struct.pack(">HhHH", len(digits), len(digits) - fraction - 1, sign, scale) + words


def _copied(rows) -> np.ndarray:
    found = b"".join(
        struct.pack(">H", len(row))
        + b"".join(b"\xff" * 4 if v is None else struct.pack(">i", len(v)) + v for v in row)
        for row in rows
    )
    return np.frombuffer(b"head" + found + b"\xff\xff", np.uint8)


@given(st.lists(NUMERICS | st.none(), max_size=8), st.integers(0, 6))
def test_numerics(numbers, scale: int) -> None:
    rows = [[None if n is None else _numeric(*n)] for n in numbers]
    data = _copied(rows)
    starts, lengths = replication.walk_copy(data, 4, len(rows), 1)
    found, valid, nulls = replication.read_numerics(
        data, starts[0], lengths[0], scale, NOT_A_NUMBER
    )
    assert (valid.tolist(), nulls) == ([n is not None for n in numbers], numbers.count(None))
    for value, number in zip(found.tolist(), numbers, strict=True):
        exact = Decimal(number[0]).scaleb(scale - number[1]) if number else Decimal(0)
        if exact == int(exact) and abs(exact) < 2**63:
            assert value == int(exact)


INTS = {2: st.integers(-(2**15), 2**15 - 1), 4: st.integers(-(2**31), 2**31 - 1)}
INTS[8] = st.integers(-(2**63), 2**63 - 1)


@pytest.mark.parametrize(("size", "letter"), [(2, "h"), (4, "i"), (8, "q")])
def test_integers(size: int, letter: str) -> None:
    @given(st.lists(INTS[size] | st.none(), max_size=8))
    def check(numbers) -> None:
        data = _copied([[None if n is None else struct.pack(f">{letter}", n)] for n in numbers])
        starts, lengths = replication.walk_copy(data, 4, len(numbers), 1)
        found, valid, nulls = replication.read_ints(data, starts[0], lengths[0])
        assert found.tolist() == [n or 0 for n in numbers]
        assert (valid.tolist(), nulls) == ([n is not None for n in numbers], numbers.count(None))

    check()


@given(st.lists(st.booleans() | st.none(), max_size=8))
def test_booleans(values) -> None:
    data = _copied([[None if v is None else bytes([v])] for v in values])
    starts, lengths = replication.walk_copy(data, 4, len(values), 1)
    found, valid, nulls = replication.read_bools(data, starts[0], lengths[0])
    assert found.tolist() == [bool(v) for v in values]
    assert (valid.tolist(), nulls) == ([v is not None for v in values], values.count(None))


@given(st.lists(st.tuples(VALUES, VALUES), min_size=1), st.randoms(use_true_random=False))
def test_a_damaged_copy_is_refused_or_read_within_its_bytes(rows, random) -> None:
    data = np.frombuffer(damaged(_copied(rows).tobytes(), random) or b"\0", np.uint8)
    try:
        starts, lengths = replication.walk_copy(data, 4, len(rows), 2)
        for k in range(2):
            replication.gather_bytes(data, starts[k], lengths[k])
            replication.read_ints(data, starts[k], lengths[k])
            replication.read_bools(data, starts[k], lengths[k])
            replication.read_numerics(data, starts[k], lengths[k], 2, NOT_A_NUMBER)
    except ValueError as error:
        assert "is not well formed" in str(error)
    else:
        assert (starts + lengths.clip(0) <= len(data)).all()


_ESCAPES = {b"\\": b"\\\\", b"\t": b"\\t", b"\n": b"\\n", b"\r": b"\\r"}


@given(st.lists(st.tuples(VALUES, VALUES), max_size=6))
def test_lines_of_copy(rows) -> None:
    columns = [Column.of("s", [row[k] for row in rows]) for k in range(2)]
    masks = [NO_MASK if c.valid is None else c.valid for c in columns]
    sizes = np.zeros(len(rows), np.int64)
    for column, mask in zip(columns, masks, strict=True):
        replication.add_sizes(sizes, column.values, column.data, mask)
    out, at = np.zeros(sizes.sum(), np.uint8), np.cumsum(sizes) - sizes
    for column, mask, delimiter in zip(columns, masks, b"\t\n", strict=True):
        replication.put_values(out, at, column.values, column.data, mask, delimiter)
    texts = [
        [b"\\N" if v is None else b"".join(_ESCAPES.get(bytes([c]), bytes([c])) for c in v)
         for v in row] for row in rows
    ]  # fmt: skip
    assert out.tobytes() == b"".join(b"\t".join(row) + b"\n" for row in texts)
    starts, ends, torn = replication.split_lines(out, 2)
    assert torn == -1
    for k in range(2):
        offsets, raw, valid = replication.gather_values(out, starts[k], ends[k])
        found = Column(offsets, valid, raw).to_list()
        assert found == [row[k] for row in rows]


@given(st.lists(VALUES, max_size=6))
def test_array_literals(values) -> None:
    column = Column.of("s", values)
    mask = NO_MASK if column.valid is None else column.valid
    items = [
        b"NULL" if v is None else
        b'"' + v.replace(b"\\", b"\\\\").replace(b'"', b'\\"').replace(b"'", b"''") + b'"'
        for v in values
    ]  # fmt: skip
    found = replication.array_literal(column.values, column.data, mask)
    assert found.tobytes() == b"'{" + b",".join(items) + b"}'"


@given(st.binary(max_size=80), st.integers(0, 3))
def test_any_lines_are_split_or_torn(data: bytes, columns: int) -> None:
    raw = np.frombuffer(data + b"\n", np.uint8)
    lines = (data + b"\n").split(b"\n")[:-1]
    counts = [line.count(b"\t") + 1 for line in lines]
    torn = [i for i, count in enumerate(counts) if count != max(columns, 1)]
    starts, ends, found = replication.split_lines(raw, columns)
    assert found == (torn[0] if torn else -1)
    for k in range(0 if torn else columns):
        replication.gather_values(raw, starts[k], ends[k])
        cells = [line.split(b"\t")[k] for line in lines]
        assert [data[a:b] for a, b in zip(starts[k], ends[k], strict=True)] == cells
