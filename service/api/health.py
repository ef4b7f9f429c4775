"""Status of views, sources, pipelines and the service: the only module that decides it.

REST, psql, the command line, the console and the metrics show these decisions.
All functions are pure; their input is `StatusInputs` (from `service/api/status_collector.py`).
Invariant: nothing counts as healthy without a recent report, and every other status has a reason.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from connectors.postgres.catalog.catalog import SourceRow, ViewRow
from connectors.postgres.catalog.sink_records import SinkRow
from connectors.source import MAIN_SOURCE
from service.api.models import ProblemModel
from service.api.problems import problem_of_row
from service.metrics.metrics import is_fresh
from service.runtime.disk_errors import no_space
from service.runtime.restart_policy import AWAY_CODES, repeated_ends
from service.runtime.settings import DEFAULT_GROUP
from service.runtime.signals import FINAL_CODES
from service.sinks import sink_worker
from service.views.groups import group_of, is_spark_group
from service.views.lifecycle import DesiredState, ViewState

STALE_S = 10.0
MAX_NAMED = 10

OK, STARTING, DEGRADED = "ok", "starting", "degraded"
_STANDING_STILL = (ViewState.FAILED, ViewState.PAUSED, ViewState.DROPPING)
_UNWATCHED = (ViewState.PAUSED, ViewState.DROPPING)
RUNNING, RETRYING, STOPPED = "running", "retrying", "stopped"
_WORST = (RUNNING, RETRYING, STOPPED)
_CODED = re.compile(r"(.*) \[([a-z]\w*\.\w+)\]", re.DOTALL)


@dataclass(frozen=True)
class StatusInputs:
    """The facts of one moment, from which every status follows.

    figures: of each group's pipeline, None before its first report. processes: as the supervisor
    reports them. views, sources, sinks: catalog rows as last read. is_young: this process has just
    started, so pipelines may have too.
    """

    figures: Mapping[str, Mapping[str, Any] | None]
    processes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    views: Sequence[ViewRow] = ()
    sources: Sequence[SourceRow] = ()
    sinks: Sequence[SinkRow] = ()
    free_bytes: int | None = None
    is_young: bool = False

    @cached_property
    def by_title(self) -> Mapping[tuple[str, str], ViewRow]:
        """The views by schema and name."""
        return {(v.schema, v.name): v for v in self.views}

    @cached_property
    def readers(self) -> Mapping[str, set[str]]:
        """By source, the groups that read it for maintained views."""
        found: dict[str, set[str]] = {}
        for view in self.views:
            for name in _read_directly(view) if _is_maintained(view) else ():
                found.setdefault(name, set()).add(group_of(view))
        return found


@dataclass(frozen=True)
class Standing:
    """A status, with the error that explains it."""

    status: str
    error: ProblemModel | None = None


def is_stale(figures: Mapping[str, Any] | None) -> bool:
    """Return True if there are no figures, or they are too old."""
    return figures is None or not is_fresh(figures, STALE_S)


# --- a pipeline --------------------------------------------------------------------------------


def pipeline_problem(inputs: StatusInputs, group: str) -> ProblemModel | None:
    """Return why a group's pipeline does not process changes; None while it works or starts."""
    figures = inputs.figures.get(group) or {}
    if figures.get("refused"):
        return ProblemModel(**figures["refused"])
    name = "the pipeline" if group == DEFAULT_GROUP else f'the pipeline of group "{group}"'
    reported = inputs.processes.get(_child_of(group), {})
    if reported.get("is_over") and reported.get("code"):
        what, hint = f"{name} has ended and is not restarted", "see its log"
        return _problem(what, f"exit code {reported['code']}", hint, code="pipeline.ended")
    now = time.monotonic()
    ends = [end for end in reported.get("ends", ()) if end <= now]
    often = repeated_ends(ends, now)
    is_down = bool(ends) and figures.get("steady_at", 0.0) <= ends[-1]
    if is_down or often:
        what = f"{name} has ended unexpectedly and is being restarted"
        if often:
            what = f"{name} has ended {often} times within a minute; each time it is restarted"
        detail = f"exit code {reported['code']}" if reported.get("code") is not None else ""
        return _problem(what, detail, "see its log", code="pipeline.restarting")
    is_new = group not in inputs.figures
    if not is_stale(inputs.figures.get(group)) or is_new:
        return None
    if not _is_begun(inputs, group):
        what = f"{name} has not reported within the last {STALE_S:g} s"
        hint = "see its log, and check whether the machine is overloaded"
        return _problem(what, "", hint, code="pipeline.silent")
    return None


