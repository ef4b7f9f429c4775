"""Feldera's engine, the Rust crate `dbsp`, on W1 and W2R: in memory, nothing durable.

The program is bench/peers/dbsp_program. cargo (from $CARGO, the PATH or ~/.cargo/bin) builds it
once, for this processor, into the user's cache folder; where cargo is missing or too old, or the
crates cannot be fetched, PeerMissing has the reason. A run is a process of its own. It gets typed
rows, as ours gets columns, and its answer is compared here.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.peers.environment import HOME, PeerMissing, execute
from bench.rows import WORDS, Generated
from bench.workloads import Workload, difference, fold

PROGRAM = Path(__file__).parent / "dbsp_program"
BUILD_S = 3_600.0
RUN_S = 600.0
RUSTFLAGS = "-C target-cpu=native"


def cargo() -> Path:
    """Return the path of cargo; PeerMissing."""
    given = os.environ.get("CARGO") or shutil.which("cargo")
    found = Path(given) if given else Path.home() / ".cargo" / "bin" / "cargo"
    if not found.exists():
        raise PeerMissing("dbsp: cargo is not there")
    return found


def cache() -> Path:
    """Return the folder that builds go to."""
    folder = os.environ.get("XDG_CACHE_HOME")
    return (Path(folder) if folder else Path.home() / ".cache") / "tidemark" / "bench-dbsp"


def version() -> str:
    """Return the version of the crate."""
    required: str = tomllib.loads((PROGRAM / "Cargo.toml").read_text())["dependencies"]["dbsp"]
    return required.removeprefix("=")


def build(folder: Path | None = None) -> Path:
    """Return the program, built if it is not there or its sources changed; PeerMissing.

    folder: of the build, the cache by default. The first build takes about five minutes of CPU.
    """
    target = folder or cache()
    program = target / "release" / "tidemark-bench-dbsp"
    command = [str(cargo()), "build", "--release", "--locked", "--target-dir", str(target)]
    if not program.exists():
        print(f"building dbsp {version()} in {target}", file=sys.stderr, flush=True)
    try:
        done = subprocess.run(
            command,
            cwd=PROGRAM,
            env={**os.environ, "RUSTFLAGS": RUSTFLAGS},
            capture_output=True,
            text=True,
            timeout=BUILD_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PeerMissing(f"dbsp: not built: {error}") from error
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.startswith("error")]
        raise PeerMissing(f"dbsp: not built: {lines[0] if lines else 'cargo failed'}")
    return program


def run(
    program: Path,
    workload: Workload,
    rows: Generated,
    stages: Sequence[tuple[int, int | None]],
    *,
    has_old_rows: bool,
) -> dict[str, Any]:
    """Return the figures of one run, with the names of `engine.Result`; PeerMissing.

    program: from `build`. stages: (changes an epoch, epochs or None for all that are left).
    has_old_rows: updates and deletes arrive with whole old rows; else by key.
    """
    job = {
        "workload": workload.name,
        "folder": str(rows.folder),
        "words": WORDS,
        "has_old_rows": has_old_rows,
        "stages": [{"size": size, "count": count} for size, count in stages],
    }
    figures = execute("dbsp", [str(program), json.dumps(job)], RUN_S, HOME)
    found = fold(workload, ((tuple(row), weight) for row, weight in figures.pop("answer")))
    return {**figures, "fault": difference(rows.answer(workload), found)}
