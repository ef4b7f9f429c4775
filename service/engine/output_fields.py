"""A view's output fields as JSON, the form stored in the control tables.

Invariant: fields that an earlier version stored are read; what it did not know has its default.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dataflow.schema import Field
from dataflow.types import SqlType, TypeKind


def to_json(fields: Iterable[Field]) -> list[dict[str, Any]]:
    """Return the fields with everything that `from_json` needs."""
    return [
        {
            "name": f.name,
            "type": f.type.name,
            "nullable": f.is_nullable,
            "oid": f.type.oid,
            "typmod": f.type.typmod,
            "is_bytewise": f.type.is_bytewise,
            "collation": f.type.collation,
            "kind": f.type.kind.value,
            "scale": f.type.scale,
            "is_enum": f.type.is_enum,
            "is_deterministic": f.type.is_deterministic,
            "hashing": f.type.hashing,
            "null_paths": list(f.type.null_paths),
        }
        for f in fields
    ]


def from_json(facts: Iterable[Mapping[str, Any]]) -> tuple[Field, ...]:
    """Return the fields that `to_json` encoded.

    >>> from dataflow.types import fixed
    >>> mood = SqlType("mood", 70001, -1, TypeKind.OPAQUE, is_enum=True)
    >>> fields = (Field("price", fixed(12, 2), False), Field("mood", mood))
    >>> from_json(to_json(fields)) == fields
    True
    """
    return tuple(
        Field(
            f["name"],
            SqlType(
                f["type"],
                f["oid"],
                f["typmod"],
                TypeKind(f["kind"]),
                f["scale"],
                f["is_bytewise"],
                f["collation"],
                f["is_enum"],
                f["is_deterministic"],
                f.get("hashing", ""),
                null_paths=tuple(f.get("null_paths", ())),
            ),
            f["nullable"],
        )
        for f in facts
    )
