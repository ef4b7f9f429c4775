"""PyMySQL's connection within limits: of time for each exchange, and of bytes for each packet.

The library waits from byte to byte, trusts each length, and joins packets until the server sends a
short one. Invariants: a packet has at most MOST_PACKET_BYTES; handshake, and each packet after it,
arrive in time as a whole, and so does a whole answer where `exchange_s` is set.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from connectors.outside.deadline import Deadline
from connectors.outside.sockets import shut

# The longest rows and events that are read.
MOST_PACKET_BYTES = 128 << 20
# The answer to a question of our own, such as about the columns of a table.
MOST_ANSWER_BYTES = 64 << 20
# A packet that has begun arrives at this rate, beside the timeout that any of them has.
_LEAST_BYTES_S = 64 << 10
# As the client's own error for a connection that is lost.
_LOST = 2013


class _Bounded:
    """What a class of PyMySQL's connections gets. received: bytes so far."""

    received = 0
    # Of the client, once there is a class of its connections.
    _errors: Any
    _read_timeout: float | None
    connect_timeout: float
    _sock: Any
    _rfile: Any
    _force_close: Callable[[], None]
    _exchange: Deadline | None = None
    _packet_end = 0
    _answer_end: int | None = None

    def connect(self, sock: Any = None) -> None:
        self.begin_answer(self.connect_timeout, MOST_ANSWER_BYTES)
        super().connect(sock)  # type: ignore[misc]
        self.begin_answer(None, None)

    def begin_answer(self, seconds: float | None, most_bytes: int | None) -> None:
        """Limit what is received until the next call; None for no limit."""
        self._exchange = None if seconds is None else Deadline(seconds)
        self._answer_end = None if most_bytes is None else self.received + most_bytes

    def abort(self) -> None:
        """Wake up the thread that waits for the server; its call ends with an error."""
        opened = self._sock
        if opened is not None:
            shut(opened)

    def _read_packet(self, *arguments: Any) -> Any:
        self._packet_end = self.received + MOST_PACKET_BYTES
        return super()._read_packet(*arguments)  # type: ignore[misc]

    def _read_bytes(self, num_bytes: int) -> bytes:
        end = self.received + num_bytes
        if end > self._packet_end:
            raise self._lost(f"a packet has more than {MOST_PACKET_BYTES:,} bytes")
        if self._answer_end is not None and end > self._answer_end:
            raise self._lost(f"an answer has more than {MOST_ANSWER_BYTES:,} bytes")
        parts, left, rest = list[bytes](), num_bytes, None
        try:
            while left:
                self._wait_at_most(rest)
                part = self._rfile.read1(left)
                if not part:
                    raise self._lost("it was closed")
                parts.append(part)
                left -= len(part)
                if left and rest is None and self._read_timeout is not None:
                    rest = Deadline(self._read_timeout + left / _LEAST_BYTES_S)
        except (OSError, ValueError, AttributeError) as error:
            # Another thread may have closed it.
            raise self._lost(str(error)) from None
        self.received = end
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _wait_at_most(self, rest: Deadline | None) -> None:
        """Set how long the next bytes may take; the first ones of a packet have its timeout."""
        waits = [one.remaining_s() for one in (rest, self._exchange) if one is not None]
        if waits:
            found = min(wait for wait in waits if wait is not None)
            most_s = self._read_timeout
            self._sock.settimeout(found if most_s is None else min(found, most_s))
            # Set again with the next packet.
            self._current_timeout = -1

    def _lost(self, why: str) -> Exception:
        self._force_close()
        return self._errors.OperationalError(_LOST, f"Lost connection to MySQL server ({why})")


def bounded(client: Any, inner: type | None = None) -> Callable[..., Any]:
    """Return what makes connections within limits. client: PyMySQL. inner: a class of connections.

    It takes the settings of `Connection`, of which connect_timeout is that of the whole handshake,
    and read_timeout that of one packet.
    """
    base = inner or client.connections.Connection
    return type("BoundedConnection", (_Bounded, base), {"_errors": client.err})
