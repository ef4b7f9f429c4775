"""Oracle: a wrong option is an error with a code, whatever its shape and whatever the type."""

from __future__ import annotations

from typing import Any

import pytest

from connectors.feed_source import with_starts
from dataflow.errors import TidemarkError
from service.ingest.declared_sources import TYPES, connector

# Nothing listens there.
AWAY = {"url": "http://127.0.0.1:1"}
LOGIN = {"host": "127.0.0.1", "port": 1, "database": "d", "user": "u"}
SHAPES: tuple[dict[str, Any], ...] = (
    {},
    *({"relations": shape} for shape in (1, [], {}, {"a": 1}, {"a": {}}, None)),
    *({"tables": shape} for shape in (1, [1], {"a": 1}, None)),
    *({"topics": shape} for shape in (1, [], {"a": 1}, {"a": {}}, None)),
    *({"url": shape} for shape in (1, "", "x", "ftp://x", None)),
    *({**AWAY, "relations": shape} for shape in (1, {"a": 1}, {"a": {"path": 1}})),
    *({**LOGIN, "tables": shape} for shape in (1, ["x"], {"t": 1}, {"t": {}})),
)
STARTS = (1, [], {}, {"offsets": {}, "timestamp": "x"}, {"offsets": {"0": "z"}}, {"timestamp": 1})


@pytest.mark.parametrize("type_name", TYPES)
def test_options_of_any_shape_are_refused_by_a_code(type_name: str) -> None:
    faults = []
    for options in SHAPES:
        for call in ("discover", "declare"):
            try:
                getattr(connector(type_name), call)(options)
            except TidemarkError as error:
                assert error.code and error.what
            except Exception as error:
                faults.append(f"{call} {options}: {error!r}")
    assert not faults, "\n".join(faults)


def test_a_start_of_any_shape_is_refused_by_a_code() -> None:
    starting = with_starts(connector("kafka"))
    assert starting is not None
    topic = {"topic": "t", "format": "json", "columns": {"n": "int8"}}
    options = {"bootstrap_servers": "127.0.0.1:1", "topics": {"a": topic}}
    assert starting.with_start(options, "a", "latest")["topics"]["a"]["start"] == "latest"
    for start in (*STARTS, "yesterday"):
        with pytest.raises(TidemarkError) as raised:
            starting.with_start(options, "a", start)
        assert raised.value.code == "source.bad_option", start
