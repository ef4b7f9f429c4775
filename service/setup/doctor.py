"""Checks at the start of the service and on demand: what is wrong, and how to fix it.

The database checks are those of `tidemark init`; the others are requirements of the service.
Invariant: a check changes nothing; only the start of the service creates schema tidemark. A
database without logical replication can still be queried, so that is a problem only if views read
its tables.
"""

from __future__ import annotations

import platform
import resource
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx

from connectors.postgres.analysis.readiness import Check
from connectors.postgres.catalog.catalog import SourceRow
from dataflow.errors import TidemarkError
from service.api.exposure import check_port
from service.engine import state_version
from service.engine.state_version import STORE
from service.factory.service_factory import ServiceFactory
from service.ingest import wal_retention
from service.metrics.metrics import is_fresh, read_metrics
from service.runtime import release
from service.runtime.settings import DEFAULT_GROUP, GROUPS, Settings
from service.setup.bootstrap import Desired, checks_of
from service.views.groups import follows_database, groups_on_disk
from storage import clock
from storage.errors import StorageError
from storage.scrub import scrub

MIN_FREE_BYTES = 1 << 30
MIN_FILES = 4096
MAX_SKEW_S = 1.0
RECENT_S = 30.0
# Memory besides the pipeline: the API process, and the kernel's page cache for files.
OTHERS_MB = 300
OK, NOTE, PROBLEM = "ok", "note", "problem"
# Problems that prevent logical replication only.
_REPLICATION_CODES = frozenset(
    {
        "source.wal_level",
        "source.privilege",
        "source.no_free_slot",
        "source.no_free_wal_sender",
    }
)
# Problems of slot and publication only: the service can start without them.
_SLOT = ("source.slot_", "source.no_free_slot", "source.publication_")


@dataclass(frozen=True)
class Finding:
    """The result of one check. found: what it found. is_note: the problem needs no action. note:
    additional information without a problem. as_whom: who runs the command of the hint."""

    name: str
    found: str = ""
    problem: TidemarkError | None = None
    is_note: bool = False
    note: str = ""
    as_whom: str = ""

    @property
    def status(self) -> str:
        """ok, note or problem."""
        if self.problem is None:
            return NOTE if self.note else OK
        return NOTE if self.is_note else PROBLEM

    def facts(self) -> dict[str, str]:
        """Return the finding as `tidemark doctor --json` prints it."""
        facts = {"name": self.name, "status": self.status, "found": self.found}
        if self.note:
            facts["detail"] = self.note
        if self.problem is not None:
            error = self.problem
            facts |= {"code": error.code, "what": error.what}
            facts |= {"detail": error.detail, "hint": error.hint}
            if self.as_whom:
                facts["as_whom"] = self.as_whom
        return facts


def check_service(settings: Settings) -> list[Finding]:
    """Return the problems of source and sink: those that prevent a start, and notes."""
    factory = ServiceFactory(settings)
    source = _probe("source", factory.source.check)
    code = "" if source.problem is None else source.problem.code
    if code.startswith(_SLOT):
        # The views report it, and the API is needed to rebuild them.
        source = replace(source, is_note=True)
    elif code in _REPLICATION_CODES:
        source = replace(source, is_note=not _follows_tables(factory))
    if source.status == PROBLEM and settings.sink == settings.source:
        # The sink is the same database and would report the same.
        return [source]
    sink = _probe("sink", lambda: factory.sink().prepare())
    return [f for f in (source, sink) if f.problem is not None]


def check_all(settings: Settings, *, is_deep: bool = False) -> list[Finding]:
    """Run all checks that need no views. is_deep: also read all of the state."""
    factory = ServiceFactory(settings)
    is_followed = _follows_tables(factory)
    desired = Desired(
        settings.source, settings.sink, prefix=settings.prefix, publication=settings.publication
    )
    databases = [_of_check(check, is_followed=is_followed) for check in checks_of(desired)]
    found = [_versions(), *databases]
    if all(f.status != PROBLEM for f in databases):
        found.append(_probe("source: clock", lambda: _clock(factory)))
        found.append(_probe("source: slot", lambda: _slot(factory, settings)))
        found += list(_declared(factory))
    files = _probe("files: limit of open files", _files)
    return [
        *found,
        _probe("state: directory, version, space", lambda: _state(settings)),
        *(_contents(settings) if is_deep else ()),
        *_running(settings),
        _probe("memory: enough for --memory", lambda: _memory(settings)),
        replace(files, is_note=True),
        _probe("port: free, or answered by Tidemark", lambda: _port(settings)),
        _spark(settings),
    ]


