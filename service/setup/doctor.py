"""Checks before the service starts, and on demand: what is wrong, and what to do about it.

The databases' checks are those of `tidemark init`, the others are what the service itself meets
later. Nothing is made or changed, but for schema tidemark when the service starts. A database that
cannot be followed is still good for analysis, and for functions: that is a problem only for who
has views over its tables.
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
from service.ingest.declared_sources import feed_source
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
MOST_SKEW_S = 1.0
RECENT_S = 30.0
# Beside the pipeline: the API process, and what the kernel counts for files.
BESIDE_MB = 300
OK, NOTE, PROBLEM = "ok", "note", "problem"
# What keeps the source's tables from being followed, and nothing else.
_FOLLOWING = frozenset(
    {
        "source.wal_level",
        "source.privilege",
        "source.no_free_slot",
        "source.no_free_wal_sender",
    }
)
# What is wrong with the slot alone: the service runs without it.
_SLOT = ("source.slot_", "source.no_free_slot")


@dataclass(frozen=True)
class Finding:
    """One look: what was found, or what is wrong with it. is_note: it need not be healed. note:
    what is good to know although it is well."""

    name: str
    found: str = ""
    problem: TidemarkError | None = None
    is_note: bool = False
    note: str = ""

    @property
    def status(self) -> str:
        """ok, note or problem."""
        if self.problem is None:
            return NOTE if self.note else OK
        return NOTE if self.is_note else PROBLEM

    def facts(self) -> dict[str, str]:
        """As `tidemark doctor --json` prints it."""
        facts = {"name": self.name, "status": self.status, "found": self.found}
        if self.note:
            facts["detail"] = self.note
        if self.problem is not None:
            error = self.problem
            facts |= {"code": error.code, "what": error.what}
            facts |= {"detail": error.detail, "hint": error.hint}
        return facts


def check_service(settings: Settings) -> list[Finding]:
    """What keeps the service from working at all, and what it can do without: source and sink."""
    parts = ServiceFactory(settings)
    source = _look("source", parts.source.check)
    code = "" if source.problem is None else source.problem.code
    if code.startswith(_SLOT):
        # The views say it, and whoever has to rebuild them needs the API.
        source = replace(source, is_note=True)
    elif code in _FOLLOWING:
        source = replace(source, is_note=not _follows_tables(parts))
    if source.status == PROBLEM and settings.sink == settings.source:
        # The same database would say the same again.
        return [source]
    sink = _look("sink", lambda: parts.sink().prepare())
    return [f for f in (source, sink) if f.problem is not None]


def check_all(settings: Settings, *, is_deep: bool = False) -> list[Finding]:
    """Everything that can be known before there are views. is_deep: read all of the state too."""
    parts = ServiceFactory(settings)
    is_followed = _follows_tables(parts)
    wanted = Desired(settings.source, settings.sink, prefix=settings.prefix)
    databases = [_of_check(check, is_followed=is_followed) for check in checks_of(wanted)]
    found = [_versions(), *databases]
    if all(f.status != PROBLEM for f in databases):
        found.append(_look("source: clock", lambda: _clock(parts)))
        found.append(_look("source: slot", lambda: _slot(parts, settings)))
        found += list(_declared(parts))
    files = _look("files: that may be open at once", _files)
    return [
        *found,
        _look("state: directory, version, room", lambda: _state(settings)),
        *(_contents(settings) if is_deep else ()),
        *_running(settings),
        _look("memory: room for --memory", lambda: _memory(settings)),
        replace(files, is_note=True),
        _look("port: free, or answered by Tidemark", lambda: _port(settings)),
        _java(settings),
    ]


def _of_check(check: Check, *, is_followed: bool) -> Finding:
    """A check of a database; whoever reads feeds alone need not follow its tables."""
    error = check.problem
    is_note = (check.is_optional or check.can_wait) or (
        error is not None and error.code in _FOLLOWING and not is_followed
    )
    return Finding(check.name, check.found, error, is_note, check.note)


def _look(name: str, check: Callable[[], object]) -> Finding:
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
    """What a service that runs on this state says of itself, group by group."""
    for group in (DEFAULT_GROUP, *sorted(groups_on_disk(settings.state))):
        figures = read_metrics(settings.for_group(group).state)
        if figures is None or not is_fresh(figures, RECENT_S):
            continue
        name, told = f"service: group {group}", figures.get("refused")
        problem = None
        if told:
            about = {"detail": told["detail"], "hint": told["hint"]}
            problem = TidemarkError(told["code"], told["title"], **about)
        yield Finding(name, "" if told else "runs", problem, note=figures.get("sink_error", ""))


# --- source and sink ----------------------------------------------------------------------------


def _follows_tables(parts: ServiceFactory) -> bool:
    """Whether there are views that follow the source's own tables."""
    control = parts.control()
    try:
        rows = control.list_views()
    except TidemarkError:
        return False
    finally:
        control.close()
    return any(map(follows_database, rows))


