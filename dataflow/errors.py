"""Errors that users meet. Each has a stable code, listed in docs/ERRORS.md.

Refuse (permanent, the user must change something) or retry (temporary): `is_temporary` says which.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Position:
    """Where in the user's SQL: line and column, both from 1."""

    line: int
    column: int


class TidemarkError(Exception):
    """A named refusal or failure: code, what (lower case, with the object's name), detail, hint."""

    is_temporary = False

    def __init__(
        self,
        code: str,
        what: str,
        *,
        detail: str = "",
        hint: str = "",
        position: Position | None = None,
    ) -> None:
        super().__init__(f"{what} [{code}]")
        self.code = code
        self.what = what
        self.detail = detail
        self.hint = hint
        self.position = position

    def __reduce__(self) -> tuple:
        return _rebuild, (type(self), self.code, self.what, self.detail, self.hint, self.position)


class SqlError(TidemarkError):
    """The query is wrong or not maintained; position points into the user's text."""


class SourceError(TidemarkError):
    """The source cannot be used as it is: a setting, a privilege, a lost slot."""


class SinkError(TidemarkError):
    """The sink cannot be written as it is."""


class TemporaryError(TidemarkError):
    """Worth another try: a connection lost, a server restarting."""

    is_temporary = True


class InvariantError(TidemarkError):
    """The program is wrong, not the user. Stop; never go on with state that may be corrupt."""


def _rebuild(
    kind: type[TidemarkError],
    code: str,
    what: str,
    *facts: str,
) -> TidemarkError:
    detail, hint, position = facts
    return kind(code, what, detail=detail, hint=hint, position=position)  # type: ignore[arg-type]
