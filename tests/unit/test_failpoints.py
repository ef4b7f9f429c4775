"""Oracle: FAILPOINTS.md: its actions, and its list beside the names in the source."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage.failpoints import failpoint, set_failpoints
from tests.harness.failpoints import names_in_source

PAGE = Path(__file__).resolve().parents[2] / "docs" / "contributing" / "FAILPOINTS.md"


@pytest.fixture(autouse=True)
def _none_set() -> Iterator[None]:
    yield
    set_failpoints("")


def test_the_page_lists_every_failpoint() -> None:
    _, _, places = PAGE.read_text().partition("## All failpoints")
    listed = re.findall(r"`([a-z]+(?:\.[a-z]+){1,2})`", places)
    assert sorted(listed) == sorted(names_in_source())


def test_a_failpoint_name_occurs_once() -> None:
    found = names_in_source()
    assert len(set(found)) == len(found)


def test_error_at_the_second_time() -> None:
    set_failpoints("one.place.here=error@2; other.place.here=sleep:0")
    failpoint("one.place.here", ValueError)
    failpoint("other.place.here")
    with pytest.raises(ValueError, match=r"one\.place\.here"):
        failpoint("one.place.here", ValueError)
    failpoint("one.place.here", ValueError)


def test_a_file_is_done_once(tmp_path: Path) -> None:
    set_failpoints("", str(tmp_path))
    failpoint("one.place.here")
    (tmp_path / "one.place.here").write_text("error@2")
    failpoint("one.place.here")
    with pytest.raises(OSError, match=r"one\.place\.here"):
        failpoint("one.place.here")
    failpoint("one.place.here")
    assert [path.name for path in tmp_path.iterdir()] == ["one.place.here.reached"]


def test_kill_is_sigkill() -> None:
    program = "from storage.failpoints import failpoint; failpoint('a.b.c'); print('alive')"
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env={"TIDEMARK_FAILPOINTS": "a.b.c=kill", "PYTHONPATH": str(PAGE.parents[1])},
        capture_output=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (-signal.SIGKILL, b"")


def test_a_word_that_is_no_action_is_refused() -> None:
    with pytest.raises(ValueError, match="explode"):
        set_failpoints("a.b.c=explode")
