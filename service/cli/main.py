"""The `tidemark` command: run the service, and call a running one.

Most commands call a running service at --url and print for people. Exit code 0 = done, 1 = refused
or failed (the reason is on standard error), 2 = wrong options or settings.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

import tidemark
from dataflow.errors import TidemarkError
from service.cli.history_commands import diff, rows, stream, subscriptions
from service.cli.init_command import commands, desired_of
from service.cli.lifecycle_commands import life
from service.cli.output import (
    Url,
    client_of,
    complain,
    console,
    print_finding,
    print_problem,
    read_text,
    settings_of,
    table_of,
)
from service.cli.restore_commands import copies
from service.cli.sink_commands import sinks
from service.cli.source_commands import dead_letters, sources
from service.cli.token_commands import tokens
from service.cli.uninstall_command import commands as uninstall
from service.cli.verify_commands import validate, verify
from service.runtime import release
from service.runtime.private_files import keep_private, make_private, own_folders
from service.runtime.redaction import scrub
from service.runtime.settings import PREFIX, Settings
from service.runtime.state_lock import StateLock
from service.views.lifecycle import ViewState
from storage.errors import StorageError

app = typer.Typer(
    no_args_is_help=True, add_completion=False, help=__doc__, pretty_exceptions_enable=False
)
app.add_typer(life)
app.add_typer(sinks, name="sinks")
app.add_typer(sources, name="sources")
app.add_typer(dead_letters, name="dead-letters")
app.add_typer(commands)
app.add_typer(uninstall)
app.add_typer(copies)
app.add_typer(tokens, name="token")
app.command()(verify)
app.command()(validate)
app.command()(rows)
app.command()(diff)
app.command()(stream)
app.add_typer(subscriptions, name="subscriptions")
DEFAULT_URL = tidemark.DEFAULT_URL


def _print_version(is_requested: bool) -> None:
    if is_requested:
        console.print(f"tidemark {release.VERSION}", highlight=False)
        raise typer.Exit


@app.callback()
def start(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Handle the options of all commands."""


Text = str | None
_LOG_FORMAT = "text in a terminal, else json"


def _setting(name: str, about: str, default: str = "") -> Any:
    """Return an option that sets a setting, shown with the setting's own default."""
    shown = default or str(Settings.model_fields[name].default)
    return typer.Option(help=about, show_default=shown)


@app.command()
def serve(
    source: Annotated[Text, _setting("source", "libpq DSN of the source", "required")] = None,
    sink: Annotated[Text, _setting("sink", "DSN of the sink", "the source")] = None,
    state: Annotated[Path | None, _setting("state", "directory of the state")] = None,
    host: Annotated[Text, _setting("host", "address to listen on")] = None,
    port: Annotated[int | None, _setting("port", "port to listen on")] = None,
    prefix: Annotated[Text, _setting("prefix", "of slot and publication names")] = None,
    publication: Annotated[Text, _setting("publication", "an administrator's", "its own")] = None,
    memory: Annotated[Text, _setting("memory", "limit of the pipeline: 2GB, 512MB")] = None,
    log_level: Annotated[Text, _setting("log_level", "debug, info, warning or error")] = None,
    tls_cert: Annotated[Text, _setting("tls_cert", "file of the certificate chain", "none")] = None,
    tls_key: Annotated[Text, _setting("tls_key", "file of its key", "none")] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="plain HTTP for all")] = False,
    log_format: Annotated[Text, _setting("log_format", "json or text", _LOG_FORMAT)] = None,
) -> None:
    """Run the service. Every option can also be set as TIDEMARK_<OPTION>."""
    from service.api.exposure import check_exposure, check_port
    from service.runtime.log import configure, log
    from service.runtime.security_limits import protect
    from service.setup.doctor import PROBLEM, check_service, check_writable
    from service.supervisor.supervisor import Supervisor

    if log_format is None and sys.stderr.isatty():
        log_format = os.environ.get("TIDEMARK_LOG_FORMAT", "text")
    settings = settings_of(
        source=source,
        sink=sink,
        state=state.absolute() if state else None,
        host=host,
        port=port,
        prefix=prefix,
        publication=publication,
        memory=memory,
        log_level=log_level,
        log_format=log_format,
        tls_cert=tls_cert,
        tls_key=tls_key,
        insecure=insecure or None,
    )
    configure(settings.log_level, "supervisor", settings.log_format)
    protect(settings)
    lock = _lock_state(settings)
    try:
        check_writable(settings.state)
        check_port(settings)
    except TidemarkError as error:
        _fail(error.code, str(error.what), error.hint, error.detail)
    found = [(f, f.problem) for f in check_service(settings) if f.problem is not None]
    for finding, problem in found:
        if finding.status != PROBLEM:
            log.warning("source.not_followed", code=problem.code, why=problem.what)
    problems = [p for f, p in found if f.status == PROBLEM] or check_exposure(settings)
    for problem in problems:
        print_problem(problem.code, str(problem.what), problem.detail, problem.hint)
    if problems:
        raise typer.Exit(1)
    _print_start(settings)
    code = Supervisor(settings).run()
    lock.close()
    raise typer.Exit(code)


