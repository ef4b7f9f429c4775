"""A run: settings in, one line of JSON a view out, errors on standard error.

Invariant: the ends of all sources are fixed before anything is read, so all views of a run end at
the same positions. A view that fails does not keep the others from being brought up to date.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

from connectors import netguard, secrets
from connectors.feed_source import BoundedSource
from connectors.objects.sealed_storage import SealedStorage, derived_key
from connectors.objects.shared_storage import SharedStorage
from connectors.postgres.analysis.analyzer import PostgresAnalyzer
from connectors.postgres.embedded.server import EmbeddedPostgres
from connectors.spark.batch.iceberg_sink import PACKAGE, SETTINGS, IcebergSink
from connectors.spark.batch.planning import PlannedView, open_source, plan
from connectors.spark.batch.settings import Settings, read_settings
from connectors.spark.batch.view_run import Summary, ViewRun
from connectors.spark.java import check_java
from connectors.spark.maintained.runtime import (
    check_storage,
    new_scheduler,
    new_session,
    storage_below,
)
from connectors.spark.maintained.scheduler import Scheduler
from connectors.spark.master import is_connect, is_local
from connectors.spark.session import LazySession
from dataflow.errors import TidemarkError, internal_error

_PACKAGES = "spark.jars.packages"
# What a scheduler may run again without a person, as in BSD's sysexits.h.
TEMPORARY, FAILED = 75, 1
# Of a key that nobody guesses.
LEAST_CHARACTERS = 32


def main(arguments: Sequence[str] | None = None) -> int:
    """Run once; return the exit code: 0, FAILED, or TEMPORARY if every error is."""
    parser = argparse.ArgumentParser(prog="python -m connectors.spark.run", description=__doc__)
    parser.add_argument(
        "settings", type=Path, help="the settings: TOML, JSON or YAML (docs/SCALE.md)"
    )
    parser.add_argument(
        "--once", action="store_true", required=True, help="bring all views up to date, then exit"
    )
    given = parser.parse_args(arguments)
    errors: list[TidemarkError] = []
    with _reported(errors):
        run(read_settings(given.settings), _print_summary, errors)
    for error in errors:
        _print_error(error)
    if not errors:
        return 0
    return TEMPORARY if all(error.is_temporary for error in errors) else FAILED


@contextmanager
def open_session(settings: Settings) -> Iterator[LazySession]:
    """A session of the run, started at its first use."""
    own = settings.spark.settings
    packages = ",".join(filter(None, [PACKAGE, own.get(_PACKAGES, "")]))
    session = new_session(settings.spark.master, {**SETTINGS, **own, _PACKAGES: packages})
    try:
        yield session
    finally:
        session.stop()


def run(
    settings: Settings,
    report: Callable[[Summary], None],
    errors: list[TidemarkError],
    opened: Callable[[Settings], AbstractContextManager[LazySession]] = open_session,
) -> None:
    """Bring all views up to date; report: called for each.

    Errors of one view are added to `errors`. TidemarkError of what concerns all of them.
    """
    _check(settings)
    # Whoever writes the settings also starts the process, with its own rights.
    netguard.install(netguard.Guard(folders=("/",)))
    with _database(settings) as dsn:
        with PostgresAnalyzer(dsn, "source") as analyzer:
            sources = {n: open_source(n, s, analyzer) for n, s in settings.sources.items()}
        planned: list[PlannedView] = []
        feeds = [relation for source in sources.values() for relation in source.relations()]
        for name, view in settings.views.items():
            with _reported(errors, f'view "{name}"'):
                planned.append(plan(name, view.query, dsn, feeds, settings.spark.buckets))
        _warn(planned)
        ends = _ends(planned, sources)
        with opened(settings) as session, TemporaryDirectory(prefix="tidemark-run-") as folder:
            scheduler = new_scheduler(session, Path(folder))
            for one in planned:
                with _reported(errors, f'view "{one.name}"'):
                    started = ViewRun(one, sources, ends, settings.epoch_rows)
                    report(_run_view(one, settings, started, session, scheduler))


def _run_view(
    view: PlannedView,
    settings: Settings,
    started: ViewRun,
    session: LazySession,
    scheduler: Scheduler,
) -> Summary:
    target = settings.views[view.name].sink
    catalog = settings.catalogs[target.catalog]
    sink = IcebergSink(session.get(), catalog, target.table, view, target.deletes)
    storage = view_storage(settings, f"{view.name}/{view.identity}")
    return started.run(storage, scheduler, sink, settings.spark.buckets)


def view_storage(settings: Settings, folder: str) -> SharedStorage:
    """Return the storage of a view. TidemarkError batch.key, secret.*, spark.storage_url."""
    storage = storage_below(settings.storage, folder)
    if settings.key is None:
        return storage
    key = secrets.resolve_setting(settings.key).strip()
    secrets.remember(key)
    if len(key) < LEAST_CHARACTERS:
        raise TidemarkError(
            "batch.key",
            f"the key of the storage has {len(key)} characters",
            detail=f"at least {LEAST_CHARACTERS} are required",
            hint="create one with: openssl rand -hex 32",
        )
    return SealedStorage(storage, derived_key(key.encode(), folder))


def _ends(views: Sequence[PlannedView], sources: dict[str, BoundedSource]) -> dict[str, object]:
    """Return where each source that is read ends now."""
    ends: dict[str, object] = {}
    for name, source in sources.items():
        read = {r.name for view in views for r in view.view.relations if r.name.source == name}
        if read:
            ends[name] = source.current_end([r for r in source.relations() if r.name in read])
    return ends


def _check(settings: Settings) -> None:
    master = settings.spark.master
    if is_connect(master):
        raise TidemarkError(
            "spark.connect",
            "a run cannot use a Spark Connect server",
            detail="it commits to Iceberg in the JVM of Spark's driver, which clients do not reach",
            hint='set spark.master to a master, such as "spark://host:7077" or "local[2]"',
        )
    if settings.database is None and not is_local(master):
        raise TidemarkError(
            "batch.database",
            "the executors cannot reach a database that is started for the run",
            detail=f"those of {master} may be other machines",
            hint="set database to the DSN of a PostgreSQL that they reach",
        )
    check_java()
    check_storage(settings.storage, master)


@contextmanager
def _database(settings: Settings) -> Iterator[str]:
    if settings.database is not None:
        yield secrets.resolve_setting(settings.database)
        return
    with EmbeddedPostgres(settings={"wal_level": "minimal", "max_wal_senders": 0}) as server:
        yield server.dsn


@contextmanager
def _reported(errors: list[TidemarkError], where: str = "") -> Iterator[None]:
    """Add an error to the others, with a note of what it is of."""
    try:
        yield
    except Exception as raised:
        error = raised if isinstance(raised, TidemarkError) else internal_error("the run", raised)
        if where:
            error.add_note(where)
        errors.append(error)


def _warn(views: Sequence[PlannedView]) -> None:
    for view in views:
        for warning in view.warnings:
            print(f'warning: view "{view.name}": {warning}', file=sys.stderr)


def _print_summary(summary: Summary) -> None:
    print(json.dumps(asdict(summary), sort_keys=True), flush=True)


def _print_error(error: TidemarkError) -> None:
    print(f"error: {error}", file=sys.stderr)
    places: list[str] = list(getattr(error, "__notes__", ()))
    if error.position is not None:
        places.append(f"line {error.position.line}, column {error.position.column}")
    shown = {"at": ", ".join(places), "detail": error.detail}
    shown["hint"] = error.hint or f"see {error.code} in docs/ERRORS.md"
    for name, text in shown.items():
        if text:
            print(f"  {name}: {text}", file=sys.stderr)
