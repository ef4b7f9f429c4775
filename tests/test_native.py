"""Oracle: cargo's own checks, and the rules of docs/contributing/NATIVE.md: what is unsafe is in
one file and says why, and what is typed is what is there."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import tidemark_native

from service.runtime.release import VERSION

ROOT = Path(__file__).resolve().parent.parent
NATIVE = ROOT / "native"
STUBS = sorted((NATIVE / "python" / "tidemark_native").glob("[a-z]*.pyi"))


def cargo(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run cargo in the crate; its files lie where `make setup` has them."""
    home = Path.home() / ".cargo" / "bin"
    program = shutil.which("cargo", path=f"{os.environ['PATH']}:{home}:/usr/bin")
    if program is None:
        pytest.skip("no cargo")
    environment = {**os.environ, "CARGO_TARGET_DIR": str(ROOT / ".venv" / "native-target")}
    environment["PATH"] = f"{Path(program).parent}:{environment['PATH']}"
    told = subprocess.run(
        [program, *arguments], cwd=NATIVE, env=environment, capture_output=True, text=True
    )
    if "no such command" in told.stderr or "is not installed" in told.stderr:
        pytest.skip(told.stderr.strip().splitlines()[0])
    return told


def test_the_crate_is_formatted() -> None:
    told = cargo("fmt", "--check")
    assert told.returncode == 0, told.stdout + told.stderr


@pytest.mark.whole
def test_clippy_finds_nothing() -> None:
    told = cargo("clippy", "--locked", "--all-targets", "--no-default-features", "--", "-Dwarnings")
    assert told.returncode == 0, told.stderr


def cargo_test(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `cargo test`, whose programs link with this Python."""
    return cargo("test", "--locked", "--no-default-features", *linked(), *arguments)


def linked() -> list[str]:
    """Options of cargo by which a test program finds this Python's shared library."""
    if not sysconfig.get_config_var("Py_ENABLE_SHARED"):
        pytest.skip("this Python has no shared library to link a test program with")
    return [f"--config=env.LD_LIBRARY_PATH='{sysconfig.get_config_var('LIBDIR')}'"]


@pytest.mark.whole
def test_its_own_tests_pass() -> None:
    told = cargo_test()
    assert told.returncode == 0 and "test result: ok" in told.stdout, told.stdout + told.stderr


@pytest.mark.whole
def test_a_minute_of_random_foreign_bytes_breaks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMARK_TEST_FUZZ_S", "10")
    told = cargo_test("_panic")
    assert told.returncode == 0 and "test result: ok" in told.stdout, told.stdout + told.stderr


@pytest.mark.whole
def test_a_checker_of_memory_finds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    checker = shutil.which("valgrind")
    if checker is None:
        pytest.skip("no valgrind")
    built = cargo_test("--no-run", "--message-format=json").stdout.splitlines()
    [program] = filter(None, (json.loads(line).get("executable") for line in built))
    monkeypatch.setenv("TIDEMARK_TEST_FUZZ_TURNS", "100")
    monkeypatch.setenv("LD_LIBRARY_PATH", sysconfig.get_config_var("LIBDIR"))
    command = [checker, "-q", "--error-exitcode=9", program, "--test-threads", "1"]
    told = subprocess.run(command, capture_output=True, text=True)
    assert told.returncode == 0 and "test result: ok" in told.stdout, told.stdout + told.stderr


def test_what_is_unsafe_is_in_one_file_and_says_why() -> None:
    users = [p for p in (NATIVE / "src").rglob("*.rs") if re.search(r"\bunsafe\b", p.read_text())]
    assert users == [NATIVE / "src" / "memory.rs"]
    lines = users[0].read_text().splitlines()
    for number, line in enumerate(lines):
        if re.search(r"\bunsafe (\{|impl|fn)", line):
            before = "\n".join(lines[max(0, number - 6) : number])
            assert "# Safety" in before or "SAFETY:" in before, f"memory.rs:{number + 1}"


@pytest.mark.parametrize("stub", STUBS, ids=lambda path: path.stem)
def test_stubs_name_what_is_there(stub: Path) -> None:
    typed = {
        node.name
        for node in ast.parse(stub.read_text()).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    }
    module = getattr(tidemark_native, stub.stem, tidemark_native)
    found = {name for name, each in vars(module).items() if callable(each)}
    assert typed == found


def test_each_module_has_a_stub() -> None:
    assert {path.stem for path in STUBS} == set(tidemark_native.__all__) - {"VERSION"}


OLDER = """
import importlib, sys
import tidemark_native
if sys.argv[1] == "none":
    sys.modules["tidemark_native"] = None
else:
    tidemark_native.VERSION = sys.argv[1]
for name in sys.argv[2:]:
    try:
        importlib.import_module(name)
        print(name, "was imported")
    except ImportError as error:
        print(error)
"""


@pytest.mark.parametrize("version", ["0.0.9", "none"])
def test_kernels_of_another_version_are_refused(version: str) -> None:
    """By whatever starts a process: the command, an engine in a script, children, Spark's tasks."""
    names = ["service.cli.main", "service.embedded.engine", "connectors.kafka.in_child"]
    names += ["connectors.spark.tasks", "dataflow.operators.groups", "storage.delta"]
    done = subprocess.run(
        [sys.executable, "-c", OLDER, version, *names], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    line = f"this version of Tidemark needs tidemarkdb-native {VERSION}, and {version} is installed"
    line += f": run pip install tidemarkdb-native=={VERSION} (in a checkout: make setup)"
    assert done.stdout.splitlines() == [line] * len(names)
