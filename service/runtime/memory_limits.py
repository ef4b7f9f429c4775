"""How much more memory this process may take before the kernel kills it.

The least of the machine's free memory and that of every control group (version 1 or 2) of the
process. Invariant: memory that can be reclaimed without harm (the page cache of files) counts as
free; where nothing can be read, there is no limit.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

# Folder of each cgroup version, with its file names for limit and usage.
_VERSIONS = (
    ("memory", ("memory.limit_in_bytes", "memory.usage_in_bytes")),
    ("", ("memory.max", "memory.current")),
)
_FILES = ("inactive_file", "active_file")
_NO_LIMIT = 1 << 62


def free_bytes(root: Path = Path("/sys/fs/cgroup"), proc: Path = Path("/proc")) -> int:
    """Return the bytes that the process may still allocate."""
    return min(_of_machine(proc), *_of_groups(root, proc))


def _of_machine(proc: Path) -> int:
    for line in _lines(proc / "meminfo"):
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return _NO_LIMIT


def _of_groups(root: Path, proc: Path) -> Iterator[int]:
    yield _NO_LIMIT
    for line in _lines(proc / "self" / "cgroup"):
        _, controllers, path = line.split(":", 2)
        for controller, names in _VERSIONS:
            if controller in controllers.split(","):
                top = root / controller if controller else root
                # A container sees its own group at the top, whatever its name outside.
                for folder in dict.fromkeys([*_up(top, path), top]):
                    yield _of_group(folder, *names)


def _up(top: Path, path: str) -> list[Path]:
    """Return the folder of a group and its parents."""
    group = top / path.strip("/")
    return [group, *(p for p in group.parents if p.is_relative_to(top))]


def _of_group(folder: Path, limit: str, used: str) -> int:
    most, now = ("".join(_lines(folder / name)) for name in (limit, used))
    if not (most.isdigit() and now.isdigit()):
        return _NO_LIMIT
    stat = dict(line.split() for line in _lines(folder / "memory.stat"))
    files = sum(int(stat.get(f"total_{name}", stat.get(name, 0))) for name in _FILES)
    return int(most) - int(now) + files


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
