"""Sources and dead letters: declare, change, drop, describe.

Invariant: a relation that a view reads is neither removed nor changed. Thread-safe.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from connectors.feed_source import Reader, retaining
from connectors.postgres.catalog import source_readers
from connectors.postgres.catalog.catalog import Control, SourceRow, ViewRow
from connectors.postgres.catalog.dead_letters import DeadLetter, DeadLetters
from connectors.postgres.catalog.source_readers import SourceGrant
from connectors.postgres.session.quoting import quote_name
from connectors.source import MAIN_SOURCE
from dataflow.errors import SourceError, TemporaryError
from dataflow.schema import VIEW_SOURCE
from service.access.authorization import Authorization
from service.access.tokens import Caller
from service.api.connector_calls import ConnectorCalls
from service.api.health import source_standing
from service.api.models import FieldModel, ProblemModel
from service.api.source_models import (
    ChooseDeadLetters,
    CreateSource,
    DeadLetterModel,
    DiscoverSource,
    GrantModel,
    RelationModel,
    SourceModel,
)
from service.api.status_collector import Standings
from service.engine import output_fields
from service.factory.service_factory import ServiceFactory
from service.ingest.declared_sources import (
    connector,
    feed_source,
    keep_oids,
    relation_facts,
    retains_changes,
    with_pushdown,
)
from service.metrics.metrics import read_metrics
from service.runtime.log import log
from service.runtime.settings import DEFAULT_GROUP, Settings
from service.runtime.view_names import RESERVED_SCHEMAS
from service.views.groups import groups_on_disk
from service.views.lifecycle import DesiredState


def declared_relations(
    factory: ServiceFactory, type_name: str, options: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return the relations that options declare, as the catalog stores them. SourceError."""
    declared = connector(type_name).declare(options)
    with factory.analyzer([]) as analyzer:
        return [relation_facts(d, analyzer.declare(d.columns)) for d in declared]


