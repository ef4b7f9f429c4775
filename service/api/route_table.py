"""What the routes take, by path: methods and query parameters.

Read from the routes themselves, so that no list is kept beside them, and without the description
of all that, which takes longer than the rest of a start; what is not described (the console's
files) is none of its business.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute, compile_path


@dataclass(frozen=True)
class PathRoutes:
    """The routes of one path: for each method its query parameters, None for any."""

    path: str
    parameters: Mapping[str, frozenset[str] | None]
    described: frozenset[str]

    @property
    def methods(self) -> list[str]:
        """What may be asked, HEAD where GET is."""
        return self._with_head(self.parameters)

    @property
    def described_methods(self) -> list[str]:
        """What the description has for the path itself: /views/validate is a view's name too."""
        return self._with_head(self.described)

    def _with_head(self, methods: Collection[str]) -> list[str]:
        has_head = "GET" in methods and not self.is_stream
        return sorted({*methods, *(["HEAD"] if has_head else [])})

    @property
    def is_stream(self) -> bool:
        """Whether its answer has no end."""
        return self.path.endswith("/changes")

    def unknown(self, method: str, used: Iterable[str]) -> list[str]:
        """Query parameters that the route does not know."""
        allowed = self.parameters.get(method)
        return [] if allowed is None else sorted(set(used) - allowed)

    def repeated(self, method: str, used: Iterable[str]) -> list[str]:
        """Query parameters that are given more than once: each that it knows has one value."""
        if self.parameters.get(method) is None:
            return []
        return sorted(name for name, count in Counter(used).items() if count > 1)


class RouteTable:
    """All described routes of an application. open_paths: those that take any parameter."""

    def __init__(self, routes: Sequence[BaseRoute], open_paths: Iterable[str]) -> None:
        self._routes = [r for r in routes if isinstance(r, APIRoute) and r.include_in_schema]
        self._open_paths = frozenset(open_paths)

    def find(self, path: str) -> PathRoutes | None:
        """The routes of a request's path, all together; None when there are none."""
        matching = [routes for pattern, routes in self._paths if pattern.match(path)]
        if not matching:
            return None
        merged: dict[str, frozenset[str] | None] = {}
        for routes in reversed(matching):
            merged.update(routes.parameters)
        return PathRoutes(matching[0].path, merged, matching[0].described)

    @cached_property
    def _paths(self) -> list[tuple[re.Pattern[str], PathRoutes]]:
        """By pattern, those without parameters first, as they go before."""
        described: dict[str, dict[str, frozenset[str] | None]] = {}
        for route in self._routes:
            names = None if route.path in self._open_paths else frozenset(_names(route.dependant))
            calls = described.setdefault(route.path_format, {})
            for method in route.methods or ():
                calls.setdefault(method, names)
        ordered = sorted(described.items(), key=lambda p: ("{" in p[0], p[0]))
        return [(compile_path(p)[0], PathRoutes(p, c, frozenset(c))) for p, c in ordered]


def _names(taken: Dependant) -> Iterator[str]:
    """The query parameters of a route, or of what it depends on."""
    yield from (parameter.alias for parameter in taken.query_params)
    for part in taken.dependencies:
        yield from _names(part)
