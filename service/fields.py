"""A view's output fields as JSON, the way the control tables keep them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dataflow.schema import Field
from dataflow.types import sql_type


def to_json(fields: Iterable[Field]) -> list[dict[str, Any]]:
    """Fields with all that `from_json` needs."""
    return [
        {
            "name": f.name,
            "type": f.type.name,
            "nullable": f.is_nullable,
            "oid": f.type.oid,
            "typmod": f.type.typmod,
            "is_bytewise": f.type.is_bytewise,
            "collation": f.type.collation,
        }
        for f in fields
    ]


def from_json(facts: Iterable[Mapping[str, Any]]) -> tuple[Field, ...]:
    """The fields again.

    >>> from dataflow.types import fixed
    >>> fields = (Field("price", fixed(12, 2), False),)
    >>> from_json(to_json(fields)) == fields
    True
    """
    return tuple(
        Field(
            f["name"],
            sql_type(
                f["type"],
                f["oid"],
                f["typmod"],
                is_bytewise=f["is_bytewise"],
                collation=f["collation"],
            ),
            f["nullable"],
        )
        for f in facts
    )