def check_database(desired: Desired) -> list[Finding]:
    """Check databases before there is a service: what it would need. Nothing is written there."""
    return [_versions(), *(_of_check(check, is_followed=True) for check in checks_of(desired))]


def _of_check(check: Check, *, is_followed: bool) -> Finding:
    """Return the finding of a database check; replication is optional if no view reads tables."""
    error = check.problem
    is_note = (check.is_optional or check.can_wait) or (
        error is not None and error.code in _REPLICATION_CODES and not is_followed
    )
    return Finding(check.name, check.found, error, is_note, check.note, check.as_whom)


def _probe(name: str, check: Callable[[], object]) -> Finding:
    try:
        return Finding(name, str(check() or ""))
    except TidemarkError as error:
        return Finding(name, problem=error)
    except StorageError as error:
        what = f"the state cannot be used [{error.code}]"
        problem = TidemarkError(error.code, what, detail=error.detail, hint=error.hint)
        return Finding(name, problem=problem)


def _versions() -> Finding:
    return Finding("versions", f"tidemark {release.VERSION}, Python {platform.python_version()}")


def _running(settings: Settings) -> Iterator[Finding]:
    """Yield the reports of a service that runs on this state, one per group."""
    for group in (DEFAULT_GROUP, *sorted(groups_on_disk(settings.state))):
        figures = read_metrics(settings.for_group(group).state)
        if figures is None or not is_fresh(figures, RECENT_S):
            continue
        name, refused = f"service: group {group}", figures.get("refused")
        problem = None
        if refused:
            about = {"detail": refused["detail"], "hint": refused["hint"]}
            problem = TidemarkError(refused["code"], refused["title"], **about)
        yield Finding(name, "" if refused else "runs", problem, note=figures.get("sink_error", ""))


# --- source and sink ----------------------------------------------------------------------------


def _follows_tables(factory: ServiceFactory) -> bool:
    """Return True if there are views that read the source database's tables."""
    control = factory.control()
    try:
        rows = control.list_views()
    except TidemarkError:
        return False
    finally:
        control.close()
    return any(map(follows_database, rows))


def _clock(factory: ServiceFactory) -> str:
    before = clock.wall()
    theirs = factory.source.clock()
    skew_s = theirs - (before + clock.wall()) / 2
    if abs(skew_s) > MAX_SKEW_S:
        raise TidemarkError(
            "clock.skew",
            "the clocks of the source and of this machine differ",
            detail=f"the source's clock is {skew_s:+.1f} s from this machine's",
            hint="synchronize both by NTP; latency and lag are off by as much, rows are not",
        )
    return f"{skew_s * 1000:+.0f} ms"


def _slot(factory: ServiceFactory, settings: Settings) -> str:
    wal_retention.check(settings, factory.source)
    retained = factory.source.retained_wal_bytes()
    return f"{factory.source.slot_name}: {retained >> 20} MiB of WAL retained"


def _declared(factory: ServiceFactory) -> Iterator[Finding]:
    """Yield a finding per external source: each is contacted as the service would."""
    control = factory.control()
    try:
        rows = [row for row in control.list_sources() if not row.is_database]
    except TidemarkError as error:
        if error.code != "control.missing":  # before the first start no source is declared
            yield Finding("sources", problem=error)
        return
    finally:
        control.close()
    for row in rows:
        yield _probe(f"source {row.name}: {row.type}", lambda row=row: _feed(factory, row))


def _feed(factory: ServiceFactory, row: SourceRow) -> str:
    factory.feed_source(row).check()
    return f"{len(row.relations)} relations"


# --- this machine -------------------------------------------------------------------------------


def _state(settings: Settings) -> str:
    state = settings.state
    check_writable(state)
    version = state_version.check(state)
    free = shutil.disk_usage(state).free
    if free < MIN_FREE_BYTES:
        raise TidemarkError(
            "state.no_space",
            f'little space left for state directory "{state}"',
            detail=f"{free >> 20} MiB free",
            hint="free space, or choose another directory with --state",
        )
    kind = file_system(state)
    if kind in ("tmpfs", "ramfs", "overlay"):
        raise TidemarkError(
            "state.not_kept",
            f'state directory "{state}" does not outlive the machine or its container',
            detail=f"it is on {kind}",
            hint="put it on a disk or volume; without it every start rebuilds all views",
        )
    return f"{free >> 30} GiB free on {kind}, version {version}"


