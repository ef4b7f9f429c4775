"""The child processes of Kafka's client: what they need, and how much memory they may use."""

from __future__ import annotations

import importlib.util
import os
from typing import Any

from connectors.apart import starter
from connectors.apart.child_process import MEBIBYTE, Use
from connectors.kafka.options import KafkaOptions
from connectors.outside.boundary import Side

# Without the package, `connectors/extras.py` names the extra that has it.
if importlib.util.find_spec("confluent_kafka") is None:
    raise ModuleNotFoundError("no module confluent_kafka", name="confluent_kafka")

KIND = starter.Kind("kafka", ("connectors.kafka.in_child",))
# Of the client's queues, a batch that is unpacked and the records that are decoded.
MEMORY_MB = 1024
# An offset of a topic whose last rows are searched: the hash of a key, while hashes are merged.
_OFFSET_BYTES = 64
# What waits exists several times: as records, in the client, decoded and on its way.
_COPIES = 4


def prepare() -> None:
    """Start what forks the children without waiting, for the first one."""
    starter.warm(KIND)


def use_of(side: Side, name: str, options: Any, memory: int = 0) -> Use:
    """Return the use of a source or sink. options: with references to its secrets. memory: in MiB,
    0 for what the options need.
    """
    own = options if isinstance(options, KafkaOptions) else None
    return Use(KIND, side, name, options, memory or memory_mb(own))


def memory_mb(options: KafkaOptions | None, offsets: int = 0) -> int:
    """Return how much memory a child may use, in MiB. offsets: whose keys it remembers."""
    waiting = 0
    if options is not None:
        waiting = options.buffer_bytes
        waiting += 0 if options.transactions is None else options.transaction_buffer_bytes
    needed = MEMORY_MB + (_COPIES * waiting + _OFFSET_BYTES * offsets) // MEBIBYTE
    # A broker may say anything of its offsets.
    half = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // (2 * MEBIBYTE)
    return max(MEMORY_MB, min(needed, half))
