"""The security limits of the settings, applied first in each process of the service.

Connectors do not know the settings; this module configures them. Invariant: a process calls
`protect` before it connects to anything.
"""

from __future__ import annotations

import os

from connectors import netguard, secrets
from connectors.outside import boundary
from connectors.postgres.session import backend_probe, session
from connectors.postgres.session.foreign import OWN
from service.runtime.addresses import is_loopback
from service.runtime.log import log
from service.runtime.private_files import keep_private
from service.runtime.settings import Settings


def protect(settings: Settings) -> None:
    """Apply what API users may reference and reach, which databases are the service's own,
    statement timeouts, the silence limit of servers, and private files.
    """
    keep_private()
    folders = settings.secret_folders.split()
    secrets.allow(settings.secret_variables.split(), folders)
    netguard.install(
        netguard.Guard(
            hosts=tuple(settings.allow_hosts.split()),
            # Absolute, because Spark's workers have another working directory.
            folders=tuple(map(os.path.abspath, settings.allow_folders.split())),
            forbidden=tuple(map(os.path.abspath, filter(None, _own_files(settings)))),
            credentials=tuple(folders),
            is_local=is_loopback(settings.host),
            modules=tuple(settings.allow_modules.split()),
            variables=tuple(settings.function_variables.split()),
            writable=tuple(map(os.path.abspath, settings.sink_folders.split())),
        )
    )
    boundary.install(_log_fault)
    OWN.install(settings.source, settings.sink, are_allowed=settings.allow_own_database)
    session.LIMITS.statement_s = settings.statement_timeout_s
    session.LIMITS.long_statement_s = settings.long_statement_timeout_s
    backend_probe.TIME_LIMITS.liveness_timeout_s = settings.liveness_timeout_s


def _log_fault(side: boundary.Side, name: str, fault: str, place: str) -> None:
    log.error("connector.fault", side=side, name=name, fault=fault, place=place)


def _own_files(settings: Settings) -> tuple[str, ...]:
    """Return what no source may read, whatever folders are allowed: rows and secrets."""
    copies = "" if settings.checkpoint_to.startswith("s3://") else settings.checkpoint_to
    return str(settings.state), settings.tls_key, copies
