"""Oracle: docs/FUNCTIONS.md: whatever the process of a function sends, does or leaves behind, the
source has its rows or an error with a code, and nothing of it stays."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from connectors import netguard
from connectors.python import source as functions
from dataflow.errors import SourceError, TemporaryError, TidemarkError
from service.ingest.declared_sources import connector
from tests.connectors.feed_mirror import make_source

MODULE = "tests.connectors.python_functions"
COLUMNS = [
    {"name": "id", "type": "int8"},
    {"name": "name", "type": "text", "nullable": True},
]


@pytest.fixture(autouse=True)
def allowed() -> Iterator[None]:
    before = netguard.installed()
    netguard.install(netguard.Guard(modules=(MODULE,)))
    yield
    netguard.install(before)


def relation_of(function: str, **arguments: Any) -> functions.FunctionRelation:
    """A relation that calls a function with these arguments."""
    own = {
        "function": f"{MODULE}:{function}",
        "key": ["id"],
        "columns": COLUMNS,
        "arguments": arguments,
    }
    (relation,) = functions.read_options({"relations": {"r": own}, "timeout_ms": 60_000})
    return relation


def refusal_of(function: str, **arguments: Any) -> TidemarkError:
    """The error of a call, which can be stored and printed."""
    relation = relation_of(function, **arguments)
    with pytest.raises(TidemarkError) as refused:
        functions.call(relation, ("id", "name"), 1000)
    for text in (refused.value.what, refused.value.detail, refused.value.hint):
        assert "\0" not in text
        text.encode()
    return refused.value


@pytest.mark.parametrize("function", ["endless", "talks"])
def test_what_a_function_writes_is_limited(function: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(functions, "MOST_BYTES", 8 << 20)
    assert refusal_of(function).code == "function.too_large"
    rows, _ = functions.call(relation_of("later"), ("id", "name"), 1000)
    assert len(rows) == 3


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[",
        "{}\n[1]\n",
        "[[[1]]]\n",
        '["auth.rights","a","b","c"]\n',
        '["function.failed","a","b"]\n',
        '["function.failed",1,2,3]\n',
        '["function.failed","\\ud800","b","c"]\n',
        "ÿ",
        "[" * 100_000,
    ],
)
def test_a_malformed_answer_is_refused(text: str) -> None:
    found = refusal_of("writes", text=text)
    assert isinstance(found, TemporaryError) and found.code == "function.died"


def test_lines_without_rows_are_not_held() -> None:
    found = refusal_of("writes", text="\n" * 1_000_000, times=3)
    assert found.code == "function.died"


def test_an_answer_of_its_own_has_no_other_code() -> None:
    found = refusal_of("writes", text='["function.failed","a\\u0000b","c","d"]\n')
    assert found.code == "function.failed" and found.what == "a b"


def test_processes_of_a_function_end_with_it(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    rows, _ = functions.call(relation_of("leaves_behind", path=str(file)), ("id", "name"), 10)
    assert rows == [b'{"id":1}']
    pid = int(file.read_text())
    gone = not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    if not gone:
        assert not psutil.wait_procs([psutil.Process(pid)], timeout=60)[1]


@pytest.mark.parametrize(
    "kind",
    [
        "deep",
        "cyclic",
        "huge",
        "surrogate",
        "nul",
        "bytes",
        "object",
        "nan",
        "name",
        "exit",
        "text",
    ],
)
def test_odd_values_are_rows_or_refused(kind: str) -> None:
    own = {
        "function": f"{MODULE}:odd",
        "key": ["id"],
        "columns": COLUMNS,
        "arguments": {"kind": kind},
        "on_error": "dead_letter",
    }
    source = make_source(connector("python"), {"relations": {"r": own}})
    try:
        source.check()
    except (SourceError, TemporaryError) as error:
        assert error.code.startswith(("function.", "source."))
        assert error.code != "source.bad_answer"
        error.detail.encode()
