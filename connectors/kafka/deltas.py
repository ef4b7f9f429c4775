"""Read a view's topic of deltas from its beginning: the starting point of a Python consumer.

Only records of committed transactions are returned. The markers in the second topic delimit epochs
(docs/KAFKA_SINK.md); a consumer that only needs the newest state can ignore them.
"""

from __future__ import annotations

import json
import time
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, KafkaError, TopicPartition

from connectors.kafka.client import Client

_BATCH = 1_000
_WAIT_S = 0.2


class DeltaReader:
    """Reads the values of a topic of one partition, in order; used by one thread."""

    def __init__(self, client: Client, topic: str) -> None:
        self._client = client
        self._consumer = client.consumer(enable_partition_eof=True)
        self._consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])

    def read(self, timeout_s: float) -> list[dict[str, Any]]:
        """Return the values since the last call, up to the topic's end or until the timeout.

        TidemarkError as the client reports it.
        """
        found: list[dict[str, Any]] = []
        deadline = time.monotonic() + timeout_s
        is_end = False
        while not is_end and time.monotonic() < deadline:
            # The same batch may hold records after an end that was reached.
            for record in self._consumer.consume(_BATCH, _WAIT_S):
                error = record.error()
                is_end = error is not None and error.code() == KafkaError._PARTITION_EOF
                if error is None:
                    found.append(json.loads(record.value() or b"null"))
                elif not is_end:
                    raise self._client.refused(error, "reading deltas", self._consumer)
        return found

    def close(self) -> None:
        """Close the consumer."""
        self._consumer.close()
