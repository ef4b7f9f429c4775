"""What a view reads of each source relation, and what of that the source itself applies.

A relation is read once for all views of a group, so a source omits only rows that none of them
needs. Invariant: a condition is shown as applied at the source only if no delivered row fails it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from connectors.postgres.catalog.catalog import SourceRow, ViewRow
from connectors.pushdown import (
    Pushdown,
    PushdownCondition,
    PushdownRequirement,
    follows,
    united,
)
from service.api.models import ReadFilterModel, ReadModel
from service.ingest.declared_sources import pushdown_of
from service.views.groups import group_of
from service.views.lifecycle import DesiredState, ViewState

_OTHERS = "other views of the group need rows that fail it"
# Views in these states read nothing.
_IDLE = (ViewState.PAUSED, ViewState.FAILED)

ReadFacts = Mapping[str, Any]
# Group, source, and name of a relation.
_Key = tuple[str, str, str]


class SourceReads:
    """What the views of one moment read. rows: all views."""

    def __init__(self, rows: Iterable[ViewRow], sources: Iterable[SourceRow]) -> None:
        self._declared = {source.name: source for source in sources if not source.is_database}
        self._readers: dict[_Key, list[ReadFacts]] = {}
        for row in filter(_is_reading, rows):
            for facts in (row.plan or {}).get("asks", []):
                self._readers.setdefault(_key(group_of(row), facts), []).append(facts)
        self._delivered: dict[_Key, PushdownRequirement | None] = {}

    def of_view(self, row: ViewRow) -> list[ReadModel]:
        """Return what a view reads of each relation."""
        return self.of((row.plan or {}).get("asks", []), group_of(row))

    def of(self, reads: Sequence[ReadFacts], group: str) -> list[ReadModel]:
        """Return what a view of this group reads, or would, of each relation.

        reads: of its plan, as `plan_facts.requirement_facts` returns them.
        """
        return [self._read(facts, _key(group, facts)) for facts in reads]

    def _read(self, facts: ReadFacts, key: _Key) -> ReadModel:
        pushdown = pushdown_of(self._declared.get(facts["source"]), facts["name"])
        filters = facts.get("filters", [])
        if key not in self._delivered:
            parts = [_requirement(one, pushdown) for one in self._readers.get(key, ())]
            self._delivered[key] = united(parts) if parts and not pushdown.conditions else None
        others = self._delivered[key]
        delivered = united([_requirement(facts, pushdown), *([others] if others else [])])
        return ReadModel(
            source=facts["source"],
            schema=facts["schema"],
            name=facts["name"],
            columns=facts["columns"],
            unread_columns=facts.get("unread_columns", []),
            columns_at_source=not pushdown.columns,
            columns_reason=pushdown.columns,
            conditions=facts["conditions"],
            filters=[_filter(one, pushdown, delivered) for one in filters],
        )


def lines_of(reads: Sequence[ReadModel]) -> list[str]:
    """Return the lines that follow a plan's text."""
    lines = []
    for read in reads:
        name = read.name if read.schema_name == "public" else f"{read.schema_name}.{read.name}"
        unread = f"; not read: {', '.join(read.unread_columns)}" if read.unread_columns else ""
        lines.append(f"reads {name}: {', '.join(read.columns) or 'no column'}{unread}")
        if read.unread_columns and not read.columns_at_source:
            lines.append(f"  the source delivers other columns too: {read.columns_reason}")
        for found in read.filters:
            where = "at the source" if found.at_source else "here"
            reason = f": {found.reason}" if found.reason else ""
            lines.append(f"  {where} {found.sql}{reason}")
    return lines


def _key(group: str, facts: ReadFacts) -> _Key:
    return group, facts["source"], facts["name"]


def _is_reading(view: ViewRow) -> bool:
    return view.desired != DesiredState.DROPPED and view.status not in _IDLE


def _filter(
    facts: Mapping[str, Any], pushdown: Pushdown, delivered: PushdownRequirement
) -> ReadFilterModel:
    """delivered: what the source delivers for all views."""
    reason = facts["why_not"]
    if not reason:
        condition = _condition(facts["condition"])
        reason = pushdown.why_not(condition)
        if not reason and not follows(condition, delivered.conditions):
            reason = _OTHERS
    return ReadFilterModel(sql=facts["sql"], at_source=not reason, reason=reason)


def _requirement(facts: ReadFacts, pushdown: Pushdown) -> PushdownRequirement:
    conditions = map(_condition, facts["conditions"])
    applied = tuple(c for c in conditions if not pushdown.why_not(c))
    return PushdownRequirement(tuple(facts["columns"]), applied)


def _condition(facts: Mapping[str, Any]) -> PushdownCondition:
    values = tuple(facts["values"])
    return PushdownCondition(facts["column"], facts["operator"], facts["kind"], values)
