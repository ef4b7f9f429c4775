"""Messages of a webhook sink: the changes of an epoch as JSON, in parts, with ids.

An id contains a digest of its message, so a repeated id always has the same body, byte for byte.
Messages of one epoch are the same whenever it is sent; the first rows, which may be read in another
order the next time, have the number of their attempt in each message.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from connectors.formats import encode_rows as form
from connectors.http.webhook_options import WebhookOptions
from connectors.sink import SinkTable
from connectors.view_sink import ViewEpoch
from dataflow.delta import Column, Delta
from dataflow.errors import SinkError
from dataflow.schema import Field
from dataflow.types import INT8

CHANGES, TEST = "tidemark.changes", "tidemark.test"
PREFIX = "whsec_"
_WEIGHT = Field("weight", INT8, False)
# Rows that are encoded at a time.
_BATCH_ROWS = 8_192
_DIGITS = 16


@dataclass(frozen=True)
class Message:
    """One request. epoch, part: of its changes; a message without any has part 1."""

    id: str
    body: bytes
    epoch: int
    part: int


class Messages:
    """The messages of one view."""

    def __init__(self, options: WebhookOptions, table: SinkTable, identity: str) -> None:
        self._options = options
        self._table = table
        self._identity = identity

    def of(self, epoch: ViewEpoch, attempt: str) -> Iterator[Message]:
        """Yield the messages of an epoch, at least one. attempt: of the first rows, else ""."""
        part, waiting = 1, b""
        for changes in self._parts(epoch):
            if waiting:
                yield self._message(epoch, attempt, part, waiting, is_last=False)
                part += 1
            waiting = changes
        yield self._message(epoch, attempt, part, waiting, is_last=True)

    def test(self) -> Message:
        """Return the message that checks a receiver."""
        body = json.dumps({"type": TEST, "data": {"view": self._table.title}}).encode()
        return Message(f"test/{_digest(body)}", body, 0, 1)

    def _message(
        self, epoch: ViewEpoch, attempt: str, part: int, changes: bytes, *, is_last: bool
    ) -> Message:
        facts = {
            "sink": self._identity,
            "view": self._table.title,
            "epoch": epoch.number,
            "position": dict(epoch.positions),
            "initial": epoch.is_initial,
            **({"attempt": attempt} if epoch.is_initial else {}),
            "part": part,
            "last": is_last,
        }
        head = json.dumps({"type": CHANGES, "data": facts}, ensure_ascii=False).removesuffix("}}")
        body = b'%s, "changes": [%s]}}' % (head.encode(), changes)
        name = f"{self._identity}/{epoch.number}/{part}/{_digest(body)}"
        return Message(name, body, epoch.number, part)

    def _parts(self, epoch: ViewEpoch) -> Iterator[bytes]:
        """Yield the changes as JSON with commas between them, in parts of bounded size."""
        for delta in epoch.deltas:
            rows = delta.take(np.argsort(delta.weights > 0, kind="stable"))
            for start in range(0, len(rows), _BATCH_ROWS):
                batch = rows.slice(start, min(start + _BATCH_ROWS, len(rows)))
                yield from self._cut(self._encoded(batch))

    def _encoded(self, batch: Delta) -> Column:
        names = form.one_of([b'"delete"', b'"insert"'], (batch.weights > 0).astype(np.int64))
        weights = form.json_column(_WEIGHT, Column(batch.weights))
        row = form.joined(form.json_row(self._table.fields, batch.columns), len(batch))
        pieces = [b'{"op": ', names, b', "weight": ', weights, b', "row": ', row, b"},"]
        return form.joined(pieces, len(batch))

    def _cut(self, changes: Column) -> Iterator[bytes]:
        assert changes.data is not None
        ends, start, n = changes.values, 0, len(changes)
        while start < n:
            begin = int(ends[start])
            fitting = int(np.searchsorted(ends[1:], begin + self._options.part_bytes, "right"))
            stop = min(start + self._options.part_rows, n, max(fitting, start + 1))
            yield changes.data[begin : int(ends[stop]) - 1].tobytes()
            start = stop


def signature(message: Message, timestamp_s: int, keys: Sequence[bytes]) -> str:
    """Return the header webhook-signature: one signature by each key.

    >>> signature(Message("a/1", b"{}", 1, 1), 1700000000, [b"key"])
    'v1,b8Cox94L29QOH5+z8nDy127c+XQ1ElCjsT6t6SZmDy0='
    """
    signed = b"%s.%d.%s" % (message.id.encode(), timestamp_s, message.body)
    found = (base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()) for key in keys)
    return " ".join(f"v1,{text.decode()}" for text in found)


def key_of(secret: str) -> bytes:
    """Return the key of a secret, whsec_ and base64. SinkError sink.bad_option."""
    try:
        if secret.startswith(PREFIX):
            key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
            if key:
                return key
    except (binascii.Error, ValueError) as error:
        raise _bad_secret() from error
    raise _bad_secret()


def _bad_secret() -> SinkError:
    return SinkError(
        "sink.bad_option",
        'option "secret" refers to a text that is no secret of webhooks',
        hint="it must be whsec_ followed by base64, as the receiver has it",
    )


def _digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()[:_DIGITS]
