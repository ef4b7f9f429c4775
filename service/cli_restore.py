"""`tidemark restore` and `tidemark checkpoints`: the commands around service/restore.py.

They need neither a service nor, but for a look at the slot, a database. Exit code 1 when nothing
was restored, or a checkpoint is not whole; the reason goes to standard error.
"""

from __future__ import annotations

import os
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from connectors.postgres.lsn import format_lsn
from dataflow.errors import TidemarkError
from service.cli_output import console, print_problem
from service.settings import PREFIX

copies = typer.Typer()
From = Annotated[str, typer.Argument(help="folder or s3:// URL that the service copied to")]
Prefix = Annotated[str, typer.Option(help="first word of slot and publication")]


@copies.command()
def restore(
    place: From,
    state: Annotated[Path, typer.Option(help="directory of the state; empty, or not there")],
    source: Annotated[str, typer.Option(help="DSN of the source, to look at its slot")] = "",
    prefix: Prefix = "tidemark",
    number: Annotated[int | None, typer.Option(help="which one; default: the newest")] = None,
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="rebuild what the source cannot tell any more")
    ] = False,
) -> None:
    """Bring the state back from a checkpoint; the service then catches up from its slot."""
    from service.restore import Wanted, shown_groups
    from service.restore import restore as bring_back

    dsn = source or os.environ.get(f"{PREFIX}SOURCE", "")
    wanted = Wanted(place, state.absolute(), prefix, dsn, number, rebuild)
    try:
        groups = bring_back(wanted, lambda text: console.print(text, highlight=False))
    except TidemarkError as error:
        _fail(error)
    console.print(shown_groups(groups), highlight=False)


@copies.command()
def checkpoints(
    place: From,
    prefix: Prefix = "tidemark",
    verify: Annotated[bool, typer.Option("--verify", help="read all of them to the end")] = False,
) -> None:
    """List the checkpoints in a place."""
    from service.restore import manifests_of
    from service.restore import verify as read_all

    table = Table("group", "number", "made at", "epoch", "position", "MiB", "whole", box=None)
    is_bad = False
    try:
        for manifest in manifests_of(place, prefix):
            whole = ""
            if verify:
                with tempfile.TemporaryDirectory() as folder:
                    try:
                        read_all(place, manifest, Path(folder))
                        whole = "yes"
                    except TidemarkError as error:
                        whole, is_bad = f"{error.detail} [{error.code}]", True
            table.add_row(
                manifest.group,
                str(manifest.number),
                datetime.fromtimestamp(manifest.at, UTC).isoformat(" ", "seconds"),
                str(manifest.epoch),
                format_lsn(manifest.position) if manifest.position else "-",
                str(manifest.nbytes >> 20),
                whole,
            )
    except TidemarkError as error:
        _fail(error)
    console.print(table)
    raise typer.Exit(1 if is_bad else 0)


def _fail(error: TidemarkError) -> None:
    print_problem(error.code, str(error.what), error.detail, error.hint)
    raise typer.Exit(1)
