"""Failpoints as tests see them: the names in the source."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("storage", "dataflow", "connectors", "service")
_CALL = re.compile(r'\bfailpoint\(\s*"([^"]+)"')


def arm(folder: Path, point: str, action: str = "kill") -> None:
    """Set a failpoint of a running service, once; it may have its own @N."""
    name, _, at = point.partition("@")
    draft = folder / "draft"
    draft.write_text(f"{action}@{at}" if at else action)
    draft.rename(folder / name)


def names_in_source() -> list[str]:
    """Return every place in the program, as often as it is named."""
    files = sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))
    return [name for path in files for name in _CALL.findall(path.read_text())]
