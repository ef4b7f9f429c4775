"""Requests of tests: as those of httpx, without the TLS context that each of its own makes first.

That takes 20 ms of CPU, and no server of a test has a certificate that it could check. Connections
are not reused: servers are killed and started again.
"""

from __future__ import annotations

import httpx

_client = httpx.Client(
    verify=False, trust_env=False, limits=httpx.Limits(max_keepalive_connections=0)
)
get, post, put = _client.get, _client.post, _client.put
delete, request, stream = _client.delete, _client.request, _client.stream
