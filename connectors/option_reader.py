"""Read a user's options one by one.

Invariant: nothing is guessed. A value of the wrong type is refused, and so is an option that
nothing reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from dataflow.errors import SinkError, SourceError, TidemarkError

T = TypeVar("T")
ERRORS: Mapping[str, type[TidemarkError]] = {"source": SourceError, "sink": SinkError}
_WORDS = {str: "a string", int: "a whole number", bool: "true or false", dict: "an object"}
_WORDS[list] = "a list"


class OptionReader:
    """Reads one object of options.

    where: its path among all options, as in "topics.clicks", "" at the top. side: "source" or
    "sink". page: what lists the options. Errors are `<side>.bad_option`.
    """

    def __init__(
        self, options: Any, side: str, where: str = "", page: str = "docs/KAFKA.md"
    ) -> None:
        self.side = side
        self._where = where
        self._page = page
        if not isinstance(options, Mapping):
            raise self.refused("", "must be an object")
        self._left = dict(options)
        self._allowed: list[str] = []

    def take(self, name: str, kind: type[T], default: T | None = None) -> T:
        """Return the option's value or the default; without a default the option is required."""
        found = self.optional(name, kind)
        if found is not None:
            return found
        if default is None:
            raise self.refused(name, "is missing")
        return default

    def optional(self, name: str, kind: type[T]) -> T | None:
        """Return the option's value; None if it is missing or null."""
        found = self.raw(name)
        is_wrong = not isinstance(found, kind) or (kind is int and isinstance(found, bool))
        if found is not None and is_wrong:
            raise self.refused(name, f"must be {_WORDS[kind]}")
        return found

    def raw(self, name: str) -> Any:
        """Return the option's value of any type; None if it is missing."""
        self._allowed.append(name)
        return self._left.pop(name, None)

    def choice(self, name: str, choices: Sequence[str], default: str) -> str:
        """Return one of a few words."""
        found = self.take(name, str, default)
        if found not in choices:
            raise self.refused(name, f"must be one of {', '.join(choices)}", detail=found)
        return found

    def under(self, name: str) -> OptionReader | None:
        """Return a reader of a nested object; None if it is missing."""
        found = self.raw(name)
        return (
            None if found is None else OptionReader(found, self.side, self._path(name), self._page)
        )

    def rest(self) -> dict[str, Any]:
        """Return all options that were not read yet, by name, and mark them as read."""
        left, self._left = self._left, {}
        return left

    def end(self) -> None:
        """Refuse options that nothing reads."""
        for name in self._left:
            raise self.refused(name, "is unknown", hint=f"known here: {', '.join(self._allowed)}")

    def refused(self, name: str, why: str, *, detail: str = "", hint: str = "") -> TidemarkError:
        """Return the error for one option."""
        return ERRORS[self.side](
            f"{self.side}.bad_option",
            f'option "{self._path(name)}" {why}',
            detail=detail,
            hint=hint or f"{self._page} lists the options",
            option=self._path(name),
        )

    def _path(self, name: str) -> str:
        return f"{self._where}.{name}" if self._where and name else self._where or name
