"""Oracle: the program itself. What the pages, and the console, give to be copied is checked with
the client's own types, the API's routes, the procedures of psql and JSON's grammar."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

from fastapi.routing import APIRoute

import tidemark
from connectors.postgres.schema.schema_setup import STEPS
from service.api import routes as routes_
from tests.test_documentation import PAGES, ROOT, name_of, report

BLOCK = re.compile(r"^( *)```(\w+)[^\n]*\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
USE_TAB = ROOT / "service" / "console" / "src" / "screens" / "view_use.tsx"
SNIPPET = re.compile(r'<Snippet\s+label="([^"]+)"\s+text=\{`((?:[^`\\]|\\.)*)`\}', re.DOTALL)
# What a page's reader has at hand.
KNOWN: dict[str, type] = {
    "client": tidemark.Client,
    "view": tidemark.View,
    "engine": tidemark.Engine,
}
PREAMBLE = "import tidemark\nclient: tidemark.Client\nview: tidemark.View\n"
INLINE = re.compile(r"`((?:client|view|engine)\.[a-z_]+\([^`\n]*\))`")
CURL = re.compile(r"^\s*curl (?:[^\n]|\\\n)*", re.MULTILINE)
PLACE = re.compile(r"https?://[^/'\" ]+(/[^'\" ?\n]*)")


def blocks(language: str) -> Iterator[tuple[str, int, str]]:
    """(page, line, text) of each block of a language."""
    for page in PAGES:
        text = page.read_text()
        for indent, kind, body in BLOCK.findall(text):
            if kind == language:
                line = text[: text.index(body)].count("\n") + 1
                yield name_of(page), line, re.sub(f"^{indent}", "", body, flags=re.MULTILINE)


def console_snippets() -> dict[str, str]:
    """What the console gives to be copied, of a view of some name."""
    found = {}
    for label, text in SNIPPET.findall(USE_TAB.read_text()):
        known = {
            "location.origin": "http://127.0.0.1:8000",
            "JSON.stringify(name)": '"sales.revenue"',
            "table": "sales.revenue",
            "path": "http://127.0.0.1:8000/views/sales.revenue",
            "bearer": "",
            'newest ?? "0/1A2B3C"': "0/1A2B3C",
        }
        filled = re.sub(r"\$\{([^}]*)\}", lambda m, known=known: known[m[1]], text)
        found[label] = filled.replace("\\n", "\n")
    return found


def plain(text: str) -> str:
    """A session of the interpreter as a program."""
    if not text.startswith(">>> "):
        return text
    lines = [line[4:] for line in text.splitlines() if line.startswith((">>> ", "... "))]
    return "\n".join(lines) + "\n"


def test_python_is_of_the_clients_types(tmp_path: Path) -> None:
    """Each page is one program: what it has named before stays named."""
    pages: dict[str, list[str]] = {}
    for page, _, text in blocks("python"):
        pages.setdefault(page, [PREAMBLE]).append(plain(text))
    pages["console"] = [text for label, text in console_snippets().items() if label == "Python"]
    assert len(pages) > 4 and pages["console"]
    for page, texts in pages.items():
        (tmp_path / f"{re.sub('[^a-z]', '_', page.lower())}.py").write_text("\n".join(texts))
    rules = dict.fromkeys(
        ("AttributeAccessIssue", "CallIssue", "IndexIssue", "ArgumentType", "UndefinedVariable"),
        "error",
    )
    settings = {
        "include": [str(tmp_path)],
        "extraPaths": [str(ROOT)],
        "typeCheckingMode": "off",
        **{f"report{name}": level for name, level in rules.items()},
    }
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable]
    done = subprocess.run(
        [*command, "-p", str(tmp_path)], capture_output=True, text=True, check=False
    )
    told = json.loads(done.stdout)
    assert told["summary"]["filesAnalyzed"] == len(pages)
    # Some libraries make their names as they are loaded.
    found = [d for d in told["generalDiagnostics"] if "unknown import symbol" not in d["message"]]
    report([f"{Path(d['file']).name}: {d['message']}" for d in found])


def calls_of(text: str) -> Iterator[ast.Call]:
    """The calls in an expression, the innermost one last; nothing of what is no expression."""
    node: Any = ast.parse(text.replace("...", "*_"), mode="eval").body
    while isinstance(node, ast.Call | ast.Attribute):
        if isinstance(node, ast.Call):
            yield node
        node = node.func if isinstance(node, ast.Call) else node.value


def test_calls_that_are_named_are_there() -> None:
    faults, seen = [], 0
    for page in PAGES:
        for text in INLINE.findall(page.read_text()):
            call = list(calls_of(text))[-1]
            assert isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Name)
            seen += 1
            found = getattr(KNOWN[call.func.value.id], call.func.attr, None)
            if found is None:
                faults.append(f"{name_of(page)}: {text}: there is no such call")
                continue
            given = [a for a in call.args if not isinstance(a, ast.Starred)]
            try:
                names = {k.arg: None for k in call.keywords if k.arg}
                inspect.signature(found).bind_partial(None, *given, **names)
            except TypeError as error:
                faults.append(f"{name_of(page)}: {text}: {error}")
    assert seen > 30
    report(faults)


def test_json_is_json() -> None:
    faults = []
    for page, line, text in blocks("json"):
        try:
            json.loads(text.replace("[...]", "[]"))
        except ValueError as error:
            faults.append(f"{page}:{line}: {error}")
    report(faults)


def known_routes() -> list[tuple[str, re.Pattern[str]]]:
    modules = [importlib.import_module(f"service.api.routes.{m.name}")
               for m in iter_modules(routes_.__path__)]  # fmt: skip
    routes = [r for m in modules if hasattr(m, "router") for r in m.router.routes]
    return [
        (method, re.compile(re.sub(r"\{[^}]*\}", "[^/]+", route.path)))
        for route in routes
        if isinstance(route, APIRoute)
        for method in route.methods
    ]


def requests_of(text: str) -> Iterator[tuple[str, str]]:
    """(method, path) of each curl."""
    for command in CURL.findall(text):
        if found := PLACE.search(command):
            asked = re.search(r"-X ([A-Z]+)", command)
            has_body = re.search(r" (?:-d|--data\S*|--json) ", command) and " -G " not in command
            yield (asked[1] if asked else "POST" if has_body else "GET"), found[1].rstrip("/;")


def test_requests_of_curl_are_routes() -> None:
    texts = [(page, text) for kind in ("sh", "bash") for page, _, text in blocks(kind)]
    texts += [("console", text) for text in console_snippets().values()]
    routes, faults, seen = known_routes(), [], 0
    for page, text in texts:
        for method, path in requests_of(text):
            seen += 1
            if not any(m == method and route.fullmatch(path) for m, route in routes):
                faults.append(f"{page}: {method} {path}")
    assert seen > 10
    report(faults)


def test_what_is_called_in_psql_is_there() -> None:
    made = "\n".join(STEPS)
    known = set(re.findall(r"(?:PROCEDURE|FUNCTION|TABLE|VIEW) tidemark\.(\w+)", made))
    faults = []
    texts = [(page, text) for kind in ("sql", "sh") for page, _, text in blocks(kind)]
    texts += [("console", text) for text in console_snippets().values()]
    for page in PAGES:
        texts.append((name_of(page), "\n".join(re.findall(r"`([^`\n]*)`", page.read_text()))))
    for page, text in texts:
        for name in re.findall(r"(?:CALL|SELECT) tidemark\.(\w+)\(", text):
            if name not in known:
                faults.append(f"{page}: tidemark.{name}")
    report(faults)