def _print_start(settings: Settings) -> None:
    """Print the service's addresses and how to stop it; for programs, log an event."""
    from connectors.postgres.session.session import redact
    from service.runtime.log import log

    url = _url_of(settings)
    source = redact(settings.source)
    sink = "the source" if settings.sink == settings.source else redact(settings.sink)
    if settings.log_format != "text":
        log.info("service.starting", url=url, source=source, sink=sink, state=str(settings.state))
        return
    facts = {
        "console": f"{url}/",
        "API": f"{url}/docs",
        "source": source,
        "sink": sink,
        "state": str(settings.state),
        "stop": "Ctrl-C" if sys.stderr.isatty() else f"kill {os.getpid()}",
    }
    complain.print(f"tidemark {release.VERSION}", markup=False, highlight=False)
    for name, fact in facts.items():
        complain.print(f"  {name:8} {fact}", markup=False, highlight=False, soft_wrap=True)


def _url_of(settings: Settings) -> str:
    host = "127.0.0.1" if settings.host in ("0.0.0.0", "::") else settings.host
    host = f"[{host}]" if ":" in host else host
    return f"http{'s' if settings.tls_cert else ''}://{host}:{settings.port}"


def _lock_state(settings: Settings) -> StateLock:
    """Lock the state folder for this service, before anything reads it."""
    from service.runtime.log import log

    owner = f"pid {os.getpid()} on {socket.gethostname()}, {_url_of(settings)}"
    try:
        for folder in own_folders(settings):
            if not make_private(folder):
                log.warning("state.readable_by_others", path=str(folder))
        return StateLock(settings.state, owner)
    except StorageError as error:
        _fail(error.code, error.detail, error.hint)
    except OSError as error:
        _fail("state.io", f'cannot use "{settings.state}": {error.strerror}', "make it writable")


