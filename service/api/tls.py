"""TLS of the API: version 1.2 or newer; renewed certificates are loaded without a restart.

Open connections keep their certificate. If renewed files cannot be used, the old certificate stays
and a warning is logged. A thread of its own polls the files.
"""

from __future__ import annotations

import os
import ssl
import threading
from typing import Any

import uvicorn

from service.runtime.log import log
from service.runtime.settings import Settings

POLL_S = 5.0


def arguments(settings: Settings) -> dict[str, Any]:
    """Return uvicorn's arguments for TLS."""
    if not settings.tls_cert:
        return {}
    return {"ssl_certfile": settings.tls_cert, "ssl_keyfile": settings.tls_key}


def watch(config: uvicorn.Config, settings: Settings) -> None:
    """Harden the server's TLS context, and start to watch its files."""
    if not settings.tls_cert:
        return
    if not config.loaded:
        config.load()
    assert config.ssl is not None
    config.ssl.minimum_version = ssl.TLSVersion.TLSv1_2
    arguments = (config.ssl, settings.tls_cert, settings.tls_key)
    threading.Thread(target=_reload_on_change, args=arguments, daemon=True, name="tls").start()


def _reload_on_change(context: ssl.SSLContext, certificate: str, key: str) -> None:
    current, pause = _stamp(certificate, key), threading.Event()
    while not pause.wait(POLL_S):
        found = _stamp(certificate, key)
        if found == current:
            continue
        try:
            # Try a separate context first: a mismatched pair would break the one in use.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
            context.load_cert_chain(certificate, key)
            log.info("tls.renewed")
            current = found
        except (OSError, ssl.SSLError) as error:
            log.warning("tls.not_renewed", why=str(error))


def _stamp(*paths: str) -> list[tuple[int, int]]:
    try:
        return [((found := os.stat(path)).st_ino, found.st_mtime_ns) for path in paths]
    except OSError:
        return []