def _clock(parts: ServiceFactory) -> str:
    before = clock.wall()
    theirs = parts.source.clock()
    skew_s = theirs - (before + clock.wall()) / 2
    if abs(skew_s) > MOST_SKEW_S:
        raise TidemarkError(
            "clock.skew",
            "the clocks of the source and of this machine differ",
            detail=f"the source is {skew_s:+.1f} s from here",
            hint="let NTP set both; latency and lag are told wrong by as much, rows are not",
        )
    return f"{skew_s * 1000:+.0f} ms"


def _slot(parts: ServiceFactory, settings: Settings) -> str:
    wal_retention.check(settings, parts.source)
    kept = parts.source.retained_wal_bytes()
    return f"{parts.source.slot_name}: {kept >> 20} MiB of WAL kept"


def _declared(parts: ServiceFactory) -> Iterator[Finding]:
    """The sources beside the database: each is reached as the service reaches it."""
    control = parts.control()
    try:
        rows = [row for row in control.list_sources() if row.type != "postgres"]
    except TidemarkError as error:
        if error.code != "control.missing":  # before the first start there is nothing declared
            yield Finding("sources", problem=error)
        return
    finally:
        control.close()
    for row in rows:
        yield _look(f"source {row.name}: {row.type}", lambda row=row: _feed(row))


def _feed(row: SourceRow) -> str:
    feed_source(row).check()
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
            hint="make room, or choose another directory with --state",
        )
    kind = file_system(state)
    if kind in ("tmpfs", "ramfs", "overlay"):
        raise TidemarkError(
            "state.not_kept",
            f'state directory "{state}" does not outlive the machine or its container',
            detail=f"it lies on {kind}",
            hint="put it on a disk, or a volume: without it every view is rebuilt at a start",
        )
    return f"{free >> 30} GiB free on {kind}, version {version}"


def check_writable(state: Path) -> None:
    """TidemarkError state.io where nothing can be written in the state's directory."""
    try:
        state.mkdir(parents=True, exist_ok=True)
        probe = state / ".doctor"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise TidemarkError(
            "state.io",
            f'state directory "{state}" cannot be written',
            detail=str(error),
            hint="give it to the user that the service runs as, or choose another with --state",
        ) from None


def _contents(settings: Settings) -> Iterator[Finding]:
    """What each group has on disk, read to its end."""
    below = settings.state / GROUPS
    groups = sorted(p.name for p in below.iterdir() if p.is_dir()) if below.is_dir() else []
    for group in (DEFAULT_GROUP, *groups):
        folder = settings.for_group(group).state / STORE
        if folder.is_dir():
            yield _look(f"state: contents of group {group}", lambda folder=folder: _read(folder))


def _read(folder: Path) -> str:
    found = scrub(folder)
    return f"{found.values} values, {found.size_bytes >> 20} MiB, all as they were written"


def file_system(folder: Path, mounts: str = "/proc/self/mounts") -> str:
    """The kind of file system that a folder lies on, "" where the kernel does not tell."""
    place, best, found = folder.resolve(), -1, ""
    try:
        lines = Path(mounts).read_text().splitlines()
    except OSError:
        return ""
    for line in lines:
        _, where, kind, *_ = line.split(" ")
        mounted = Path(where.replace("\\040", " "))
        if place.is_relative_to(mounted) and len(mounted.parts) > best:
            best, found = len(mounted.parts), kind
    return found


def _memory(settings: Settings) -> str:
    allowed = memory_mb()
    wanted = settings.memory * 5 // 4 + BESIDE_MB
    shown = f"{allowed} MiB here, about {wanted} wanted with --memory {settings.memory}"
    if allowed < wanted:
        raise TidemarkError(
            "memory.too_little",
            "this machine or container has less memory than the service may take",
            detail=shown,
            hint=f"--memory {max((allowed - BESIDE_MB) * 4 // 5, 0)}, or a larger limit",
        )
    return shown


def memory_mb(root: Path = Path("/sys/fs/cgroup"), proc: Path = Path("/proc")) -> int:
    """What the machine has, or the cgroup allows, whichever is less."""
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
    # The service raises its own limit up to this.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most < MIN_FILES and most != resource.RLIM_INFINITY:
        raise TidemarkError(
            "files.too_few",
            "few files may be open at once",
            detail=f"{most} at most; a large state has thousands",
            hint=f"ulimit -Hn {MIN_FILES}, or LimitNOFILE= of the unit",
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
            return f"{where} is a running Tidemark's"
        raise
    return f"{where} is free"


def _is_ours(settings: Settings) -> bool:
    try:
        answer: Any = httpx.get(f"http://{settings.host}:{settings.port}/health", timeout=3).json()
    except (httpx.HTTPError, ValueError):
        return False
    return isinstance(answer, dict) and "pipeline" in answer


def _java(settings: Settings) -> Finding:
    """Only backfills of large tables ask for it, and only with a local master or a cluster's."""
    name = "java: for backfills by Spark"
    if settings.spark_master.startswith("sc://"):
        return Finding(name, "not needed with Spark Connect")
    found = _look(name, _check_java)
    if found.problem is None:
        return Finding(name, "found")
    return Finding(name, problem=found.problem, is_note=True)


def _check_java() -> None:
    from connectors.spark.session import check_java

    check_java()
