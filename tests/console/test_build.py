"""Oracle: the sources: what is committed was built from what lies beside it, is
small, and names no other host."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from service.console_files import DIST, PAGE, read_files

CONSOLE = DIST.parent
SOURCES = (
    *("index.html", "package.json", "package-lock.json", "tsconfig.json", "vite.config.ts"),
    "src",
)
FIRST_VIEW_BYTES = 100_000
ALL_BYTES = 350_000
ELSEWHERE = re.compile(rb"""(?:src|href|import|url\()\s*=?\s*["'(]?\s*(?:https?:)?//""")


def hash_of_sources() -> str:
    """As service/console/vite.config.ts makes it."""
    paths = [p for name in SOURCES for p in (CONSOLE / name, *(CONSOLE / name).rglob("*"))]
    files = {p.relative_to(CONSOLE).as_posix(): p for p in paths if p.is_file()}
    whole = hashlib.sha256()
    for name in sorted(files):
        content = hashlib.sha256(files[name].read_bytes()).hexdigest()
        whole.update(f"{name}\0{content}\n".encode())
    return whole.hexdigest()


def test_the_build_is_that_of_the_sources() -> None:
    built_from = (DIST / "SOURCES").read_text().strip()
    assert built_from == hash_of_sources(), "make console, and commit service/console/dist"


def test_the_build_is_small_and_asks_nobody_else() -> None:
    files = read_files()
    sizes = {name: len(found.zipped) for name, found in files.items()}
    page = files[PAGE].plain.decode()
    first = [name for name in files if name == PAGE or Path(name).name in page]
    assert sum(sizes.values()) < ALL_BYTES, sizes
    assert sum(sizes[name] for name in first) < FIRST_VIEW_BYTES, sizes
    assert not [name for name, found in files.items() if ELSEWHERE.search(found.plain)]
    assert "<script>" not in page and "style=" not in page
