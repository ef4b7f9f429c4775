"""Reading a relation of a source from another start: its readers are paused, and built again.

Where a relation starts is noted while a view reads it, so all its readers are paused first; their
tables keep their rows meanwhile, and additional sinks wait: they get the difference as changes.
Invariant: `step` may be repeated at any time, by any process, and continues where the last one
stopped. Thread-safe.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from connectors.feed_source import with_starts
from connectors.postgres.catalog.catalog import Control, ViewRow
from dataflow.errors import SourceError, TidemarkError
from service.access.authorization import Authorization
from service.access.tokens import Caller
from service.api.lifecycle_requests import Life
from service.api.source_catalog import SourceCatalog, readers_of_relation
from service.factory.service_factory import ServiceFactory
from service.ingest.declared_sources import connector
from service.runtime.view_names import path_name
from service.views.lifecycle import DesiredState, ViewState


@dataclass(frozen=True)
class ResetProgress:
    """How far a reset is. waits_for: readers that are not paused yet; none once it is done."""

    views: tuple[str, ...]
    waits_for: tuple[str, ...] = ()


class StartReset:
    """One per API process."""

    def __init__(
        self,
        factory: ServiceFactory,
        authorization: Authorization,
        sources: SourceCatalog,
        life: Life,
    ) -> None:
        self._control: Control = factory.control()
        self._authorization = authorization
        self._sources = sources
        self._life = life

    def step(self, name: str, relation: str, start: Any, by: Caller) -> ResetProgress:
        """Do what can be done now: pause readers; or set the start and resume them.

        start: as in the options of the source's type. A reader that was paused before is resumed,
        too. SourceError source.not_found, source.no_start, source.bad_option; the errors of pausing
        and resuming a view.
        """
        self._authorization.require(by, "source.declare")
        row = self._sources.row(name)
        starting = with_starts(connector(row.type))
        if starting is None:
            raise SourceError(
                "source.no_start",
                f'a source of type "{row.type}" has no start that could be chosen',
                hint="rebuild the views that read it: they begin with its present rows",
            )
        options = starting.with_start(row.options, relation, start)
        readers = readers_of_relation(self._control.list_views(), name, relation)
        titles = tuple(sorted(view.title for view in readers))
        waits_for = [view for view in readers if view.status != ViewState.PAUSED]
        live = [view for view in waits_for if view.desired != DesiredState.PAUSED]
        # All or none of them: what cannot be paused, or not by this caller, refuses the whole.
        for call in (self._life.require_pausable, self._life.pause):
            for view in live:
                _unless_busy(partial(call, _path(view), by=by, cascade=True, is_resumed=True))
        if waits_for:
            return ResetProgress(titles, tuple(view.title for view in waits_for))
        self._sources.change(name, options, by)
        for view in readers:
            self._life.resume(_path(view), by=by, cascade=True)
        return ResetProgress(titles)


def _unless_busy(call: Callable[[], object]) -> None:
    try:
        call()
    except TidemarkError as error:
        # A view is being changed, or one that reads it: the next step tries again.
        if error.code != "view.busy":
            raise


def _path(view: ViewRow) -> str:
    return path_name(view.schema, view.name)
