"""Free ports of this machine for servers that we start."""

from __future__ import annotations

import socket
from contextlib import ExitStack


def free_port() -> int:
    """Return a loopback port on which nothing listens at the moment."""
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """Return different loopback ports on which nothing listens at the moment."""
    with ExitStack() as probes:
        ports = []
        for _ in range(count):
            probe = probes.enter_context(socket.socket())
            probe.bind(("127.0.0.1", 0))
            ports.append(probe.getsockname()[1])
        return ports
