"""What all commands share: the terminal, the client, and how an error is shown.

What people asked for goes to standard output, what went wrong to standard error; nothing is printed
that a service has not told, and a text of its own is never taken for markup.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

import tidemark
from dataflow.errors import TidemarkError

console = Console()
complain = Console(stderr=True)

Url = Annotated[str, typer.Option(envvar="TIDEMARK_URL", help="where the service listens")]


@contextmanager
def client_of(url: str) -> Iterator[tidemark.Client]:
    """A client; an error of its calls is printed and ends the command with exit code 1."""
    try:
        with tidemark.connect(url) as client:
            yield client
    except TidemarkError as error:
        place = error.position
        where = f" (line {place.line}, column {place.column})" if place else ""
        print_problem(error.code, error.what + where, error.detail, error.hint)
        raise typer.Exit(1) from None


def read_json(path: Path) -> dict[str, Any]:
    """What a file of JSON holds; "-" stands for standard input."""
    text = typer.get_text_stream("stdin").read() if str(path) == "-" else path.read_text()
    return json.loads(text)


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
    told = [fact.get("what", ""), fact.get("detail", ""), fact.get("hint", "")]
    if "code" in fact:
        told[0] += f"  [{fact['code']}]"
    for word, text in zip(("", "detail: ", "hint: "), told, strict=True):
        if text:
            console.print(f"        {word}{text}", markup=False, highlight=False, soft_wrap=True)
