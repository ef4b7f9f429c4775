"""Shared parts of the commands: the terminal, the client, and the output of errors.

Invariant: results go to standard output, errors to standard error. Texts from a service are never
interpreted as markup.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console, ConsoleDimensions
from rich.markup import escape
from rich.table import Table

import tidemark
from dataflow.errors import TidemarkError

if TYPE_CHECKING:
    from service.runtime.settings import Settings


class _Whole(Console):
    """A console that wraps lines on a terminal only, not in a pipe or file."""

    @property
    def size(self) -> ConsoleDimensions:
        """Columns and lines."""
        return super().size if self.is_terminal else ConsoleDimensions(100_000, 100)


console = _Whole()
complain = _Whole(stderr=True)

Url = Annotated[str, typer.Option(envvar="TIDEMARK_URL", help="where the service listens")]


@contextmanager
def client_of(url: str) -> Iterator[tidemark.Client]:
    """Yield a client; print an error of its calls and exit with code 1."""
    try:
        with tidemark.connect(url) as client:
            yield client
    except TidemarkError as error:
        position = error.position
        where = f" (line {position.line}, column {position.column})" if position else ""
        print_problem(error.code, error.what + where, error.detail, error.hint)
        raise typer.Exit(1) from None


def settings_of(**options: object) -> Settings:
    """Return the settings from options and environment; exit with code 2 if they are not valid, as
    for a wrong command line."""
    from pydantic import ValidationError

    from service.runtime.settings import PREFIX, Settings

    if not (options.get("source") or os.environ.get(f"{PREFIX}SOURCE")):
        hint = f"set {PREFIX}SOURCE to the DSN of the source database"
        if "source" in options:
            hint = f"pass --source DSN or set {PREFIX}SOURCE"
        # Source and sink default to the same database, so the sink alone is enough.
        if not (sink := os.environ.get(f"{PREFIX}SINK")) or "source" in options:
            print_problem("source.dsn", "no source given", "", hint)
            raise typer.Exit(2)
        options = {**options, "source": sink}
    try:
        return Settings.load(**options)
    except ValidationError as error:
        for fault in error.errors():
            name = ".".join(map(str, fault["loc"])) or "settings"
            detail = fault["msg"].removeprefix("Value error, ")
            hint = f"correct {PREFIX}{name.upper()} or its option; see docs/OPERATING.md"
            if not fault["loc"]:
                hint = "see docs/OPERATING.md for all settings"
            print_problem("setting.invalid", f'setting "{name}" is not valid', detail, hint)
        raise typer.Exit(2) from None


def read_text(path: str | Path) -> str:
    """Return a file's text; "-" is standard input. Exit with code 1 if it cannot be read."""
    is_input = str(path) == "-"
    shown = "standard input" if is_input else f'file "{path}"'
    try:
        content = sys.stdin.buffer.read() if is_input else Path(path).read_bytes()
        return content.decode()
    except OSError as error:
        why = error.strerror or type(error).__name__
        print_problem(
            "file.unreadable", f"{shown} cannot be read", why, "check its path and permissions"
        )
    except UnicodeDecodeError as error:
        why = f"byte {error.start} is not UTF-8"
        print_problem("file.unreadable", f"{shown} is not text", why, "save it as UTF-8")
    raise typer.Exit(1)


def read_json(path: Path) -> dict[str, Any]:
    """Return a file's JSON object; "-" is standard input."""
    shown = "standard input" if str(path) == "-" else f'file "{path}"'
    try:
        # NaN, infinity and halves of surrogate pairs cannot be sent as JSON.
        found = json.loads(read_text(path))
        json.dumps(found, allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        why, hint = str(error), "write the options as a JSON object, see docs/SOURCES.md"
        print_problem("file.not_json", f"{shown} is not JSON", why, hint)
        raise typer.Exit(1) from None
    if not isinstance(found, dict):
        why, hint = (
            f"it is a {type(found).__name__}",
            'write the options as a JSON object: {"name": ...}',
        )
        print_problem("file.not_json", f"{shown} is not a JSON object", why, hint)
        raise typer.Exit(1)
    return found


def table_of(*titles: str) -> Table:
    """Return a table that wraps long cells instead of cutting them."""
    table = Table(box=None)
    for title in titles:
        table.add_column(title, overflow="fold")
    return table


def print_problem(code: str, what: str, detail: str, hint: str) -> None:
    """Print an error with its code on standard error."""
    complain.print(f"error: {what}  [{code}]", markup=False, highlight=False, soft_wrap=True)
    for word, text in (("detail", detail), ("hint", hint)):
        if text:
            complain.print(f"  {word}: {text}", markup=False, highlight=False, soft_wrap=True)


def print_finding(fact: dict[str, str]) -> None:
    """Print a finding of `tidemark doctor`: its status, and what to do."""
    colour = {"ok": "green", "note": "yellow"}.get(fact["status"], "red")
    shown = f": {fact['found']}" if fact["found"] else ""
    console.print(f"[{colour}]{fact['status']:7}[/] {escape(fact['name'] + shown)}", soft_wrap=True)
    lines = [fact.get("what", ""), fact.get("detail", ""), fact.get("hint", "")]
    if "code" in fact:
        lines[0] += f"  [{fact['code']}]"
    lines.append(fact.get("as_whom", ""))
    for word, text in zip(("", "detail: ", "hint: ", "as: "), lines, strict=True):
        if text:
            console.print(f"        {word}{text}", markup=False, highlight=False, soft_wrap=True)
