"""Where a view's state waits for the process of the group that it goes to.

A folder `moves/GROUP` in the service's own directory is made before anything else of the group, so
that a slot is never left behind without a note. It gets the whole state directory of the group,
which the group's process takes as its own when it starts. Invariant: the folder is removed last,
whether the process has the state or nobody is to have it; a group's process starts only once the
catalog names the group.
"""

from __future__ import annotations

import json
import os
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from connectors.shuffle_storage import force_names
from service.engine.state_version import STORE
from service.metrics.metrics import FILE, PipelineMetrics
from service.runtime.log import log
from service.runtime.settings import Settings
from storage.failpoints import failpoint

MOVES = "moves"
_FACTS, _STATE, _DRAFT = "move.json", "state", ".draft"


@dataclass(frozen=True)
class HandoverFolder:
    """The folder of one group. home: the service's own directory."""

    home: Path
    group: str

    @property
    def path(self) -> Path:
        """The folder."""
        return self.home / MOVES / self.group

    @property
    def state(self) -> Path:
        """The state directory of the group, until its process takes it."""
        return self.path / _STATE

    @property
    def giver(self) -> str:
        """The group that the view comes from; "" if the folder is being removed."""
        try:
            return str(json.loads((self.path / _FACTS).read_text())["giver"])
        except FileNotFoundError:
            return ""

    def mark(self, giver: str) -> None:
        """Make the folder, durably, unless it exists. giver: the group that the view comes from."""
        if self.path.is_dir():
            return
        draft = self._draft
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        with (draft / _FACTS).open("w") as target:
            json.dump({"giver": giver}, target)
            target.flush()
            os.fsync(target.fileno())
        force_names(draft)
        # Others never see a folder that does not say whose it is.
        draft.rename(self.path)
        for folder in (self.path.parent, self.home):
            force_names(folder)

    @property
    def _draft(self) -> Path:
        return self.path.with_name(self.group + _DRAFT)

    def clear(self) -> None:
        """Remove what an earlier attempt has left of the state."""
        shutil.rmtree(self.state, ignore_errors=True)

    def seal(self) -> None:
        """Make the names of the complete state durable. OSError."""
        for folder, _, _ in os.walk(self.state):
            force_names(Path(folder))
        force_names(self.path)

    def nbytes(self) -> int:
        """Return the bytes of the state's files, for the log."""
        return sum(p.stat().st_size for p in self.state.rglob("*") if p.is_file())

    def remove(self) -> None:
        """Remove the folder, and the common one if it is empty then."""
        # What it says of itself goes last.
        shutil.rmtree(self.state, ignore_errors=True)
        for path in (self.path, self._draft):
            shutil.rmtree(path, ignore_errors=True)
        with suppress(OSError):
            self.path.parent.rmdir()


def folders_in(home: Path) -> list[HandoverFolder]:
    """Return all folders."""
    try:
        names = sorted(os.listdir(home / MOVES))
    except FileNotFoundError:
        return []
    return [HandoverFolder(home, name) for name in names if not name.endswith(_DRAFT)]


def take_over(settings: Settings) -> None:
    """Take the state that was handed over to the group of these settings, if there is one.

    Call it before anything else is done with the group's directory. It may be repeated after a
    kill. OSError.
    """
    folder, own = HandoverFolder(settings.home, settings.group), settings.state
    if not folder.path.is_dir():
        return
    if folder.state.is_dir() and not (own / STORE).exists():
        # Until the process reports by itself, it counts as starting, not as silent.
        PipelineMetrics(folder.state).write()
        failpoint("view.handover.adopting")
        own.mkdir(parents=True, exist_ok=True)
        # The figures first; the store last: it tells that everything is there.
        order = {FILE: 0, STORE: 2}
        for entry in sorted(folder.state.iterdir(), key=lambda path: order.get(path.name, 1)):
            entry.replace(own / entry.name)
            failpoint("view.handover.adopted")
        for changed in (own, own.parent, folder.state):
            force_names(changed)
        log.info("handover.opened", group=settings.group)
    folder.remove()
