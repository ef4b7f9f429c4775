"""The features of generated queries, each a function that adds it to a SELECT."""

from tests.harness.features import (
    aggregates,
    joins,
    recursion,
    scalars,
    set_functions,
    sets,
    subqueries,
    temporal,
    tops,
    windows,
)

__all__ = [
    "aggregates",
    "joins",
    "recursion",
    "scalars",
    "set_functions",
    "sets",
    "subqueries",
    "temporal",
    "tops",
    "windows",
]
