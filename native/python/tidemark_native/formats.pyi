"""Loops from records of bytes to columns, and from columns to records.

Columns of byte strings are (offsets, data, valid); an empty `valid` means no NULLs. Parsers of
texts return (values, marks): a marked row is not of the plain form and is left to the caller.
Encoders return (offsets, bytes) with one encoded value a row.
"""

from typing import Any, TypeAlias

from numpy import bool_, dtype, int64, ndarray, uint8

_Ints: TypeAlias = ndarray[Any, dtype[int64]]
_Bytes: TypeAlias = ndarray[Any, dtype[uint8]]
# A column may have no bytes; what a kernel is called for has them.
_Data: TypeAlias = _Bytes | None
_Bools: TypeAlias = ndarray[Any, dtype[bool_]]

CSV_ABSENT: int
CSV_PLAIN: int
CSV_QUOTED: int
CSV_ESCAPED: int
JSON_ABSENT: int
JSON_NULL: int
JSON_STRING: int
JSON_ESCAPED: int
JSON_NUMBER: int
JSON_FALSE: int
JSON_TRUE: int
JSON_OBJECT: int
JSON_ARRAY: int
JSON_MAX_DEPTH: int
AVRO_NULL: int
AVRO_LONG: int
AVRO_FIXED: int
AVRO_BYTES: int
AVRO_RECORD: int
AVRO_UNION: int
AVRO_ARRAY: int
AVRO_MAP: int
AVRO_BROKEN: int
AVRO_TOO_MANY: int
AVRO_TOO_DEEP: int
PROTOBUF_SIZED: int
PROTOBUF_GROUP: int
PROTOBUF_TOO_MANY: int

def split_cells(
    offsets: _Ints, data: _Data, count: int, delimiter: int, quote: int, escape: int
) -> tuple[_Ints, _Ints, _Bytes, _Ints]:
    """Return (starts, ends, kinds by [cell, record], cells by record) of CSV records.

    A valid record has `count` cells; otherwise its number of cells differs, or is negative if
    quotes do not match. quote: -1 for none.
    """

def copy_cells(
    data: _Data,
    starts: _Ints,
    ends: _Ints,
    kinds: _Bytes,
    quote: int,
    escape: int,
    null: _Bytes,
) -> tuple[_Ints, _Bytes, _Bools]:
    """Return (offsets, bytes, valid) of one column's cells without quotes and escapes.

    A plain cell with the text `null` is NULL.
    """

def scan_json(
    offsets: _Ints, data: _Data, parents: _Ints, key_ends: _Ints, keys: _Bytes
) -> tuple[_Ints, _Ints, _Bytes, _Bools]:
    """Return (starts, ends, kinds by [node, record], marks by record).

    parents: of each node, -1 for node 0, the record. key_ends: where each node's key starts. The
    bytes of record i end before offsets[i + 1] - 1, which is a separator. starts and ends of
    strings exclude the quotes. A node below a non-object is JSON_ABSENT. A marked record is not
    plain JSON.
    """

def gather_json(
    data: _Data, starts: _Ints, ends: _Ints, kinds: _Bytes, selected: _Bools
) -> tuple[_Ints, _Bytes]:
    """Return (offsets, bytes) of the values whose kind is wanted (bool[9]); others are empty."""

def unescape_json(offsets: _Ints, data: _Data, is_escaped: _Bools) -> tuple[_Ints, _Bytes, _Bools]:
    """Return (offsets, bytes, marks) of contents of JSON strings without their escapes.

    A marked one has half of a surrogate pair, so it is not text.
    """

def count_openings(text: _Bytes) -> int:
    """Return how many commas and opening brackets are outside of the strings of a JSON text."""

def json_texts(offsets: _Ints, data: _Data, valid: _Bools) -> tuple[_Ints, _Bytes]:
    """Encode JSON strings, or null."""

def json_plain(offsets: _Ints, data: _Data, valid: _Bools) -> tuple[_Ints, _Bytes]:
    """Copy texts that are JSON, or null; NaN and infinities become strings."""

def json_bools(values: _Bools, valid: _Bools) -> tuple[_Ints, _Bytes]: ...
def avro_longs(values: _Ints, valid: _Bools, in_union: bool) -> tuple[_Ints, _Bytes]:
    """Encode Avro ints and longs; in a union [null, T] each with its branch."""