@app.command()
def create(
    name: str,
    query: Annotated[str, typer.Argument(help="the SELECT; - reads standard input")],
    backfill: Annotated[str, typer.Option(help="auto, spark or local")] = "auto",
    runtime: Annotated[str, typer.Option(help="what maintains it: local, spark, auto")] = "local",
    group: Annotated[
        str, typer.Option(help="views of one group show the same position")
    ] = "default",
    now: Annotated[str, typer.Option(help="what now() is: moving or pinned")] = "moving",
    time_zone: Annotated[str, typer.Option(help="of dates and intervals")] = "UTC",
    refresh: Annotated[
        str | None, typer.Option(help='how often values of now() change, such as "10 s"')
    ] = None,
    history: Annotated[
        str | None, typer.Option(help='how long its past is retained, such as "7 days"')
    ] = None,
    lateness: Annotated[
        list[str] | None, typer.Option(help="table.column=duration: how late its rows may come")
    ] = None,
    late: Annotated[
        str | None, typer.Option(help="later rows: applied, dead-letter or error")
    ] = None,
    lateness_by: Annotated[
        list[str] | None, typer.Option(help="table.column=column that partitions it")
    ] = None,
    idle_timeout_s: Annotated[
        float | None, typer.Option(help="seconds after which a silent partition does not count")
    ] = None,
    emit: Annotated[str | None, typer.Option(help="changes, or final rows")] = None,
    window: Annotated[
        list[str] | None, typer.Option(help="column=duration of the windows of final rows")
    ] = None,
    retain: Annotated[
        str | None, typer.Option(help="duration after which old windows are frozen")
    ] = None,
    wait_s: Annotated[float, typer.Option(help="seconds to wait until it is live")] = 60,
    url: Url = DEFAULT_URL,
) -> None:
    """Create a view and wait until it is live."""
    with client_of(url) as client:
        view = client.create(
            name,
            _text_of(query),
            wait_s=wait_s,
            backfill=backfill,
            runtime=runtime,
            group=group,
            now=now,
            time_zone=time_zone,
            refresh=refresh,
            history=history,
            lateness=_pairs("lateness", lateness),
            late=late,
            lateness_by=_pairs("lateness_by", lateness_by),
            idle_timeout_s=idle_timeout_s,
            emit=emit,
            window=_pairs("window", window),
            retain=retain,
        )
        _print_view(view.state())


def _pairs(option: str, given: Sequence[str] | None) -> dict[str, str] | None:
    """Return name=value words as a mapping; None for none. Exit with code 2 for another form."""
    if not given:
        return None
    if bad := next((word for word in given if "=" not in word), None):
        raise typer.BadParameter(f'"{bad}" is not name=value', param_hint=f"--{option}")
    return {name: value for name, _, value in (word.partition("=") for word in given)}


@app.command("list")
def list_views(url: Url = DEFAULT_URL) -> None:
    """List all views with status, rows and lag."""
    with client_of(url) as client:
        views = client.views()
    why = ["why"] if any(view.error for view in views) else []
    table = table_of("view", "group", "status", "kind", "rows", "lag bytes", "errors", *why)
    for view in views:
        table.add_row(
            f"{view.schema}.{view.name}",
            view.group,
            view.status,
            view.kind,
            _number(view.rows),
            _number(view.lag_bytes),
            _number(view.errors),
            *(view.error.code if view.error else "" for _ in why),
        )
    console.print(table)


@app.command("health")
def show_health(url: Url = DEFAULT_URL) -> None:
    """Show the service's status and reasons; exit code 1 if it is degraded."""
    with client_of(url) as client:
        found = client.health()
    console.print(found.status)
    for reason in found.reasons:
        console.print(f"  {reason}", markup=False, highlight=False, soft_wrap=True)
    if found.status == ViewState.DEGRADED:
        raise typer.Exit(1)


@app.command()
def show(name: str, url: Url = DEFAULT_URL) -> None:
    """Show one view: status, columns, position, plan."""
    with client_of(url) as client:
        _print_view(client.view(name).state())


@app.command()
def drop(name: str, url: Url = DEFAULT_URL) -> None:
    """Drop a view with its table and its state."""
    with client_of(url) as client:
        is_gone = client.view(name).drop()
    console.print(f"dropped {name}" if is_gone else f"{name} is being dropped")


@app.command()
def wait(
    name: str,
    position: str,
    timeout_s: Annotated[float, typer.Option()] = 30,
    url: Url = DEFAULT_URL,
) -> None:
    """Wait until every commit up to a WAL position is visible in the sink."""
    with client_of(url) as client:
        found = client.view(name).wait(position, timeout_s=timeout_s)
        console.print_json(json.dumps(found.raw))


