"""What all views together need of the relations of external sources, so that these read no more.

Invariant: a relation's requirement includes what each live view and each build needs of it, and
what views need that wait until it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from connectors.pushdown import PushdownCondition, PushdownRequirement, united
from connectors.source import MAIN_SOURCE
from dataflow.plan.properties.pushdown_requirements import requirements_of
from dataflow.schema import VIEW_SOURCE, RelationName
from service.engine.column_requirements import Read
from service.engine.definition import ViewDefinition

Needs = Mapping[RelationName, PushdownRequirement]
Readers = Callable[[], Sequence[tuple[ViewDefinition, Sequence[Read]]]]


def needs_of(definition: ViewDefinition, reads: Sequence[Read]) -> Needs:
    """Return what a view needs of each relation of an external source.

    reads: the columns that it reads or stores.
    """
    columns = {relation.name: [relation.fields[c].name for c in used] for relation, used in reads}
    external = {name: read for name, read in columns.items() if _is_external(name)}
    if not external:
        return {}
    found = {}
    for required in requirements_of(definition.plan.root):
        if required.relation in external:
            conditions = tuple(
                PushdownCondition(c.column, c.operator, c.kind, c.values)
                for c in required.conditions
            )
            read = {*required.columns, *external[required.relation]}
            found[required.relation] = PushdownRequirement(tuple(sorted(read)), conditions)
    return found


class SourceRequirements:
    """Used by the pipeline's thread. readers: the live views and builds, with what they read."""

    def __init__(self, readers: Readers) -> None:
        self._readers = readers
        self._awaited: dict[str, Needs] = {}

    def of(self, source: str) -> dict[str, PushdownRequirement]:
        """Return what is needed of each relation of a source, by its name there."""
        needs = [needs_of(definition, reads) for definition, reads in self._readers()]
        found: dict[str, list[PushdownRequirement]] = {}
        for name, needed in (item for n in (*needs, *self._awaited.values()) for item in n.items()):
            if name.source == source:
                found.setdefault(name.name, []).append(needed)
        return {name: united(parts) for name, parts in found.items()}

    def await_read(self, identity: str, needs: Needs) -> None:
        """Include what a view needs before it can be built."""
        self._awaited[identity] = needs

    def is_awaited(self, identity: str) -> bool:
        """Return True if a view waits until its relations are read."""
        return identity in self._awaited

    def forget(self, identity: str) -> None:
        """No longer include it: the view is built, or gone."""
        self._awaited.pop(identity, None)

    def retain(self, identities: Collection[str]) -> None:
        """Forget all other views: they are not to be built any more."""
        self._awaited = {i: needs for i, needs in self._awaited.items() if i in identities}


def _is_external(name: RelationName) -> bool:
    return name.source not in (MAIN_SOURCE, VIEW_SOURCE)
