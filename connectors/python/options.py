"""The options of sources that are Python functions of the running service (docs/FUNCTIONS.md).

Invariant: a module is imported only if the operator has allowed it by name, and only in a child
process.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any

from connectors import netguard
from connectors.option_reader import OptionReader
from connectors.polled.rows import RowOptions, SharedOptions, read_number, read_rows, read_shared

PAGE = "docs/FUNCTIONS.md"
ENTRY_POINTS = "tidemark.sources"
MAX_ROWS = 1_000_000
_PATH = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)")


@dataclass(frozen=True)
class FunctionRelation:
    """One relation: what a function returns. path: "module:function". arguments: by name.

    timeout_s: of a whole reading.
    """

    rows: RowOptions
    path: str
    arguments: Mapping[str, Any]
    timeout_s: float
    max_rows: int

    @property
    def name(self) -> str:
        """Its name within the source."""
        return self.rows.name

    @property
    def module(self) -> str:
        """The module that is imported."""
        return self.path.partition(":")[0]


def read_options(options: Mapping[str, Any]) -> tuple[FunctionRelation, ...]:
    """Return the relations of a source. SourceError source.bad_option, module.forbidden."""
    reader = OptionReader(options, "source", page=PAGE)
    shared = read_shared(reader)
    timeout_ms = read_number(reader, "timeout_ms", 60_000, 86_400_000)
    max_rows = read_number(reader, "max_rows", MAX_ROWS, 100_000_000)
    given = reader.take("relations", dict)
    reader.end()
    if not given:
        hint = 'give {"name": {"function": "module:function"}}'
        raise reader.refused("relations", "is empty", hint=hint)
    limits = timeout_ms / 1000, max_rows
    return tuple(_relation(str(name), own, shared, limits) for name, own in given.items())


def _relation(
    name: str, supplied: Any, shared: SharedOptions, limits: tuple[float, int]
) -> FunctionRelation:
    reader = OptionReader(supplied, "source", f"relations.{name}", PAGE)
    path = _path(reader, reader.take("function", str))
    arguments = reader.take("arguments", dict, {})
    rows = read_rows(reader, name, shared)
    reader.end()
    found = FunctionRelation(rows, path, arguments, *limits)
    netguard.check_module(found.module)
    return found


def _path(reader: OptionReader, given: str) -> str:
    """Return module and function of a path, or of an entry point's name."""
    if ":" not in given:
        named = entry_points(group=ENTRY_POINTS, name=given)
        if not named:
            hint = f'write "module:function", or the name of an entry point of {ENTRY_POINTS}'
            raise reader.refused("function", "names no function", detail=given, hint=hint)
        given = next(iter(named)).value
    if not _PATH.fullmatch(given):
        raise reader.refused("function", 'must be "module:function"', detail=given)
    return given