@app.command()
def demo(
    seconds: Annotated[int, typer.Option(help="end after so many seconds; 0: at Ctrl-C")] = 0,
    customers: Annotated[int, typer.Option()] = 200_000,
    orders: Annotated[int, typer.Option()] = 1_200_000,
    backfill: Annotated[str, typer.Option(help="auto, spark or local; default: one by Spark")] = "",
    svg: Annotated[Path | None, typer.Option(help="write the last screen to an SVG file")] = None,
) -> None:
    """Run a live demo on a private PostgreSQL, with continuous verification."""
    from service.demo.main_job import Demo, DemoSize

    size = DemoSize(customers, orders, seconds, backfill)
    try:
        code = Demo(size, console, svg).run()
    except TidemarkError as error:
        _fail(error.code, error.what, error.hint, error.detail)
    raise typer.Exit(code)


@app.command()
def doctor(
    dsn: Annotated[
        str | None, typer.Argument(help="DSN of a database to check for a service to come")
    ] = None,
    source: Annotated[str | None, typer.Option(help="libpq DSN of the source database")] = None,
    sink: Annotated[str | None, typer.Option(help="DSN of the sink; default: the source")] = None,
    state: Annotated[Path | None, typer.Option(help="directory of the state")] = None,
    role: Annotated[str, typer.Option(help="with DSN: the service's role")] = "",
    tables: Annotated[str, typer.Option(help="with DSN: tables that views will read")] = "",
    schemas: Annotated[str, typer.Option(help="with DSN: schemas of the views")] = "public",
    publication: Annotated[Text, _setting("publication", "one that an administrator made")] = None,
    is_deep: Annotated[bool, typer.Option("--deep", help="also read all of the state")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="for programs")] = False,
) -> None:
    """Check databases, sources, state and this machine; print how to fix each problem.

    With DSN: only what that database needs, wherever it is hosted. Nothing is written there.
    """
    from service.runtime.security_limits import protect
    from service.setup.doctor import PROBLEM, check_all, check_database

    if dsn is None:
        settings = settings_of(source=source, sink=sink, state=state, publication=publication)
        protect(settings)
        findings = check_all(settings, is_deep=is_deep)
    elif source or state or is_deep:
        raise typer.BadParameter("DSN excludes --source, --state and --deep")
    else:
        given = publication or os.environ.get(f"{PREFIX}PUBLICATION", "")
        findings = check_database(
            desired_of(dsn, sink or "", role, tables, schemas, publication=given)
        )
    found = [f.facts() for f in findings]
    if as_json:
        console.print_json(json.dumps(found))
    for fact in () if as_json else found:
        print_finding(fact)
    raise typer.Exit(1 if any(fact["status"] == PROBLEM for fact in found) else 0)


def main() -> None:
    """Run the console script `tidemark`."""
    keep_private()
    try:
        app()
    except Exception as error:
        # A service logs an uncaught error with its traceback (service/runtime/log.py).
        if sys.argv[1:2] == ["serve"] or os.environ.get("TIDEMARK_LOG_LEVEL") == "debug":
            raise
        hint = "please report it; TIDEMARK_LOG_LEVEL=debug prints a traceback"
        why = scrub(f"{type(error).__name__}: {error}"[:500])
        print_problem("internal", "the command failed unexpectedly", why, hint)
        sys.exit(1)


def _text_of(query: str) -> str:
    return read_text(query) if query == "-" else query


def _print_view(view: tidemark.ViewState) -> None:
    console.print(f"[bold]{view.schema}.{view.name}[/]  {view.status}  {view.kind}")
    for field in view.fields:
        key_note = "key" if field.name in view.key else ""
        console.print(f"  {field.name:30} {field.type:28} {key_note}", highlight=False)
    for fact in ("rows", "positions", "lag_bytes", "errors", "backfill", "warnings"):
        if view.raw.get(fact):
            console.print(f"{fact}: {view.raw[fact]}", highlight=False)
    if view.error is not None:
        problem = view.error
        print_problem(problem.code, problem.title, problem.detail, problem.hint)
    console.print(view.plan, highlight=False, markup=False)


def _fail(code: str, what: str, hint: str, detail: str = "") -> NoReturn:
    print_problem(code, what, detail, hint)
    raise typer.Exit(1)


def _number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


if __name__ == "__main__":
    main()
