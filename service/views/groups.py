"""Groups of views: each in a pipeline process of its own, with its own epochs, slot and state.

Views of one group move together; groups do not wait for one another. A group is nothing but a
word in the options of its views: its process is started when the catalog names it, and ends by
itself once its last view is gone and nothing of it is left. Invariant: what has state on disk
gets its process, catalog or not, so that no slot is left behind at the source.
"""

from __future__ import annotations

import json
import os
import signal
import time
from contextlib import suppress
from pathlib import Path

from connectors.postgres.catalog.catalog import Control, ViewRow
from connectors.source import MAIN_SOURCE
from dataflow.errors import TidemarkError
from service.runtime import readiness_pipe, signals
from service.runtime.log import configure, log
from service.runtime.process_title import set_title
from service.runtime.settings import DEFAULT_GROUP, GROUPS, Settings, parent_pid

WATCH_S = 1.0


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
    """Which groups need a process, the default one aside: told through a pipe by a process that
    reads the catalog (`look`), so that the supervisor neither waits nor has threads."""

    def __init__(self, state: Path) -> None:
        self._state = state
        self._ours, self.descriptor = os.pipe()
        os.set_blocking(self._ours, False)
        self._told = b""
        self._in_catalog: set[str] = set()

    @property
    def wanted(self) -> set[str]:
        """As the catalog said when it was last read, and what lies on disk."""
        with suppress(BlockingIOError):
            while text := os.read(self._ours, 1 << 16):
                self._told += text
        *lines, self._told = self._told.split(b"\n")
        for line in lines:
            # One that was killed while it wrote has left half a line.
            with suppress(ValueError):
                self._in_catalog = set(json.loads(line))
        return self._in_catalog | groups_on_disk(self._state)

    def look(self, settings: Settings) -> int:
        """The process: tell the groups at first and when they change, until it is ended."""
        signals.die_with_parent(parent_pid())
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        set_title("groups")
        configure(settings.log_level, "groups", settings.log_format)
        control, told = Control(settings.sink), None
        os.write(self.descriptor, b"\n")
        while True:
            try:
                found = {group_of(row) for row in control.list_views()} - {DEFAULT_GROUP}
                if found != told:
                    os.write(self.descriptor, json.dumps(sorted(found)).encode() + b"\n")
                    told = found
                readiness_pipe.tell()
            except TidemarkError as error:
                # The control tables may not be there yet, or the sink is away: what runs goes on.
                log.debug("groups.retry", code=error.code)
            if not control.wait(WATCH_S):
                time.sleep(0.01)
