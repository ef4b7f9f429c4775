"""Oracle: docs/PYTHON.md, for the client installed without the service."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.harness.postgres import Database
from tests.harness.service import RunningService
from tests.test_documentation import ROOT

MOST_BYTES = 20_000_000
# What a new environment has before anything is installed.
TOOLS = re.compile(r"(pip|setuptools|pkg_resources|_distutils_hack|distutils-precedence)\b")
USE = """
import sys, tidemark
client = tidemark.connect(sys.argv[1])
view = client.create("total", "SELECT sum(amount) AS total FROM orders")
print([row.total for row in view.rows()])
try:
    tidemark.Engine
except tidemark.TidemarkError as error:
    print(error.code)
try:
    client.create("bad", "SELECT nothing FROM orders")
except tidemark.TidemarkError as error:
    print(error.code, error.position.line)
"""


def run(*command: str | Path, cwd: Path) -> str:
    """The output of a command that must succeed."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "TIDEMARK_"))}
    clean["PYTHON"] = sys.executable
    done = subprocess.run(
        [*map(str, command)], capture_output=True, text=True, cwd=cwd, env=clean, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.whole
def test_the_client_alone_is_small_and_works(database: Database, tmp_path: Path) -> None:
    run(ROOT / "deploy/client/build.sh", tmp_path, cwd=tmp_path)
    (wheel,) = tmp_path.glob("tidemarkdb_client-*.whl")
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv/bin/python"
    run(python, "-m", "pip", "install", "--quiet", wheel, cwd=tmp_path)
    (packages,) = (tmp_path / "venv/lib").glob("python*/site-packages")
    files = [f for f in packages.rglob("*") if f.is_file()]
    own = [f for f in files if not TOOLS.match(str(f.relative_to(packages)))]
    assert sum(f.stat().st_size for f in own) < MOST_BYTES
    database.execute("CREATE TABLE orders (id integer PRIMARY KEY, amount integer)")
    database.execute("INSERT INTO orders SELECT n, n FROM generate_series(1, 100) n")
    with RunningService(database.dsn, tmp_path / "service") as service:
        lines = run(python, "-c", USE, service.url, cwd=tmp_path).splitlines()
    assert lines == ["[5050]", "package.missing", "sql.undefined_column 1"]
