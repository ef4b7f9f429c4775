"""Oracle: the bench's own, that both ways give out as many rows; and what must follow from it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.sharing import VIEWS, main


@pytest.mark.whole
def test_views_that_are_alike_keep_their_state_once(tmp_path: Path) -> None:
    out = tmp_path / "sharing.json"
    assert main(["--orders", "300", "--out", str(out)]) == 0
    found = json.loads(out.read_text())["sets"]
    alike, kindred = found["alike"], found["kindred"]
    assert alike["together"]["views"] == VIEWS
    assert alike["together"]["state_bytes"] * (VIEWS - 1) < alike["apart"]["state_bytes"]
    assert kindred["together"]["state_bytes"] < kindred["apart"]["state_bytes"]
