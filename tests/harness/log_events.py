"""The events that the code base logs, read from its syntax trees."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.harness.error_codes import ROOMS

LEVELS = {"debug", "info", "warning", "error", "exception"}
# Names that stand for one of the logger's methods.
ALIASES = {"log_event"}


def events_of(root: Path) -> dict[str, str]:
    """(event -> a place that logs it)."""
    found: dict[str, str] = {}
    for path in (p for room in ROOMS for p in sorted((root / room).rglob("*.py"))):
        tree = ast.parse(path.read_text())
        named = _assigned(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and node.args and _is_logging(node.func):
                place = f"{path.relative_to(root).as_posix()}:{node.lineno}"
                given = node.args[0]
                value = named.get(given.id, given) if isinstance(given, ast.Name) else given
                found.update({text: place for text in _texts(value)})
    return found


def _is_logging(function: ast.expr) -> bool:
    if isinstance(function, ast.Name):
        return function.id in ALIASES
    return (
        isinstance(function, ast.Attribute)
        and function.attr in LEVELS
        and ast.unparse(function.value) == "log"
    )


def _assigned(tree: ast.Module) -> dict[str, ast.expr]:
    """What is assigned to names called `event`."""
    return {
        target.id: node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name) and target.id == "event"
    }


def _texts(node: ast.expr) -> list[str]:
    """The event, or both of a choice."""
    if isinstance(node, ast.IfExp):
        return [*_texts(node.body), *_texts(node.orelse)]
    return [node.value] if isinstance(node, ast.Constant) and "." in str(node.value) else []
