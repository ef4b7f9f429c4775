"""Who may do what: one rule for all routes, and one table of exceptions.

Reading (GET, HEAD) is for readers, everything else for operators, unless EXCEPTIONS says
otherwise. The rule is applied by method and path before any route is looked at, so that a new
route, a static file or a WebSocket is covered without its author's doing. Invariant: what is not
in the table as public is answered to nobody who has not shown a token, once there is one.
"""

from __future__ import annotations

import ipaddress
import time
from collections import OrderedDict
from collections.abc import Mapping

from starlette.routing import compile_path

from service.tokens import Role

# (method, path as routes write it) -> who may. "*" stands for every method.
EXCEPTIONS: Mapping[tuple[str, str], Role] = {
    # Load balancers have no token; without one it says no more than whether all is well.
    ("GET", "/health"): Role.PUBLIC,
    ("GET", "/health/live"): Role.PUBLIC,
    # The files of the console: what they show is asked for with a token.
    ("GET", "/"): Role.PUBLIC,
    ("GET", "/docs"): Role.PUBLIC,
    ("GET", "/assets/{name}"): Role.PUBLIC,
    # They ask by POST since queries are long, and change nothing.
    ("POST", "/views/validate"): Role.READER,
    ("POST", "/views/{name}/verify"): Role.READER,
    ("POST", "/query"): Role.READER,
    ("*", "/tokens"): Role.ADMIN,
    ("*", "/tokens/{name}"): Role.ADMIN,
}
_READING = ("GET", "HEAD", "OPTIONS")
_PATTERNS = [(m, compile_path(path)[0], role) for (m, path), role in EXCEPTIONS.items()]

# Failed attempts that an address has at once, and how fast it gets new ones.
BURST = 10
REFILL_S = 6.0
MOST_ADDRESSES = 10_000


def role_for(method: str, path: str) -> Role:
    """The least role that may make a request.

    >>> role_for("GET", "/views/a").word, role_for("DELETE", "/views/a").word
    ('reader', 'operator')
    >>> role_for("HEAD", "/health").word, role_for("GET", "/tokens").word
    ('public', 'admin')
    """
    asked = "GET" if method == "HEAD" else method
    for wanted, pattern, role in _PATTERNS:
        if wanted in (asked, "*") and pattern.match(path):
            return role
    return Role.READER if method in _READING else Role.OPERATOR


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
