"""What the routes take, by path: methods and query parameters.

Read from the application's own description, so that no list is kept beside the routes; what is
not described there (the console's files) is none of its business.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from starlette.routing import compile_path

_METHODS = ("get", "put", "post", "delete", "patch")
# Taken by the guard's layer, whatever the route.
_ALWAYS = frozenset({"access_token"})


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
    def told_methods(self) -> list[str]:
        """What the description has for the path itself: /views/validate is a view's name too."""
        return self._with_head(self.described)

    def _with_head(self, methods: Collection[str]) -> list[str]:
        has_head = "GET" in methods and not self.is_stream
        return sorted({*methods, *(["HEAD"] if has_head else [])})

    @property
    def is_stream(self) -> bool:
        """Whether its answer has no end."""
        return self.path.endswith("/changes")

    def unknown(self, method: str, given: Iterable[str]) -> list[str]:
        """Query parameters that the route does not know."""
        known = self.parameters.get(method)
        return [] if known is None else sorted(set(given) - known - _ALWAYS)


class RouteTable:
    """All described routes of an application. open_paths: those that take any parameter."""

    def __init__(self, describe: Callable[[], dict[str, Any]], open_paths: Iterable[str]) -> None:
        self._describe = describe
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
        described = self._describe()["paths"].items()
        found = []
        for path, calls in sorted(described, key=lambda p: ("{" in p[0], p[0])):
            routes = {m.upper(): self._names(path, calls[m]) for m in _METHODS if m in calls}
            found.append((compile_path(path)[0], PathRoutes(path, routes, frozenset(routes))))
        return found

    def _names(self, path: str, call: dict[str, Any]) -> frozenset[str] | None:
        if path in self._open_paths:
            return None
        parameters = call.get("parameters", ())
        return frozenset(p["name"] for p in parameters if p["in"] == "query")
