"""What a caller's queries can read: tables, views and relations of sources, with columns.

The console browses these, completes names with them and makes examples of them. Invariant: a caller
gets only names that its query could read. Tables follow the rights of its database role in
PostgreSQL, relations of sources their readers, and views what it may see. A reader without a
database role can query views only, so it gets no tables and no relations of sources.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, Field

from connectors.postgres.analysis.table_list import ListedTable
from connectors.postgres.catalog.catalog import ViewRow
from connectors.postgres.schema.sink_target import target_of
from connectors.source import MAIN_SOURCE
from dataflow.errors import TidemarkError
from dataflow.schema import VIEW_SOURCE
from service.access.authorization import Authorization
from service.access.tokens import Caller, Role
from service.api.models import FieldModel, ProblemModel, field_models
from service.api.problems import problem_of
from service.factory.service_factory import ServiceFactory
from service.runtime.log import log
from service.views.dependencies import parents_of
from service.views.lifecycle import DesiredState
from service.views.requested_changes import table_of


class ReferenceModel(BaseModel):
    """A foreign key: columns of the table, and those of another that they name."""

    columns: list[str]
    schema_name: str = Field(alias="schema", serialization_alias="schema")
    table: str
    references: list[str]


class ViewName(BaseModel):
    """A view by its name."""

    schema_name: str = Field(serialization_alias="schema")
    name: str

    @classmethod
    def of(cls, view: ViewRow) -> ViewName:
        """Return the name of a row of the catalog."""
        return cls(schema_name=view.schema, name=view.name)


class TableModel(BaseModel):
    """A relation that a query can read. kind: table, view (maintained by Tidemark), or source.

    fields: its columns with types, as far as the caller may read them. key: of its primary key.
    views: those of the caller's views that read it. The last five are of the database's tables.
    """

    schema_name: str = Field(serialization_alias="schema")
    name: str
    kind: str
    columns: list[str]
    fields: list[FieldModel] = []
    key: list[str] = []
    rows: int | None = Field(default=None, description="estimated by PostgreSQL; null if unknown")
    views: list[ViewName] = []
    table_kind: str | None = Field(
        default=None,
        description="table, partitioned table, view of the database, materialized view or foreign"
        " table",
    )
    references: list[ReferenceModel] = []
    replica_identity: str | None = Field(
        default=None, description="default, full, index or nothing"
    )
    is_published: bool | None = Field(default=None, description="in the publication of the service")
    problem: ProblemModel | None = Field(default=None, description="why no view can read it")


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
        readers = _readers(visible)
        found = [_view(v, readers) for v in visible]
        readable = self._authorization.readable_relations(by, "table.list")
        for source in self._control.list_sources():
            for relation in () if source.is_database else source.relations:
                if readable is not None and (source.name, relation["name"]) not in readable:
                    continue
                found.append(_relation(source.name, relation, readers))
        # Hide the tables of views: visible ones are listed as views, others not at all.
        hidden = {(v.schema, v.name) for v in views}
        hidden |= {(v.schema, target_of(table_of(v)).name) for v in views if v.fields}
        found += [
            _table(table, readers)
            for table in self._tables(by)
            if (table.schema, table.name) not in hidden and not table.name.startswith("_tidemark")
        ]
        return TableList(tables=sorted(found, key=lambda t: (t.schema_name, t.name)))

    def _tables(self, by: Caller) -> list[ListedTable]:
        if not by.db_role and by.role < Role.OPERATOR:
            return []
        try:
            return self._factory.source.list_tables(by.db_role)
        except TidemarkError as error:
            log.info("tables.unlisted", code=error.code)
            return []


# The views that read a relation directly, by its source, schema and name.
_Readers = Mapping[tuple[str, str, str], list[ViewName]]


def _readers(visible: Iterable[ViewRow]) -> _Readers:
    found: dict[tuple[str, str, str], list[ViewName]] = {}
    for view in visible:
        if view.desired == DesiredState.DROPPED:
            continue
        asks = (view.plan or {}).get("asks", [])
        reads = {(one["source"], one["schema"], one["name"]) for one in asks}
        reads |= {(parent.source, parent.schema, parent.name) for parent in parents_of(view)}
        for read in reads:
            found.setdefault(read, []).append(ViewName.of(view))
    return found


def _view(view: ViewRow, readers: _Readers) -> TableModel:
    fields = view.fields or []
    return TableModel(
        schema_name=view.schema,
        name=view.name,
        kind="view",
        columns=[str(field["name"]) for field in fields],
        fields=field_models(fields),
        key=view.key or [],
        views=readers.get((VIEW_SOURCE, view.schema, view.name), []),
    )


def _relation(source: str, relation: dict[str, Any], readers: _Readers) -> TableModel:
    name = relation["name"]
    return TableModel(
        schema_name=source,
        name=name,
        kind="source",
        columns=[str(field["name"]) for field in relation["fields"]],
        fields=field_models(relation["fields"]),
        key=relation.get("key") or [],
        views=readers.get((source, source, name), []),
    )


def _table(table: ListedTable, readers: _Readers) -> TableModel:
    return TableModel(
        schema_name=table.schema,
        name=table.name,
        kind="table",
        columns=[field["name"] for field in table.fields],
        fields=field_models(table.fields),
        key=table.key,
        rows=table.rows,
        views=readers.get((MAIN_SOURCE, table.schema, table.name), []),
        table_kind=table.kind,
        references=[ReferenceModel.model_validate(found) for found in table.references],
        replica_identity=table.identity or None,
        is_published=table.is_published,
        problem=None if table.refusal is None else problem_of(table.refusal),
    )
