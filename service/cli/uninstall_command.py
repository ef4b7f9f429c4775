"""`tidemark uninstall`: the command around service/setup/uninstall.py.

A dry run prints the plan; a real one prints each line once it is so. Exit code 1 while something is
left to be removed by hand.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from connectors.removal import BY_HAND, KEEP, REMOVE, Removal
from dataflow.errors import TidemarkError
from service.cli.output import complain, console, print_problem, settings_of

if TYPE_CHECKING:
    from service.setup.uninstall import Done

commands = typer.Typer()
_COLORS = {REMOVE: "green", KEEP: "yellow", BY_HAND: "red"}


@commands.command()
def uninstall(
    source: Annotated[str | None, typer.Option(help="libpq DSN of the source database")] = None,
    sink: Annotated[str | None, typer.Option(help="DSN of the sink; default: the source")] = None,
    state: Annotated[Path | None, typer.Option(help="directory of the state")] = None,
    prefix: Annotated[str | None, typer.Option(help="the prefix of the service")] = None,
    role: Annotated[
        str, typer.Option(help="the service's role; default: the owner of schema tidemark")
    ] = "",
    keep_tables: Annotated[
        bool, typer.Option("--keep-tables", help="keep the views' tables as plain tables")
    ] = False,
    checkpoints: Annotated[
        bool, typer.Option("--checkpoints", help="delete the checkpoints too")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="print what would be done; change nothing")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="do not ask")] = False,
) -> None:
    """Remove everything that a service has made, and print what is left to do by hand."""
    from service.runtime.security_limits import protect
    from service.setup.uninstall import Desired, Uninstall

    settings = settings_of(source=source, sink=sink, state=state, prefix=prefix)
    protect(settings)
    desired = Desired(settings, role, keep_tables, checkpoints)
    left = 0
    try:
        with Uninstall(desired) as it:
            plan = it.plan()
            if dry_run:
                _print_plan(plan)
                console.print(_summary(plan, "nothing was changed"), highlight=False)
                raise typer.Exit(1 if any(r.outcome == BY_HAND for r in plan) else 0)
            _confirm(plan, is_agreed=yes)
            for done in it.carry_out(plan):
                left += _print_done(done)
    except TidemarkError as error:
        print_problem(error.code, str(error.what), error.detail, error.hint)
        raise typer.Exit(1) from None
    if left:
        console.print(f"{left} to do by hand", highlight=False)
        raise typer.Exit(1)
    console.print("nothing is left", highlight=False)


def _confirm(plan: list[Removal], *, is_agreed: bool) -> None:
    """Ask once, with the plan. TidemarkError uninstall.unconfirmed where nobody can answer."""
    if is_agreed or not any(removal.outcome == REMOVE for removal in plan):
        return
    if not sys.stdin.isatty():
        raise TidemarkError(
            "uninstall.unconfirmed",
            "nobody can be asked whether to remove all this",
            hint="see it with --dry-run, then pass --yes",
        )
    _print_plan(plan)
    if not typer.confirm("Remove all this?"):
        complain.print("nothing was changed", highlight=False)
        raise typer.Exit(1)


def _print_plan(plan: Iterable[Removal]) -> None:
    for removal in plan:
        _print(removal, removal.outcome)


def _print_done(done: Done) -> int:
    """Print what was done; return how many things are left to a person."""
    outcome = BY_HAND if done.error is not None else done.removal.outcome
    _print(done.removal, outcome, done.error)
    return outcome == BY_HAND


def _print(removal: Removal, outcome: str, error: TidemarkError | None = None) -> None:
    console.print(f"[{_COLORS[outcome]}]{outcome:8}[/]", end="")
    lines = [f"{removal.location}: {removal.what}"]
    if removal.note:
        lines.append(f"        {removal.note}")
    if error is not None:
        detail = f" ({error.detail})" if error.detail else ""
        lines.append(f"        {error.what}{detail}  [{error.code}]")
    if outcome == BY_HAND:
        lines.append(f"        run: {removal.command}")
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _summary(plan: list[Removal], end: str) -> str:
    counts = {outcome: sum(r.outcome == outcome for r in plan) for outcome in _COLORS}
    return f"{counts[REMOVE]} to remove, {counts[KEEP]} kept, {counts[BY_HAND]} by hand; {end}"
