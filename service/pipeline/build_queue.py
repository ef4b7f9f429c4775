"""The next view to build, and what the others wait for.

Each child has a process, and its view's rows in memory: only a few work at once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from connectors.postgres.catalog.catalog import ViewRow
from dataflow.errors import TemporaryError, TidemarkError
from service.backfill.builds import Builds
from service.backfill.view_build import ViewBuild
from service.pipeline.build_start import BuildStart
from service.pipeline.epochs import Epochs
from service.pipeline.followed_database import FollowedDatabase
from service.pipeline.postponed_builds import PostponedBuilds
from service.pipeline.reconciler import CatalogReconciler
from service.pipeline.sink_rewind import SinkRewind
from service.pipeline.sink_watch import SinkWatch
from service.pipeline.view_rights import ViewRights
from service.runtime.log import log
from service.runtime.runtime import Runtime
from service.views.wait_reasons import WAITS_S, Waiting, waits_for

# How long starting builds may keep the others waiting, and how many children work at once.
BEGIN_S = 0.25
MAX_CHILDREN = 4
# So many more, in place of builds that have moved nothing for so long.
MAX_SILENT, SILENT_S = 4, 60.0


_DISK_SHORT = TemporaryError(
    "state.disk_full",
    "only the reserve of the state's disk is left",
    hint="free space on the disk of the state directory: the build begins then",
)


class BuildQueue:
    """Used by the pipeline's thread. _tried: the view that was started last."""

    def __init__(
        self,
        *,
        epochs: Epochs,
        builds: Builds,
        reconciler: CatalogReconciler,
        database: FollowedDatabase,
        rewind: SinkRewind,
        start: BuildStart,
        waiting: Waiting,
        postponed: PostponedBuilds,
        rights: ViewRights,
        sink_watch: SinkWatch,
        is_disk_short: Callable[[], bool],
        runtime: Runtime,
    ) -> None:
        self._epochs = epochs
        self._builds = builds
        self._reconciler = reconciler
        self._database = database
        self._rewind = rewind
        self._start = start
        self._waiting = waiting
        self._postponed = postponed
        self._rights = rights
        self._sink_watch = sink_watch
        self._is_disk_short = is_disk_short
        self._runtime = runtime
        self._tried = ""
        self._has_more = self._awaits_space = False
        self._seen: dict[str, tuple[object, float]] = {}

    @property
    def is_due(self) -> bool:
        """Return True if more builds may begin than at the last poll."""
        return self._has_more or (self._awaits_space and self._has_space())

    def start_next(self, excluded: Collection[str]) -> None:
        """Start builds in turn and a few at a time, so that live views do not wait.

        excluded: identities of views that are being renamed.
        """
        self._has_more = self._awaits_space = False
        # The database checks each view before its build: while it is away, none is begun.
        if self._database.away_error is not None:
            for row in self._reconciler.to_build(self._builds):
                self._waiting.note(row.identity, self._database.away_error)
            return
        if self._is_disk_short():
            self._free_disk()
            return
        until, begun = self._runtime.monotonic() + BEGIN_S, len(self._builds)
        is_lagging = self._epochs.is_lagging
        rows = self._rewind.to_compare() if is_lagging else self._reconciler.to_build(self._builds)
        self._start.retain({row.identity for row in rows})
        self._postponed.retain({row.identity for row in self._reconciler.rows})
        rows = rows if is_lagging else [row for row in rows if not self._is_postponed(row)]
        rows = [row for row in rows if not self._rights.withholds(row)]
        # A view that cannot begin must not block the others for ever.
        tried = next((i for i, row in enumerate(rows) if row.identity == self._tried), -1) + 1
        for row in [*rows[tried:], *rows[:tried]]:
            if row.identity in excluded or self._reconciler.is_renamed(row):
                continue
            self._awaits_space = not self._has_space()
            is_late = self._runtime.monotonic() > until
            if self._awaits_space or is_late:
                self._await_turn([r for r in rows if r.identity not in self._builds])
                # If none could begin, poll again at the usual interval.
                self._has_more = is_late and len(self._builds) > begun
                return
            self._tried = row.identity
            try:
                self._start.start(row)
            except TemporaryError as error:
                log.warning("build.retry", view=row.title, code=error.code)
                self._waiting.note(row.identity, error)

    def _free_disk(self) -> None:
        """Begin no build while only the disk's reserve is left, and end those that move nothing:
        what changes meanwhile is spooled for them.
        """
        for build in self._builds.active():
            if build.is_working and self._is_silent(build):
                log.warning("build.disk_freed", view=build.definition.table.title)
                build.cancel()
        for row in self._reconciler.to_build(self._builds):
            self._waiting.note(row.identity, _DISK_SHORT)

    def _is_postponed(self, row: ViewRow) -> bool:
        why = self._postponed.why_not(row.identity)
        if why is not None:
            self._waiting.note(row.identity, why)
        return why is not None

    def _await_turn(self, rows: Sequence[ViewRow]) -> None:
        busy = ", ".join(b.definition.table.title for b in self._builds.values())
        for row in rows:
            self._waiting.note(row.identity, waits_for("its turn comes after others", busy))

    def report_waiting(self) -> None:
        """Report what each view waits for that has not been live for a while."""
        for identity, build in self._builds.items():
            if build.is_opening and not build.is_cancelled:
                self._waiting.note(identity, self._why_opening(identity))
            elif (held := self._sink_watch.held(identity)) is not None:
                self._waiting.note(identity, held)
            elif build.error is None:
                self._waiting.over(identity)
        self._waiting.report()

    def _why_opening(self, identity: str) -> TidemarkError:
        least = waits_for("a snapshot of the source is being opened")
        if self._waiting.seconds(identity) < WAITS_S or self._database.away_error is not None:
            return least
        try:
            return self._database.open_transactions(round(WAITS_S)) or least
        except TidemarkError as error:
            return error

    def _has_space(self) -> bool:
        """Return True if another child may run: each has a process, and its view's rows in
        memory.
        """
        working = [
            build
            for build in self._builds.values()
            if build.is_working and build.status.choice.engine != "spark"
        ]
        silent = sum([self._is_silent(build) for build in working])
        return len(working) - min(silent, MAX_SILENT) < MAX_CHILDREN

    def _is_silent(self, build: ViewBuild) -> bool:
        """Return True if a build has moved nothing for a while: its source may not answer."""
        now, identity = self._runtime.monotonic(), build.definition.identity
        seen = (build, build.status.phase, build.status.progress)
        known, since = self._seen.get(identity, (None, now))
        if known != seen:
            since = now
        self._seen = {i: s for i, s in self._seen.items() if i in self._builds}
        self._seen[identity] = seen, since
        return now - since > SILENT_S
