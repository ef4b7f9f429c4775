"""Answers of the service as frozen dataclasses, read from JSON by their annotations.

Invariant: what a newer service tells beyond a record's fields never hurts; it is in `told`, as all
of the answer is. What a record needs and an answer lacks is an error with a code.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from datetime import datetime
from typing import Any, Self, Union, get_args, get_origin, get_type_hints

from dataflow.errors import TidemarkError


@dataclass(frozen=True, kw_only=True)
class Record:
    """told: the answer as it was, as JSON has it, with fields that this version does not know."""

    told: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, told: Any) -> Self:
        """The record of an answer. TidemarkError service.not_tidemark."""
        if not isinstance(told, Mapping):
            raise _no_record(cls, f"{str(told)[:80]!r} is no object")
        values: dict[str, Any] = {"told": told}
        for name, reader, is_needed in _readers(cls):
            if name in told:
                values[name] = reader(told[name])
            elif is_needed:
                raise _no_record(cls, f"it lacks {name}")
        return cls(**values)


Reader = Callable[[Any], Any]


@functools.cache
def _readers(kind: type[Record]) -> list[tuple[str, Reader, bool]]:
    """(name, how it is read, whether it must be there) of each field."""
    hints = get_type_hints(kind)
    return [
        (f.name, _reader(hints[f.name]), f.default is MISSING and f.default_factory is MISSING)
        for f in fields(kind)
        if f.name != "told"
    ]


def _reader(hint: Any) -> Reader:
    """How a value of a field is read: records, times, and tuples and mappings of them."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        (inner,) = (a for a in arguments if a is not types.NoneType)
        read = _reader(inner)
        return lambda value: None if value is None else read(value)
    if origin is tuple:
        read = _reader(arguments[0])
        return lambda value: tuple(read(each) for each in value)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        read = _reader(arguments[1])
        return lambda value: {key: read(each) for key, each in value.items()}
    if isinstance(hint, type) and issubclass(hint, Record):
        return hint.of
    if hint is datetime:
        return datetime.fromisoformat
    return _as_is


def _as_is(value: Any) -> Any:
    return value


def _no_record(kind: type[Record], detail: str) -> TidemarkError:
    return TidemarkError(
        "service.not_tidemark",
        f"the answer is no {kind.__name__}",
        detail=detail,
        hint="the client is of another version than the service, or the URL is not a service's",
    )
