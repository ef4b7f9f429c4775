"""Groups of views: each has its own pipeline process, epochs, slot and state.

Views of one group move together; groups do not wait for each other. A group is only a name in the
options of its views. Its process starts when the catalog names it, and ends once its last view and
all of its state are gone. Invariant: a group with state on disk gets its process, whatever the
catalog says, so that no slot is left behind at the source.
"""

from __future__ import annotations

import json
import os
import re
import signal
import time
import uuid
from contextlib import suppress
from pathlib import Path

from connectors.postgres.catalog.catalog import Control, ViewRow
from connectors.source import MAIN_SOURCE
from dataflow.errors import TidemarkError
from service.runtime import readiness_pipe
from service.runtime.log import configure, log
from service.runtime.settings import DEFAULT_GROUP, GROUPS, Settings, parent_pid
from storage.parent_process import die_with_parent
from storage.process_title import set_title

WATCH_S = 1.0
_SPARK, _LOCAL, _DIGITS = "spark", "local", 16


def spark_group(identity: str) -> str:
    """Return the group of a view that Spark maintains: its own.

    >>> spark_group("0123456789abcdef0123456789abcdef")
    'spark0123456789abcdef'
    """
    return _SPARK + identity[:_DIGITS]


def new_group(*, is_spark: bool) -> str:
    """Return a group that there has never been, for one view that changes its runtime.

    What is left of an earlier group is never in its way.
    """
    return (_SPARK if is_spark else _LOCAL) + uuid.uuid4().hex[:_DIGITS]


def is_spark_group(group: str) -> bool:
    """Return whether Spark maintains the view of a group."""
    return re.fullmatch(f"{_SPARK}[0-9a-f]{{{_DIGITS}}}", group) is not None


def is_own_group(group: str) -> bool:
    """Return whether a group has one view, which computes the views that its query names."""
    return re.fullmatch(f"({_SPARK}|{_LOCAL})[0-9a-f]{{{_DIGITS}}}", group) is not None


def group_of(row: ViewRow) -> str:
    """Return the group of a view."""
    return row.options.get("group") or DEFAULT_GROUP


def follows_database(row: ViewRow) -> bool:
    """Return True if a view reads tables of the source database, through a slot."""
    return any(source == MAIN_SOURCE for source, _ in (row.plan or {}).get("reads", []))


def groups_on_disk(state: Path) -> set[str]:
    """Return the groups with state on disk, except the default one."""
    folder = state / GROUPS
    return {p.name for p in folder.iterdir() if p.is_dir()} if folder.is_dir() else set()


class GroupWatch:
    """Which groups, besides the default one, need a process.

    A child process reads the catalog (`watch`) and reports through a pipe, so the supervisor
    neither waits nor has threads.
    """

    def __init__(self, state: Path) -> None:
        self._state = state
        self._ours, self.descriptor = os.pipe()
        os.set_blocking(self._ours, False)
        self._received = b""
        self._in_catalog: set[str] = set()

    @property
    def desired(self) -> set[str]:
        """Return the groups that the catalog last named, plus those on disk."""
        with suppress(BlockingIOError):
            while text := os.read(self._ours, 1 << 16):
                self._received += text
        *lines, self._received = self._received.split(b"\n")
        for line in lines:
            # A child killed while writing leaves half a line.
            with suppress(ValueError):
                self._in_catalog = set(json.loads(line))
        return self._in_catalog | groups_on_disk(self._state)

    def watch(self, settings: Settings) -> int:
        """Run in the child: report the groups at the start and at each change."""
        die_with_parent(parent_pid())
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        set_title("groups")
        configure(settings.log_level, "groups", settings.log_format)
        control, reported = Control(settings.sink, settings.prefix, is_one_session=True), None
        os.write(self.descriptor, b"\n")
        while True:
            try:
                found = {group_of(row) for row in control.list_views()} - {DEFAULT_GROUP}
                if found != reported:
                    os.write(self.descriptor, json.dumps(sorted(found)).encode() + b"\n")
                    reported = found
                readiness_pipe.report()
            except TidemarkError as error:
                # The control tables may not exist yet, or the sink is down: running pipelines
                # continue.
                log.debug("groups.retry", code=error.code)
            if not control.wait(WATCH_S):
                time.sleep(0.01)
