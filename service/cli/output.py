"""What all commands share: the terminal, the client, and how an error is shown.

What people asked for goes to standard output, what went wrong to standard error; nothing is printed
that a service has not told, and a text of its own is never taken for markup.
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
    """A terminal as wide as it is; a pipe or a file as wide as what goes there."""

    @property
    def size(self) -> ConsoleDimensions:
        """Columns and lines."""
        return super().size if self.is_terminal else ConsoleDimensions(100_000, 100)


console = _Whole()
complain = _Whole(stderr=True)

Url = Annotated[str, typer.Option(envvar="TIDEMARK_URL", help="where the service listens")]


@contextmanager
def client_of(url: str) -> Iterator[tidemark.Client]:
    """A client; an error of its calls is printed and ends the command with exit code 1."""
    try:
        with tidemark.connect(url) as client:
            yield client
    except TidemarkError as error:
        position = error.position
        where = f" (line {position.line}, column {position.column})" if position else ""
        print_problem(error.code, error.what + where, error.detail, error.hint)
        raise typer.Exit(1) from None


def settings_of(**options: object) -> Settings:
    """The settings by options and environment; what is missing or wrong ends the command with exit
    code 2, as does a wrong command line."""
    from pydantic import ValidationError

    from service.runtime.settings import PREFIX, Settings

    if not (options.get("source") or os.environ.get(f"{PREFIX}SOURCE")):
        hint = f"set {PREFIX}SOURCE to the DSN of the source database"
        if "source" in options:
            hint = f"pass --source DSN or set {PREFIX}SOURCE"
        # The sink is the source where nobody says otherwise: that one alone will do.
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
            hint = f"{PREFIX}{name.upper()} or its option; docs/OPERATING.md has all of them"
            if not fault["loc"]:
                hint = "docs/OPERATING.md has all settings"
            print_problem("setting.invalid", f'setting "{name}" is wrong', detail, hint)
        raise typer.Exit(2) from None


def read_text(path: str | Path) -> str:
    """What a file holds; "-" stands for standard input. What cannot be read ends the command."""
    is_input = str(path) == "-"
    shown = "standard input" if is_input else f'file "{path}"'
    try:
        content = sys.stdin.buffer.read() if is_input else Path(path).read_bytes()
        return content.decode()
    except OSError as error:
        why = error.strerror or type(error).__name__
        print_problem(
            "file.unreadable", f"{shown} cannot be read", why, "check its path and rights"
        )
    except UnicodeDecodeError as error:
        why = f"byte {error.start} is not UTF-8"
        print_problem("file.unreadable", f"{shown} is no text", why, "write it as UTF-8")
    raise typer.Exit(1)


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object that a file holds; "-" stands for standard input."""
    shown = "standard input" if str(path) == "-" else f'file "{path}"'
    try:
        # Of numbers that JSON has not, and halves of surrogate pairs, nothing can be sent.
        found = json.loads(read_text(path))
        json.dumps(found, allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        why, hint = str(error), "options are a JSON object, as docs/SOURCES.md shows them"
        print_problem("file.not_json", f"{shown} is no JSON", why, hint)
        raise typer.Exit(1) from None
    if not isinstance(found, dict):
        why, hint = f"it is a {type(found).__name__}", 'options are a JSON object: {"name": ...}'
        print_problem("file.not_json", f"{shown} is no JSON object", why, hint)
        raise typer.Exit(1)
    return found


def table_of(*titles: str) -> Table:
    """A table that cuts nothing: what is too long for a terminal goes on in the next line."""
    table = Table(box=None)
    for title in titles:
        table.add_column(title, overflow="fold")
    return table


def print_problem(code: str, what: str, detail: str, hint: str) -> None:
    """An error on standard error, with its code."""
    complain.print(f"error: {what}  [{code}]", markup=False, highlight=False, soft_wrap=True)
    for word, text in (("detail", detail), ("hint", hint)):
        if text:
            complain.print(f"  {word}: {text}", markup=False, highlight=False, soft_wrap=True)


def print_finding(fact: dict[str, str]) -> None:
    """A line of `tidemark doctor`: ok, note or problem, and what to do."""
    colour = {"ok": "green", "note": "yellow"}.get(fact["status"], "red")
    shown = f": {fact['found']}" if fact["found"] else ""
    console.print(f"[{colour}]{fact['status']:7}[/] {escape(fact['name'] + shown)}", soft_wrap=True)
    lines = [fact.get("what", ""), fact.get("detail", ""), fact.get("hint", "")]
    if "code" in fact:
        lines[0] += f"  [{fact['code']}]"
    for word, text in zip(("", "detail: ", "hint: "), lines, strict=True):
        if text:
            console.print(f"        {word}{text}", markup=False, highlight=False, soft_wrap=True)
