"""Client addresses: whether they are local, and how often each has guessed tokens.

Invariant: guessing is slowed down, and nobody is locked out. `service/access/authorization.py`
decides who may do what.
"""

from __future__ import annotations

import ipaddress
import time
from collections import OrderedDict

# Failed attempts an address may make at once, and the seconds until it may make another.
BURST = 10
REFILL_S = 6.0
MAX_ADDRESSES = 10_000


class Guesses:
    """Count each address's invalid tokens in a bucket that refills slowly.

    A valid token is always accepted, so an attacker behind the same address cannot lock its owner
    out. An IPv6 host counts as its /64 network, all of which it may control.
    """

    def __init__(self) -> None:
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait_s(self, address: str) -> float:
        """Count a failed attempt; return the seconds to wait, 0 while attempts are left."""
        key, now = network_of(address), time.monotonic()
        left, at = self._left.pop(key, (float(BURST), now))
        left = min(float(BURST), left + (now - at) / REFILL_S) - 1
        self._left[key] = (max(left, -1.0), now)
        while len(self._left) > MAX_ADDRESSES:
            self._left.popitem(last=False)
        return 0.0 if left >= 0 else REFILL_S


def is_loopback(host: str) -> bool:
    """Return True if only this machine can reach what listens on `host`.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def network_of(address: str) -> str:
    """Return what one client may control: an IPv4 address, or the /64 network of an IPv6 one.

    >>> network_of("192.0.2.7"), network_of("::ffff:192.0.2.7"), network_of("2001:db8::1:2:3:4")
    ('192.0.2.7', '192.0.2.7', '2001:db8::/64')
    """
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv6Address) and not found.ipv4_mapped:
        return str(ipaddress.ip_network((found, 64), strict=False))
    return str(getattr(found, "ipv4_mapped", None) or found)
