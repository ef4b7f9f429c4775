"""Oracle: the contract of types of sinks, and the table of docs/SINKS.md."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from connectors.view_sink import SinkConnector
from dataflow.errors import SinkError
from service.factory.sink_types import MODULES, sink_connector

PAGE = Path(__file__).parents[3] / "docs" / "SINKS.md"


@pytest.mark.parametrize("name", MODULES)
def test_a_type_has_the_functions_of_the_contract(name: str) -> None:
    found = sink_connector(name)
    for function in ("make", "check"):
        _, *expected = inspect.signature(getattr(SinkConnector, function)).parameters
        assert list(inspect.signature(getattr(found, function)).parameters) == expected


def test_a_type_that_does_not_exist_is_refused() -> None:
    with pytest.raises(SinkError) as raised:
        sink_connector("fax")
    assert raised.value.code == "sink.unknown_type"
    assert all(name in raised.value.hint for name in MODULES)


def test_the_page_lists_the_types() -> None:
    assert set(re.findall(r"^\| \[`(\w+)`\]", PAGE.read_text(), re.MULTILINE)) == set(MODULES)
