"""Oracle: what the functions of `python_functions` return, by their own words."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from connectors import netguard
from connectors.feed_source import selective
from connectors.netguard import Guard
from connectors.polled import schedule
from connectors.pushdown import PushdownCondition, PushdownRequirement
from connectors.python import source as connector
from dataflow.errors import SourceError, TemporaryError
from tests.connectors.feed_mirror import make_source
from tests.connectors.polled_mirror import PolledMirror

MODULE = "tests.connectors.python_functions"
COLUMNS = [
    {"name": "id", "type": "bigint"},
    {"name": "name", "type": "text"},
    {"name": "size", "type": "numeric"},
]


@pytest.fixture(autouse=True)
def allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(netguard, "_guard", Guard(modules=(MODULE, "no_such_module")))
    monkeypatch.setattr(schedule, "FIRST_S", 0.05)


def options(function: str, relation: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    own = {"function": f"{MODULE}:{function}", "columns": COLUMNS, "key": ["id"]}
    return {"poll_interval_ms": 20, "relations": {"t": {**own, **(relation or {})}}, **more}


def begun(given: dict[str, Any]) -> PolledMirror:
    mirror = PolledMirror(make_source(connector, given))
    mirror.begin()
    return mirror


def held(mirror: PolledMirror) -> list[tuple]:
    return sorted((int(row[0]), *row[1:]) for row in mirror.rows["t"].values())


def test_rows_come_change_and_go(tmp_path: Path) -> None:
    file = tmp_path / "rows"

    def write(rows: dict[int, str]) -> None:
        found = [{"id": n, "name": name} for n, name in rows.items()]
        file.with_suffix(".new").write_text(json.dumps(found))
        file.with_suffix(".new").rename(file)

    write({1: "a", 2: "b"})
    mirror = begun(options("of_file", {"arguments": {"path": str(file)}}))
    assert held(mirror) == [(1, "a", None), (2, "b", None)]
    mirror.open()
    write({2: "c", 3: "d"})
    mirror.follow(lambda m: held(m) == [(2, "c", None), (3, "d", None)])
    mirror.close()
    assert mirror.changed == 3


@pytest.mark.parametrize(
    ("function", "rows"),
    [
        ("later", [(0, None, "0.0"), (1, None, "0.5"), (2, None, "1.0")]),
        ("plain", [(7, "seven", "1.5")]),
        ("columns", [(1, "id,name,size", None)]),
    ],
)
def test_rows_have_many_forms(function: str, rows: list[tuple]) -> None:
    assert held(begun(options(function))) == rows


# What a service's environment may have, and none of a function's business.
PASSWORDS = ("TIDEMARK_SOURCE", "PGPASSWORD", "PGSERVICE", "AWS_SECRET_ACCESS_KEY", "SECRET_KAFKA")
PASSWORDS += ("KAFKA_PASSWORD", "http_proxy", "GOOGLE_APPLICATION_CREDENTIALS", "DATABASE_URL")


def test_a_function_sees_none_of_the_services_passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PASSWORDS:
        monkeypatch.setenv(name, "hunter2")
    monkeypatch.setenv("LC_TIME", "C")
    ((_, names, _),) = held(begun(options("environment")))
    seen = set(names.split(","))
    assert not seen & set(PASSWORDS)
    assert {"PATH", "LC_TIME"} <= seen
    ((_, whole, _),) = held(begun(options("started_with")))
    assert "PATH=" in whole and "hunter2" not in whole


def test_a_function_sees_what_the_operator_names(monkeypatch: pytest.MonkeyPatch) -> None:
    allowed = replace(netguard.installed(), variables=("WEATHER_*", "TIDEMARK_*"))
    monkeypatch.setattr(netguard, "_guard", allowed)
    for name in ("WEATHER_URL", *PASSWORDS):
        monkeypatch.setenv(name, "hunter2")
    ((_, names, _),) = held(begun(options("environment")))
    assert "WEATHER_URL" in names.split(",")
    assert not set(names.split(",")) & set(PASSWORDS)


@pytest.mark.skipif(os.geteuid() != 0, reason="it starts a process of another user")
def test_the_services_environment_is_closed_to_a_function() -> None:
    """As another user than root, to whom nothing is closed."""
    program = (
        "import ctypes, os, subprocess\n"
        "from service.runtime.private_files import keep_private\n"
        "os.setgid(65534); os.setuid(65534)\n"
        # A change of the user closes it too.
        "ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)\n"
        "path = f'/proc/{os.getpid()}/environ'\n"
        "read = lambda: subprocess.run(['/bin/cat', path], capture_output=True)\n"
        "before = read()\n"
        "keep_private()\n"
        "after = read()\n"
        "print(before.returncode, after.returncode, b'denied' in after.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd="/"
    )
    assert done.stdout.split() == ["0", "1", "True"], done.stderr


@pytest.mark.parametrize(
    ("function", "more", "code"),
    [
        ("fails", {}, "function.failed"),
        ("dies", {}, "function.died"),
        ("hangs", {"timeout_ms": 1500}, "function.timeout"),
        ("wide", {}, "function.bad_row"),
        ("missing", {}, "function.missing"),
        ("later", {"max_rows": 2}, "function.too_many_rows"),
    ],
)
def test_a_call_that_fails_is_named(function: str, more: dict[str, Any], code: str) -> None:
    before = {p.pid for p in psutil.Process().children()}
    with pytest.raises((SourceError, TemporaryError)) as refused:
        begun(options(function, **more))
    assert refused.value.code == code
    assert {p.pid for p in psutil.Process().children()} <= before, "a process is left"
    if function == "dies":
        assert "last words" in refused.value.detail
    if function == "fails":
        assert "the well is dry" in refused.value.detail


def test_a_function_ends_with_the_service(tmp_path: Path) -> None:
    """Also after kill -9, in the midst of a call."""
    file = tmp_path / "pid"
    given = options("hangs_for", {"arguments": {"path": str(file)}})
    program = (
        "from connectors import netguard\n"
        "from tests.connectors.test_python_source import MODULE, begun\n"
        "netguard.install(netguard.Guard(modules=(MODULE,)))\n"
        f"begun({given!r})\n"
    )
    root = Path(__file__).parents[2]
    with subprocess.Popen([sys.executable, "-c", program], cwd=root) as caller:
        while not file.exists():
            assert caller.poll() is None
            time.sleep(0.02)
        function = psutil.Process(int(file.read_text()))
        caller.kill()
    assert not psutil.wait_procs([function], timeout=30)[1]


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("os:listdir", "module.forbidden"),
        ("no_such_module:f", "function.missing"),
        ("no entry point", "source.bad_option"),
        (f"{MODULE}:a b", "source.bad_option"),
    ],
)
def test_functions_that_are_none(path: str, code: str) -> None:
    with pytest.raises(SourceError) as refused:
        begun(options("plain", {"function": path}))
    assert refused.value.code == code


def test_columns_are_proposed() -> None:
    given = options("later")
    del given["relations"]["t"]["columns"]
    found = connector.discover(given)["relations"]["t"]["columns"]
    assert {c["name"] for c in found} == {"id", "name", "size"}


def need(*columns: str, **least: int) -> PushdownRequirement:
    """These columns, of rows with at least these values."""
    found = [PushdownCondition(name, ">=", "int", (str(n),)) for name, n in least.items()]
    return PushdownRequirement(tuple(sorted(columns)), tuple(found))


class Selected:
    """A function that reads what is needed, of rows in a file; polled once an hour."""

    def __init__(self, folder: Path, relation: dict[str, Any] | None = None) -> None:
        self.file = folder / "rows"
        rows = [{"id": n, "name": f"n{n}", "size": n * 10} for n in range(6)]
        self.file.write_text(json.dumps(rows))
        own = {"arguments": {"path": str(self.file)}, **(relation or {})}
        self.options = options("selected", own, poll_interval_ms=3_600_000)
        self.source = make_source(connector, self.options)
        self.mirror = PolledMirror(self.source)

    def restart(self) -> None:
        """Make the source again, as another process does."""
        self.mirror.close()
        self.source = self.mirror.source = make_source(connector, self.options)

    def require(self, needed: PushdownRequirement) -> None:
        own = selective(self.source)
        assert own is not None
        own.require({"t": needed})

    def covers(self, needed: PushdownRequirement) -> bool:
        own = selective(self.source)
        assert own is not None
        return own.covers("t", self.mirror.positions["t"], self.mirror.notes.get, needed)

    def calls(self) -> list[Any]:
        return [json.loads(line) for line in Path(f"{self.file}.calls").read_text().splitlines()]


def test_only_what_is_needed_is_read(tmp_path: Path) -> None:
    function = Selected(tmp_path)
    function.require(need("name", id=4))
    function.mirror.begin()
    assert held(function.mirror) == [(4, "n4", None), (5, "n5", None)]
    assert function.calls() == [[["id", "name"], [["id", ">=", 4]]]]
    assert function.covers(need("id", id=5)) and function.covers(need("id", "name", id=4))
    assert not function.covers(need("id")) and not function.covers(need("size", id=4))


def test_a_wider_need_is_read_at_once_and_a_narrower_one_later(tmp_path: Path) -> None:
    function, wide = Selected(tmp_path), need("name", "size", id=2)
    mirror = function.mirror
    function.require(need("name", id=4))
    mirror.begin()
    mirror.open()
    # Otherwise it would be polled in an hour.
    function.require(wide)
    mirror.follow(lambda _: function.covers(wide))
    assert held(mirror) == [(n, f"n{n}", str(10 * n)) for n in range(2, 6)]
    function.restart()
    function.require(need("name", id=5))
    mirror.open()
    mirror.follow(lambda m: len(m.rows["t"]) == 1)
    assert held(mirror) == [(5, "n5", None)]
    assert not function.covers(wide) and function.covers(need("name", id=5))
    mirror.close()
    assert [where for _, where in function.calls()] == [[["id", ">=", n]] for n in (4, 2, 5)]


def test_what_a_function_cannot_omit_is_read(tmp_path: Path) -> None:
    """A column that must not be NULL, one of another form than its values, and no parameters."""
    columns = [
        {"name": "id", "type": "bigint"},
        {"name": "name", "type": "text", "nullable": False},
        {"name": "size", "type": "timestamptz", "unit": "s"},
    ]
    function = Selected(tmp_path, {"columns": columns})
    of_time = PushdownCondition("size", ">=", "timestamptz", ("1970-01-01 00:00:30+00",))
    function.require(PushdownRequirement(("size",), (of_time,)))
    function.mirror.begin()
    assert function.calls() == [[["id", "name", "size"], []]]
    assert len(function.mirror.rows["t"]) == 6
    facts = connector.pushdown(function.options)["t"]
    assert (facts.columns, facts.conditions, list(facts.excepted)) == ("", "", ["size"])
    plain = make_source(connector, options("plain"))
    mirror, own = PolledMirror(plain), selective(plain)
    assert own is not None
    own.require({"t": need("name", id=100)})
    mirror.begin()
    assert held(mirror) == [(7, "seven", "1.5")]
    assert own.covers("t", mirror.positions["t"], mirror.notes.get, need("size", "name"))
    assert "dynamic_where" in connector.pushdown(options("plain"))["t"].conditions


def test_a_column_of_the_whole_record_needs_all_others(tmp_path: Path) -> None:
    function = Selected(
        tmp_path, {"columns": [*COLUMNS, {"name": "r", "type": "jsonb", "path": "$"}]}
    )
    function.require(need("r", id=5))
    function.mirror.begin()
    assert function.calls() == [[["id", "name", "size"], [["id", ">=", 5]]]]
    [(*values, whole)] = held(function.mirror)
    assert (values, json.loads(whole)) == ([5, "n5", "50"], {"id": 5, "name": "n5", "size": 50})


def test_tuples_have_the_columns_that_are_needed() -> None:
    source = make_source(connector, options("selected_tuples"))
    own = selective(source)
    assert own is not None
    own.require({"t": need("size")})
    mirror = PolledMirror(source)
    mirror.begin()
    assert held(mirror) == [(7, None, "1.5")]
