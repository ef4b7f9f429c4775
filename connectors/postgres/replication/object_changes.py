"""The effect of a changed object on a query that rests on it: none, or a rebuild.

Pure: the object as it was and as it is in, a judgement out. Invariant: a query without an error has
the same answer as before. PostgreSQL's own views keep objects by oid, and what we evaluate names
them: so another name counts as a change, except for ordinary views, whose names are tracked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from connectors.postgres.replication.used_objects import UsedObject
from dataflow.errors import SourceError
from dataflow.schema import RelationName

_CALLED_BY_NAME = ("pg_proc", "pg_type", "pg_operator", "pg_collation")
_HINT = "rebuild the view, or replace it with one that fits"


def why_outdated(
    used: Iterable[UsedObject], now: Mapping[tuple[str, int], UsedObject], relation: RelationName
) -> SourceError | None:
    """Return why a query that rests on these objects has another meaning now; None if it has not.

    relation: what the error names as affected. SourceError source.definition_changed.
    """
    for before in used:
        why = difference(before, now.get(before.key))
        if why:
            what = f'{before.kind} "{before.name}", which the query uses, {why}'
            return SourceError("source.definition_changed", what, hint=_HINT, relation=relation)
    return None


def difference(before: UsedObject, now: UsedObject | None) -> str:
    """Return what has happened to an object, in words; "" if nothing that matters."""
    if now is None:
        return "was dropped"
    if before.catalog in _CALLED_BY_NAME and now.name != before.name:
        return f'is now called "{now.name}"'
    if now.content != before.content:
        return "was changed"
    if now.labels[: len(before.labels)] != before.labels:
        # New values behind the others leave their order as it was.
        is_renamed = renamed_values(before, now)
        return "had values renamed" if is_renamed else "had values added between others"
    return ""


def renamed_values(before: UsedObject, now: UsedObject) -> dict[str, str]:
    """Return the values of an enum that are called otherwise now, by their old names."""
    found = dict(now.labels)
    return {
        label: found[oid] for oid, label in before.labels if oid in found and found[oid] != label
    }
