"""Ports of this machine for servers that we start ourselves."""

from __future__ import annotations

import socket
from contextlib import ExitStack


def free_port() -> int:
    """A loopback port that nobody listens on just now."""
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """Different loopback ports that nobody listens on just now."""
    with ExitStack() as probes:
        ports = []
        for _ in range(count):
            probe = probes.enter_context(socket.socket())
            probe.bind(("127.0.0.1", 0))
            ports.append(probe.getsockname()[1])
        return ports
