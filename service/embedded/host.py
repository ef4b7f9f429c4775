"""The process of an engine: `python -m service.embedded.host`, a child of the user's process.

What is wanted comes as one line of JSON on standard input, and the end of that input, or of the
parent, is the end of everything: service first, then the private PostgreSQL, so that kill -9 of
the parent leaves nothing behind and interrupts nothing. One line of JSON on standard output says
where the engine is, or why there is none.
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
from pathlib import Path
from typing import Any

import httpx
from pydantic import ValidationError

from connectors.loopback import free_port
from connectors.postgres.embedded.function_tables import FunctionTables
from dataflow.errors import TidemarkError
from service.embedded.place import EngineLocation
from service.runtime import kernels
from service.runtime.log import configure, log
from service.runtime.private_files import keep_private
from service.runtime.security_limits import protect
from service.runtime.settings import Settings
from service.setup.doctor import check_service
from service.supervisor.supervisor import Supervisor
from service.views.lifecycle import ViewState

# `auto` is this machine, however many rows there are.
_NEVER_SPARK = 10**15
# What the engine sets itself.
_OWN = {"source", "sink", "state", "host", "port", "tls_cert", "tls_key", "insecure"}
_POLL_S = 0.25
_DROP_S = 60.0


def main() -> int:
    """Serve until the parent is gone; 1 when there is no engine, for the reason that was told."""
    parent = os.getppid()
    keep_private()
    signal.signal(signal.SIGTERM, _not_yet)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    request = json.loads(sys.stdin.buffer.readline())
    # Nothing else is to be read where the parent reads.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    folder = Path(request["state_dir"]) if request["state_dir"] else None
    try:
        _refuse_unknown(request["settings"])
        with EngineLocation(request["dsn"], folder) as location:
            settings = _settings(location, request["settings"])
            _prepare(settings, location)
            if location.is_temporary and not location.is_private:
                _require_unused(settings)
            url = f"http://{settings.host}:{settings.port}"
            answer = {"url": url, "dsn": location.dsn, "is_private": location.is_private}
            print(json.dumps(answer), file=answers, flush=True)
            before = (
                _Cleaning(url, location)
                if location.is_temporary and not location.is_private
                else None
            )
            threading.Thread(target=_end_with, args=(parent, before), daemon=True).start()
            Supervisor(settings).run()
            if before is not None:
                before.drop_schema()
    except TidemarkError as error:
        facts = {"code": error.code, "what": error.what, "detail": error.detail}
        facts |= {"hint": error.hint, "is_temporary": error.is_temporary}
        print(json.dumps({"error": facts}), file=answers, flush=True)
        return 1
    return 0


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
            f'setting "{".".join(map(str, found["loc"]))}" of the engine is wrong',
            detail=found["msg"],
            hint="docs/OPERATING.md has all of them",
        ) from None


def _refuse_unknown(options: dict[str, Any]) -> None:
    """TidemarkError engine.setting for a name that is no setting, or that is the engine's own."""
    allowed = Settings.model_fields.keys() - _OWN
    for name in options:
        if name in allowed:
            continue
        meant = difflib.get_close_matches(name, sorted(allowed), n=1)
        hint = f'did you mean "{meant[0]}"?' if meant else "docs/OPERATING.md has all of them"
        detail = "there is no such setting"
        if name in _OWN:
            detail = "the engine sets it itself"
            hint = "dsn and state_dir say where it works; tidemark serve takes all settings"
        what = f'"{name}" is not a setting of the engine'
        raise TidemarkError("engine.setting", what, detail=detail, hint=hint)


def _prepare(settings: Settings, location: EngineLocation) -> None:
    configure(settings.log_level, "engine", settings.log_format)
    protect(settings)
    for finding in check_service(settings):
        if finding.problem is not None:
            raise finding.problem
    FunctionTables(location.dsn).prepare()
    cache = _cache(settings)
    kernels.ensure(cache, kernels.show_on_terminal)
    if cache != settings.state:
        # The supervisor looks there.
        settings.state.mkdir(parents=True, exist_ok=True)
        done = (cache / kernels.REMEMBERED).read_bytes()
        (settings.state / kernels.REMEMBERED).write_bytes(done)


def _cache(settings: Settings) -> Path:
    """Where it is remembered that the kernels are compiled: it outlives temporary engines."""
    cache_root = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = Path(cache_root) / "tidemark"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return settings.state
    return folder if os.access(folder, os.W_OK) else settings.state


def _require_unused(settings: Settings) -> None:
    """A temporary state knows nothing of views that are there."""
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
            "the database has maintained views, whose state is elsewhere",
            detail=", ".join(v.title for v in views[:5]),
            hint="give the state_dir that they have (an empty one builds them anew), or connect "
            "to the service that keeps them",
        )


class _Cleaning:
    """What a temporary engine has made in a database that it was given is taken away again."""

    def __init__(self, url: str, location: EngineLocation) -> None:
        self._url = url
        self._location = location

    def drop_views(self) -> None:
        """Drop every view; those that others read are refused until those are gone."""
        deadline = time.monotonic() + _DROP_S
        with httpx.Client(base_url=self._url, timeout=_DROP_S) as client:
            while views := client.get("/views").raise_for_status().json()["views"]:
                if time.monotonic() > deadline:
                    log.warning("engine.views_left", views=len(views))
                    return
                for view in views:
                    if view["status"] != ViewState.DROPPING:
                        client.delete(f"/views/{_quoted(view)}", params={"wait_s": 0})
                time.sleep(0.05)

    def drop_schema(self) -> None:
        """Drop the tables of functions."""
        FunctionTables(self._location.dsn).remove()


def _quoted(view: dict[str, Any]) -> str:
    from urllib.parse import quote

    names = (view["schema"], view["name"])
    return quote(".".join('"' + p.replace('"', '""') + '"' for p in names), safe="")


def _not_yet(*_: object) -> None:
    """What SIGTERM does until the supervisor runs."""


def _end_with(parent: int, before: _Cleaning | None) -> None:
    """Wait for the parent's end, then stop the supervisor."""
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
        log.warning("engine.views_left", why=str(error))
    finally:
        os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
