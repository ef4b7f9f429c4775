"""Where requests come from: this machine or another, and how often an address has guessed tokens.

Invariant: guesses slow down those who guess, and lock nobody out. Who may do what is decided in
`service/access/authorization.py`.
"""

from __future__ import annotations

import ipaddress
import time
from collections import OrderedDict

# Failed attempts that an address has at once, and how fast it gets new ones.
BURST = 10
REFILL_S = 6.0
MOST_ADDRESSES = 10_000


class Guesses:
    """How often each address has shown a token that is none: a bucket that refills slowly.

    Whoever has a good token is let in all the same: an attacker behind the same address cannot
    lock its owner out. An IPv6 host counts as its network of 64 bits, which is all its own.
    """

    def __init__(self) -> None:
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait_s(self, address: str) -> float:
        """Count a failed attempt; how long this address should wait, 0 while it is believed."""
        key, now = _network(address), time.monotonic()
        left, at = self._left.pop(key, (float(BURST), now))
        left = min(float(BURST), left + (now - at) / REFILL_S) - 1
        self._left[key] = (max(left, -1.0), now)
        while len(self._left) > MOST_ADDRESSES:
            self._left.popitem(last=False)
        return 0.0 if left >= 0 else REFILL_S


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches what listens there.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _network(address: str) -> str:
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv6Address) and not found.ipv4_mapped:
        return str(ipaddress.ip_network((found, 64), strict=False))
    return str(getattr(found, "ipv4_mapped", None) or found)