def is_starting(inputs: StatusInputs) -> bool:
    """Return True while it is too early to judge the default group's pipeline."""
    figures = inputs.figures.get(DEFAULT_GROUP)
    is_reported = figures is not None and "refused" in figures
    is_waited_for = _is_begun(inputs, DEFAULT_GROUP) and is_stale(figures) and not is_reported
    return is_waited_for and pipeline_problem(inputs, DEFAULT_GROUP) is None


def _is_begun(inputs: StatusInputs, group: str) -> bool:
    """Return True if a group's pipeline may have started too lately for a report."""
    started_at = inputs.processes.get(_child_of(group), {}).get("started_at")
    is_late = started_at is not None and time.monotonic() - started_at < STALE_S
    return inputs.is_young or is_late


def _child_of(group: str) -> str:
    return "pipeline" if group == DEFAULT_GROUP else f"pipeline {group}"


# --- a source ----------------------------------------------------------------------------------


def database_standing(inputs: StatusInputs, group: str) -> Standing:
    """Return the status of the source database for one group's pipeline."""
    problem = pipeline_problem(inputs, group)
    if problem is not None:
        return Standing(_unread(problem, inputs.figures.get(group)), problem)
    text = (inputs.figures.get(group) or {}).get("source_error")
    return Standing(RETRYING, _parsed(text, "source.unreachable")) if text else Standing(RUNNING)


def source_standing(inputs: StatusInputs, row: SourceRow, group: str | None = None) -> Standing:
    """Return the status of a source for one group, or the worst over all groups."""
    if row.is_database:
        return database_standing(inputs, row.name.partition("/")[2] or DEFAULT_GROUP)
    readers = inputs.readers.get(row.name, set())
    groups = [g for g in inputs.figures if group is None or g == group]
    found: list[Standing] = []
    if not readers and any(row.name in _read_directly(v) for v in inputs.views):
        # Its views have failed or are paused, so no pipeline tries the source any more.
        found.append(Standing(row.status, problem_of_row(row)))
    for each in groups:
        facts = (inputs.figures[each] or {}).get("sources", {}).get(row.name)
        problem = pipeline_problem(inputs, each)
        if problem is not None and (facts is not None or each in readers):
            found.append(Standing(_unread(problem, inputs.figures[each]), problem))
        elif facts is not None:
            found.append(Standing(facts["status"], _feed_problem(row, facts)))
    return max(found, key=lambda s: _WORST.index(s.status), default=Standing(RUNNING))


def _unread(problem: ProblemModel, figures: Mapping[str, Any] | None) -> str:
    """Return the status of a source without a working pipeline: stopped if someone must act."""
    needs_someone = bool((figures or {}).get("refused")) or problem.code == "pipeline.ended"
    return STOPPED if needs_someone else RETRYING


def _feed_problem(row: SourceRow, facts: Mapping[str, Any]) -> ProblemModel | None:
    if facts["status"] == RUNNING:
        return None
    reported = facts.get("problem")
    if reported:
        return _problem(reported["detail"], "", reported["hint"], code=reported["code"])
    return problem_of_row(row) or _parsed(facts.get("error") or "", "source.unreachable")


# --- a view ------------------------------------------------------------------------------------


