"""Oracle: the rows that the README has for its first view, and the database after it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import pytest

from connectors.loopback import free_port
from tests.harness.postgres import Database
from tests.harness.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
TRY = ROOT / "deploy" / "try.sh"


def test_a_try_without_a_database_says_what_to_write() -> None:
    ended = subprocess.run([TRY, ""], capture_output=True, text=True, check=False)
    assert ended.returncode == 2 and "make try DSN=" in ended.stderr


def test_setup_knows_two_kinds() -> None:
    command = [ROOT / "deploy" / "setup.sh", "both"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (2, "setup: demo or all, not both\n")


@pytest.mark.whole
@pytest.mark.timeout(300)
def test_a_try_serves_the_first_view_on_a_database_of_ones_own(
    database: Database, tmp_path: Path
) -> None:
    """Twice: the second finds what the first has made."""
    environment = os.environ | {"TIDEMARK_PORT": str(free_port())}
    environment |= {"TIDEMARK_STATE": str(tmp_path), "PYTHONPATH": str(ROOT)}
    for south, changed in (("25.50", Decimal("26.50")), ("26.50", Decimal("27.50"))):
        tried = subprocess.Popen(
            [TRY, database.dsn],
            stdout=subprocess.PIPE,
            stderr=sys.stderr,
            text=True,
            env=environment,
            start_new_session=True,
        )
        try:
            assert tried.stdout is not None
            printed = []
            for line in tried.stdout:
                printed.append(line.split())
                if "Ctrl-C ends it" in line:
                    break
            assert ["north", "1", "10.00"] in printed and ["south", "2", south] in printed
            database.execute("UPDATE tidemark_try.orders SET amount = amount + 1 WHERE id = 3")
            read = "SELECT revenue FROM tidemark_try.revenue WHERE region = 'south'"
            wait_until(lambda read=read, now=changed: database.rows(read) == [(now,)])
        finally:
            os.killpg(tried.pid, signal.SIGINT)
            tried.communicate(timeout=60)
