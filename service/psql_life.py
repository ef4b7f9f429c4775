"""`CALL tidemark.replace_view(...)` and its kin: the life of a view, for its owner.

Each asks for what REST's call of the same name asks for, and is over when that is done. Begun twice
they ask twice: what is done already is then done again without a difference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from connectors.postgres.control import ViewRow
from connectors.postgres.requests import Outcome, Request
from dataflow.errors import TidemarkError
from service.life import Asked, Life
from service.models import ReplaceView
from service.names import path_name
from service.psql_operations import Look, NoOptions, Owned, Subject, parsed
from service.psql_text import failure_of


class Plain(Subject):
    """The arguments of what needs no more than a name."""

    options: NoOptions


class CascadeOptions(BaseModel):
    """cascade: also the views that read it."""

    model_config = ConfigDict(extra="forbid")

    cascade: bool = False


class Cascading(Subject):
    """The arguments of pause_view and resume_view."""

    options: CascadeOptions


class Replacing(Subject, ReplaceView):
    """The arguments of replace_view."""


class Renaming(Plain):
    """The arguments of rename_view."""

    new_name: str = Field(min_length=1)


class Moving(Plain):
    """The arguments of move_view."""

    new_schema: str = Field(min_length=1)


# What asks, by the name of the view and the arguments.
Ask = Callable[[str, Any], Sequence[Asked]]


def operations(owned: Owned, life: Life) -> Mapping[str, Callable[[Request], Look]]:
    """The operations by the names of their procedures."""
    asks: dict[str, tuple[type[BaseModel], Ask]] = {
        "replace_view": (Replacing, lambda n, b: [life.replace(n, b.query, b.options)]),
        "rebuild_view": (Plain, lambda n, _: [life.rebuild(n)]),
        "pause_view": (Cascading, lambda n, b: life.pause(n, cascade=b.options.cascade)),
        "resume_view": (Cascading, lambda n, b: life.resume(n, cascade=b.options.cascade)),
        "rename_view": (Renaming, lambda n, b: [life.rename(n, b.new_name)]),
        "move_view": (Moving, lambda n, b: [life.move(n, b.new_schema)]),
        "cancel_change": (Plain, lambda n, _: [life.cancel(n)]),
    }

    def begin(request: Request) -> Look:
        model, ask = asks[request.operation]
        body: Any = parsed(model, request.arguments)
        row = owned.find(request, body.name)
        if row is None:
            raise TidemarkError("view.not_found", f"view {body.name} was dropped")
        owned.note(request, row.identity)
        asked = ask(path_name(row.schema, row.name), body)
        return lambda rows: _look(life, asked, rows)

    return dict.fromkeys(asks, begin)


def _look(life: Life, asked: Sequence[Asked], rows: Mapping[str, ViewRow]) -> Outcome | None:
    try:
        if not all(life.is_done(one) for one in asked):
            return None
    except TidemarkError as error:
        if error.is_temporary:
            return None
        return failure_of(error)
    titles = [rows[one.identity].title for one in asked if one.identity in rows]
    return Outcome(f"done: {', '.join(titles)}")
