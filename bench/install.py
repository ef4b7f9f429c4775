"""`python -m bench.install [EXTRA ...]`: what an installation costs, by extra.

Each is a `pip install` into a fresh environment: of the client's wheel, and of the service's
without an extra, which is the core. An extra is installed into a copy of the core's environment, so
that its figures are what it adds. Bytes are those of all files; times include the downloads, unless
pip has them in its cache. Printed, and written to a file and to the table of packages in
docs/DEPLOY.md. With names of extras, the others keep their figures.
"""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.record import save_figures

ROOT = Path(__file__).parent.parent
FIGURES = Path(__file__).parent / "install.json"
CLIENT, CORE = "client", "core"
# Before there were extras: everything that any of them needs, for the client as well.
BEFORE = {"mb": 1217, "seconds": 130}
_PIP = ("-I", "-m", "pip", "--quiet", "--disable-pip-version-check")
_PAGE = ROOT / "docs" / "DEPLOY.md"
_HEAD = ["| extra | is for | adds |", "|---|---|---|"]
# What each is for, in the order of the page.
PURPOSES = {
    CORE: "PostgreSQL, files (CSV, JSON, XML), HTTP, WebSockets, ClickHouse as a source, "
    "DB-API modules, Python functions",
    "arrow": "Parquet files, functions that return tables, storages in S3",
    "spark": "backfills by Spark, and views that Spark maintains",
    "spark-connect": "the same with a server of Spark Connect",
    "kafka": "topics as sources and sinks",
    "avro": "the record formats avro and debezium-avro",
    "protobuf": "the record format protobuf",
    "s3": "buckets of files, and the storage of views on Spark in S3",
    "mysql": "MySQL and MariaDB",
    "mongodb": "MongoDB",
    "clickhouse": "ClickHouse as a sink",
    "lake": "Delta Lake and Iceberg as sinks, Delta tables as inputs of runs",
    "demo": "PostgreSQL's programs, for `tidemark demo` and `tidemark.Engine()`",
    "all": "everything but `demo` and `spark-connect`",
}


def main(extras: Sequence[str]) -> int:
    """Measure, print, and write file and page. extras: to be measured; all of them if empty."""
    known = json.loads(FIGURES.read_text())["figures"]["installed"] if extras else {}
    with TemporaryDirectory(prefix="tidemark-install-") as folder:
        figures = measure(Path(folder), extras or list(PURPOSES)[1:])
    save_figures(FIGURES, {}, {"installed": known | figures})
    text = _PAGE.read_text()
    start = text.index("\n".join(_HEAD))
    end = text.index("\n\n", start)
    _PAGE.write_text(text[:start] + "\n".join(table()) + text[end:])
    print("\n".join(section()))
    return 0


def measure(folder: Path, extras: Sequence[str]) -> dict[str, dict[str, float]]:
    """Return {"mb": megabytes, "seconds": wall, "packages": how many} by what is installed."""
    wheels = folder / "wheels"
    command = [str(ROOT / "deploy" / "wheels.sh"), str(wheels), platform.machine()]
    subprocess.run(command, check=True)
    (client,), (service,) = wheels.glob("tidemarkdb_client-*"), wheels.glob("tidemarkdb-*")
    found = {CLIENT: _added(_fresh(folder / CLIENT), [str(client)])}
    shutil.rmtree(folder / CLIENT)
    core = _fresh(folder / CORE)
    ours = ["--find-links", str(wheels)]
    found[CORE] = _added(core, [*ours, str(service)])
    for name in extras:
        place = folder / name
        shutil.copytree(core, place, symlinks=True)
        found[name] = _added(place, [*ours, f"{service}[{name}]"])
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


def table(path: Path = FIGURES) -> list[str]:
    """Return the lines of the table of packages in docs/DEPLOY.md."""
    found = json.loads(path.read_text())["figures"]["installed"]
    lines = list(_HEAD)
    for name, purpose in PURPOSES.items():
        of = found[name]
        shown = "(none)" if name == CORE else f"`{name}`"
        lines.append(f"| {shown} | {purpose} | {of['mb']:,.0f} MB, {of['seconds']:.0f} s |")
    return lines


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
    sys.exit(main(sys.argv[1:]))