def check_writable(state: Path) -> None:
    """Fail if the state's directory is not writable. TidemarkError state.io."""
    try:
        state.mkdir(parents=True, exist_ok=True)
        probe = state / ".doctor"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise TidemarkError(
            "state.io",
            f'state directory "{state}" is not writable',
            detail=str(error),
            hint="make the service's user its owner, or choose another with --state",
        ) from None


def _contents(settings: Settings) -> Iterator[Finding]:
    """Yield a finding per group after reading its whole state."""
    below = settings.state / GROUPS
    groups = sorted(p.name for p in below.iterdir() if p.is_dir()) if below.is_dir() else []
    for group in (DEFAULT_GROUP, *groups):
        folder = settings.for_group(group).state / STORE
        if folder.is_dir():
            yield _probe(f"state: contents of group {group}", lambda folder=folder: _read(folder))


def _read(folder: Path) -> str:
    found = scrub(folder)
    return f"{found.values} values, {found.size_bytes >> 20} MiB, all checksums match"


def file_system(folder: Path, mounts: str = "/proc/self/mounts") -> str:
    """Return the type of a folder's file system, "" if unknown."""
    resolved, best, found = folder.resolve(), -1, ""
    try:
        lines = Path(mounts).read_text().splitlines()
    except OSError:
        return ""
    for line in lines:
        _, where, kind, *_ = line.split(" ")
        mounted = Path(where.replace("\\040", " "))
        if resolved.is_relative_to(mounted) and len(mounted.parts) > best:
            best, found = len(mounted.parts), kind
    return found


def _memory(settings: Settings) -> str:
    allowed = memory_mb()
    needed = settings.memory * 5 // 4 + OTHERS_MB
    shown = f"{allowed} MiB available, about {needed} needed with --memory {settings.memory}"
    if allowed < needed:
        raise TidemarkError(
            "memory.too_little",
            "this machine or container has less memory than the service may use",
            detail=shown,
            hint=f"use --memory {max((allowed - OTHERS_MB) * 4 // 5, 0)}, or a larger limit",
        )
    return shown


def memory_mb(root: Path = Path("/sys/fs/cgroup"), proc: Path = Path("/proc")) -> int:
    """Return the memory of the machine or the cgroup's limit, whichever is less."""
    lines = (proc / "meminfo").read_text().splitlines()
    total = next(int(x.split()[1]) >> 10 for x in lines if x.startswith("MemTotal:"))
    limits = [root / "memory.max", root / "memory" / "memory.limit_in_bytes"]
    for path in limits:
        try:
            text = path.read_text().strip()
        except OSError:
            continue
        if text.isdigit():
            total = min(total, int(text) >> 20)
    return total


def _files() -> str:
    # The service raises its soft limit to this.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most < MIN_FILES and most != resource.RLIM_INFINITY:
        raise TidemarkError(
            "files.too_few",
            "the limit of open files is low",
            detail=f"{most} files; a large state has thousands",
            hint=f"raise it: ulimit -Hn {MIN_FILES}, or LimitNOFILE= of the systemd unit",
        )
    return str(most)


def _port(settings: Settings) -> str:
    if not settings.port:
        return "any free one"
    where = f"{settings.host}:{settings.port}"
    try:
        check_port(settings, wait_s=0.0)
    except TidemarkError:
        if _is_ours(settings):
            return f"{where} is used by a running Tidemark"
        raise
    return f"{where} is free"


def _is_ours(settings: Settings) -> bool:
    try:
        answer: Any = httpx.get(f"http://{settings.host}:{settings.port}/health", timeout=3).json()
    except (httpx.HTTPError, ValueError):
        return False
    return isinstance(answer, dict) and "pipeline" in answer


def _spark(settings: Settings) -> Finding:
    """Return the finding about Spark and its Java, which only backfills by Spark need."""
    name = "spark: for backfills by Spark"
    found = _probe(name, lambda: _check_spark(settings.backfill_master))
    if found.problem is None:
        return Finding(name, "found")
    return Finding(name, problem=found.problem, is_note=True)


def _check_spark(master: str) -> None:
    from connectors.spark.java import check_spark

    check_spark(master, "a backfill by Spark")
