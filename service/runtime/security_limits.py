"""What each process of the service does first: the limits that its settings say, put in place.

Connectors know no settings; they are told here. Invariant: a process that talks to anything has
called `protect` before.
"""

from __future__ import annotations

import os

from connectors import netguard, secrets
from connectors.postgres.session import backend_probe, session
from service.runtime.addresses import is_loopback
from service.runtime.private_files import keep_private
from service.runtime.settings import Settings


def protect(settings: Settings) -> None:
    """Say what users of the API may refer to and reach, how long statements may take, servers be
    silent, and that files are for the service's user alone."""
    keep_private()
    folders = settings.secret_folders.split()
    secrets.allow(settings.secret_variables.split(), folders)
    netguard.install(
        netguard.Guard(
            hosts=tuple(settings.allow_hosts.split()),
            # Absolute: Spark's workers have another working directory.
            folders=tuple(map(os.path.abspath, settings.allow_folders.split())),
            forbidden=tuple(map(os.path.abspath, filter(None, _own_files(settings)))),
            credentials=tuple(folders),
            is_local=is_loopback(settings.host),
        )
    )
    session.LIMITS.statement_s = settings.statement_timeout_s
    session.LIMITS.long_statement_s = settings.long_statement_timeout_s
    backend_probe.TIME_LIMITS.silence_s = settings.silence_s


def _own_files(settings: Settings) -> tuple[str, ...]:
    """What no source may read, whatever folder is listed: rows and secrets of everybody."""
    copies = "" if settings.checkpoint_to.startswith("s3://") else settings.checkpoint_to
    return str(settings.state), settings.tls_key, copies
