"""HTTP connections of sources, within the guard (connectors/netguard.py).

Invariant: every address is checked at the moment it is opened, and that very address is opened. A
certificate is the name's all the same.
"""

from __future__ import annotations

import ssl

import httpx

from connectors import netguard
from dataflow.errors import SourceError

AGENT = "tidemark"


class GuardedTransport(httpx.BaseTransport):
    """Opens the very addresses that the guard has checked, in turn; the name stays that of the
    request."""

    def __init__(self, inner: httpx.BaseTransport) -> None:
        self._inner = inner

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """See httpx.BaseTransport."""
        host = request.url.host
        addresses = netguard.check_host(host, request.url.port or 0)
        request.extensions = {**request.extensions, "sni_hostname": host}
        failure: httpx.ConnectError | None = None
        for address in addresses:
            request.url = request.url.copy_with(host=address)
            try:
                return self._inner.handle_request(request)
            except httpx.ConnectError as error:
                failure = error
        raise failure or httpx.ConnectError("the name has no address")

    def close(self) -> None:
        """Close the connections."""
        self._inner.close()


def tls_context(ca: str) -> ssl.SSLContext:
    """Return what verifies servers. ca: a PEM file, "" for the system's certificates.

    SourceError source.bad_option, path.forbidden.
    """
    netguard.check_certificate(ca)
    try:
        return ssl.create_default_context(cafile=ca or None)
    except OSError as error:
        what = "the certificates of option ca cannot be read"
        hint = "ca is the path of a PEM file"
        raise SourceError("source.bad_option", what, detail=str(error), hint=hint) from None
