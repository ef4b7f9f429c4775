"""`tidemark init`: the command around service/setup/bootstrap.py.

Commands that the user has to run are printed with the rest, ready to copy. Exit code 1 while
something is left to do.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from dataflow.errors import TidemarkError
from service.cli.output import console, print_problem
from service.setup.bootstrap import Desired, Step, prepare

_COLORS = {"ok": "green", "done": "green", "note": "yellow", "to do": "red"}


commands = typer.Typer()


@commands.command()
def init(
    dsn: Annotated[
        str, typer.Argument(help="libpq DSN of the source, preferably an administrator's")
    ],
    sink: Annotated[str, typer.Option(help="DSN of the sink; default: the source")] = "",
    role: Annotated[str, typer.Option(help="the service's role; default: the DSN's user")] = "",
    tables: Annotated[str, typer.Option(help="tables that views will read: a,sales.b")] = "",
    schemas: Annotated[str, typer.Option(help="schemas that will contain views")] = "public",
    prefix: Annotated[
        str, typer.Option(help="prefix of the slot's and publication's names")
    ] = "tidemark",
    alter_system: Annotated[
        bool, typer.Option("--alter-system", help="also change wal_level of the whole server")
    ] = False,
    publication: Annotated[
        str, typer.Option(help="one that an administrator made; default: the service's own")
    ] = "",
    functions: Annotated[
        bool, typer.Option("--functions", help="create tidemark_time.tumble and hop in the source")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="check only; change nothing")] = False,
) -> None:
    """Prepare a database for the service, and print the commands that remain to be run."""
    desired = replace(
        desired_of(dsn, sink, role, tables, schemas, publication=publication),
        prefix=prefix,
        may_alter_system=alter_system,
        has_functions=functions,
    )
    try:
        steps = prepare(desired, is_dry=dry_run)
    except TidemarkError as error:
        print_problem(error.code, error.what, error.detail, error.hint)
        raise typer.Exit(1) from None
    for step in steps:
        _print_step(step)
    left = sum(step.outcome == "to do" for step in steps)
    if left:
        console.print(f"{left} to do; then run tidemark init again", highlight=False)
        raise typer.Exit(1)
    console.print("nothing is missing" if dry_run else "ready: tidemark serve", highlight=False)


def desired_of(
    dsn: str, sink: str, role: str, tables: str, schemas: str, *, publication: str
) -> Desired:
    """Return what options of the command line ask for; lists have commas between names."""
    return Desired(
        dsn,
        sink or dsn,
        role or None,
        tables=tuple(t.strip() for t in tables.split(",")) if tables else None,
        schemas=tuple(s.strip() for s in schemas.split(",")),
        publication=publication,
    )


def _print_step(step: Step) -> None:
    check, problem = step.check, step.check.problem
    console.print(f"[{_COLORS[step.outcome]}]{step.outcome:6}[/] {check.name}", end="")
    console.print(f"  {check.found}" if check.found else "", markup=False, highlight=False)
    lines = [check.note]
    if problem is not None and step.outcome != "done":
        detail = f" ({problem.detail})" if problem.detail else ""
        lines += [f"{problem.what}{detail}  [{problem.code}]", step.why]
    for line in filter(None, lines):
        console.print(f"       {line}", markup=False, highlight=False, soft_wrap=True)
    if step.left:
        console.print(f"       run: {step.left}", markup=False, highlight=False, soft_wrap=True)
        if check.as_whom:
            console.print(f"       as: {check.as_whom}", markup=False, highlight=False)
