"""The compiled loops of Tidemark: one module for each package that calls them."""

from tidemark_native._native import (
    VERSION,
    aggregates,
    expressions,
    files,
    formats,
    mysql,
    replication,
    storage,
    values,
    windows,
)

__all__ = [
    "VERSION",
    "aggregates",
    "expressions",
    "files",
    "formats",
    "mysql",
    "replication",
    "storage",
    "values",
    "windows",
]
