"""Whether the service may listen where it is told to: on loopback freely, elsewhere protected.

Invariant: nothing listens where others reach it before there is a token, nor in plain text unless
the operator has said that something else encrypts (`--insecure`).
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

# A service that was killed just now may still have its port.
PORT_WAIT_S = 2.0


def check_port(settings: Settings, wait_s: float = PORT_WAIT_S) -> None:
    """TidemarkError port.taken where the service could not listen."""
    end = time.monotonic() + wait_s
    while fault := _bind_fault(settings.host, settings.port):
        if getattr(fault, "errno", 0) != errno.EADDRINUSE or time.monotonic() > end:
            raise TidemarkError(
                "port.taken",
                f"port {settings.host}:{settings.port} cannot be listened on",
                detail=str(fault),
                hint="stop what has it, or choose another with --port",
            )
        time.sleep(0.1)


def _bind_fault(host: str, port: int) -> Exception | None:
    """Why nothing can listen there, None where it can."""
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
                # A port that is only bound somewhere else shows itself here.
                probe.listen(1)
    except (OSError, OverflowError, UnicodeError) as error:
        return error
    return None


def check_exposure(settings: Settings) -> list[TidemarkError]:
    """What keeps the service from listening; warnings go to the log."""
    found = _certificate_problems(settings)
    if is_loopback(settings.host):
        return found
    control = ServiceFactory(settings).control()
    try:
        if not Tokens(control).has_live():
            found.append(
                TidemarkError(
                    "service.no_token",
                    f'without a token the service does not listen on "{settings.host}"',
                    detail="whoever reaches it could create and drop views",
                    hint="tidemark token create NAME --role admin --direct; or listen on 127.0.0.1",
                )
            )
    finally:
        control.close()
    if not settings.tls_cert and not settings.insecure:
        found.append(
            TidemarkError(
                "service.no_tls",
                f'without TLS the service does not listen on "{settings.host}"',
                detail="tokens and rows would cross the network in plain text",
                hint="--tls-cert and --tls-key; or --insecure behind a proxy that encrypts",
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
                hint="PEM files: the certificate first, then those that signed it; the key plain",
            )
        ]
    return []
