"""What crosses between a child process and the service: pickled values, arrays as bare bytes.

A frame is lengths, a pickle, and the buffers of its arrays. Invariant: what comes from a child
makes values only. Classes of rows, positions and errors are known by name, and a pickle that names
anything else is refused: a child whose library was taken over runs nothing in the service.
"""

from __future__ import annotations

import importlib
import pickle
import socket
import struct
from io import BytesIO
from typing import Any

import numpy as np

# Arrays are read where they arrive, so they begin where compiled loops expect them.
_ALIGNED = 64
# Of one call of sendmsg(2).
_MOST_PARTS = 512
_COUNT = struct.Struct("<I")
# A frame with more is none of ours.
MOST_BUFFERS, MOST_BYTES = 1 << 20, 64 << 30
_CLASSES_OF = frozenset(
    {
        "connectors.feed_source",
        "connectors.source",
        "dataflow.changes",
        "dataflow.errors",
        "dataflow.schema",
        "dataflow.types",
        "storage.delta",
    }
)
_FUNCTIONS = frozenset({("dataflow.errors", "_rebuild"), ("storage.delta", "_restored")})
_OTHERS = frozenset(
    {
        ("builtins", "frozenset"),
        ("builtins", "set"),
        ("numpy", "dtype"),
        ("numpy", "ndarray"),
        *((f"numpy.{core}.numeric", "_frombuffer") for core in ("core", "_core")),
        *((f"numpy.{core}.multiarray", "_reconstruct") for core in ("core", "_core")),
        *((f"numpy.{core}.multiarray", "scalar") for core in ("core", "_core")),
    }
)


class EndedError(Exception):
    """The other side has ended, or what it sends is no frame."""


def send(connection: socket.socket, value: Any) -> None:
    """Send a value. OSError: the other side has gone."""
    buffers: list[pickle.PickleBuffer] = []
    head = pickle.dumps(value, pickle.HIGHEST_PROTOCOL, buffer_callback=buffers.append)
    raws = [one.raw() for one in buffers]
    sizes = [len(head), *(raw.nbytes for raw in raws)]
    lengths = _COUNT.pack(len(raws)) + np.array(sizes, "<u8").tobytes()
    _send_all(connection, [memoryview(lengths), memoryview(head), *filter(len, raws)])


def receive(connection: socket.socket, *, is_trusted: bool = False) -> Any:
    """Return the next value. EndedError. is_trusted: the service has sent it, not a child."""
    try:
        (count,) = _COUNT.unpack(_exactly(connection, _COUNT.size))
        if count > MOST_BUFFERS:
            raise EndedError("more arrays than a frame has")
        sizes = np.frombuffer(_exactly(connection, 8 * (count + 1)), "<u8").tolist()
        if sum(sizes) > MOST_BYTES:
            raise EndedError("more bytes than a frame has")
        head = _exactly(connection, sizes[0])
        buffers = _buffers(connection, sizes[1:])
        if is_trusted:
            return pickle.loads(head, buffers=buffers)
        return _Values(BytesIO(head), buffers=buffers).load()
    except OSError as error:
        raise EndedError(str(error)) from None
    except (pickle.UnpicklingError, struct.error) as error:
        raise EndedError(f"what it sends cannot be read: {error}") from None


class _Values(pickle.Unpickler):
    """Reads a pickle of a child."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        named = (module_name, global_name)
        if named in _OTHERS or named in _FUNCTIONS:
            return getattr(importlib.import_module(module_name), global_name)
        if module_name in _CLASSES_OF and "." not in global_name:
            found = getattr(importlib.import_module(module_name), global_name, None)
            if isinstance(found, type) and found.__module__ == module_name:
                return found
        raise pickle.UnpicklingError(f"{module_name}.{global_name} is no value of a child")


def _buffers(connection: socket.socket, sizes: list[int]) -> list[memoryview]:
    """Return the buffers of a frame, which share one array."""
    begins, end = [], 0
    for size in sizes:
        begins.append(end)
        end += -(-size // _ALIGNED) * _ALIGNED
    whole = np.empty(end + _ALIGNED, np.uint8)
    shift = -whole.ctypes.data % _ALIGNED
    view = whole.data[shift:]
    found = [view[begin : begin + size] for begin, size in zip(begins, sizes, strict=True)]
    for buffer in found:
        _fill(connection, buffer)
    return found


def _exactly(connection: socket.socket, size: int) -> memoryview:
    found = np.empty(size, np.uint8).data
    _fill(connection, found)
    return found


def _fill(connection: socket.socket, buffer: memoryview) -> None:
    at = 0
    while at < len(buffer):
        received = connection.recv_into(buffer[at:])
        if not received:
            raise EndedError("it has closed the connection")
        at += received


def _send_all(connection: socket.socket, parts: list[memoryview]) -> None:
    at = 0
    while at < len(parts):
        sent = connection.sendmsg(parts[at : at + _MOST_PARTS])
        while at < len(parts) and sent >= parts[at].nbytes:
            sent -= parts[at].nbytes
            at += 1
        if sent:
            parts[at] = parts[at][sent:]
