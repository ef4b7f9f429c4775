"""A limit of the kernel on the memory of a process, where a cgroup can be made (version 1 or 2).

Page cache counts too, but gives way; memory that is held beyond the limit ends the process.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

_ROOTS = (
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"),
    (Path("/sys/fs/cgroup"), "memory.max"),
)


class MemoryCgroup:
    """`with MemoryCgroup(512) as group: group.add(pid)`; `reason` says why there is no limit."""

    def __init__(self, limit_mb: int) -> None:
        self._limit_mb = limit_mb
        self._folder: Path | None = None
        self.reason = ""

    def __enter__(self) -> MemoryCgroup:
        for root, limit in _ROOTS:
            folder = root / f"tidemark-{os.getpid()}"
            try:
                folder.mkdir()
                self._folder = folder
                (folder / limit).write_text(str(self._limit_mb << 20))
                self.reason = ""
                return self
            except OSError as error:
                self.reason = f"no limit by cgroup: {error}"
                self._remove()
        return self

    def add(self, pid: int) -> bool:
        """Put a process under the limit, with what it already holds; False where there is none."""
        if self._folder is None:
            return False
        with contextlib.suppress(OSError):
            (self._folder / "memory.move_charge_at_immigrate").write_text("3")
        (self._folder / "cgroup.procs").write_text(str(pid))
        return True

    def __exit__(self, *_: object) -> None:
        self._remove()

    def _remove(self) -> None:
        folder, self._folder = self._folder, None
        if folder is None:
            return
        for pid in (folder / "cgroup.procs").read_text().split():
            with contextlib.suppress(OSError):
                (folder.parent / "cgroup.procs").write_text(pid)
        with contextlib.suppress(OSError):
            folder.rmdir()
