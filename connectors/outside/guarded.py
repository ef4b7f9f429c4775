"""Connectors behind the boundary, whoever wrote them: the service reaches them through here alone.

Invariant: each call of a connector, and of every source, feed, snapshot, part, range and sink that
comes from it, is within `boundary`, in whichever process it is made. A new connector need not know.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from functools import partial, update_wrapper
from typing import Any, TypeVar, cast

from connectors.outside.boundary import Side, boundary, each

T = TypeVar("T")
# Methods of the contracts (feed_source.py, view_sink.py) that return objects of a contract, and
# those that return several.
_ONE = {"make", "open_snapshot", "open_feed", "open_ranges"}
_SEVERAL = {"parts", "cut", "shorten"}
# Which argument of `make` names what it makes.
_NAME_AT: dict[Side, int] = {"source": 0, "sink": 3}


def guarded(side: Side, name: str, inner: T) -> T:
    """Return an object of a connector, or its module, with each call within the boundary.

    name: of the source or sink in errors; a source or sink that a module makes has its own.
    """
    return cast(T, Guarded(inner, side, name))


class Guarded:
    """Stands for an object: same attributes, same calls. Picklable if the object is."""

    __slots__ = ("_inner", "_name", "_side")

    def __init__(self, inner: Any, side: Side, name: str) -> None:
        for slot, value in (("_inner", inner), ("_side", side), ("_name", name)):
            object.__setattr__(self, slot, value)

    def __getattr__(self, attribute: str) -> Any:
        # What is absent stays so: optional methods are found by `hasattr`.
        if attribute.startswith("__") or not _has(self._inner, attribute):
            raise AttributeError(attribute)
        with boundary(self._side, self._name):
            found = getattr(self._inner, attribute)
        if not inspect.isroutine(found):
            return found
        return update_wrapper(partial(self._call, attribute, found), found)

    def __setattr__(self, attribute: str, value: Any) -> None:
        setattr(self._inner, attribute, value)

    def __reduce__(self) -> tuple[Any, ...]:
        return Guarded, (self._inner, self._side, self._name)

    def _call(self, attribute: str, method: Any, *args: Any, **named: Any) -> Any:
        with boundary(self._side, self._name):
            found = method(*map(_bare, args), **named)
        if attribute in _ONE:
            name = args[_NAME_AT[self._side]] if attribute == "make" else self._name
            return Guarded(found, self._side, name)
        if attribute in _SEVERAL:
            return [Guarded(one, self._side, self._name) for one in found]
        return each(self._side, self._name, found) if isinstance(found, Iterator) else found


def _has(inner: Any, attribute: str) -> bool:
    try:
        inspect.getattr_static(inner, attribute)
    except AttributeError:
        return False
    return True


def _bare(argument: Any) -> Any:
    """Return what a connector is called with: its own objects as it has made them."""
    if isinstance(argument, list | tuple) and any(isinstance(one, Guarded) for one in argument):
        return [one._inner if isinstance(one, Guarded) else one for one in argument]
    return argument
