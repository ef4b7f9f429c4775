"""`tidemark restore`: restore the state from its checkpoints, on a machine that has none.

Everything is downloaded and checked in a temporary directory, which is renamed last. Invariants:
the state directory exists complete or not at all. Nothing of a copy is opened before its manifest
is authenticated and all its files match the manifest. If the source no longer has the changes after
a copy, that copy is not used: its views are rebuilt if requested, otherwise the restore fails.
A group whose first copy was never completed has nothing to lose: its views are rebuilt too.
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
from service.checkpoint.checkpoint_repository import (
    CheckpointRepository,
    Manifest,
    groups_in,
    open_repository,
)
from service.engine import state_version
from service.engine.positions import PROGRESS
from service.runtime import release
from service.runtime.private_files import replace_file
from service.runtime.service_key import FILE as KEY_FILE
from service.runtime.service_key import write_key
from service.runtime.settings import DEFAULT_GROUP, Settings
from storage.errors import StorageError
from storage.rocks import named_value


@dataclass(frozen=True)
class Desired:
    """What to restore.

    - url: location of the copies
    - source: the followed database; "" leaves the check of its slot to the service
    - number: which copy; None is the newest
    - key: authenticates the copies; is_key_stored: store it in the state, as the service's key
    - is_trusted: accept copies unchecked, because only the service can write to the location
    - publication: the one that an administrator made, "" if the service has its own
    """

    url: str
    state: Path
    prefix: str = "tidemark"
    source: str = ""
    number: int | None = None
    is_rebuild: bool = False
    key: bytes | None = None
    is_key_stored: bool = False
    is_trusted: bool = False
    publication: str = ""


@dataclass(frozen=True)
class Copy:
    """A copy that is restored."""

    manifest: Manifest
    repository: CheckpointRepository


@dataclass(frozen=True)
class Group:
    """The result for a group: its copy, or why all of it is rebuilt."""

    name: str
    copy: Copy | TidemarkError


def restore(desired: Desired, report: Callable[[str], None]) -> list[Group]:
    """Restore the state.

    TidemarkError restore.not_empty, checkpoint.missing, checkpoint.corrupt, checkpoint.unauthentic,
    checkpoint.no_key, checkpoint.too_old, checkpoint.format, state.version; source.*
    """
    _check_empty(desired.state)
    groups = _choose_all(desired)
    draft = desired.state.with_name(f"{desired.state.name}.restoring")
    shutil.rmtree(draft, ignore_errors=True)
    fetched = []
    for group in groups:
        if isinstance(group.copy, Copy):
            report(_shown(group.copy.manifest))
            folder = _folder_of(draft, group.name)
            _fetch(group.copy, folder)
            fetched.append((group.copy, folder))
        else:
            report(f"group {group.name}: its views are rebuilt: {group.copy}")
    for copy, folder in fetched:
        _open_once(copy, folder)
    draft.mkdir(parents=True, exist_ok=True)
    if desired.key is not None and desired.is_key_stored:
        write_key(draft / KEY_FILE, desired.key)
    if desired.state.is_dir():
        desired.state.rmdir()
    draft.rename(desired.state)
    force_names(desired.state.parent)
    return groups


def listed(url: str, prefix: str, key: bytes | None) -> list[tuple[Manifest, TidemarkError | None]]:
    """Return all copies, by group, oldest first, each with the reason if the key rejects it."""
    groups = groups_in(url, prefix)
    return [found for g in groups for found in open_repository(url, prefix, g, key).listed()]


def verify(url: str, manifest: Manifest, folder: Path) -> None:
    """Read and check all files of a copy. TidemarkError checkpoint.corrupt."""
    repository = open_repository(url, manifest.prefix, manifest.group, None)
    for file in manifest.files:
        repository.fetch(file, folder)
        (folder / file.name).unlink()


def _check_empty(state: Path) -> None:
    if state.exists() and (not state.is_dir() or any(state.iterdir())):
        raise TidemarkError(
            "restore.not_empty",
            f'state directory "{state}" is not empty',
            hint="stop the service and move the directory away, or choose another --state",
        )


def _choose_all(desired: Desired) -> list[Group]:
    """Return what is restored of each group. TidemarkError checkpoint.missing: of none."""
    trust = desired.is_trusted
    found = {
        name: open_repository(desired.url, desired.prefix, name, desired.key, is_trusted=trust)
        for name in groups_in(desired.url, desired.prefix)
    }
    numbers = {name: repository.numbers() for name, repository in found.items()}
    if not any(numbers.values()):
        raise TidemarkError(
            "checkpoint.missing",
            f'there are no checkpoints of prefix "{desired.prefix}" at this location',
            hint="use the location and the prefix that the service had",
        )
    return [_choose(desired, repository, numbers[name]) for name, repository in found.items()]


def _choose(desired: Desired, repository: CheckpointRepository, numbers: Sequence[int]) -> Group:
    name = repository.group
    if not numbers:
        why = TidemarkError("checkpoint.missing", f'no checkpoint of group "{name}" was completed')
        return Group(name, why)
    manifest = repository.read(numbers[-1] if desired.number is None else desired.number)
    if manifest.state > state_version.VERSION:
        raise TidemarkError(
            "state.version",
            f"the checkpoint has state version {manifest.state}",
            detail=f"this program supports version {state_version.VERSION}",
            hint=f"restore it with Tidemark {manifest.program} or newer",
        )
    refusal = _refusal(desired, name, manifest)
    if refusal is not None and not desired.is_rebuild:
        raise refusal
    return Group(name, refusal or Copy(manifest, repository))


def _refusal(desired: Desired, name: str, manifest: Manifest) -> TidemarkError | None:
    """Return why the source cannot continue from the copy; None if it can."""
    if not (desired.source and manifest.position):
        return None
    suffix = "" if name == DEFAULT_GROUP else name
    source = PostgresSource(
        desired.source,
        name=MAIN_SOURCE,
        prefix=desired.prefix,
        suffix=suffix,
        publication=desired.publication,
    )
    try:
        system, _, database = source.identity()
        owner = manifest.source
        if owner is not None and (owner[0], owner[2]) != (system, database):
            raise SourceError(
                "source.identity_changed",
                "the checkpoint belongs to another database",
                detail=f"of {owner[2]} on server {owner[0]}; this is {database} on {system}",
                hint="pass the --source that the service had",
            )
        state = source.slot()
        refusal = _refusal_of(source.slot_name, state, manifest.position)
        if refusal is not None and desired.is_rebuild and state is not None:
            # It is useless now: the first rebuilt view creates a new one.
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
        "the source no longer has the changes after the checkpoint",
        detail=f"{why}; the checkpoint is at {format_lsn(position)}",
        hint="use --rebuild: views of such a group are rebuilt from a new snapshot, and their rows"
        " stay readable until then; the other groups are restored",
    )


def _fetch(copy: Copy, folder: Path) -> None:
    store = folder / state_version.STORE
    store.mkdir(parents=True)
    for file in copy.manifest.files:
        copy.repository.fetch(file, store)


def _open_once(copy: Copy, folder: Path) -> None:
    store = folder / state_version.STORE
    try:
        named_value(store, PROGRESS)
    except StorageError as error:
        raise TidemarkError(
            "checkpoint.corrupt",
            "the checkpoint cannot be opened",
            detail=error.detail,
            hint="restore another one with --number",
        ) from error
    facts = {"version": copy.manifest.state, "program": copy.manifest.program}
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
    """Return the result in one sentence."""
    rebuilt = [group.name for group in groups if isinstance(group.copy, TidemarkError)]
    more = f"; views of {', '.join(rebuilt)} are rebuilt" if rebuilt else ""
    return f"restored for Tidemark {release.VERSION}{more}; start the service with this state"
