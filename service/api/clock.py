"""The clock that views with a moving now() read, declared when the first of them is requested."""

from __future__ import annotations

from connectors.postgres.catalog.catalog import Control, SourceRow
from dataflow.errors import SinkError, SourceError
from service.api.source_catalog import declared_relations
from service.factory.planning import CLOCK
from service.factory.service_factory import ServiceFactory


def ensure_clock(control: Control, factory: ServiceFactory) -> None:
    """Declare the source "clock" unless it is there. SourceError source.name_taken."""
    row = control.get_source(CLOCK)
    if row is not None and row.type == CLOCK:
        return
    with factory.analyzer([]) as analyzer:
        if row is not None or analyzer.has_schema(CLOCK):
            raise SourceError(
                "source.name_taken",
                f'the name "{CLOCK}" belongs to another source or to a schema',
                detail='options.now "moving" reads a source of this name',
                hint='rename the schema, or use options.now "pinned"',
            )
    relations = declared_relations(factory, CLOCK, {})
    try:
        control.insert_source(SourceRow(CLOCK, "", type=CLOCK, options={}, relations=relations))
    except SinkError as error:
        # Another request has declared it a moment ago.
        if error.code != "source.name_taken":
            raise
