"""The service of an engine: its settings, its preparation and its end, in the engine's process.

These imports take as long as a new PostgreSQL: `host.py` does both at once.
"""

from __future__ import annotations

import difflib
import json
import os
import signal
import sys
import threading
import time
from multiprocessing.connection import wait
from typing import IO, Any
from urllib.parse import quote

import httpx
from pydantic import ValidationError

from connectors.loopback import free_port
from connectors.postgres.embedded.function_tables import FunctionTables
from dataflow.errors import TidemarkError
from service.embedded.location import EngineLocation
from service.runtime.log import configure, log
from service.runtime.security_limits import protect
from service.runtime.settings import EARLIER_NAMES, Settings
from service.setup.doctor import check_service
from service.supervisor.supervisor import Supervisor
from service.views.lifecycle import ViewState

# `auto` always means a local backfill, whatever the number of rows.
_NEVER_SPARK = 10**15
# Settings that the engine sets itself.
_OWN = {"source", "sink", "state", "host", "port", "tls_cert", "tls_key", "insecure"}
_POLL_S = 0.25
_DROP_S = 60.0


def serve(location: EngineLocation, options: dict[str, Any], answers: IO[str], parent: int) -> None:
    """Serve until the parent ends; write the addresses to `answers` first. TidemarkError."""
    signal.signal(signal.SIGTERM, _not_yet)
    settings = _settings(location, options)
    _prepare(settings, location)
    is_guest = location.is_temporary and not location.is_private
    if is_guest:
        _require_unused(settings)
    url = f"http://{settings.host}:{settings.port}"
    answer = {"url": url, "dsn": location.dsn, "is_private": location.is_private}
    print(json.dumps(answer), file=answers, flush=True)
    before = _Cleaning(url, location) if is_guest else None
    threading.Thread(target=_end_with, args=(parent, before), daemon=True).start()
    Supervisor(settings).run()
    if before is not None:
        before.drop_schema()


def _settings(location: EngineLocation, options: dict[str, Any]) -> Settings:
    own = {
        "source": location.dsn,
        "sink": location.dsn,
        "state": location.state,
        "host": "127.0.0.1",
    }
    own |= {"port": free_port(), "tls_cert": "", "tls_key": "", "insecure": False}
    assert own.keys() == _OWN
    try:
        return Settings.load(
            **{"spark_rows": _NEVER_SPARK, "log_level": "warning", **options, **own}
        )
    except ValidationError as error:
        found = error.errors()[0]
        raise TidemarkError(
            "engine.setting",
            f'setting "{".".join(map(str, found["loc"]))}" of the engine is not valid',
            detail=found["msg"],
            hint="see docs/OPERATING.md for all settings",
        ) from None


def refuse_unknown(options: dict[str, Any]) -> None:
    """Fail for an unknown setting, or one that the engine sets. TidemarkError engine.setting."""
    allowed = (Settings.model_fields.keys() | EARLIER_NAMES.values()) - _OWN
    for name in options:
        if name in allowed:
            continue
        meant = difflib.get_close_matches(name, sorted(allowed), n=1)
        hint = f'did you mean "{meant[0]}"?' if meant else "see docs/OPERATING.md for all settings"
        detail = "the setting does not exist"
        if name in _OWN:
            detail = "the engine sets it itself"
            hint = "use dsn and state_dir instead; tidemark serve accepts all settings"
        what = f'"{name}" is not a setting of the engine'
        raise TidemarkError("engine.setting", what, detail=detail, hint=hint)


def _prepare(settings: Settings, location: EngineLocation) -> None:
    configure(settings.log_level, "engine", settings.log_format)
    protect(settings)
    for finding in check_service(settings):
        if finding.problem is not None:
            raise finding.problem
    FunctionTables(location.dsn).prepare()


def _require_unused(settings: Settings) -> None:
    """Fail if the database has views: a temporary engine does not have their state."""
    from service.factory.service_factory import ServiceFactory

    control = ServiceFactory(settings).control()
    try:
        control.ensure()
        views = control.list_views()
    finally:
        control.close()
    if views:
        raise TidemarkError(
            "engine.has_views",
            "the database has maintained views with a state elsewhere",
            detail=", ".join(v.title for v in views[:5]),
            hint="pass their state_dir (an empty one rebuilds them), or connect to the "
            "service that maintains them",
        )


class _Cleaning:
    """Removes the objects of a temporary engine from a database of the user."""

    def __init__(self, url: str, location: EngineLocation) -> None:
        self._url = url
        self._location = location

    def drop_views(self) -> None:
        """Drop every view; retry those that other views still read."""
        deadline = time.monotonic() + _DROP_S
        with httpx.Client(base_url=self._url, timeout=_DROP_S) as client:
            while views := client.get("/views").raise_for_status().json()["views"]:
                if time.monotonic() > deadline:
                    log.warning("engine.views_not_dropped", views=len(views))
                    return
                for view in views:
                    if view["status"] != ViewState.DROPPING:
                        client.delete(f"/views/{_quoted(view)}", params={"wait_s": 0})
                time.sleep(0.05)

    def drop_schema(self) -> None:
        """Drop the tables of functions."""
        FunctionTables(self._location.dsn).remove()


def _quoted(view: dict[str, Any]) -> str:
    names = (view["schema"], view["name"])
    return quote(".".join('"' + p.replace('"', '""') + '"' for p in names), safe="")


def _not_yet(*_: object) -> None:
    """Ignore SIGTERM until the supervisor runs."""


def _end_with(parent: int, before: _Cleaning | None) -> None:
    """Wait until the parent ends or closes the pipe, then stop the supervisor."""
    while signal.getsignal(signal.SIGTERM) is _not_yet:
        time.sleep(0.01)
    while os.getppid() == parent:
        ready = wait([sys.stdin.fileno()], _POLL_S)
        if ready and not os.read(sys.stdin.fileno(), 4096):
            break
    try:
        if before is not None:
            before.drop_views()
    except httpx.HTTPError as error:
        log.warning("engine.views_not_dropped", why=str(error))
    finally:
        os.kill(os.getpid(), signal.SIGTERM)
