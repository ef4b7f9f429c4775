"""Names for completion in the console: tables, views and relations of sources, with columns.

Invariant: a caller gets only names that its query could read. Tables follow the rights of its
database role in PostgreSQL, relations of sources their readers, and views what it may see. A reader
without a database role can query views only, so it gets no tables and no relations of sources.
"""

from __future__ import annotations

from pydantic import BaseModel, Field

from connectors.postgres.schema.sink_target import target_of
from dataflow.errors import TidemarkError
from service.access.authorization import Authorization
from service.access.tokens import Caller, Role
from service.factory.service_factory import ServiceFactory
from service.runtime.log import log
from service.views.requested_changes import table_of


class TableModel(BaseModel):
    """A relation that a query can read. kind: table, view (maintained by Tidemark), or source."""

    schema_name: str = Field(serialization_alias="schema")
    name: str
    kind: str
    columns: list[str]


class TableList(BaseModel):
    """Ordered by schema and name; cut if there are very many tables."""

    tables: list[TableModel]


class Completion:
    """One per API process; thread-safe."""

    def __init__(self, factory: ServiceFactory, authorization: Authorization) -> None:
        self._factory = factory
        self._authorization = authorization
        self._control = factory.control()

    def tables(self, by: Caller) -> TableList:
        """Return what this caller's queries can read. TidemarkError auth.db_role."""
        self._control.ensure()
        self._authorization.require(by, "table.list")
        views = self._control.list_views()
        visible = self._authorization.visible(by, views)
        found = [
            TableModel(schema_name=v.schema, name=v.name, kind="view", columns=_names(v.fields))
            for v in visible
        ]
        readable = self._authorization.readable_relations(by, "table.list")
        for source in self._control.list_sources():
            for relation in () if source.is_database else source.relations:
                if readable is not None and (source.name, relation["name"]) not in readable:
                    continue
                names = _names(relation["fields"])
                found.append(
                    TableModel(
                        schema_name=source.name, name=relation["name"], kind="source", columns=names
                    )
                )
        # Hide the tables of views: visible ones are listed as views, others not at all.
        hidden = {(v.schema, v.name) for v in views}
        hidden |= {(v.schema, target_of(table_of(v)).name) for v in views if v.fields}
        found += [
            TableModel(schema_name=schema, name=name, kind="table", columns=columns)
            for schema, name, columns in self._tables(by)
            if (schema, name) not in hidden and not name.startswith("_tidemark")
        ]
        return TableList(tables=sorted(found, key=lambda t: (t.schema_name, t.name)))

    def _tables(self, by: Caller) -> list[tuple[str, str, list[str]]]:
        if not by.db_role and by.role < Role.OPERATOR:
            return []
        try:
            return self._factory.source.readable_tables(by.db_role)
        except TidemarkError as error:
            log.info("tables.unlisted", code=error.code)
            return []


def _names(fields: list[dict[str, object]] | None) -> list[str]:
    return [str(field["name"]) for field in fields or ()]
