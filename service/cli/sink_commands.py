"""Commands about additional sinks of views, by REST.

The options of a sink are a JSON file, in the form of POST /views/{view}/sinks.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

import tidemark
from service.cli.output import Url, client_of, console, read_json, table_of

sinks = typer.Typer(no_args_is_help=True, help="Additional sinks of views.")


@sinks.command("create")
def create_sink(
    view: str,
    name: str,
    options: Annotated[Path, typer.Argument(help="a JSON file, - for standard input")],
    *,
    type_name: Annotated[str, typer.Option("--type", help="type of the sink")] = "kafka",
    wait_s: Annotated[float, typer.Option(help="seconds to wait until it is live")] = 60,
    url: Url = tidemark.DEFAULT_URL,
) -> None:
    """Also write a live view to another target, such as a Kafka topic."""
    with client_of(url) as client:
        found = client.view(view).create_sink(
            name, read_json(options), type=type_name, wait_s=wait_s
        )
        _show([found])


@sinks.command("list")
def list_sinks(view: str, url: Url = tidemark.DEFAULT_URL) -> None:
    """List the additional sinks of a view."""
    with client_of(url) as client:
        _show(client.view(view).sinks())


@sinks.command("drop")
def drop_sink(
    view: str,
    name: str,
    drop_data: Annotated[
        bool, typer.Option("--drop-data", "--drop-topic", help="also delete what it has written")
    ] = False,
    url: Url = tidemark.DEFAULT_URL,
) -> None:
    """Stop writing a view to a sink."""
    with client_of(url) as client:
        is_gone = client.view(view).drop_sink(name, drop_data=drop_data)
    console.print(f"dropped {name}" if is_gone else f"{name} is being dropped")


# The option that names what a sink of each type writes to.
_TARGETS = ("topic", "table", "url", "path")


def _target(options: Mapping[str, Any]) -> str:
    return next((str(options[name]) for name in _TARGETS if name in options), "")


def _show(found: list[tidemark.SinkState]) -> None:
    table = table_of("sink", "type", "status", "target", "epoch", "backlog bytes", "error")
    for sink in found:
        table.add_row(
            f"{sink.view}/{sink.name}",
            sink.type,
            sink.status,
            _target(sink.options),
            str(sink.epoch or "-"),
            f"{sink.backlog_bytes or 0:,}",
            sink.error.code if sink.error else "",
        )
    console.print(table)
