"""Oracle: what the loops that numba compiled returned for the same arguments, bit for bit.

Each line of a file beside this one is a call: kernel, arguments, those arguments after the call
that it changed, and the result. An array is its type, its items (floats as the bits of an int64,
bytes as Latin-1 text), and its shape if it has not one dimension.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

FOLDER = Path(__file__).parent
CALLS = [
    pytest.param(path.stem, line, id=f"{path.stem}-{number}")
    for path in sorted(FOLDER.glob("*.jsonl"))
    for number, line in enumerate(path.read_text().splitlines(), 1)
]


def _value(shown: Any) -> Any:
    if not isinstance(shown, list):
        return shown
    kind, items, *shape = shown
    if kind == "tuple":
        return tuple(_value(item) for item in items)
    if kind == "raw":
        return items.encode("latin-1")
    if kind == "bytes":
        found = np.frombuffer(items.encode("latin-1"), np.uint8).copy()
    elif kind == "float64":
        found = np.array(items, np.int64).view(np.float64)
    else:
        found = np.array(items, kind)
    return found.reshape(shape[0]) if shape else found


def _assert_same(found: Any, expected: Any) -> None:
    if isinstance(expected, tuple):
        assert isinstance(found, tuple)
        for one, other in zip(found, expected, strict=True):
            _assert_same(one, other)
    elif isinstance(expected, np.ndarray):
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        if expected.dtype == np.float64:
            # One NaN: whether its sign bit is set depends on the processor.
            found = np.where(np.isnan(found), np.nan, found)
            expected = np.where(np.isnan(expected), np.nan, expected)
        assert found.tobytes() == expected.tobytes(), (found, expected)
    else:
        assert type(found) is type(expected) and found == expected


@pytest.mark.parametrize(("module", "line"), CALLS)
def test_a_kernel_returns_what_it_always_has(module: str, line: str) -> None:
    call = json.loads(line)
    kernel = getattr(importlib.import_module(f"tidemark_native.{module}"), call["kernel"])
    arguments = [_value(argument) for argument in call["in"]]
    _assert_same(kernel(*arguments), _value(call["out"]))
    for position, after in call.get("after", {}).items():
        _assert_same(arguments[int(position)], _value(after))


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.jsonl")), ids=lambda path: path.stem)
def test_every_kernel_is_recorded(path: Path) -> None:
    module = importlib.import_module(f"tidemark_native.{path.stem}")
    kernels = {name for name, item in vars(module).items() if callable(item)}
    assert kernels == {json.loads(line)["kernel"] for line in path.read_text().splitlines()}
