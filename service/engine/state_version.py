"""The version of a state directory, in the file `version.json` next to the store.

It covers the names of arrangements and values, the encoding of definitions and epochs
(`service/engine/encoding`), and the folder of builds. Invariant: only a program that knows its
version opens a state. An older state goes through every upgrade step; each step can be repeated. An
encoding change that old readers cannot read, such as a removed field, needs the next number.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from connectors.postgres.schema import schema_setup
from service.runtime import release
from service.runtime.log import log
from service.runtime.private_files import replace_file
from storage import clock
from storage.errors import StorageError
from storage.failpoints import failpoint

VERSION = 2
FILE = "version.json"
STORE = "store"

Upgrade = Callable[[Path], None]


def _begin_to_count(_: Path) -> None:
    """Do nothing: a state without a version is like version 1."""


def _leave_pickles(folder: Path) -> None:
    """Rewrite pickled values in the format of version 2."""
    from service.engine.encoding.version_1 import upgrade

    upgrade(folder, STORE)


# By the version that each upgrades from; without an entry there is no upgrade.
UPGRADES: dict[int, Upgrade] = {0: _begin_to_count, 1: _leave_pickles}


def versions() -> dict[str, str]:
    """Return the versions of the program, the state and the control tables."""
    return {
        "tidemark": release.VERSION,
        "state": str(VERSION),
        "control_tables": str(schema_setup.VERSION),
    }


def check(folder: Path) -> int:
    """Return a state's version; VERSION if there is no state yet. StorageError state.version."""
    found = _read(folder)
    if found is None:
        return 0 if (folder / STORE).is_dir() else VERSION
    version = found.get("version")
    if not isinstance(version, int):
        raise _refusal(folder, "of an unknown version", "", found)
    if version > VERSION:
        limit = f"; this program supports version {VERSION}"
        raise _refusal(folder, f"of version {version}", limit, found)
    if not all(step in UPGRADES for step in range(version, VERSION)):
        raise _refusal(folder, f"of version {version}", ", which is too old to upgrade", found)
    return version


def claim(folder: Path) -> None:
    """Upgrade a state to this version before it is opened. StorageError state.version."""
    version = check(folder)
    for step in range(version, VERSION):
        UPGRADES[step](folder)
        failpoint("state.upgrade.after")
        log.warning("state.upgraded", state=str(folder), old=step, new=step + 1)
    facts = {"version": VERSION, "program": release.VERSION}
    if {**(_read(folder) or {}), **facts} != _read(folder):
        folder.mkdir(parents=True, exist_ok=True)
        failpoint("state.version.before")
        replace_file(folder / FILE, {**facts, "since": round(clock.wall())})


def _read(folder: Path) -> dict[str, Any] | None:
    try:
        found = json.loads((folder / FILE).read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        found = None
    return found if isinstance(found, dict) else {}


def _refusal(folder: Path, which: str, more: str, found: dict[str, Any]) -> StorageError:
    program = found.get("program")
    other = f" (Tidemark {program})" if program else ""
    return StorageError(
        "state.version",
        f'the state in "{folder}" is {which}{other}{more}',
        "run the version of Tidemark that wrote it; or move the directory away and restart: "
        "every view is rebuilt, and its rows stay readable until then",
    )
