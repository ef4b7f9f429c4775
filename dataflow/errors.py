"""Errors that users see. Each has a stable code, listed in docs/ERRORS.md.

An error is permanent (the user must change something) or temporary (worth a retry): see
`is_temporary`. Every error names the kind and name of its object, and its hint is an action.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataflow.schema import RelationName


INTERNAL_ERROR = "view.internal_error"
_redact: Callable[[str], str] = str


def redact_by(hide: Callable[[str], str]) -> None:
    """Set what removes secrets from each text of an error, in every process that knows some."""
    global _redact
    _redact = hide


@dataclass(frozen=True)
class Position:
    """A position in the user's SQL: line and column, both from 1."""

    line: int
    column: int


class TidemarkError(Exception):
    """An error with a code, what (lower case, with the object's kind and name), detail and hint.

    relation: the only table or maintained view affected; views that do not read it continue.
    option: the user's option that is wrong, as a path such as relations.orders.columns; "" if none.
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
        option: str = "",
    ) -> None:
        what = _redact(what)
        super().__init__(f"{what} [{code}]")
        self.code = code
        self.what = what
        self.detail = _redact(detail)
        self.hint = _redact(hint)
        self.position = position
        self.relation = relation
        self.option = option

    @property
    def described(self) -> str:
        """Return `what` and `detail` in one line, as the catalog stores them."""
        return f"{self.what}. {self.detail}" if self.detail else self.what

    def __reduce__(self) -> tuple:
        facts = (self.detail, self.hint, self.position, self.relation, self.option)
        return _rebuild, (type(self), self.code, self.what, *facts)


class SqlError(TidemarkError):
    """The query is invalid or cannot be maintained; position points into the user's text."""


class SourceError(TidemarkError):
    """The source is unusable until something changes: a setting, a privilege, a lost slot."""


class SinkError(TidemarkError):
    """The sink cannot be written until something changes."""


class TemporaryError(TidemarkError):
    """A failure worth a retry: a lost connection, a restarting server."""

    is_temporary = True


class ViewError(TidemarkError):
    """One view can no longer be maintained; views that do not read it continue."""


class OverBudgetError(ViewError):
    """One view does more in an epoch than it may (`dataflow.work`); it is rebuilt beside the
    others."""


class InvariantError(TidemarkError):
    """A bug in the program, not a user error. Stop: never continue with state that may be
    corrupt."""


def kernel_error(kernel: str, text: str) -> InvariantError:
    """Return the error of a native kernel that met what it cannot handle; text: of its panic."""
    return InvariantError("kernels.failed", f"native kernel {kernel}: {text}", hint="report it")


def internal_error(where: str, error: Exception) -> ViewError:
    """Return the ViewError of a view that a bug has ended; the exception is its cause."""
    found = ViewError(
        "view.internal_error",
        f"{where} failed because of a bug in Tidemark",
        detail=described(error),
        hint="report the error to the developers; rebuild the view to try again",
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
    detail, hint, position, relation, option = facts
    return kind(
        code, what, detail=detail, hint=hint, position=position, relation=relation, option=option
    )
