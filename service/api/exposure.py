"""Checks before the service listens: freely on loopback, elsewhere only protected.

Invariant: the service does not listen on another address without a token, nor without TLS unless
the operator states that a proxy encrypts (`--insecure`).
"""

from __future__ import annotations

import errno
import os
import socket
import ssl
import stat
import time
from pathlib import Path

from dataflow.errors import TidemarkError
from service.access.tokens import Tokens
from service.factory.service_factory import ServiceFactory
from service.runtime.addresses import is_loopback
from service.runtime.log import log
from service.runtime.settings import Settings

# The port of a service that was just killed may still be in use.
PORT_WAIT_S = 2.0


def check_port(settings: Settings, wait_s: float = PORT_WAIT_S) -> None:
    """Fail if the service could not listen. TidemarkError port.taken."""
    end = time.monotonic() + wait_s
    while fault := _bind_fault(settings.host, settings.port):
        if getattr(fault, "errno", 0) != errno.EADDRINUSE or time.monotonic() > end:
            raise TidemarkError(
                "port.taken",
                f"cannot listen on port {settings.host}:{settings.port}",
                detail=str(fault),
                hint="stop the process that uses it, or choose another port with --port",
            )
        time.sleep(0.1)


def _bind_fault(host: str, port: int) -> Exception | None:
    """Return why the port cannot be bound, None if it can."""
    if not port:
        return None
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, number, _, address in found:
            with socket.socket(family, kind, number) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind(address)
                # A port that is bound elsewhere without listening fails only here.
                probe.listen(1)
    except (OSError, OverflowError, UnicodeError) as error:
        return error
    return None


def check_exposure(settings: Settings) -> list[TidemarkError]:
    """Return why the service must not listen; write warnings to the log."""
    found = _certificate_problems(settings)
    if is_loopback(settings.host):
        return found
    control = ServiceFactory(settings).control()
    try:
        if not Tokens(control).has_live():
            found.append(
                TidemarkError(
                    "service.no_token",
                    f'the service does not listen on "{settings.host}" without a token',
                    detail="anyone who can reach the port could create and drop views",
                    hint="run: tidemark token create NAME --role admin --direct;"
                    " or listen on 127.0.0.1",
                )
            )
    finally:
        control.close()
    if not settings.tls_cert and not settings.insecure:
        found.append(
            TidemarkError(
                "service.no_tls",
                f'the service does not listen on "{settings.host}" without TLS',
                detail="tokens and rows would cross the network in plain text",
                hint="use --tls-cert and --tls-key; or --insecure behind a proxy with TLS",
            )
        )
    elif not settings.tls_cert:
        log.warning("service.plain_text", host=settings.host)
    return found


def _certificate_problems(settings: Settings) -> list[TidemarkError]:
    if not settings.tls_cert:
        return []
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(settings.tls_cert, settings.tls_key)
        if os.stat(settings.tls_key).st_mode & (stat.S_IRWXO | stat.S_IWGRP):
            log.warning("tls.key_readable_by_others", path=Path(settings.tls_key).name)
    except (OSError, ssl.SSLError) as error:
        return [
            TidemarkError(
                "service.tls",
                "the certificate and its key cannot be used",
                detail=str(error),
                hint="use PEM files: the certificate, then its chain; the key unencrypted",
            )
        ]
    return []