def view_standing(inputs: StatusInputs, row: ViewRow) -> Standing:
    """Return the status of a view.

    A live view stays live, with a reason, while a source is temporarily unreachable. It is degraded
    (readable, not updated) if someone must act first, or the sink, the pipeline or the Spark that
    maintains it is unavailable.
    """
    reported = problem_of_row(row)
    if row.status in _STANDING_STILL:
        return Standing(row.status, reported)
    group = group_of(row)
    figures = inputs.figures.get(group) or {}
    pipeline = pipeline_problem(inputs, group)
    if pipeline is not None:
        if row.status != ViewState.LIVE:
            return Standing(row.status, reported or pipeline)
        is_refused = figures.get("refused") and pipeline.code not in AWAY_CODES
        return Standing(ViewState.FAILED if is_refused else ViewState.DEGRADED, pipeline)
    found = [*_sources_of(inputs, row, group)]
    worst = max((s for _, s in found), key=lambda s: _WORST.index(s.status), default=None)
    if row.status != ViewState.LIVE:
        waits = _spark_problem(figures)
        return Standing(row.status, reported or (waits if worst is None else worst.error or waits))
    if worst is not None and worst.status == STOPPED:
        return Standing(ViewState.DEGRADED, worst.error)
    if figures.get("sink_error"):
        return Standing(ViewState.DEGRADED, _parsed(figures["sink_error"], "sink.unreachable"))
    if is_spark_group(group) and figures.get("spark_error"):
        return Standing(ViewState.DEGRADED, _spark_problem(figures))
    return Standing(
        ViewState.LIVE, reported if worst is None or worst.error is None else worst.error
    )


def _spark_problem(figures: Mapping[str, Any]) -> ProblemModel | None:
    text = figures.get("spark_error")
    return _parsed(text, "spark.waiting") if text else None


def warnings_of(inputs: StatusInputs, row: ViewRow) -> list[str]:
    """Return a warning per unreachable source of a view, and one for an unreachable sink."""
    group = group_of(row)
    figures = inputs.figures.get(group) or {}
    reported = {name: facts.get("error", "") for name, facts in figures.get("sources", {}).items()}
    reported[MAIN_SOURCE] = figures.get("source_error", "")
    read = _read(inputs, row)
    found = [f'source "{name}" is away: {reported[name]}' for name in read if reported.get(name)]
    sink_error = figures.get("sink_error")
    return [*found, sink_error] if sink_error else found


def _sources_of(inputs: StatusInputs, row: ViewRow, group: str) -> Iterator[tuple[str, Standing]]:
    """Yield the sources that a view depends on, directly or through other views."""
    declared = {s.name: s for s in inputs.sources}
    for name in _read(inputs, row):
        if name == MAIN_SOURCE:
            yield name, database_standing(inputs, group)
        elif name in declared:
            yield name, source_standing(inputs, declared[name], group)


def _read(inputs: StatusInputs, row: ViewRow) -> list[str]:
    by_title = inputs.by_title
    names: dict[str, None] = {}
    waiting, visited = [row], {row.identity}
    while waiting:
        view = waiting.pop()
        names |= dict.fromkeys(_read_directly(view))
        parents = (view.plan or {}).get("parents", [])
        found = [by_title[tuple(p)] for p in parents if tuple(p) in by_title]
        waiting += [p for p in found if p.identity not in visited]
        visited |= {p.identity for p in found}
    return list(names)


def _read_directly(row: ViewRow) -> list[str]:
    return [source for source, _ in (row.plan or {}).get("reads", [])]


def _is_maintained(row: ViewRow) -> bool:
    return (
        row.status not in (ViewState.FAILED, ViewState.PAUSED)
        and row.desired != DesiredState.DROPPED
    )


# --- the service -------------------------------------------------------------------------------


