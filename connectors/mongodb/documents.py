"""Documents as JSON records, as MongoDB's own tools write them in short.

Invariant: numbers keep all their digits, and a value of a type that JSON lacks becomes a text that
PostgreSQL reads as its type, or an object as of MongoDB's extended JSON.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import orjson
from bson import DatetimeMS, Decimal128, Int64, ObjectId, json_util
from bson.binary import UUID_SUBTYPE, Binary
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.timestamp import Timestamp

from connectors.outside import texts
from connectors.outside.bounded import Bounds, Meter
from connectors.outside.deadline import Deadline
from connectors.polled.values import text_of

# Of the documents that are held at a time: a relation that is read whole, or a part of a stream.
MOST_BYTES = 512 << 20
_SHOWN = 100
# A date beyond Python's calendar, or a text that is none, is a fault of its document alone.
CODEC: CodecOptions[dict[str, Any]] = CodecOptions(
    tz_aware=True,
    datetime_conversion=DatetimeConversion.DATETIME_AUTO,
    unicode_decode_error_handler="surrogateescape",
)
_PLAIN = (str, bool, type(None), int, float)


def records_of(
    documents: Iterable[Mapping[str, Any]], deadline: Deadline | None = None
) -> list[bytes]:
    """Return the JSON of each document, as they come.

    OverLimitError: they have more than MOST_BYTES. LateError.
    """
    found, meter = list[bytes](), Meter(Bounds(out_bytes=MOST_BYTES, ratio=1 << 30))
    for document in documents:
        record = _record(document)
        meter.add(out_bytes=len(record))
        found.append(record)
        if deadline is not None:
            deadline.check()
    return found


def chunks_of(
    documents: Iterable[Mapping[str, Any]], count: int, most_bytes: int
) -> Iterator[list[bytes]]:
    """Yield the JSON of documents, as they come, about so many or so many bytes at a time."""
    chunk, size = list[bytes](), 0
    for document in documents:
        chunk.append(_record(document))
        size += len(chunk[-1])
        if len(chunk) >= count or size >= most_bytes:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _record(document: Mapping[str, Any]) -> bytes:
    """Return the JSON of a document; of one that has none, a text that is rejected as a record."""
    try:
        return orjson.dumps({str(n): plain(v) for n, v in document.items()})
    except (ValueError, TypeError, ArithmeticError, RecursionError) as error:
        named = texts.shown(repr(document.get("_id")), _SHOWN)
        return f"document {named} has no JSON: {texts.described(error, _SHOWN)}".encode()


def plain(value: Any) -> Any:
    """Return a value in what JSON has.

    >>> plain({"n": Decimal128("1.10"), "at": [Int64(5)]})
    {'n': '1.10', 'at': [5]}
    """
    if type(value) in _PLAIN:
        is_finite = not isinstance(value, float) or value - value == 0
        return value if is_finite else repr(value)
    if isinstance(value, Mapping):
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, Int64):
        return int(value)
    if isinstance(value, ObjectId):
        return str(value)
    if isinstance(value, Decimal128):
        return str(value.to_decimal())
    if isinstance(value, Binary) and value.subtype == UUID_SUBTYPE:
        return str(value.as_uuid())
    if isinstance(value, bytes):
        return "\\x" + value.hex()
    if isinstance(value, Timestamp):
        return value.as_datetime().isoformat()
    if isinstance(value, datetime.datetime):
        return value.isoformat()
    if isinstance(value, DatetimeMS):
        # Beyond Python's calendar, and within PostgreSQL's or not.
        return f"{np.datetime64(int(value), 'ms')}Z"
    if isinstance(value, re.Pattern):
        return value.pattern
    known = json_util.default
    try:
        return plain(known(value))
    except TypeError:
        return text_of(value)
