"""Commands about external sources and dead letters, by REST.

The options of a source are a JSON file, in the form of POST /sources. `discover` prints one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

import tidemark
from service.cli.output import Url, client_of, console, read_json, table_of

_ROLES = "roles of the sink; public: every role"
TypeName = Annotated[
    str,
    typer.Argument(
        metavar="TYPE",
        help="one of those of docs/SOURCES.md, such as kafka or postgres",
    ),
]
Options = Annotated[Path, typer.Argument(help="a JSON file, - for standard input")]
Relation = Annotated[str, typer.Argument()]
Granted = Annotated[str, typer.Argument(metavar="NAME[.RELATION]")]
GrantedTo = Annotated[list[str], typer.Argument(metavar="[TO] ROLE...", help=_ROLES)]
RevokedFrom = Annotated[list[str], typer.Argument(metavar="[FROM] ROLE...", help=_ROLES)]
Positions = Annotated[
    list[str] | None,
    typer.Option("--position", "--place", help="partition:offset, or path:line; may be repeated"),
]

sources = typer.Typer(no_args_is_help=True, help="External sources: Kafka, files.")
dead_letters = typer.Typer(no_args_is_help=True, help="Malformed records of external sources.")


@sources.command("create")
def create_source(
    name: str,
    type_name: TypeName,
    options: Options,
    url: Url = tidemark.DEFAULT_URL,
) -> None:
    """Declare a source; the service first connects to it and checks the declaration."""
    with client_of(url) as client:
        _print(client.create_source(name, type_name, read_json(options)).raw)


@sources.command("discover")
def discover_source(
    type_name: TypeName,
    options: Options,
    url: Url = tidemark.DEFAULT_URL,
) -> None:
    """Propose columns from samples, as options to review and to create the source with."""
    with client_of(url) as client:
        _print(client.discover_source(type_name, read_json(options)))


@sources.command("list")
def list_sources(url: Url = tidemark.DEFAULT_URL) -> None:
    """List all external sources."""
    with client_of(url) as client:
        found = client.sources()
    why = ["why"] if any(source.error for source in found) else []
    columns = ("source", "type", "status", "relations", "rows read", "lag", "dead letters")
    table = table_of(*columns, *why)
    for source in found:
        relations = source.relations
        table.add_row(
            source.name,
            source.type,
            source.status,
            ", ".join(r.name for r in relations),
            f"{source.rows_read:,}",
            "-" if source.lag is None else f"{source.lag:,}",
            f"{sum(r.dead_letters for r in relations):,}",
            *(source.error.code if source.error else "" for _ in why),
        )
    console.print(table)


@sources.command("show")
def show_source(name: str, url: Url = tidemark.DEFAULT_URL) -> None:
    """Show one source: options, relations, status, positions."""
    with client_of(url) as client:
        _print(client.source(name).raw)


@sources.command("change")
def change_source(
    name: str,
    options: Options,
    url: Url = tidemark.DEFAULT_URL,
) -> None:
    """Change a source's options; relations that views read must not change."""
    with client_of(url) as client:
        _print(client.change_source(name, read_json(options)).raw)


@sources.command("retry")
def retry_source(name: str, url: Url = tidemark.DEFAULT_URL) -> None:
    """Retry an unreachable or stopped source now."""
    with client_of(url) as client:
        found = client.retry_source(name)
    console.print(f"{found.name} is being retried; it was {found.status}")


@sources.command("reset")
def reset_source(
    name: str,
    relation: str,
    start: Annotated[str, typer.Argument(help='"earliest", "latest", or JSON as in the options')],
    wait_s: Annotated[float, typer.Option(min=0, max=3600)] = 60,
    url: Url = tidemark.DEFAULT_URL,
) -> None:
    """Read a relation from another start; its views are paused, then built again."""
    where = json.loads(start) if start.lstrip().startswith("{") else start
    with client_of(url) as client:
        found = client.reset_source(name, relation, where, wait_s=wait_s)
    if found.waits_for:
        console.print(f"not paused yet: {', '.join(found.waits_for)}; run it again")
    else:
        console.print(f"{name}.{relation} is read again by: {', '.join(found.views) or 'no view'}")


@sources.command("grant")
def grant_source(name: Granted, roles: GrantedTo, url: Url = tidemark.DEFAULT_URL) -> None:
    """Let roles read a source, or one relation: grant shop.prices TO sales."""
    source, relation = _granted(name)
    with client_of(url) as client:
        for role in _roles(roles, "to"):
            client.grant_source(source, role, relation=relation)
            console.print(f"granted {name} to {role}", markup=False)


@sources.command("revoke")
def revoke_source(name: Granted, roles: RevokedFrom, url: Url = tidemark.DEFAULT_URL) -> None:
    """Take grants back: revoke shop.prices FROM sales."""
    source, relation = _granted(name)
    with client_of(url) as client:
        for role in _roles(roles, "from"):
            client.revoke_source(source, role, relation=relation)
            console.print(f"revoked {name} from {role}", markup=False)


def _granted(name: str) -> tuple[str, str]:
    """Return the source, and the relation or "": no source's name contains a point."""
    source, _, relation = name.partition(".")
    return source, relation


def _roles(words: list[str], preposition: str) -> list[str]:
    """Return the roles, without the preposition of SQL before them."""
    is_said = len(words) > 1 and words[0].lower() == preposition
    return words[1:] if is_said else words


@sources.command("drop")
def drop_source(name: str, url: Url = tidemark.DEFAULT_URL) -> None:
    """Drop a source that no view reads."""
    with client_of(url) as client:
        client.drop_source(name)
    console.print(f"dropped {name}")


@dead_letters.command("list")
def list_dead_letters(
    source: Annotated[str, typer.Argument(help="of this source only")] = "",
    limit: Annotated[int, typer.Option(min=1, max=1000)] = 100,
    url: Url = tidemark.DEFAULT_URL,
) -> None:
    """List malformed records with their positions and reasons."""
    with client_of(url) as client:
        found = client.dead_letters(source, limit=limit)
    table = table_of("source", "relation", "position", "code", "reason", "record")
    for letter in found:
        facts = (letter.source, letter.relation, letter.position, letter.code, letter.reason)
        table.add_row(*facts, (letter.value or "")[:60])
    console.print(table)


@dead_letters.command("retry")
def retry_dead_letters(
    source: str,
    relation: Relation = "",
    positions: Positions = None,
    url: Url = tidemark.DEFAULT_URL,
) -> None:
    """Decode records again; valid ones enter the views, the others stay."""
    with client_of(url) as client:
        count = client.retry_dead_letters(source, relation, positions or [])
    console.print(f"{count} will be retried")


@dead_letters.command("drop")
def drop_dead_letters(
    source: str,
    relation: Relation = "",
    positions: Positions = None,
    url: Url = tidemark.DEFAULT_URL,
) -> None:
    """Delete records."""
    with client_of(url) as client:
        count = client.drop_dead_letters(source, relation, positions or [])
    console.print(f"{count} will be dropped")


def _print(found: Mapping[str, Any]) -> None:
    console.print_json(json.dumps(found))
