"""Groups of views: each in a pipeline process of its own, with its own epochs, slot and state.

Views of one group move together; groups do not wait for one another. A group is nothing but a
word in the options of its views: its process is started when the catalog names it, and ends by
itself once its last view is gone and nothing of it is left. Invariant: what has state on disk
gets its process, catalog or not, so that no slot is left behind at the source.
"""

from __future__ import annotations

import threading
from pathlib import Path

from connectors.postgres.control import Control, ViewRow
from connectors.source import MAIN_SOURCE
from dataflow.errors import TidemarkError
from service.log import log
from service.settings import DEFAULT_GROUP, GROUPS

WATCH_S = 1.0
CLOSE_S = 0.3


def group_of(row: ViewRow) -> str:
    """The group of a view."""
    return row.options.get("group") or DEFAULT_GROUP


def follows_database(row: ViewRow) -> bool:
    """Whether a view reads tables of the database itself, by way of a slot."""
    return any(source == MAIN_SOURCE for source, _ in (row.plan or {}).get("reads", []))


def groups_on_disk(state: Path) -> set[str]:
    """The groups beside the default one that have state."""
    folder = state / GROUPS
    return {p.name for p in folder.iterdir() if p.is_dir()} if folder.is_dir() else set()


class GroupWatch:
    """A thread that knows which groups need a process; the default one is not among them."""

    def __init__(self, control: Control, state: Path) -> None:
        self._control = control
        self._state = state
        self._in_catalog: set[str] = set()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="groups", daemon=True)
        self._thread.start()

    @property
    def wanted(self) -> set[str]:
        """As the catalog said when it was last read, and what lies on disk."""
        return self._in_catalog | groups_on_disk(self._state)

    def close(self) -> None:
        """Stop looking; a look that does not end ends with the process."""
        self._stopping.set()
        self._thread.join(CLOSE_S)
        if not self._thread.is_alive():
            self._control.close()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                found = {group_of(row) for row in self._control.list_views()}
                self._in_catalog = found - {DEFAULT_GROUP}
            except TidemarkError as error:
                # The control tables may not be there yet, or the sink is away: what runs goes on.
                log.debug("groups.retry", code=error.code)
            if not self._control.wait(WATCH_S):
                self._stopping.wait(0.01)
