"""What drives views in buckets in a service: a session, its scheduler, and the shared storage.

Invariant: one session a process, shared with backfills; nothing starts before its first use.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

from connectors.objects.open_storage import open_storage
from connectors.objects.shared_storage import (
    SharedStorage,
    check_conditions,
)
from connectors.shuffle_storage import url_below
from connectors.spark.maintained.connect_scheduler import ConnectScheduler
from connectors.spark.maintained.scheduler import SessionScheduler
from connectors.spark.maintained.spark_scheduler import SETTINGS, SparkScheduler
from connectors.spark.master import is_connect, is_local
from connectors.spark.session import LazySession
from dataflow.errors import TidemarkError

_PACKAGES = Path(__file__).resolve().parent.parent.parent.parent
_PATH = "spark.executorEnv.PYTHONPATH"


def new_session(master: str, settings: Mapping[str, str]) -> LazySession:
    """Return a session that maintains views. settings: Spark's own, overriding ours.

    Executors on other machines have our packages installed where they are here, or where the
    setting spark.executorEnv.PYTHONPATH says. A Connect server sends them our packages, and has its
    own settings.
    """
    if is_connect(master):
        return LazySession(master, settings)
    return LazySession(master, {**SETTINGS, _PATH: str(_PACKAGES), **settings})


def new_scheduler(session: LazySession, folder: Path) -> SessionScheduler:
    """Return the scheduler of a session. folder: for states, if the executors are this machine."""
    if session.is_connect:
        return ConnectScheduler(session, tempfile.gettempdir())
    return SparkScheduler(session, str(folder) if session.is_local else tempfile.gettempdir())


def storage_below(url: str, folder: str) -> SharedStorage:
    """Return the storage of a folder at a path or s3:// URL; "" is that place itself.

    TidemarkError spark.storage_url.
    """
    return open_storage(url_below(url, folder) if folder else url)


def check_storage(url: str, master: str) -> None:
    """Require a storage that all executors of a master share, with conditional writes.

    url: as configured; "" is a folder of ours, which a local master shares. TidemarkError
    spark.storage_missing, spark.storage_url, spark.storage_unsafe; TemporaryError spark.storage.
    """
    if not url and is_local(master):
        return
    if not url:
        raise TidemarkError(
            "spark.storage_missing",
            "there is no storage that the service and all executors share",
            detail=f"the executors of {master} may be other machines",
            hint="set TIDEMARK_SPARK_STORAGE to a folder that they all see, or to s3://bucket/prefix",
        )
    check_conditions(open_storage(url), code="spark.storage_unsafe")
