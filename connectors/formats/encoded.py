"""Base64 texts of bytes, as Debezium and JSON producers write them.

Standard alphabet (RFC 4648) with its padding; white space is never accepted.
"""

from __future__ import annotations

import binascii

from connectors.formats.columns import Faults, without
from dataflow.delta import KIND_BYTES, Column


def column_of_base64(texts: Column) -> tuple[Column, Faults]:
    """Return bytea from base64 texts.

    >>> column_of_base64(Column.of("s", ["3q0=", "?"]))[0].to_list()
    [b'\\\\xdead', None]
    """
    faults: Faults = {}
    values: list[bytes | None] = []
    for row, text in enumerate(texts.to_list()):
        try:
            values.append(None if text is None else bytea_text(read_base64(text)))
        except ValueError as error:
            faults[row] = str(error)
            values.append(None)
    column = Column.of(KIND_BYTES, values)
    return Column(column.values, without(texts.valid, faults, len(texts)), column.data), faults


def read_base64(text: bytes) -> bytes:
    """Decode base64; ValueError if it is malformed."""
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except binascii.Error as error:
        raise ValueError(f"not base64: {error}") from None


def bytea_text(raw: bytes) -> bytes:
    r"""Return PostgreSQL's text of a bytea.

    >>> bytea_text(b"\0a")
    b'\\x0061'
    """
    return b"\\x" + raw.hex().encode()
