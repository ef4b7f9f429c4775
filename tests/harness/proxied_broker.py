"""A broker that the service reaches through a proxy, and the test directly."""

from __future__ import annotations

from collections.abc import Mapping

from connectors.kafka.embedded import EmbeddedKafka
from connectors.loopback import free_port
from tests.harness.proxy import Proxy


class ProxiedKafka(EmbeddedKafka):
    """`proxied` leads through the proxy, which the broker then advertises there; `bootstrap` does
    not, and the broker talks to itself without it."""

    def __init__(self, proxy: Proxy, settings: Mapping[str, object] | None = None) -> None:
        super().__init__(settings)
        self._proxy = proxy
        self._direct = 0

    @property
    def proxied(self) -> str:
        """Host and port for the service."""
        return f"127.0.0.1:{self._proxy.port}"

    @property
    def bootstrap(self) -> str:
        """Host and port for the test."""
        return f"127.0.0.1:{self._direct}"

    def _format(self) -> None:
        self._direct = free_port()
        self._proxy.target = self._ports.plain
        ours = f"DIRECT://127.0.0.1:{self._direct},CONTROLLER://127.0.0.1:{self._ports.controller}"
        self._settings |= {
            "listeners": f"PLAINTEXT://127.0.0.1:{self._ports.plain},{ours}",
            "advertised.listeners": f"PLAINTEXT://{self.proxied},{ours}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,DIRECT:PLAINTEXT,"
            "CONTROLLER:PLAINTEXT",
            "inter.broker.listener.name": "DIRECT",
        }
        super()._format()
