"""`python -m bench.install`: what an installation costs, by extra, from the package registry.

Each is a `pip install` into a fresh environment: of the client's wheel, and of the core. An extra
is installed into a copy of the core's environment, so that its figures are what it adds. Bytes are
those of all files; times include the downloads, unless pip has them in its cache. Printed, and
written to a file.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.record import save_figures

ROOT = Path(__file__).parent.parent
FIGURES = Path(__file__).parent / "install.json"
CLIENT, CORE = "client", "core"
# Before there were extras: everything that any of them needs, for the client as well.
BEFORE = {"mb": 1217, "seconds": 130}
_PIP = ("-m", "pip", "--quiet", "--disable-pip-version-check")


def main() -> int:
    """Measure, print, and write the file."""
    with TemporaryDirectory(prefix="tidemark-install-") as folder:
        figures = measure(Path(folder))
    save_figures(FIGURES, {}, {"installed": figures})
    print("\n".join(section()))
    return 0


def measure(folder: Path) -> dict[str, dict[str, float]]:
    """Return {"mb": megabytes, "seconds": wall, "packages": how many} by what is installed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wheels = folder / "wheels"
    command = [str(ROOT / "deploy" / "client" / "build.sh"), str(wheels)]
    subprocess.run(command, check=True, env={**os.environ, "PYTHON": sys.executable})
    found = {CLIENT: _added(_fresh(folder / CLIENT), [str(next(wheels.glob("*.whl")))])}
    shutil.rmtree(folder / CLIENT)
    core = _fresh(folder / CORE)
    found[CORE] = _added(core, project["dependencies"])
    extras = project["optional-dependencies"]
    names = sorted(e for e in extras if not e.startswith(("dev", "demo", "all", "spark")))
    for name in [*names, "all"]:
        needed = extras[name] if name != "all" else [r for e in names for r in extras[e]]
        place = folder / name
        shutil.copytree(core, place, symlinks=True)
        found[name] = _added(place, needed)
        shutil.rmtree(place)
        print(name, found[name], file=sys.stderr, flush=True)
    return found


def _fresh(place: Path) -> Path:
    subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
    return place


def _added(place: Path, requirements: list[str]) -> dict[str, float]:
    """Install into an environment; return what that has added to it."""
    before, packages = _megabytes(place), _packages(place)
    started = time.monotonic()
    subprocess.run([place / "bin" / "python", *_PIP, "install", *requirements], check=True)
    return {
        "mb": round(_megabytes(place) - before, 1),
        "seconds": round(time.monotonic() - started, 1),
        "packages": _packages(place) - packages,
    }


def _packages(place: Path) -> int:
    return sum(1 for _ in place.glob("lib/python*/site-packages/*.dist-info"))


def _megabytes(place: Path) -> float:
    files = (p for p in place.rglob("*") if p.is_file() and not p.is_symlink())
    return sum(p.stat().st_size for p in files) / 1e6


def section(path: Path = FIGURES) -> list[str]:
    """Return the lines of the page of results; none where nothing was measured."""
    if not path.is_file():
        return []
    record: dict[str, Any] = json.loads(path.read_text())
    lines = [
        "",
        "## Installation",
        "",
        "`pip install` into a fresh environment; an extra is what it adds to the core"
        f" (`python -m bench.install`). Before there were extras, everything together took"
        f" {BEFORE['mb']:,} MB and {BEFORE['seconds']} s, for a client too.",
        "",
        "| what | MB | seconds | packages |",
        "|---|---|---|---|",
    ]
    for name, of in record["figures"]["installed"].items():
        shown = "`tidemarkdb-client`" if name == CLIENT else "core" if name == CORE else f"`{name}`"
        lines.append(f"| {shown} | {of['mb']:,.0f} | {of['seconds']:.0f} | {of['packages']} |")
    return lines


if __name__ == "__main__":
    sys.exit(main())
