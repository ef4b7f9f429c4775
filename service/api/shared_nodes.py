"""The nodes of a view, and the parts that it shares with others, from the pipeline's figures.

The figures are about a second old. A view that does not run has the nodes of its plan, without
figures. They are for display only.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from service.api.models import DataflowAnswer, NodeModel, SharedPartModel


def dataflow_of(
    title: str, figures: dict[str, Any], planned: Iterable[dict[str, Any]]
) -> DataflowAnswer:
    """Return the nodes of one view. figures: the pipeline's `dataflow.json`. planned: nodes of the
    view's plan, used if it does not run."""
    nodes = [node for node in figures["nodes"] if title in node["views"]]
    if not nodes:
        return DataflowAnswer(nodes=[NodeModel(**node) for node in planned], at=None, since=None)
    own = {node["id"] for node in nodes}
    read = {below for node in nodes for below in node["inputs"]} - own
    above = [_boundary(node) for node in figures["nodes"] if node["id"] in read]
    found = [*above, *(_model(title, node) for node in nodes)]
    return DataflowAnswer(nodes=found, at=figures["at"], since=figures["since"])


def _model(title: str, node: dict[str, Any]) -> NodeModel:
    others = [view for view in node["views"] if view != title]
    facts = {name: node[name] for name in NodeModel.model_fields if name in node}
    return NodeModel(**facts, shared_with=others)


def _boundary(node: dict[str, Any]) -> NodeModel:
    """Return the output node of a view that this view reads; its inputs belong to that view."""
    counts = {"rows_out": node["rows_out"]}
    detail = f"rows of {', '.join(node['output_of'])}"
    return NodeModel(id=node["id"], what="view", detail=detail, inputs=[], **counts)


def state_bytes(figures: dict[str, Any]) -> dict[str, float]:
    """Return the state's bytes by view title; views share the bytes of a shared node equally."""
    found: dict[str, float] = {}
    for node in figures["nodes"]:
        for view in node["views"]:
            found[view] = found.get(view, 0) + node["bytes"] / len(node["views"])
    return found


def shared_with_others(title: str, nodes: Iterable[dict[str, Any]]) -> list[SharedPartModel]:
    """Return the shared parts of one view."""
    return [
        SharedPartModel(
            what=part["detail"],
            shared_with=[view for view in part["views"] if view != title],
            rows=part["rows"],
            bytes=part["bytes"],
            saved_bytes=part["bytes"] * (len(part["views"]) - 1),
            rows_in=part["rows_in"],
            rows_out=part["rows_out"],
        )
        for part in nodes
        if part["is_part"] and title in part["views"]
    ]


def shown(part: SharedPartModel) -> str:
    """Return the line about a shared part below a plan.

    >>> shown(SharedPartModel(what="distinct", shared_with=["public.b"], rows=1200, bytes=96000,
    ...     saved_bytes=96000, rows_in=0, rows_out=0))
    'shared with public.b: distinct; about 1,200 rows, 96,000 bytes stored once, 96,000 bytes saved'
    """
    text = f"shared with {', '.join(part.shared_with)}: {part.what}"
    if not part.rows:
        return text
    size = f"about {part.rows:,} rows, {part.bytes:,} bytes stored once"
    return f"{text}; {size}, {part.saved_bytes:,} bytes saved"