def avro_fixed(raw: _Bytes, valid: _Bools, in_union: bool) -> tuple[_Ints, _Bytes]:
    """Encode Avro values of raw[n, width] bytes each: booleans, floats, doubles."""

def avro_texts(
    offsets: _Ints, data: _Data, valid: _Bools, in_union: bool
) -> tuple[_Ints, _Bytes]: ...
def avro_long(value: int) -> bytes: ...
def put_values(out: _Bytes, at: _Ints, offsets: _Ints, data: _Data) -> None:
    """Write value i to out[at[i]:] and move at[i] after it."""

def put_literal(out: _Bytes, at: _Ints, literal: _Bytes) -> None:
    """Write the same bytes to each out[at[i]:] and move at[i] after them."""

def murmur2(offsets: _Ints, data: _Data) -> _Ints:
    """Return MurmurHash2 of each value, made positive as Kafka's clients do."""

def read_ints(
    offsets: _Ints, data: _Data, valid: _Bools, low: int, high: int
) -> tuple[_Ints, _Bools]:
    """Parse decimal integers of at most 18 digits within [low, high]."""

def read_fixed(
    offsets: _Ints, data: _Data, valid: _Bools, precision: int, scale: int
) -> tuple[_Ints, _Bools]:
    """Parse plain decimals as value * 10^scale, rounded half away from zero like numeric(p,s)."""

def read_bools(offsets: _Ints, data: _Data, valid: _Bools) -> tuple[_Bools, _Bools]: ...
def read_dates(offsets: _Ints, data: _Data, valid: _Bools) -> tuple[_Ints, _Bools]:
    """Parse YYYY-MM-DD to days since 2000-01-01."""

def read_times(offsets: _Ints, data: _Data, valid: _Bools) -> tuple[_Ints, _Bools]:
    """Parse HH:MM:SS with up to six decimals to microseconds since midnight."""

def read_stamps(offsets: _Ints, data: _Data, valid: _Bools, has_zone: bool) -> tuple[_Ints, _Bools]:
    """Parse an ISO 8601 time to microseconds since 2000-01-01; its offset counts if has_zone."""

def odd_texts(offsets: _Ints, data: _Data, valid: _Bools, most: int) -> _Bools:
    """Return which texts have a NUL byte, or more than `most` bytes if that is not negative."""

def odd_numerics(offsets: _Ints, data: _Data, valid: _Bools, precision: int, scale: int) -> _Bools:
    """Return which texts numeric(precision, scale) may print differently.

    A negative scale stands for plain numeric.
    """

def odd_uuids(offsets: _Ints, data: _Data, valid: _Bools) -> _Bools:
    """Return which texts are not a UUID as PostgreSQL prints it."""

def pad_texts(offsets: _Ints, data: _Data, width: int) -> tuple[_Ints, _Bytes]:
    """Return (offsets, bytes) of texts padded with blanks up to `width` characters."""

def count_values(
    offsets: _Ints,
    raw: _Bytes,
    nodes: _Ints,
    children: _Ints,
    most_values: int,
    most_depth: int,
) -> _Ints:
    """Return the values of each Avro record, or AVRO_BROKEN, AVRO_TOO_MANY or AVRO_TOO_DEEP.

    nodes: int64[nodes, 3] of kind, first child and count, the record's type first; the count is
    the bytes of AVRO_FIXED, or the children of AVRO_RECORD and AVRO_UNION; AVRO_ARRAY and AVRO_MAP
    have one child. children: node numbers. most_depth: of values within each other.
    """

def count_fields(
    offsets: _Ints,
    raw: _Bytes,
    starts: _Ints,
    fields: _Ints,
    sizes: _Ints,
    most_fields: int,
    most_depth: int,
) -> _Ints:
    """Return the fields of all messages of each Protobuf record, or PROTOBUF_TOO_MANY.

    starts: int64[messages + 1], where the fields of a message are that hold messages. fields:
    int64[n, 3] of number, wire type and message, by number within each message. sizes: how many
    fields a message has, with itself. A record that is broken, or deeper than most_depth, is
    counted up to there: the parser refuses it.
    """

def longest_plain(data: _Data) -> tuple[int, int] | None: ...
def list_rows(
    data: _Data, width: int, count: int, open_levels: int, is_packed: bool
) -> tuple[int, int, int, bool] | None: ...
def packed_lengths(data: _Data, at: int, most: int) -> tuple[int, int, int, int] | None: ...
