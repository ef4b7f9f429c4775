"""The key that authenticates a service's checkpoints and the storage of its views on Spark.

The setting checkpoint_key contains it or refers to it. Otherwise it is the file `checkpoint.key` in
the state directory, created when first needed and readable only by the service's user. Invariant:
the key is never copied to those locations. So whoever can write only there cannot make a checkpoint
that is restored, or a file of a state that is read. All groups of a service share one key.
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
    """Return the key of a running service; create one if it has none."""
    if settings.checkpoint_key:
        return configured_key(settings.checkpoint_key)
    path = settings.home / FILE
    with suppress(FileNotFoundError):
        return read_key(path)
    write_key(path, random_secrets.token_hex(_KEY_BYTES).encode())
    log.info("checkpoint.key_made", path=str(path), why="copy it: a restore elsewhere needs it")
    return read_key(path)


def configured_key(setting: str) -> bytes:
    """Return the key that a setting contains or refers to.

    TidemarkError checkpoint.key, secret.*
    """
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
    """Write a key to a file that only this user can read, unless the file exists."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(file, "wb") as target:
            target.write(key + b"\n")
            target.flush()
            os.fsync(target.fileno())
        # Pipelines of several groups may do this at once: one of them wins.
        with suppress(FileExistsError):
            path.hardlink_to(draft)
    finally:
        draft.unlink()
    force_names(path.parent)


def _checked(content: bytes, where: str) -> bytes:
    key = content.strip()
    if len(key) < LEAST_CHARACTERS:
        raise _unusable(
            where, f"it has {len(key)} characters; at least {LEAST_CHARACTERS} are required"
        )
    return key


def _unusable(where: str, why: str) -> TidemarkError:
    return TidemarkError(
        "checkpoint.key",
        f'checkpoint key "{where}" cannot be used',
        detail=why,
        hint="create one with: openssl rand -hex 32",
    )
