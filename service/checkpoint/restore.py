"""`tidemark restore`: the state from its checkpoints elsewhere, on a machine that has none.

Everything is brought and checked beside the state's directory, which gets its name last. Invariant:
the directory is there with all that was copied, or not at all; nothing of a copy is opened before
the key has vouched for its manifest, and all of its files are those that the manifest names; and
where the source cannot tell any more what came after a copy, that copy is not used: what it holds
is rebuilt, if that is asked for, and refused by name otherwise.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from connectors.postgres.replication.slot import SlotState
from connectors.postgres.session.lsn import format_lsn
from connectors.postgres.source import PostgresSource
from connectors.shuffle_storage import force_names
from connectors.source import MAIN_SOURCE
from dataflow.errors import SourceError, TidemarkError
from service.checkpoint.checkpoint_key import FILE as KEY_FILE
from service.checkpoint.checkpoint_key import write_key
from service.checkpoint.checkpoint_repository import Manifest, Place, groups_in, open_place
from service.engine import state_version
from service.engine.positions import PROGRESS
from service.runtime import release
from service.runtime.private_files import replace_file
from service.runtime.settings import DEFAULT_GROUP, Settings
from storage.errors import StorageError
from storage.rocks import named_value


@dataclass(frozen=True)
class Desired:
    """url: where the copies lie. number: which one, by default the newest. source: the database
    that is followed, "" to leave the look at its slot to the service. key: what vouches for the
    copies, is_key_kept: and goes into the state, as the service's. is_trusted: they are taken
    unchecked, for nobody but the service can write to the place."""

    url: str
    state: Path
    prefix: str = "tidemark"
    source: str = ""
    number: int | None = None
    is_rebuild: bool = False
    key: bytes | None = None
    is_key_stored: bool = False
    is_trusted: bool = False


@dataclass(frozen=True)
class Group:
    """What becomes of a group: its copy, or why all of it is rebuilt."""

    name: str
    manifest: Manifest
    place: Place
    refusal: TidemarkError | None = None


def restore(wanted: Desired, tell: Callable[[str], None]) -> list[Group]:
    """Bring the state back. TidemarkError restore.not_empty, checkpoint.missing,
    checkpoint.corrupt, checkpoint.unauthentic, checkpoint.no_key, checkpoint.too_old,
    checkpoint.format, state.version; source.*"""
    _check_empty(wanted.state)
    names = groups_in(wanted.url, wanted.prefix)
    if not names:
        raise TidemarkError(
            "checkpoint.missing",
            f'there are no checkpoints of prefix "{wanted.prefix}" in this place',
            hint="look for the place and the prefix that the service had",
        )
    groups = [_choose(wanted, name) for name in names]
    draft = wanted.state.with_name(f"{wanted.state.name}.restoring")
    shutil.rmtree(draft, ignore_errors=True)
    for group in groups:
        if group.refusal is None:
            tell(_shown(group.manifest))
            _bring(group, _folder_of(draft, group.name))
        else:
            tell(f"group {group.name}: its views are rebuilt: {group.refusal}")
    for group in groups:
        if group.refusal is None:
            _open_once(group, _folder_of(draft, group.name))
    draft.mkdir(parents=True, exist_ok=True)
    if wanted.key is not None and wanted.is_key_stored:
        write_key(draft / KEY_FILE, wanted.key)
    if wanted.state.is_dir():
        wanted.state.rmdir()
    draft.rename(wanted.state)
    force_names(wanted.state.parent)
    return groups


def listed(url: str, prefix: str, key: bytes | None) -> list[tuple[Manifest, TidemarkError | None]]:
    """All copies in a place, group by group, oldest first; and why the key does not vouch for one,
    if so."""
    groups = groups_in(url, prefix)
    return [found for g in groups for found in open_place(url, prefix, g, key).listed()]


def verify(url: str, manifest: Manifest, folder: Path) -> None:
    """Read the files of a copy to their end. TidemarkError checkpoint.corrupt."""
    place = open_place(url, manifest.prefix, manifest.group, None)
    for file in manifest.files:
        place.bring(file, folder)
        (folder / file.name).unlink()


def _check_empty(state: Path) -> None:
    if state.exists() and (not state.is_dir() or any(state.iterdir())):
        raise TidemarkError(
            "restore.not_empty",
            f'there is something in "{state}" already',
            hint="stop the service and move it away, or choose another --state",
        )


def _choose(wanted: Desired, name: str) -> Group:
    trust = wanted.is_trusted
    place = open_place(wanted.url, wanted.prefix, name, wanted.key, is_trusted=trust)
    numbers = place.numbers()
    if not numbers:
        raise TidemarkError(
            "checkpoint.missing", f'there is no checkpoint of group "{name}"', hint="see --prefix"
        )
    manifest = place.read(numbers[-1] if wanted.number is None else wanted.number)
    if manifest.state > state_version.VERSION:
        raise TidemarkError(
            "state.version",
            f"the checkpoint is of state version {manifest.state}",
            detail=f"this program knows {state_version.VERSION}",
            hint=f"restore it by Tidemark {manifest.program} or newer",
        )
    refusal = _refusal(wanted, name, manifest)
    if refusal is not None and not wanted.is_rebuild:
        raise refusal
    return Group(name, manifest, place, refusal)


def _refusal(wanted: Desired, name: str, manifest: Manifest) -> TidemarkError | None:
    """Why the copy cannot go on from where it stands, if so."""
    if not (wanted.source and manifest.position):
        return None
    suffix = "" if name == DEFAULT_GROUP else name
    source = PostgresSource(wanted.source, name=MAIN_SOURCE, prefix=wanted.prefix, suffix=suffix)
    try:
        system, _, database = source.identity()
        known = manifest.source
        if known is not None and (known[0], known[2]) != (system, database):
            raise SourceError(
                "source.identity_changed",
                "the checkpoint was made of another database's rows",
                detail=f"of {known[2]} on server {known[0]}; this is {database} on {system}",
                hint="give the --source that the service had",
            )
        state = source.slot()
        refusal = _refusal_of(source.slot_name, state, manifest.position)
        if refusal is not None and wanted.is_rebuild and state is not None:
            # It leads nowhere any more: the first view that is rebuilt begins with a new one.
            source.drop_slot()
        return refusal
    finally:
        source.close()


def _refusal_of(slot: str, state: SlotState | None, position: int) -> TidemarkError | None:
    if state is not None and state.wal_status != "lost" and state.confirmed <= position:
        return None
    why = f'replication slot "{slot}" is gone'
    if state is not None and state.wal_status == "lost":
        why = f'replication slot "{slot}" has lost its WAL'
    elif state is not None:
        why = f'replication slot "{slot}" begins at {format_lsn(state.confirmed)}'
    return TidemarkError(
        "checkpoint.too_old",
        "the source cannot tell any more what came after the checkpoint",
        detail=f"{why}, the checkpoint is at {format_lsn(position)}",
        hint="--rebuild: views of such a group are rebuilt from a new snapshot, their rows stay"
        " readable until then; the other groups are restored",
    )


def _bring(group: Group, folder: Path) -> None:
    store = folder / state_version.STORE
    store.mkdir(parents=True)
    for file in group.manifest.files:
        group.place.bring(file, store)


def _open_once(group: Group, folder: Path) -> None:
    store = folder / state_version.STORE
    try:
        named_value(store, PROGRESS)
    except StorageError as error:
        raise TidemarkError(
            "checkpoint.corrupt",
            "the checkpoint cannot be opened",
            detail=error.detail,
            hint="restore another one: --number",
        ) from error
    facts = {"version": group.manifest.state, "program": group.manifest.program}
    replace_file(folder / state_version.FILE, facts)
    force_names(store)
    force_names(folder)


def _folder_of(state: Path, group: str) -> Path:
    return Settings.load(source="-", state=state).for_group(group).state


def _shown(manifest: Manifest) -> str:
    where = f" at {format_lsn(manifest.position)}" if manifest.position else ""
    return (
        f"group {manifest.group}: checkpoint {manifest.number}, epoch {manifest.epoch}{where},"
        f" {manifest.nbytes >> 20} MiB, made by Tidemark {manifest.program}"
    )


def shown_groups(groups: Sequence[Group]) -> str:
    """How it went, in a sentence."""
    rebuilt = [group.name for group in groups if group.refusal is not None]
    more = f"; views of {', '.join(rebuilt)} are rebuilt" if rebuilt else ""
    return f"restored for Tidemark {release.VERSION}{more}; start the service with this state"
