"""Errors that users meet. Each has a stable code, listed in docs/ERRORS.md.

Refuse (permanent, the user must change something) or retry (temporary): `is_temporary` says which.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataflow.schema import RelationName


INTERNAL_ERROR = "view.internal_error"


@dataclass(frozen=True)
class Position:
    """Where in the user's SQL: line and column, both from 1."""

    line: int
    column: int


class TidemarkError(Exception):
    """A named refusal or failure: code, what (lower case, with the object's name), detail, hint.

    relation: the only table or maintained view that it is about; what does not read it goes on.
    """

    is_temporary = False

    def __init__(
        self,
        code: str,
        what: str,
        *,
        detail: str = "",
        hint: str = "",
        position: Position | None = None,
        relation: RelationName | None = None,
    ) -> None:
        super().__init__(f"{what} [{code}]")
        self.code = code
        self.what = what
        self.detail = detail
        self.hint = hint
        self.position = position
        self.relation = relation

    @property
    def described(self) -> str:
        """What happened and the facts, as the catalog keeps them."""
        return f"{self.what}. {self.detail}" if self.detail else self.what

    def __reduce__(self) -> tuple:
        facts = (self.detail, self.hint, self.position, self.relation)
        return _rebuild, (type(self), self.code, self.what, *facts)


class SqlError(TidemarkError):
    """The query is wrong or not maintained; position points into the user's text."""


class SourceError(TidemarkError):
    """The source cannot be used as it is: a setting, a privilege, a lost slot."""


class SinkError(TidemarkError):
    """The sink cannot be written as it is."""


class TemporaryError(TidemarkError):
    """Worth another try: a connection lost, a server restarting."""

    is_temporary = True


class ViewError(TidemarkError):
    """One view cannot be kept any longer; what does not read it goes on."""


class InvariantError(TidemarkError):
    """The program is wrong, not the user. Stop; never go on with state that may be corrupt."""


def internal_error(where: str, error: Exception) -> ViewError:
    """Return the end of a view for which the program has no answer; the exception is its cause."""
    found = ViewError(
        "view.internal_error",
        f"{where} has failed for a reason that is not the view's own",
        detail=described(error),
        hint="send the report to the developers; rebuild the view to try again",
    )
    found.__cause__ = error
    return found


def described(error: BaseException) -> str:
    """Return an exception in one line of bounded length."""
    words = " ".join(str(error).split())
    return f"{type(error).__name__}: {words}"[:300] if words else type(error).__name__


def _rebuild(
    kind: type[TidemarkError],
    code: str,
    what: str,
    *facts: Any,
) -> TidemarkError:
    detail, hint, position, relation = facts
    return kind(code, what, detail=detail, hint=hint, position=position, relation=relation)
