"""The key under which a service vouches for its checkpoints.

The setting checkpoint_key has it, or a reference to it; otherwise the file `checkpoint.key` of the
state's directory, which is made when it is first needed and which only the service's user reads.
Invariant: the key never goes to where the checkpoints lie, so whoever can write there, and nowhere
else, cannot make one that is restored. All groups of a service have one key.
"""

from __future__ import annotations

import os
import secrets as random_secrets
import uuid
from contextlib import suppress
from pathlib import Path

from connectors import secrets
from connectors.shuffle_storage import force_names
from dataflow.errors import TidemarkError
from service.runtime.log import log
from service.runtime.settings import Settings

FILE = "checkpoint.key"
LEAST_CHARACTERS = 32
_KEY_BYTES = 32


def service_key(settings: Settings) -> bytes:
    """Return the key of a running service; make one if it has none.

    TidemarkError checkpoint.key, secret.missing.
    """
    if settings.checkpoint_key:
        return configured_key(settings.checkpoint_key)
    path = settings.home / FILE
    with suppress(FileNotFoundError):
        return read_key(path)
    write_key(path, random_secrets.token_hex(_KEY_BYTES).encode())
    log.info("checkpoint.key_made", path=str(path), why="copy it: a restore elsewhere needs it")
    return read_key(path)


def configured_key(setting: str) -> bytes:
    """Return the key that a setting has or refers to. TidemarkError checkpoint.key, secret.*"""
    text = secrets.resolve_setting(setting)
    secrets.remember(text.strip())
    return _checked(text.encode(), "TIDEMARK_CHECKPOINT_KEY")


def read_key(path: Path) -> bytes:
    """Return the key in a file. FileNotFoundError; TidemarkError checkpoint.key."""
    try:
        return _checked(path.read_bytes(), str(path))
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _unusable(str(path), f"it cannot be read: {error.strerror}") from error


def write_key(path: Path, key: bytes) -> None:
    """Put a key into a file that only this user can read, unless there is one already."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(file, "wb") as target:
            target.write(key + b"\n")
            target.flush()
            os.fsync(target.fileno())
        # The pipelines of several groups may do this at once: one of them makes it.
        with suppress(FileExistsError):
            path.hardlink_to(draft)
    finally:
        draft.unlink()
    force_names(path.parent)


def _checked(content: bytes, where: str) -> bytes:
    key = content.strip()
    if len(key) < LEAST_CHARACTERS:
        raise _unusable(where, f"it has {len(key)} characters, {LEAST_CHARACTERS} are the least")
    return key


def _unusable(where: str, why: str) -> TidemarkError:
    return TidemarkError(
        "checkpoint.key",
        f'the key of checkpoints in "{where}" cannot be used',
        detail=why,
        hint="openssl rand -hex 32 makes one",
    )