class SourceCatalog:
    """One per API process; thread-safe."""

    def __init__(
        self,
        settings: Settings,
        factory: ServiceFactory,
        authorization: Authorization,
        standings: Standings,
        calls: ConnectorCalls,
    ) -> None:
        self._settings = settings
        self._calls = calls
        self._standings = standings
        self._authorization = authorization
        self._factory = factory
        self._control: Control = factory.control()
        self._letters = DeadLetters(self._control)

    # --- sources -------------------------------------------------------------------------------

    def create(self, body: CreateSource, by: Caller) -> SourceModel:
        """Declare a source. Fail if it is unreachable or differs from the declaration."""
        self._control.ensure()
        self._authorization.require(by, "source.declare")
        self._check_name(body.name)
        relations = declared_relations(self._factory, body.type, body.options)
        row = SourceRow(body.name, "", type=body.type, options=body.options, relations=relations)
        declared = replace(row, relations=self._checked(row, by))
        self._control.insert_source(declared, by.db_role)
        return self.show(body.name, by)

    def change(self, name: str, options: Mapping[str, Any], by: Caller) -> SourceModel:
        """Change a source's options; relations that views read must not change."""
        self._authorization.require(by, "source.declare")
        row = self.row(name)
        relations = declared_relations(self._factory, row.type, options)
        self._require_unread(name, keep_oids(relations, row.relations))
        changed = SourceRow(name, "", type=row.type, options=options, relations=relations)
        relations = self._checked(changed, by)
        self._control.update_source(name, options=dict(options), relations=relations)
        return self.show(name, by)

    def _checked(self, row: SourceRow, by: Caller) -> list[dict[str, Any]]:
        """Check that a source is as its row declares it; return its relations with what it makes
        of requirements.
        """

        def check() -> list[dict[str, Any]]:
            feed_source(row, self._factory.reader()).check()
            return with_pushdown(row.type, row.options, row.relations)

        return self._calls.result("source", row.name, by.name, check)

    def discover(self, body: DiscoverSource, by: Caller) -> dict[str, Any]:
        """Return the options with proposed columns."""
        self._authorization.require(by, "source.declare")
        discover = partial(connector(body.type).discover, body.options)
        return dict(self._calls.result("source", body.type, by.name, discover))

    def drop(self, name: str, by: Caller) -> None:
        """Drop a source that no view reads, with its dead letters.

        source.slot_not_dropped: it is dropped, but something was left at its database.
        """
        self._authorization.require(by, "source.drop")
        row = self.row(name)
        self._require_unread(name, {r["name"] for r in row.relations})
        self._control.delete_source(name)
        self._letters.mark_gone(name)
        try:
            self._calls.result("source", name, by.name, partial(self._release, row))
        except TemporaryError as error:
            what = f'source "{name}" was dropped, but what it retained may be left at its database'
            hint = "drop its slots and publications there"
            raise SourceError(
                "source.slot_not_dropped", what, detail=error.described, hint=hint
            ) from error

    def _release(self, row: SourceRow) -> None:
        """Let a dropped source discard what it retains for any group."""
        if not retains_changes(row.type):
            return
        for group in sorted({DEFAULT_GROUP, *groups_on_disk(self._settings.state)}):
            source = retaining(feed_source(row, Reader(self._settings.prefix, group)))
            assert source is not None
            source.release(time.monotonic())

    def retry(self, name: str, by: Caller) -> SourceModel:
        """Make the pipelines retry a source at once, without their backoff."""
        self._authorization.require(by, "source.retry")
        self.row(name)
        self._control.retry_source(name)
        return self.show(name, by)

    def show(self, name: str, by: Caller) -> SourceModel:
        """Return one source with its status."""
        row = self.row(name)
        return self._models([row], by)[0]

    def list(self, by: Caller, most: int | None = None, after: str = "") -> list[SourceModel]:
        """Return declared sources by name. most: at most so many. after: those after this name."""
        self._control.ensure()
        rows = [r for r in self._control.list_sources() if not r.is_database and r.name > after]
        return self._models(rows[:most], by)

    # --- rights --------------------------------------------------------------------------------

    def grant(self, name: str, relation: str, role: str, by: Caller) -> SourceModel:
        """Let a role of the sink, or "public", read a source, or one relation of it.

        TidemarkError source.not_owner; SourceError source.not_found, source.no_relation,
        source.no_role.
        """
        self._to_grant("source.grant", name, relation, by)
        granted_by = by.db_role or by.name
        if not source_readers.grant(self._control, name, relation, role, granted_by):
            raise SourceError(
                "source.no_role",
                f'role "{role}" does not exist in the sink',
                hint=f'CREATE ROLE {quote_name(role)}; in the sink, or grant it to "public"',
            )
        log.info("source.granted", source=name, relation=relation, role=role, by=granted_by)
        return self.show(name, by)

    def revoke(self, name: str, relation: str, role: str, by: Caller) -> SourceModel:
        """Take one grant back. Views that need it stop once their rights are checked again.

        SourceError source.grant_missing, and the errors of `grant`.
        """
        self._to_grant("source.revoke", name, relation, by)
        if not source_readers.revoke(self._control, name, relation, role):
            title = f"{name}.{relation}" if relation else name
            raise SourceError(
                "source.grant_missing",
                f'"{title}" is not granted to role "{role}"',
                detail="a grant of a source and one of its relation are taken back by themselves",
                hint="see the grants of the source",
            )
        log.info("source.revoked", source=name, relation=relation, role=role, by=by.name)
        return self.show(name, by)

    def _to_grant(self, operation: str, name: str, relation: str, by: Caller) -> None:
        """Require a source, with the relation if one is named, whose rights a caller may change."""
        self._control.ensure()
        self._authorization.require(by, operation)
        found = [r["name"] for r in self.row(name).relations]
        self._authorization.require_declared(by, operation, name)
        if relation and relation not in found:
            raise SourceError(
                "source.no_relation",
                f'source "{name}" has no relation "{relation}"',
                hint=f"its relations are: {', '.join(found)}",
            )

    # --- dead letters --------------------------------------------------------------------------

    def dead_letters(
        self, by: Caller, source: str, relation: str, limit: int, after: str
    ) -> list[DeadLetterModel]:
        """Return dead letters ordered by position, of relations that the caller may read.

        TidemarkError auth.rights if the caller may read none of the source's relations.
        """
        name = "dead_letter.list"
        readable = self._authorization.readable_relations(by, name)
        if source:
            names = [source, relation] if relation else [source]
            self._authorization.require_records(by, name, readable, *names)
        found = self._letters.read(source, relation, limit, after, among=readable)
        return [self._letter(x) for x in found]

    def choose_dead_letters(self, by: Caller, desired: str, body: ChooseDeadLetters) -> int:
        """Request that the pipelines "retry" or "drop" dead letters; return their number.

        The caller must own all views that read them: TidemarkError auth.rights.
        """
        name = "dead_letter.change"
        owned = self._authorization.owned_relations(by, name, self._control.list_views())
        of_all = [n.name for n in self._letters.counts() if n.source == body.source]
        relations = [body.relation] if body.relation else of_all
        self._authorization.require_records(by, name, owned, body.source, *relations)
        positions = [*body.positions, *body.places]
        if positions and not body.relation:
            raise SourceError("request.invalid", "`positions` requires `relation`")
        self.row(body.source)
        return self._letters.mark(desired, body.source, body.relation, positions)

    # --- inside --------------------------------------------------------------------------------

    def row(self, name: str) -> SourceRow:
        """Return a source as the catalog has it. SourceError source.not_found."""
        row = self._control.get_source(name)
        if row is None or row.is_database:
            raise SourceError(
                "source.not_found",
                f'source "{name}" does not exist',
                hint="check the name: the list of sources has all of them",
            )
        return row

    def _check_name(self, name: str) -> None:
        taken = name in (*RESERVED_SCHEMAS, MAIN_SOURCE, VIEW_SOURCE) or name.startswith("pg_")
        if not taken:
            with self._factory.analyzer([]) as analyzer:
                taken = analyzer.has_schema(name)
        if taken:
            raise SourceError(
                "source.name_taken",
                f'source "{name}" would hide a schema of that name',
                hint="choose another name: queries use it in place of a schema",
            )

    def _require_unread(self, name: str, relations: set[str]) -> None:
        views = self._control.list_views()
        readers = {v for r in relations for v in _readers(views, name, r)}
        if readers:
            raise SourceError(
                "source.in_use",
                f'relations of source "{name}" are read by views',
                detail=", ".join(sorted(readers)),
                hint="drop those views first",
            )

    def _models(self, rows: Sequence[SourceRow], by: Caller) -> list[SourceModel]:
        """Return sources as a caller may see them."""
        views, counts = self._control.list_views(), self._letters.counts()
        grants = source_readers.grants(self._control)
        declarers = source_readers.declarers(self._control)
        readable = self._authorization.readable_relations(by, "source.list")
        found = []
        for row in rows:
            model = self._model(row, views, counts)
            given = [_grant_model(g) for g in grants if g.source == row.name]
            update = {"declared_by": declarers.get(row.name), "grants": given}
            found.append(_as_visible(model.model_copy(update=update), readable))
        return found

    def _model(
        self, row: SourceRow, views: Sequence[ViewRow], counts: Mapping[Any, int]
    ) -> SourceModel:
        groups = [DEFAULT_GROUP, *sorted(groups_on_disk(self._settings.state))]
        reports = [self._figures(group).get("sources", {}).get(row.name) for group in groups]
        figures = [facts for facts in reports if facts]
        letters = {name.name: n for name, n in counts.items() if name.source == row.name}
        standing = source_standing(replace(self._standings.inputs(), views=views), row)
        return SourceModel(
            name=row.name,
            type=row.type,
            options=dict(row.options),
            relations=[
                RelationModel(
                    name=r["name"],
                    fields=[
                        FieldModel(name=f.name, type=f.type.name, nullable=f.is_nullable)
                        for f in output_fields.from_json(r["fields"])
                    ],
                    key=r["key"],
                    append_only=r["is_append"],
                    views=_readers(views, row.name, r["name"]),
                    dead_letters=letters.get(r["name"], 0),
                )
                for r in row.relations
            ],
            status=standing.status,
            error=standing.error,
            rows_read=sum(facts["rows_total"] for facts in figures),
            lag=max(facts["lag"] for facts in figures) if figures else None,
            positions=self._positions(row.name, groups),
            created_at=row.created_at.isoformat() if row.created_at else "",
        )

    def _positions(self, name: str, groups: Sequence[str]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for group in reversed(groups):
            progress = self._control.read_progress(self._settings.for_group(group).sink_key)
            found |= {} if progress is None else progress.positions.get(name, {})
        return found

    def _figures(self, group: str) -> dict[str, Any]:
        return read_metrics(self._settings.for_group(group).state) or {}

    def _letter(self, letter: DeadLetter) -> DeadLetterModel:
        group = letter.sink_key.removeprefix(self._settings.prefix).removeprefix("/")
        return DeadLetterModel(
            source=letter.source,
            relation=letter.relation,
            position=letter.position,
            place=letter.position,
            group=group or DEFAULT_GROUP,
            code=letter.code,
            reason=letter.reason,
            key=_text(letter.key),
            key_base64=_base64(letter.key),
            value=_text(letter.value),
            value_base64=_base64(letter.value),
            desired=letter.desired,
            first_seen=letter.first_seen.isoformat(),
        )


def _grant_model(grant: SourceGrant) -> GrantModel:
    return GrantModel(
        relation=grant.relation or None,
        role=grant.role,
        granted_by=grant.granted_by,
        granted_at=grant.granted_at.isoformat(),
    )


def _as_visible(source: SourceModel, readable: set[tuple[str, str]] | None) -> SourceModel:
    """Return a source without what may quote its records, unless the caller may read all of them.

    Of the error only its code remains; positions can be values of a record.
    """
    every = {(source.name, relation.name) for relation in source.relations}
    if readable is None or readable.issuperset(every):
        return source
    error = source.error
    if error is not None:
        error = ProblemModel(title=error.code, status=error.status, code=error.code)
    return source.model_copy(update={"error": error, "positions": {}})


def readers_of_relation(views: Sequence[ViewRow], source: str, relation: str) -> list[ViewRow]:
    """Return the views that read a relation and are not being dropped."""
    staying = [v for v in views if v.desired != DesiredState.DROPPED]
    return [v for v in staying if [source, relation] in (v.plan or {}).get("reads", [])]


def _readers(views: Sequence[ViewRow], source: str, relation: str) -> list[str]:
    return [view.title for view in readers_of_relation(views, source, relation)]


def _text(raw: bytes | None) -> str | None:
    return None if raw is None else raw.decode(errors="replace")


def _base64(raw: bytes | None) -> str | None:
    return None if raw is None else base64.b64encode(raw).decode()
