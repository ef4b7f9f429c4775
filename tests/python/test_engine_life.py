"""Oracle: the machine's list of processes and folders, and what an engine had before its end."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil
import pytest

import tidemark
from connectors.postgres.embedded.engine_lock import EngineLock
from tests.harness.postgres import Database
from tests.harness.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
PARENT = """
import sys, tidemark
engine = tidemark.Engine(state_dir=sys.argv[1] or None)
engine.register("users", [{"id": 1, "of": "a"}, {"id": 2, "of": "b"}], key="id")
engine.view("SELECT of, count(*) AS n FROM users GROUP BY of", "by_of")
print("ready", flush=True)
sys.stdin.read()
"""
QUERY = "SELECT of, count(*) AS n FROM users GROUP BY of"


@pytest.fixture
def folder() -> Iterator[Path]:
    """One that the private server's user can reach, also when we are root."""
    made = Path(tempfile.mkdtemp(prefix="tidemark-test-"))
    made.chmod(0o755)
    yield made / "kept"
    shutil.rmtree(made)


def started(
    folder: Path | str,
) -> tuple[subprocess.Popen[str], dict[psutil.Process, list[str]]]:
    """A script with an engine, and the command lines of all processes below it."""
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert parent.stdout is not None
    assert parent.stdout.readline() == "ready\n"
    family = {}
    for process in psutil.Process(parent.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # some are there for a moment only
            family[process] = process.cmdline()
    return parent, family


def gone(family: Iterable[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(list(family), timeout=60)
    for left in alive:
        left.kill()
    assert not alive


def test_everything_is_retained_and_nothing_is_left(folder: Path) -> None:
    parent, family = started(folder)
    assert any("postgres" in line[0] for line in family.values() if line)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    gone(family)

    with tidemark.Engine(state_dir=folder) as engine:
        view = engine.client.view("by_of")
        assert sorted(view.rows()) == [("a", 1), ("b", 1)]
        # The function of this run continues where that of the last one was.
        engine.register("users", [{"id": 2, "of": "b"}, {"id": 3, "of": "b"}], key="id")
        engine.wait()
        assert list(engine.view(QUERY, "by_of").rows()) == [("b", 2)]
        assert engine.query("SELECT version() <> ''").rows == [(True,)]
    assert (folder / "state").is_dir()
    assert repr(engine).endswith(", closed>")
    engine.close()


@pytest.mark.whole
def test_two_engines_have_nothing_in_common(folder: Path) -> None:
    with tidemark.Engine(state_dir=folder) as engine, tidemark.Engine() as other:
        engine.register("users", [{"id": 2, "of": "b"}, {"id": 3, "of": "b"}], key="id")
        other.register("users", [{"id": 9, "of": "c"}], key="id")
        assert list(other.view(QUERY, "by_of").rows()) == [("c", 1)]
        assert list(engine.view(QUERY, "by_of").rows()) == [("b", 2)]


@pytest.mark.whole
def test_a_temporary_engine_leaves_no_file() -> None:
    parent, family = started("")
    # The folders stand in the command lines of the shells that watch over them.
    watches = [line for line in family.values() if line[:1] == ["/bin/sh"]]
    made = {Path(line[-1]) for line in watches if line[-2].startswith("tidemark-")}
    assert len(made) == 2
    assert all(p.is_dir() for p in made)
    # The worst case: nobody is left to tidy up but the shells that watch.
    hosts = [p for p, line in family.items() if "service.embedded.host" in line]
    for process in (psutil.Process(parent.pid), *hosts):
        process.kill()
    parent.wait()
    gone(family)
    wait_until(lambda: not any(p.exists() for p in made), why=lambda: made)


def test_two_engines_never_share_a_database(database: Database) -> None:
    with EngineLock(database.dsn, 0):
        with pytest.raises(tidemark.TidemarkError) as caught, EngineLock(database.dsn, 0.2):
            pass
        assert caught.value.code == "engine.in_use"
    with EngineLock(database.dsn, 0):
        pass


@pytest.mark.whole
def test_what_keeps_an_engine_from_starting_is_reported(database: Database, tmp_path: Path) -> None:
    def refusal(**options: object) -> tidemark.TidemarkError:
        with pytest.raises(tidemark.TidemarkError) as caught:
            tidemark.Engine(**options)  # pyright: ignore[reportArgumentType]
        return caught.value

    assert refusal(dsn=database.server.dsn_of("nowhere")).code == "source.database"
    assert refusal(dsn=database.dsn, memory="a lot").code == "engine.setting"
    for wrong, word in (("memroy", '"memory"'), ("x y", "OPERATING"), ("port", "dsn")):
        found = refusal(dsn=database.dsn, **{wrong: "2GB"})
        assert found.code == "engine.setting" and wrong in found.what and word in found.hint
    (tmp_path / "file").write_text("")
    assert refusal(dsn=database.dsn, state_dir=tmp_path / "file").code == "engine.folder"
    if os.geteuid() == 0:
        closed = tmp_path / "closed"
        closed.mkdir(mode=0o700)
        found = refusal(state_dir=closed / "state")
        assert found.code == "postgres.folder"
        assert "never as root" in found.detail


def test_a_closed_engine_says_so(database: Database) -> None:
    with tidemark.Engine(database.dsn) as engine:
        view = engine.view("SELECT 1 AS one FROM generate_series(1, 2)", "twice")
        shown = repr(view.rows(limit=5))
        assert '"twice"' in shown and "limit=5" in shown and "to_list" in shown
        assert str(view.rows()) == "Row(one=1)\nRow(one=1)"
        assert str(view.rows(limit=0)) == "(no rows)"
    calls = [
        *(lambda: engine.query("SELECT 1"), lambda: engine.execute("SELECT 1"), engine.refresh),
        *(engine.wait, engine.settle, engine.functions, engine.connection, engine.__enter__),
        view.state,
        *(lambda: engine.view("SELECT 1 AS one"), lambda: engine.register("f", [{"a": 1}])),
        *(lambda: engine.unregister("f"), lambda: list(view.rows()), engine.client.views),
        lambda: next(iter(view.changes())),
    ]
    for call in calls:
        with pytest.raises(tidemark.TidemarkError) as caught:
            call()
        assert caught.value.code == "engine.closed"
    engine.close()
    assert "closed" in repr(engine)


def test_importing_it_starts_nothing() -> None:
    code = (
        "import sys, tidemark; "
        "assert not {'psycopg2', 'sqlglot', 'pandas'} & sys.modules.keys(); "
        "assert 'Engine' in tidemark.__all__; "
        "assert tidemark.Engine.__module__ == 'service.embedded.engine'; "
        "assert 'sqlglot' not in sys.modules and 'pyspark' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
