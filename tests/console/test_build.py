"""Oracle: the sources: what is committed was built from what lies beside it, is
small, and names no other host."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

from service.api.console_files import DIST, PAGE, read_files

CONSOLE = DIST.parent
SOURCES = (
    *(
        "index.html",
        "docs.html",
        "package.json",
        "package-lock.json",
        "tsconfig.json",
        "vite.config.ts",
    ),
    "src",
)
FIRST_VIEW_BYTES = 100_000
CONSOLE_BYTES = 250_000
DOCS_BYTES = 550_000
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
    docs = [name for name in files if "docs" in name]
    assert len(docs) == 3
    assert sum(sizes[name] for name in docs) < DOCS_BYTES, sizes
    assert sum(sizes[name] for name in files if name not in docs) < CONSOLE_BYTES, sizes
    assert sum(sizes[name] for name in first) < FIRST_VIEW_BYTES, sizes
    # Its licence, and what it would ask if it were told to, stand in the program of /docs.
    ours = {name: found for name, found in files.items() if not name.startswith("assets/docs")}
    assert not [name for name, found in ours.items() if ELSEWHERE.search(found.plain)]
    assert "<script>" not in page and "style=" not in page


def test_what_is_in_the_build_comes_with_its_licence() -> None:
    told = (DIST / "LICENSES.txt").read_text()
    for name in json.loads((CONSOLE / "package.json").read_text())["dependencies"]:
        assert re.search(rf"^{re.escape(name)} [\d.]+ \(", told, re.MULTILINE), name
    assert "Apache License" in told and "MIT License" in told
