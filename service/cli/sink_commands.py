"""Commands about additional sinks of views, by REST.

The options of a sink are a JSON file, in the form of POST /views/{view}/sinks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import tidemark
from service.cli.output import Url, client_of, console, read_json, table_of

sinks = typer.Typer(no_args_is_help=True, help="Additional sinks of views: Kafka topics.")


@sinks.command("create")
def create_sink(
    view: str,
    name: str,
    options: Annotated[Path, typer.Argument(help="a JSON file, - for standard input")],
    wait_s: Annotated[float, typer.Option(help="seconds to wait until it is live")] = 60,
    url: Url = tidemark.DEFAULT_URL,
) -> None:
    """Also write a live view to a Kafka topic."""
    with client_of(url) as client:
        _show([client.view(view).create_sink(name, read_json(options), wait_s=wait_s)])


@sinks.command("list")
def list_sinks(view: str, url: Url = tidemark.DEFAULT_URL) -> None:
    """List the additional sinks of a view."""
    with client_of(url) as client:
        _show(client.view(view).sinks())


@sinks.command("drop")
def drop_sink(
    view: str,
    name: str,
    drop_topic: Annotated[bool, typer.Option("--drop-topic", help="delete its topics")] = False,
    url: Url = tidemark.DEFAULT_URL,
) -> None:
    """Stop writing a view to a sink."""
    with client_of(url) as client:
        is_gone = client.view(view).drop_sink(name, drop_topic=drop_topic)
    console.print(f"dropped {name}" if is_gone else f"{name} is being dropped")


def _show(found: list[tidemark.SinkState]) -> None:
    table = table_of("sink", "type", "status", "topic", "epoch", "backlog bytes", "error")
    for sink in found:
        table.add_row(
            f"{sink.view}/{sink.name}",
            sink.type,
            sink.status,
            sink.options.get("topic", ""),
            str(sink.epoch or "-"),
            f"{sink.backlog_bytes or 0:,}",
            sink.error.code if sink.error else "",
        )
    console.print(table)
