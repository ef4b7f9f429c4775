"""The clock that views with a moving now() read, declared when the first of them is requested."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from connectors.postgres.catalog.catalog import Control, SourceRow
from dataflow.errors import SinkError, SourceError
from dataflow.sql.moving_now import ClockMissingError
from service.api.source_catalog import declared_relations
from service.engine.engine import ViewDefinition
from service.factory.planning import CLOCK
from service.factory.service_factory import ServiceFactory


def planned_with_clock(
    control: Control,
    factory: ServiceFactory,
    plan: Callable[[Sequence[SourceRow]], ViewDefinition],
    *,
    is_trial: bool = False,
) -> ViewDefinition:
    """Return the definition that `plan` makes with these sources, among them a clock if it reads
    one.

    is_trial: declare nothing. SourceError source.name_taken, and the errors of `plan`.
    """
    sources = control.list_sources()
    try:
        return plan(sources)
    except ClockMissingError:
        row = _clock_row(control, factory)
    if not is_trial:
        try:
            control.insert_source(row)
        except SinkError as error:
            # Another request has declared it a moment ago.
            if error.code != "source.name_taken":
                raise
        return plan(control.list_sources())
    return plan([*sources, row])


def _clock_row(control: Control, factory: ServiceFactory) -> SourceRow:
    with factory.analyzer([]) as analyzer:
        if control.get_source(CLOCK) is not None or analyzer.has_schema(CLOCK):
            raise SourceError(
                "source.name_taken",
                f'the name "{CLOCK}" belongs to another source or to a schema',
                detail="now() reads a source of this name",
                hint='rename the schema, or use options.now "pinned"',
            )
    relations = declared_relations(factory, CLOCK, {})
    return SourceRow(CLOCK, "", type=CLOCK, options={}, relations=relations)
