"""Documents as JSON records, as MongoDB's own tools write them in short.

Invariant: numbers keep all their digits, and a value of a type that JSON lacks becomes a text that
PostgreSQL reads as its type, or an object as of MongoDB's extended JSON.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Mapping
from typing import Any

import orjson
from bson import Decimal128, Int64, ObjectId, json_util
from bson.binary import UUID_SUBTYPE, Binary
from bson.timestamp import Timestamp

from connectors.polled.values import text_of

_PLAIN = (str, bool, type(None), int, float)


def records_of(documents: Iterable[Mapping[str, Any]]) -> list[bytes]:
    """Return the JSON of each document."""
    return [orjson.dumps({str(n): plain(v) for n, v in d.items()}) for d in documents]


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
    if isinstance(value, re.Pattern):
        return value.pattern
    known = json_util.default
    try:
        return plain(known(value))
    except TypeError:
        return text_of(value)
