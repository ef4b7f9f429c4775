"""The delta types of `storage`, re-exported for the layers above it."""

from storage.delta import Column, Delta, equal_rows, group_rows, hash_columns, row_hashes
from storage.kinds import KIND_BOOL, KIND_BYTES, KIND_FLOAT, KIND_INT

__all__ = [
    "KIND_BOOL",
    "KIND_BYTES",
    "KIND_FLOAT",
    "KIND_INT",
    "Column",
    "Delta",
    "equal_rows",
    "group_rows",
    "hash_columns",
    "row_hashes",
]
