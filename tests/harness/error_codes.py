"""The error codes that the code base can raise, read from its syntax trees.

A code stands as the first argument of an error, as the argument `code=` or its default, or is
assigned to a name `code`. One that is computed has its template in COMPUTED with all that it may
become; a template that is not there is an error of the test that asks.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

CODE = re.compile(r"[a-z]+\.[a-z_]+|internal")
ROOMS = ("service", "dataflow", "storage", "connectors")
ERRORS = {
    "TidemarkError",
    "SqlError",
    "SourceError",
    "SinkError",
    "TemporaryError",
    "RetryLaterError",
    "ViewError",
    "OverBudgetError",
    "InvariantError",
    "StorageError",
}
# Calls whose first argument is a code, beside the errors themselves.
MAKERS = {
    "_fail",
    "print_problem",
    "Refused",
    "kind",
    "_ERRORS[side]",
    "ERRORS[self.side]",
    "super().__init__",
}
SIDES = ("source", "sink")
COMPUTED = {
    "{side}.unreachable": [f"{side}.unreachable" for side in SIDES],
    "{side}.privilege": [f"{side}.privilege" for side in SIDES],
    "{side}.login": [f"{side}.login" for side in SIDES],
    "{side}.database": [f"{side}.database" for side in SIDES],
    "{side}.role_missing": [f"{side}.role_missing" for side in SIDES],
    "{side}.own_database": [f"{side}.own_database" for side in SIDES],
    "{side}.dsn": [f"{side}.dsn" for side in SIDES],
    "{self.side}.bad_option": [f"{side}.bad_option" for side in SIDES],
    "{self.side}.unreachable": [f"{side}.unreachable" for side in SIDES],
    "{self.side}.privilege": [f"{side}.privilege" for side in SIDES],
    "{self.side}.login": [f"{side}.login" for side in SIDES],
    "{self.side}.tls": [f"{side}.tls" for side in SIDES],
    "{self.side}.failed": [f"{side}.failed" for side in SIDES],
    "{use.side}.{name}": [
        f"{side}.{name}" for side in SIDES for name in ("process_ended", "process_memory")
    ],
    "{side}.busy": [f"{side}.busy" for side in SIDES],
    "{side}.failed": [f"{side}.failed" for side in SIDES],
    "{side}.{found.name}": [
        f"{side}.{name}"
        for side in SIDES
        for name in (
            *("unreachable", "busy", "login", "database", "privilege", "dsn", "tls", "pooler"),
        )
    ],
    "history.{name}": [
        f"history.{name}" for name in ("none", "too_old", "not_reached", "bad_point", "lost")
    ],
    "sql.{name}": ["sql.<condition>", "sql.failed"],
}


def codes_of(root: Path) -> tuple[dict[str, str], list[str]]:
    """(code -> a place that raises it, places whose code is none)."""
    found: dict[str, str] = {}
    faults: list[str] = []
    paths = [p for room in ROOMS for p in sorted((root / room).rglob("*.py"))]
    for path in [*paths, root / "tidemark.py"]:
        for node, text, is_sure in _candidates(ast.parse(path.read_text())):
            place = f"{path.relative_to(root).as_posix()}:{node.lineno}"
            for code in COMPUTED.get(text, [text]):
                if CODE.fullmatch(code) or code == "sql.<condition>":
                    found.setdefault(code, place)
                elif is_sure:
                    faults.append(f"{place}: {code}")
    return found, faults


def _candidates(tree: ast.Module) -> Iterator[tuple[ast.expr | ast.stmt, str, bool]]:
    """(node, text, whether it can be nothing but a code)."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            name = called.split(".")[-1]
            if node.args and (name in ERRORS or called in MAKERS):
                is_sure = name in ERRORS or called == "_ERRORS[side]"
                yield from ((node, text, is_sure) for text in _texts(node.args[0]))
            for keyword in node.keywords:
                if keyword.arg == "code":
                    yield from ((node, text, True) for text in _texts(keyword.value) if text)
        elif isinstance(node, ast.Assign) and any(_names_code(t) for t in node.targets):
            texts = list(_texts(node.value))
            yield from ((node, text, False) for text in texts if CODE.fullmatch(text))
        elif isinstance(node, ast.AnnAssign) and node.value and _names_code(node.target):
            yield from ((node, text, True) for text in _texts(node.value) if text)
        elif isinstance(node, ast.arguments):
            own = node.args[len(node.args) - len(node.defaults) :]
            for argument, value in zip(own, node.defaults, strict=True):
                if argument.arg == "code":
                    yield from ((value, text, True) for text in _texts(value) if text)


def _names_code(target: ast.expr) -> bool:
    return any(isinstance(n, ast.Name) and n.id == "code" for n in ast.walk(target))


def _texts(node: ast.expr) -> Iterator[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        parts = (
            str(v.value) if isinstance(v, ast.Constant) else ast.unparse(v).strip("f'\"")
            for v in node.values
        )
        yield "".join(parts)
    elif isinstance(node, ast.BoolOp):
        for value in node.values:
            yield from _texts(value)
    elif isinstance(node, ast.IfExp):
        yield from _texts(node.body)
        yield from _texts(node.orelse)
    elif isinstance(node, ast.Tuple):
        for element in node.elts:
            yield from _texts(element)
