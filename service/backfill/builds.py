"""The views that are being built: the one owner of that set.

Used by the pipeline's thread. Invariants: a view has at most one build; a build leaves the set
exactly once, by `withdraw` or `join`; a cancelled build stays in the set until its thread has ended
and it is withdrawn.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from connectors.source import SourceBatch
from dataflow.errors import TidemarkError
from service.backfill.view_build import ViewBuild
from service.engine.definition import ViewDefinition
from service.engine.positions import Positions


class Builds(Mapping[str, ViewBuild]):
    """Builds by the identity of their view, in the order in which they began."""

    def __init__(self) -> None:
        self._builds: dict[str, ViewBuild] = {}
        self._are_resumed = False

    def __getitem__(self, identity: str) -> ViewBuild:
        return self._builds[identity]

    def __iter__(self) -> Iterator[str]:
        return iter(self._builds)

    def __len__(self) -> int:
        return len(self._builds)

    @property
    def are_resumed(self) -> bool:
        """Return whether the builds of an earlier process are in the set, or given up."""
        return self._are_resumed

    def note_resumed(self) -> None:
        """Note that every build of an earlier process is in the set, or given up."""
        self._are_resumed = True

    # --- enter and leave ----------------------------------------------------------------------

    def add(self, build: ViewBuild) -> None:
        """Add a build; its view must not have one."""
        identity = build.definition.identity
        assert identity not in self._builds, f"{identity} is being built"
        self._builds[identity] = build

    def withdraw(self, identity: str) -> ViewBuild:
        """Take out a build that does not lead to a live view; the caller closes it."""
        return self._builds.pop(identity)

    def join(self, identity: str) -> ViewBuild:
        """Remove a build whose rows enter the open epoch; the caller then closes it."""
        build = self._builds[identity]
        assert not (build.is_working or build.is_cancelled), f"{identity} has not caught up"
        del self._builds[identity]
        return build

    def cancel(self, definition: ViewDefinition, refusal: TidemarkError | None = None) -> bool:
        """Cancel the build of exactly this definition; return False if it is not being built.

        A live view and the build of its next version share an identity: only the object
        distinguishes them.
        """
        build = self._builds.get(definition.identity)
        if build is None or build.definition is not definition:
            return False
        build.cancel(refusal)
        return True

    def cancel_all(self, refusal: TidemarkError | None = None) -> None:
        """Cancel every build."""
        for build in self._builds.values():
            build.cancel(refusal)

    def close(self) -> None:
        """Close every build and keep its files, so that a later process resumes it."""
        for build in self._builds.values():
            build.close(is_kept=True)

    # --- what they read -----------------------------------------------------------------------

    def active(self) -> list[ViewBuild]:
        """Return the builds that are not cancelled."""
        return [build for build in self._builds.values() if not build.is_cancelled]

    def unread_snapshots(self, position: int) -> list[int]:
        """Return the snapshot positions that the stream, at `position`, has not reached; 0 for a
        snapshot that is not open yet."""
        return [b.position for b in self.active() if b.awaits_snapshot(position)]

    def unpassed(self, positions: Positions) -> set[str]:
        """Return the external sources of which a build needs the transactions one by one."""
        return {name for build in self.active() for name in build.unpassed(positions)}

    def feed(self, batch: SourceBatch) -> None:
        """Spool changes that the live views have just stepped over."""
        for build in self._builds.values():
            build.feed(batch)

    def sync(self) -> None:
        """Sync the spooled changes to disk before the source may discard them."""
        for build in self._builds.values():
            build.sync()

    def retained_epochs(self) -> list[int]:
        """Return the epochs after which the outbox keeps everything, of the builds that need it."""
        found = (build.initial_load.holds_after for build in self._builds.values())
        return [number for number in found if number is not None]