def service_standing(inputs: StatusInputs) -> tuple[str, list[str]]:
    """Return "ok", "starting" or "degraded", and the reasons of "degraded"."""
    if is_starting(inputs):
        return STARTING, []
    reasons = [
        reason if group == DEFAULT_GROUP else f'group "{group}": {reason}'
        for group in inputs.figures
        for reason in _reasons_of_group(inputs, group)
    ]
    stopped = {g for g in inputs.figures if pipeline_problem(inputs, g) is not None}
    reasons += _reasons_of_sources(inputs, stopped)
    reasons += _few("views", _reasons_of_views(inputs, stopped))
    reasons += _few("sinks", _reasons_of_sinks(inputs))
    if inputs.free_bytes is not None:
        reasons += filter(None, [no_space(inputs.free_bytes)])
    return (DEGRADED if reasons else OK), reasons


def _reasons_of_group(inputs: StatusInputs, group: str) -> list[str]:
    figures = inputs.figures.get(group) or {}
    words = ("wal_alarm", "source_error", "sink_error", "spark_error")
    found = [str(figures[k]) for k in words if figures.get(k)]
    if figures.get("checkpoint_error"):
        found.append(f"checkpoints fail: {figures['checkpoint_error']}")
    problem = pipeline_problem(inputs, group)
    if problem is None:
        return found
    if figures.get("refused"):
        hint = f": {problem.hint}" if problem.code in FINAL_CODES else ""
        return [*found, f"{problem.title} [{problem.code}]{hint}"]
    return [f"{problem.title} [{problem.code}]", *found]


def _reasons_of_sources(inputs: StatusInputs, stopped: set[str]) -> Iterator[str]:
    """Yield reasons for external sources, unless the cause is their pipeline."""
    working = {g: f for g, f in inputs.figures.items() if g not in stopped}
    for row in inputs.sources:
        if row.is_database or row.name not in inputs.readers:
            continue
        for group in working:
            found = source_standing(inputs, row, group)
            if found.status != RUNNING:
                word = "away" if found.status == RETRYING else found.status
                yield f'source "{row.name}" is {word}: {_text_of(found.error)}'
                break


def _reasons_of_views(inputs: StatusInputs, stopped: set[str]) -> Iterator[str]:
    for row in sorted(inputs.views, key=lambda v: (v.schema, v.name)):
        if row.desired == DesiredState.DROPPED or row.status in _UNWATCHED:
            continue
        if row.status == ViewState.FAILED:
            yield f'view "{row.title}" has failed: {_text_of(problem_of_row(row))}'
        elif row.status == ViewState.DEGRADED:
            yield f'view "{row.title}" is being rebuilt: {_text_of(problem_of_row(row))}'
        elif row.status != ViewState.LIVE and row.code and group_of(row) not in stopped:
            yield f'view "{row.title}" is not live yet: {_text_of(problem_of_row(row))}'


def _reasons_of_sinks(inputs: StatusInputs) -> Iterator[str]:
    for row in inputs.sinks:
        if row.desired == sink_worker.LIVE and row.status in (sink_worker.FAILED, RETRYING):
            word = "has failed" if row.status == sink_worker.FAILED else "is away"
            yield f'sink "{row.title}" {word}: {_text_of(problem_of_row(row))}'


def _few(what: str, reasons: Iterable[str]) -> list[str]:
    """Return the first MAX_NAMED reasons, and the number of the others."""
    found = list(reasons)
    more = len(found) - MAX_NAMED
    return [*found[:MAX_NAMED], f"and {more} more {what}"] if more > 0 else found


# --- words -------------------------------------------------------------------------------------


def _text_of(problem: ProblemModel | None) -> str:
    return "the reason is unknown" if problem is None else f"{problem.title} [{problem.code}]"


def _problem(what: str, detail: str, hint: str, *, code: str) -> ProblemModel:
    return ProblemModel(title=what, status=503, code=code, detail=detail, hint=hint)


def _parsed(text: str, code: str) -> ProblemModel:
    """Return the problem that figures report as text with its code in brackets.

    >>> _parsed("the server is gone [source.unreachable]", "internal").code
    'source.unreachable'
    """
    found = _CODED.fullmatch(text)
    what, code = (found[1], found[2]) if found else (text, code)
    return _problem(what, "", "the service retries automatically", code=code)
