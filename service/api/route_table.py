"""Methods and query parameters of the routes, by path.

They are read from the routes, not from the OpenAPI description: building that would take longer
than the rest of the start. Routes outside the description (the console's files) are not included.
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

from service.access.operations import STREAMS


@dataclass(frozen=True)
class PathRoutes:
    """The routes of one path: for each method its query parameters, None for any."""

    path: str
    parameters: Mapping[str, frozenset[str] | None]
    described: frozenset[str]

    @property
    def methods(self) -> list[str]:
        """The allowed methods; HEAD wherever GET is."""
        return self._with_head(self.parameters)

    @property
    def described_methods(self) -> list[str]:
        """The methods of the path itself: /views/validate also matches /views/{name}."""
        return self._with_head(self.described)

    def _with_head(self, methods: Collection[str]) -> list[str]:
        has_head = "GET" in methods and not self.is_stream
        return sorted({*methods, *(["HEAD"] if has_head else [])})

    @property
    def is_stream(self) -> bool:
        """Whether its response is endless."""
        return self.path.endswith(STREAMS)

    def unknown(self, method: str, used: Iterable[str]) -> list[str]:
        """Return the query parameters that the route does not have."""
        allowed = self.parameters.get(method)
        return [] if allowed is None else sorted(set(used) - allowed)

    def repeated(self, method: str, used: Iterable[str]) -> list[str]:
        """Return query parameters that occur more than once."""
        if self.parameters.get(method) is None:
            return []
        return sorted(name for name, count in Counter(used).items() if count > 1)


class RouteTable:
    """All described routes of an application. open_paths: those that allow any parameter."""

    def __init__(self, routes: Sequence[BaseRoute], open_paths: Iterable[str]) -> None:
        self._routes = [r for r in routes if isinstance(r, APIRoute) and r.include_in_schema]
        self._open_paths = frozenset(open_paths)

    def find(self, path: str) -> PathRoutes | None:
        """Return the merged routes of a request's path; None if there are none."""
        matching = [routes for pattern, routes in self._paths if pattern.match(path)]
        if not matching:
            return None
        merged: dict[str, frozenset[str] | None] = {}
        for routes in reversed(matching):
            merged.update(routes.parameters)
        return PathRoutes(matching[0].path, merged, matching[0].described)

    @cached_property
    def _paths(self) -> list[tuple[re.Pattern[str], PathRoutes]]:
        """Routes by pattern; fixed paths first, because they take precedence."""
        described: dict[str, dict[str, frozenset[str] | None]] = {}
        for route in self._routes:
            names = None if route.path in self._open_paths else frozenset(_names(route.dependant))
            calls = described.setdefault(route.path_format, {})
            for method in route.methods or ():
                calls.setdefault(method, names)
        ordered = sorted(described.items(), key=lambda p: ("{" in p[0], p[0]))
        return [(compile_path(p)[0], PathRoutes(p, c, frozenset(c))) for p, c in ordered]


def _names(taken: Dependant) -> Iterator[str]:
    """Yield the query parameters of a route and of its dependencies."""
    yield from (parameter.alias for parameter in taken.query_params)
    for part in taken.dependencies:
        yield from _names(part)
