"""Frozen dataclasses for the service's answers, read from JSON by their annotations.

Invariant: unknown fields of a newer service are ignored; `raw` holds the whole answer. A field that
a record requires and the answer lacks is the error `service.not_tidemark`. Thread-safe: records are
immutable, readers of a class are cached.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from datetime import datetime
from typing import Any, ClassVar, Self, Union, get_args, get_origin, get_type_hints

from dataflow.errors import TidemarkError


@dataclass(frozen=True, kw_only=True)
class Record:
    """raw: the whole answer as JSON, with the fields that this version does not know.

    EARLIER: by a field's name, the one that older services use. EARLIER_VALUES: likewise, values.
    """

    EARLIER: ClassVar[Mapping[str, str]] = {}
    EARLIER_VALUES: ClassVar[Mapping[str, Mapping[str, str]]] = {}

    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, answer: Any) -> Self:
        """Return the record of an answer. TidemarkError service.not_tidemark."""
        if not isinstance(answer, Mapping):
            raise _no_record(cls, f"{str(answer)[:80]!r} is not an object")
        values: dict[str, Any] = {"raw": answer}
        for name, reader, is_required in _readers(cls):
            key = name if name in answer else cls.EARLIER.get(name, name)
            if key in answer:
                value = reader(answer[key])
                earlier = cls.EARLIER_VALUES.get(name)
                values[name] = earlier.get(value, value) if earlier else value
            elif is_required:
                raise _no_record(cls, f"the field {name} is missing")
        return cls(**values)

    @property
    def told(self) -> Mapping[str, Any]:
        """Deprecated: `raw`."""
        return self.raw


Reader = Callable[[Any], Any]


@functools.cache
def _readers(kind: type[Record]) -> list[tuple[str, Reader, bool]]:
    """Return (name, reader, is it required) of each field."""
    hints = get_type_hints(kind)
    return [
        (f.name, _reader(hints[f.name]), f.default is MISSING and f.default_factory is MISSING)
        for f in fields(kind)
        if f.name != "raw"
    ]


def _reader(hint: Any) -> Reader:
    """Return the function that reads a field: a record, a time, or a tuple or mapping of them."""
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
        f"the answer is not a {kind.__name__}",
        detail=detail,
        hint="check the URL, and that client and service have the same version",
    )
