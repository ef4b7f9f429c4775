"""Commands of the life of a view: replace, rebuild, pause, resume, rename, move, cancel.

Each waits until what was asked for is done, or prints why it was refused; the view is then what it
was.
"""

from __future__ import annotations

from typing import Annotated

import typer

import tidemark
from service.cli_output import Url, client_of, console, read_text

life = typer.Typer()
WaitS = Annotated[float, typer.Option(help="wait this long for it to be done")]
Cascade = Annotated[bool, typer.Option("--cascade", help="also the views that read it")]


@life.command()
def replace(
    name: str,
    query: Annotated[str, typer.Argument(help="the SELECT; - reads standard input")],
    wait_s: WaitS = 60,
    url: Url = tidemark.DEFAULT_URL,
) -> None:
    """Give a view another query; its rows stay readable until the new ones are there."""
    text = read_text(query) if query == "-" else query
    with client_of(url) as client:
        _tell(client.view(name).replace(text, wait_s=wait_s))


@life.command()
def cancel(name: str, url: Url = tidemark.DEFAULT_URL) -> None:
    """Give up what is under way for a view."""
    with client_of(url) as client:
        _tell(client.view(name).cancel())


@life.command()
def rebuild(name: str, wait_s: WaitS = 60, url: Url = tidemark.DEFAULT_URL) -> None:
    """Compute a view anew and show the difference; the way out of failed."""
    with client_of(url) as client:
        _tell(client.view(name).rebuild(wait_s=wait_s))


@life.command()
def pause(
    name: str, cascade: Cascade = False, wait_s: WaitS = 60, url: Url = tidemark.DEFAULT_URL
) -> None:
    """Leave a view's rows as they are, and compute it no longer."""
    with client_of(url) as client:
        _tell(client.view(name).pause(cascade=cascade, wait_s=wait_s))


@life.command()
def resume(
    name: str, cascade: Cascade = False, wait_s: WaitS = 60, url: Url = tidemark.DEFAULT_URL
) -> None:
    """Keep a paused view up to date again."""
    with client_of(url) as client:
        _tell(client.view(name).resume(cascade=cascade, wait_s=wait_s))


@life.command()
def rename(name: str, new: str, wait_s: WaitS = 60, url: Url = tidemark.DEFAULT_URL) -> None:
    """Give a view another name in its schema."""
    with client_of(url) as client:
        _tell(client.view(name).rename(new, wait_s=wait_s))


@life.command()
def move(name: str, schema: str, wait_s: WaitS = 60, url: Url = tidemark.DEFAULT_URL) -> None:
    """Move a view to another schema."""
    with client_of(url) as client:
        _tell(client.view(name).move(schema, wait_s=wait_s))


def _tell(view: tidemark.ViewState) -> None:
    going = view.replacing or {}
    said = f"  {going['kind']} {going['status']}" if going.get("status") else ""
    title = f"{view.schema}.{view.name}"
    console.print(f"[bold]{title}[/]  {view.status}  version {view.version}{said}")
