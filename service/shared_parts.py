"""What a view shares with others, out of the pipeline's figures, for plans."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from service.models import SharedPartModel


def shared_with_others(title: str, parts: Iterable[dict[str, Any]]) -> list[SharedPartModel]:
    """Of all shared parts those of one view."""
    return [
        SharedPartModel(
            what=part["what"],
            shared_with=[view for view in part["views"] if view != title],
            rows=part["rows"],
            bytes=part["bytes"],
            saved_bytes=part["bytes"] * (len(part["views"]) - 1),
            rows_in=part["rows_in"],
            rows_out=part["rows_out"],
        )
        for part in parts
        if title in part["views"]
    ]


def shown(part: SharedPartModel) -> str:
    """A line below a plan.

    >>> shown(SharedPartModel(what="distinct", shared_with=["public.b"], rows=1200, bytes=96000,
    ...     saved_bytes=96000, rows_in=0, rows_out=0))
    'shared with public.b: distinct; about 1,200 rows, 96,000 bytes kept once, 96,000 bytes saved'
    """
    text = f"shared with {', '.join(part.shared_with)}: {part.what}"
    if not part.rows:
        return text
    kept = f"about {part.rows:,} rows, {part.bytes:,} bytes kept once"
    return f"{text}; {kept}, {part.saved_bytes:,} bytes saved"
