"""Lifecycle commands of a view: replace, rebuild, pause, resume, rename, move, runtime, cancel.

Each waits until the operation is done, or prints why it failed; the view is then unchanged.
"""

from __future__ import annotations

from typing import Annotated

import typer

import tidemark
from service.cli.output import Url, client_of, console, print_problem, read_text
from service.runtime.view_names import path_name
from service.views.lifecycle import ViewState

life = typer.Typer()
WaitS = Annotated[float, typer.Option(help="seconds to wait until it is done")]
Cascade = Annotated[bool, typer.Option("--cascade", help="also the views that read it")]


@life.command()
def replace(
    name: str,
    query: Annotated[str, typer.Argument(help="the SELECT; - reads standard input")],
    wait_s: WaitS = 60,
    url: Url = tidemark.DEFAULT_URL,
) -> None:
    """Change a view's query; the old rows stay readable until the new ones are complete."""
    text = read_text(query) if query == "-" else query
    with client_of(url) as client:
        _report(client.view(name).replace(text, wait_s=wait_s))


@life.command()
def cancel(name: str, url: Url = tidemark.DEFAULT_URL) -> None:
    """Cancel the change of a view that is in progress."""
    with client_of(url) as client:
        _report(client.view(name).cancel())


@life.command()
def rebuild(
    name: Annotated[str, typer.Argument(help="the view; none with --all")] = "",
    is_all: Annotated[bool, typer.Option("--all", help="every view, one after the other")] = False,
    wait_s: WaitS = 60,
    url: Url = tidemark.DEFAULT_URL,
) -> None:
    """Compute a view again from a new snapshot; this also recovers a failed view. With --all, every
    live or failed view in order of dependency, for example after the slot was lost."""
    if bool(name) == is_all:
        raise typer.BadParameter("pass the name of a view, or --all")
    with client_of(url) as client:
        if is_all:
            _rebuild_all(client, wait_s)
        else:
            _report(client.view(name).rebuild(wait_s=wait_s))


def _rebuild_all(client: tidemark.Client, wait_s: float) -> None:
    """Rebuild in rounds until no further view can be: a view waits for those that it reads."""
    left = [v for v in client.views() if v.status in (ViewState.LIVE, ViewState.FAILED)]
    refused: dict[str, tidemark.TidemarkError] = {}
    while left:
        refused = {}
        for view in left:
            title = path_name(view.schema, view.name)
            try:
                _report(client.view(title).rebuild(wait_s=wait_s))
            except tidemark.TidemarkError as error:
                refused[title] = error
        if len(refused) == len(left):
            break
        left = [v for v in left if path_name(v.schema, v.name) in refused]
    for title, error in refused.items():
        print_problem(error.code, f"{title}: {error.what}", error.detail, error.hint)
    if refused:
        raise typer.Exit(1)


@life.command()
def pause(
    name: str, cascade: Cascade = False, wait_s: WaitS = 60, url: Url = tidemark.DEFAULT_URL
) -> None:
    """Keep a view's rows as they are and stop maintaining it."""
    with client_of(url) as client:
        _report(client.view(name).pause(cascade=cascade, wait_s=wait_s))


@life.command()
def resume(
    name: str, cascade: Cascade = False, wait_s: WaitS = 60, url: Url = tidemark.DEFAULT_URL
) -> None:
    """Rebuild a paused view and maintain it again."""
    with client_of(url) as client:
        _report(client.view(name).resume(cascade=cascade, wait_s=wait_s))


@life.command()
def rename(name: str, new: str, wait_s: WaitS = 60, url: Url = tidemark.DEFAULT_URL) -> None:
    """Rename a view in its schema."""
    with client_of(url) as client:
        _report(client.view(name).rename(new, wait_s=wait_s))


@life.command()
def move(name: str, schema: str, wait_s: WaitS = 60, url: Url = tidemark.DEFAULT_URL) -> None:
    """Move a view to another schema."""
    with client_of(url) as client:
        _report(client.view(name).move(schema, wait_s=wait_s))


@life.command()
def runtime(
    name: str,
    runtime: Annotated[str, typer.Argument(help="spark or local")],
    wait_s: WaitS = 60,
    url: Url = tidemark.DEFAULT_URL,
) -> None:
    """Maintain a view by Spark, or locally, from now on. No source is read again."""
    with client_of(url) as client:
        _report(client.view(name).change_runtime(runtime, wait_s=wait_s))


def _report(view: tidemark.ViewState) -> None:
    going = view.replacing or {}
    said = f"  {going['kind']} {going['status']}" if going.get("status") else ""
    title = f"{view.schema}.{view.name}"
    console.print(f"[bold]{title}[/]  {view.status}  version {view.version}{said}")
