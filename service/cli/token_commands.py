"""Commands about tokens: by REST, or with --direct in the sink's control tables.

--direct is for the first token of a service on a public address, which does not start without one,
and for operators who have lost the last admin token but can access the database.
"""

from __future__ import annotations

from typing import Annotated

import typer
from pydantic import ValidationError

import tidemark
from dataflow.errors import TidemarkError
from service.access.tokens import Tokens
from service.cli.output import (
    Url,
    client_of,
    complain,
    console,
    print_problem,
    settings_of,
    table_of,
)

tokens = typer.Typer(no_args_is_help=True, help="Tokens for the API, with roles.")

Direct = Annotated[
    bool,
    typer.Option("--direct", help="use the sink of TIDEMARK_SOURCE or TIDEMARK_SINK, not REST"),
]


@tokens.command("create")
def create_token(
    name: str,
    role: Annotated[str, typer.Option(help="reader, operator or admin")] = "reader",
    *,
    db_role: Annotated[
        str, typer.Option(help="database role whose rights apply to its views")
    ] = "",
    expires_days: Annotated[float, typer.Option(help="0: never")] = 0,
    direct: Direct = False,
    url: Url = tidemark.DEFAULT_URL,
) -> None:
    """Create a token and print it; it is not shown again."""
    days = expires_days or None
    if not direct:
        with client_of(url) as client:
            made = client.create_token(name, role, db_role=db_role or None, expires_days=days)
        token = made.token
    else:
        token = _create_directly(name, role, db_role, days)
    complain.print(f'token "{name}" ({role}); it is not shown again:', highlight=False)
    # Alone on standard output, so that it can be piped to a secret store.
    typer.echo(token)


@tokens.command("list")
def list_tokens(url: Url = tidemark.DEFAULT_URL) -> None:
    """List all tokens, including revoked ones."""
    with client_of(url) as client:
        found = client.tokens()
    table = table_of("token", "role", "database role", "created by", "last used", "until")
    for one in found:
        until = f"revoked {one.revoked_at}" if one.revoked_at else one.expires_at
        facts = (one.db_role, one.created_by, one.last_used_at, until)
        table.add_row(one.name, one.role, *(str(fact or "-") for fact in facts))
    console.print(table)


@tokens.command("revoke")
def revoke_token(name: str, direct: Direct = False, url: Url = tidemark.DEFAULT_URL) -> None:
    """Revoke a token."""
    if direct:
        opened = _opened()
        try:
            opened.revoke(name, "direct")
        except TidemarkError as error:
            _fail(error)
    else:
        with client_of(url) as client:
            client.revoke_token(name)
    console.print(f"revoked {name}")


def _create_directly(name: str, role: str, db_role: str, days: float | None) -> str:
    from service.api.token_models import CreateToken

    try:
        requested = CreateToken.model_validate(
            {"name": name, "role": role, "db_role": db_role or None, "expires_days": days}
        )
    except ValidationError as error:
        why = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        print_problem("request.invalid", "the token is not valid", why, "see --help")
        raise typer.Exit(1) from None
    opened = _opened()
    try:
        if requested.db_role:
            from service.factory.service_factory import ServiceFactory

            ServiceFactory(settings_of()).source.check_role(requested.db_role)
        lifetime_s = None if days is None else days * 86_400
        return opened.create(name, role, db_role=db_role, lifetime_s=lifetime_s, by="direct")[0]
    except TidemarkError as error:
        again = " --direct; then this one again" if error.code == "token.first_not_admin" else ""
        print_problem(error.code, error.what, error.detail, error.hint + again)
        raise typer.Exit(1) from None


def _opened() -> Tokens:
    from connectors.postgres.catalog.catalog import Control
    from service.runtime.log import configure

    configure("warning", "cli")
    settings = settings_of()
    return Tokens(Control(settings.sink, settings.prefix))


def _fail(error: TidemarkError) -> None:
    print_problem(error.code, error.what, error.detail, error.hint)
    raise typer.Exit(1)
