"""What the tests of this folder share."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def own_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each start position is the log's end, not one that was found a moment ago."""
    monkeypatch.setattr("connectors.mysql.source.SHARED_S", 0.0)
