"""The live views of an engine by name, and a version of that mapping.

What is computed from the views once and used for longer is stored with the version that it was
computed from. Invariant: whatever adds, removes or replaces a view changes the version, and no two
mappings of a process have had the same one.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, KeysView, MutableMapping, ValuesView
from itertools import count

from dataflow.schema import RelationName
from service.engine.definition import ViewDefinition

_VERSIONS = count()


class LiveViews(MutableMapping[RelationName, ViewDefinition]):
    """See the module. In the order in which views were added."""

    def __init__(self) -> None:
        self._found: dict[RelationName, ViewDefinition] = {}
        self.version = next(_VERSIONS)

    def __getitem__(self, name: RelationName) -> ViewDefinition:
        return self._found[name]

    def __setitem__(self, name: RelationName, definition: ViewDefinition) -> None:
        self._found[name] = definition
        self.version = next(_VERSIONS)

    def __delitem__(self, name: RelationName) -> None:
        del self._found[name]
        self.version = next(_VERSIONS)

    def __iter__(self) -> Iterator[RelationName]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def keys(self) -> KeysView[RelationName]:
        """As of dict."""
        return self._found.keys()

    def values(self) -> ValuesView[ViewDefinition]:
        """As of dict."""
        return self._found.values()

    def items(self) -> ItemsView[RelationName, ViewDefinition]:
        """As of dict."""
        return self._found.items()
