"""`tidemark rows`, `diff`, `stream` and `subscriptions`: a view's rows, now and in the past.

A point is a time, a position or an epoch of the view's history (docs/HISTORY.md).
"""

from __future__ import annotations

from typing import Annotated

import typer

import tidemark
from service.cli.output import Url, client_of, console, table_of

DEFAULT_URL = tidemark.DEFAULT_URL
subscriptions = typer.Typer(no_args_is_help=True, help="Named readers of views with a history.")


def rows(
    name: str,
    as_of: Annotated[
        str | None, typer.Option(help="a time, a position or an epoch of its history")
    ] = None,
    limit: Annotated[int, typer.Option(help="maximum number of rows")] = 100,
    url: Url = DEFAULT_URL,
) -> None:
    """Print rows of a view, as they are or as they were."""
    with client_of(url) as client:
        found = client.view(name).rows(as_of=as_of, limit=limit).to_list()
    if not found:
        console.print("(no rows)")
        return
    table = table_of(*found[0]._fields)
    for row in found:
        table.add_row(*map(_cell, row))
    console.print(table)


def diff(
    name: str,
    begin: Annotated[str, typer.Argument(help="a time, a position or an epoch")],
    end: Annotated[str, typer.Argument(help="likewise; by default the newest epoch")] = "",
    limit: Annotated[int, typer.Option(help="maximum number of rows")] = 1_000,
    url: Url = DEFAULT_URL,
) -> None:
    """Print what changed in a view between two points: rows with weights."""
    with client_of(url) as client:
        found = client.view(name).diff(begin, end, limit=limit)
    console.print(f"epoch {found.begin['epoch']} to {found.end['epoch']}", highlight=False)
    table = table_of("weight", *(field.name for field in found.fields))
    for row, weight in zip(found, found.weights, strict=True):
        table.add_row(f"{weight:+}", *map(_cell, row))
    console.print(table)
    if found.next:
        console.print("there is more: raise --limit, or compare points closer to each other")


def stream(
    name: str,
    since: Annotated[str, typer.Option(help="only after this time, position or epoch")] = "",
    until: Annotated[str, typer.Option(help="end after this time, position or epoch")] = "",
    retractions: Annotated[bool, typer.Option(help="with the rows that changes undo")] = True,
    url: Url = DEFAULT_URL,
) -> None:
    """Print every change of a view in order: from its history, and then as it happens."""
    with client_of(url) as client:
        for change in client.view(name).stream(since, until, retractions=retractions):
            sign = "-" if change.undo else "+"
            at = f"{change.committed_at:%Y-%m-%d %H:%M:%S.%f%z}"
            values = (f"{n}={_cell(v)}" for n, v in change.row._asdict().items())
            console.print(f"{sign} {at} {', '.join(values)}", highlight=False)


@subscriptions.command("create")
def create_subscription(
    view: str,
    name: str,
    start: Annotated[str, typer.Option(help="a time, a position, an epoch, or newest")] = "newest",
    url: Url = DEFAULT_URL,
) -> None:
    """Create a named reader of a view."""
    with client_of(url) as client:
        _show([client.view(view).subscribe(name, start=start)])


@subscriptions.command("list")
def list_subscriptions(view: str, url: Url = DEFAULT_URL) -> None:
    """List the named readers of a view."""
    with client_of(url) as client:
        _show(client.view(view).subscriptions())


@subscriptions.command("drop")
def drop_subscription(view: str, name: str, url: Url = DEFAULT_URL) -> None:
    """Drop a named reader of a view."""
    with client_of(url) as client:
        client.view(view).unsubscribe(name)
    console.print(f"dropped {name}")


def _show(found: list[tidemark.SubscriptionState]) -> None:
    table = table_of("subscription", "status", "epoch", "newest", "oldest", "acknowledged")
    for one in found:
        table.add_row(
            f"{one.view}/{one.name}",
            one.status,
            str(one.epoch),
            str(one.newest_epoch or "-"),
            str(one.oldest_epoch or "-"),
            f"{one.acknowledged_at:%Y-%m-%d %H:%M:%S}",
        )
    console.print(table)


def _cell(value: object) -> str:
    return "" if value is None else str(value)
