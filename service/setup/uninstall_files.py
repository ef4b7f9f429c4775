"""What a service has in folders and buckets: its state, views on Spark, checkpoints.

Invariant: only what the service has made is deleted. A folder that a user has put other files into
stays with these, and a shared storage goes only if its mark is the one that the state names.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

from connectors.removal import Removal
from connectors.shuffle_storage import open_exchange, shown_url, url_below
from dataflow.errors import TidemarkError
from service.checkpoint.checkpoint_repository import groups_in, remove_all
from service.checkpoint.checkpoints import COPY
from service.engine.state_version import FILE as VERSION_FILE
from service.engine.state_version import STORE
from service.metrics import metrics
from service.runtime import error_reports, service_key
from service.runtime.settings import GROUPS, Settings
from service.runtime.state_lock import FILE as LOCK_FILE
from service.subscriptions import change_log
from service.views.handover_folder import MOVES
from storage.failpoints import failpoint

# Of modules that are only there with Spark.
MARK_FILE = "spark_storage.json"
OF_SPARK = (MARK_FILE, "buckets", "bucket-caches", "bucket-moves", "buckets.lost")
# What processes of a service put into its state directory, or have put there in earlier versions.
ENTRIES = frozenset(
    {
        *(STORE, GROUPS, COPY, MOVES, "builds", *OF_SPARK),
        *(VERSION_FILE, LOCK_FILE, change_log.FOLDER, error_reports.FOLDER),
        *(metrics.FILE, metrics.WAL_FILE, metrics.DATAFLOW_FILE, metrics.SUPERVISOR_FILE),
        *(service_key.FILE, "spark.key", "spark.socket", ".doctor"),
        *("kernels.json", "kernels.compiling.json"),
    }
)


def find(settings: Settings, *, drops_checkpoints: bool) -> Iterator[Removal]:
    """Yield what there is; the state goes last, since it says which storage is the service's."""
    if settings.spark_storage:
        yield from _spark_storage(settings)
    if settings.spark_exchange:
        yield from _exchange(settings)
    if settings.checkpoint_to:
        yield from _checkpoints(settings, drops_checkpoints=drops_checkpoints)
    yield from _state(settings.state)


def _spark_storage(settings: Settings) -> Iterator[Removal]:
    from service.factory.spark_storage import known_mark, root_of

    root = root_of(settings)
    what = f'views on Spark in "{shown_url(root)}"'
    by_hand = f"delete {shown_url(root)}"
    try:
        mark = known_mark(settings)
        is_used = mark is not None or bool(open_exchange(root).folders())
    except TidemarkError as error:
        yield Removal("storage", what, None, f"{error.what} [{error.code}]", by_hand)
        return
    if mark is None:
        if is_used:
            note = "the state does not say that this service has written it; if it has"
            yield Removal("storage", what, None, note, by_hand)
        return
    yield Removal("storage", what, partial(_remove_below, root), command=by_hand)


def _exchange(settings: Settings) -> Iterator[Removal]:
    url = url_below(settings.spark_exchange, settings.prefix)
    what, by_hand = f'files of backfills in "{shown_url(url)}"', f"delete {shown_url(url)}"
    try:
        exchange = open_exchange(url)
        if not exchange.folders():
            return
    except TidemarkError as error:
        yield Removal("storage", what, None, f"{error.what} [{error.code}]", by_hand)
        return
    yield Removal("storage", what, partial(_remove_below, url), command=by_hand)


def _remove_below(url: str) -> None:
    open_exchange(url).remove()
    _files_done()


def _checkpoints(settings: Settings, *, drops_checkpoints: bool) -> Iterator[Removal]:
    url = settings.checkpoint_to
    what = f'checkpoints of "{settings.prefix}" in "{shown_url(url)}"'
    try:
        groups = groups_in(url, settings.prefix)
    except TidemarkError as error:
        if drops_checkpoints:
            by_hand = f"delete {shown_url(url_below(url, settings.prefix))}"
            yield Removal("checkpoints", what, None, f"{error.what} [{error.code}]", by_hand)
        return
    if groups and drops_checkpoints:
        yield Removal("checkpoints", what, partial(remove_all, url, settings.prefix))
    elif groups:
        yield Removal("checkpoints", what, note="--checkpoints deletes them")


def _state(folder: Path) -> Iterator[Removal]:
    if not folder.is_dir():
        return
    names = {path.name for path in folder.iterdir()}
    own = {name for name in names if _is_own(name)}
    what = f'state directory "{folder}"'
    if not own & {VERSION_FILE, LOCK_FILE}:
        if names:
            yield Removal("state", what, note="it has no state of a service")
        return
    left = sorted(names - own)
    note = f"what is not of Tidemark stays there: {', '.join(left)}" if left else ""
    yield Removal("state", what, partial(_remove_state, folder), note)


def _is_own(name: str) -> bool:
    is_draft = name.endswith(".part") or name.startswith(f".{MARK_FILE}.")
    return name in ENTRIES or is_draft


def _remove_state(folder: Path) -> None:
    """TidemarkError state.io. What says that it is a state goes last."""
    try:
        marks = (VERSION_FILE, LOCK_FILE)
        paths = [path for path in folder.iterdir() if _is_own(path.name)]
        for path in sorted(paths, key=lambda path: path.name in marks):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
            _files_done()
    except OSError as error:
        raise TidemarkError(
            "state.io",
            f'state directory "{folder}" cannot be removed',
            detail=str(error),
            hint="run it as the service's user",
        ) from None
    # A volume, or one with files of others, stays.
    with suppress(OSError):
        folder.rmdir()


def _files_done() -> None:
    failpoint("uninstall.files.after")
