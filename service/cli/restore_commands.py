"""`tidemark restore` and `tidemark checkpoints`: the commands around service/checkpoint/restore.py.

They need no service, and a database only to check the slot. Exit code 1 if nothing was restored, or
a checkpoint is damaged; the reason goes to standard error.
"""

from __future__ import annotations

import os
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from connectors.postgres.session.lsn import format_lsn
from dataflow.errors import TidemarkError
from service.cli.output import console, print_problem, table_of
from service.runtime.settings import PREFIX

copies = typer.Typer()
From = Annotated[str, typer.Argument(help="folder or s3:// URL of the checkpoints")]
Key = Annotated[
    Path | None,
    typer.Option(help="file with the key of the checkpoints; default: TIDEMARK_CHECKPOINT_KEY"),
]
Prefix = Annotated[str, typer.Option(help="prefix of the slot's and publication's names")]


@copies.command()
def restore(
    location: From,
    state: Annotated[Path, typer.Option(help="directory of the state; empty or missing")],
    source: Annotated[str, typer.Option(help="DSN of the source, to check its slot")] = "",
    prefix: Prefix = "tidemark",
    number: Annotated[
        int | None, typer.Option(help="number of the checkpoint; default: the newest")
    ] = None,
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="rebuild views whose changes the source no longer has")
    ] = False,
    key: Key = None,
    trust_storage: Annotated[
        bool,
        typer.Option(
            "--trust-storage",
            help="accept unauthenticated checkpoints, which could run code in the service",
        ),
    ] = False,
) -> None:
    """Restore the state from a checkpoint; the service then catches up from its slot."""
    from service.checkpoint.restore import Desired, shown_groups
    from service.checkpoint.restore import restore as bring_back

    dsn = source or os.environ.get(f"{PREFIX}SOURCE", "")
    try:
        desired = Desired(
            location,
            state.absolute(),
            prefix,
            dsn,
            number,
            rebuild,
            key=_key_of(key),
            # A key in the environment is available to the service too.
            is_key_stored=key is not None,
            is_trusted=trust_storage,
            publication=os.environ.get(f"{PREFIX}PUBLICATION", ""),
        )
        groups = bring_back(desired, lambda text: console.print(text, highlight=False))
    except TidemarkError as error:
        _fail(error)
    console.print(shown_groups(groups), highlight=False)


@copies.command()
def checkpoints(
    location: From,
    prefix: Prefix = "tidemark",
    key: Key = None,
    verify: Annotated[bool, typer.Option("--verify", help="read all of them completely")] = False,
) -> None:
    """List the checkpoints in a folder or bucket."""
    from service.checkpoint.restore import listed
    from service.checkpoint.restore import verify as read_all

    titles = ("group", "number", "made at", "epoch", "position", "MiB", "authentic", "whole")
    table = table_of(*titles)
    is_bad = False
    try:
        key_bytes = _key_of(key)
        for manifest, refusal in listed(location, prefix, key_bytes):
            whole, authentic = "", "yes"
            if refusal is not None:
                has_key = refusal.code != "checkpoint.no_key"
                authentic = f"no [{refusal.code}]" if has_key else "unknown"
                is_bad = is_bad or (verify and has_key)
            if verify:
                with tempfile.TemporaryDirectory() as folder:
                    try:
                        read_all(location, manifest, Path(folder))
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
                escape(authentic),
                escape(whole),
            )
    except TidemarkError as error:
        _fail(error)
    console.print(table)
    raise typer.Exit(1 if is_bad else 0)


def _key_of(path: Path | None) -> bytes | None:
    """Return the key of a file or the environment. TidemarkError checkpoint.key, secret.missing."""
    from service.runtime.service_key import configured_key, read_key

    setting = os.environ.get(f"{PREFIX}CHECKPOINT_KEY", "")
    if path is None:
        return configured_key(setting) if setting else None
    try:
        return read_key(path)
    except FileNotFoundError:
        raise TidemarkError(
            "checkpoint.key", f'key file "{path}" does not exist', hint="pass another file to --key"
        ) from None


def _fail(error: TidemarkError) -> None:
    print_problem(error.code, str(error.what), error.detail, error.hint)
    raise typer.Exit(1)
