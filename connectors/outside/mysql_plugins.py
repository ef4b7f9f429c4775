"""How a client answers a MySQL server that asks for a kind of login.

The server chooses the kind, so a hostile one could choose a kind that hands it the password: as it
is, or encrypted for a key that the server itself sends. Invariant: without TLS the password leaves
this process only as the answer to a challenge. Protocol: MySQL's internals manual, "Authentication
Methods". The classes have the interface of PyMySQL's `auth_plugin_map`.
"""

from __future__ import annotations

import hashlib
from typing import Any

# PyMySQL's number of a plugin that cannot be used.
_CANNOT_LOAD = 2059
# What a server with this plugin answers to the first reply.
_PASSED, _ASKS_FOR_PASSWORD = 3, 4


def plugins(*, has_tls: bool) -> dict[str, type[RefusedPlugin]]:
    """Return the answer to each kind of login that is not answered in PyMySQL's own way."""
    refused = {"dialog": RefusedPlugin, "mysql_old_password": RefusedPlugin}
    if has_tls:
        # The server is verified; users of LDAP or PAM give it their password.
        return refused
    return {
        **refused,
        "mysql_clear_password": RefusedPlugin,
        "sha256_password": RefusedPlugin,
        "caching_sha2_password": ChallengePlugin,
    }


class RefusedPlugin:
    """A kind of login that would give the server the password itself."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def authenticate(self, packet: Any) -> Any:
        """Refuse, with the client's own error. packet: the server's request."""
        del packet
        raise self._connection.OperationalError(
            _CANNOT_LOAD,
            "the server asks for the password itself: use TLS, or a user with another plugin",
        )


class ChallengePlugin(RefusedPlugin):
    """caching_sha2_password: answers the challenge, and refuses to send the password itself."""

    def authenticate(self, packet: Any) -> Any:
        """Return the server's last packet. packet: a challenge, or the answer to our reply."""
        connection = self._connection
        if packet.is_auth_switch_request():
            challenge = packet.read_all().removesuffix(b"\0")
            packet = self._sent(_scrambled(connection.password, challenge))
        if not packet.is_extra_auth_data():
            return packet
        packet.advance(1)
        outcome = packet.read_uint8()
        if outcome == _PASSED:
            packet = connection._read_packet()
            packet.check_error()
            return packet
        if outcome == _ASKS_FOR_PASSWORD and not connection.password:
            return self._sent(b"\0")
        return super().authenticate(packet)

    def _sent(self, reply: bytes) -> Any:
        self._connection.write_packet(reply)
        packet = self._connection._read_packet()
        packet.check_error()
        return packet


def _scrambled(password: bytes, challenge: bytes) -> bytes:
    """Return SHA256(password) XOR SHA256(SHA256(SHA256(password)) + challenge).

    >>> len(_scrambled(b"secret", b"x" * 20)), _scrambled(b"", b"x")
    (32, b'')
    """
    if not password:
        return b""
    first = hashlib.sha256(password).digest()
    second = hashlib.sha256(hashlib.sha256(first).digest() + challenge).digest()
    return bytes(left ^ right for left, right in zip(first, second, strict=True))
