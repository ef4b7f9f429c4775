"""Oracle: docs/FAILOVER.md: what a view says while its source is away or its sink was set back."""

from __future__ import annotations

from typing import Any

import pytest

from connectors.postgres.catalog.catalog import ViewRow
from service.api.health import StatusInputs, warnings_of

AWAY = "it cannot be reached [source.unreachable]"
BEHIND = "the sink was set back [sink.rewound]"


@pytest.mark.parametrize(
    ("figures", "told"),
    [
        ({}, []),
        ({"sink_error": "", "source_error": ""}, []),
        ({"source_error": AWAY}, [f'source "source" is away: {AWAY}']),
        ({"sink_error": BEHIND}, [BEHIND]),
        (
            {"source_error": AWAY, "sink_error": BEHIND},
            [f'source "source" is away: {AWAY}', BEHIND],
        ),
        ({"sources": {"events": {"error": AWAY}}}, []),
    ],
)
def test_what_keeps_a_view_from_continuing(figures: dict[str, Any], told: list[str]) -> None:
    """Also before the pipeline has told anything, and of what other views read nothing."""
    row = ViewRow("public", "v", "SELECT 1", "1", plan={"reads": [["source", "orders"]]})
    assert warnings_of(StatusInputs({"default": figures}), row) == told
