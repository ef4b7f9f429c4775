"""How large a parsed Protobuf record may become, checked before."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from tidemark_native import formats

from connectors.formats.avro_bounds import MOST_VALUES

# The parser refuses deeper messages itself.
_MOST_DEPTH = 101


class ProtobufBounds:
    """Checks records of one type of messages."""

    def __init__(self, message: Descriptor) -> None:
        numbers = {message.full_name: 0}
        pending, starts, fields, sizes = [message], [0], list[tuple[int, int, int]](), list[int]()
        for one in pending:
            sizes.append(1 + len(one.fields))
            for field in sorted(one.fields, key=lambda field: field.number):
                inner = field.message_type
                if inner is None:
                    continue
                if inner.full_name not in numbers:
                    numbers[inner.full_name] = len(pending)
                    pending.append(inner)
                is_group = field.type == FieldDescriptor.TYPE_GROUP
                kind = formats.PROTOBUF_GROUP if is_group else formats.PROTOBUF_SIZED
                fields.append((field.number, kind, numbers[inner.full_name]))
            starts.append(len(fields))
        self._starts = np.array(starts, np.int64)
        self._fields = np.array(fields, np.int64).reshape(-1, 3)
        self._sizes = np.array(sizes, np.int64)

    def too_large(self, records: Sequence[bytes]) -> set[int]:
        """Return the positions of the records that must not be parsed."""
        offsets = np.zeros(len(records) + 1, np.int64)
        np.cumsum(np.fromiter(map(len, records), np.int64, len(records)), out=offsets[1:])
        raw = np.frombuffer(b"".join(records) or b"\0", np.uint8)
        found = formats.count_fields(
            offsets, raw, self._starts, self._fields, self._sizes, MOST_VALUES, _MOST_DEPTH
        )
        return set(np.flatnonzero(found == formats.PROTOBUF_TOO_MANY).tolist())
