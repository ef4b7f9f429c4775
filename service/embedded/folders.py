"""An engine's folder, made or refused: the same in both of its processes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dataflow.errors import TidemarkError
from service.runtime.private_files import make_private


@contextmanager
def usable(folder: Path) -> Iterator[None]:
    """What the machine refuses inside is TidemarkError engine.folder."""
    try:
        yield
    except OSError as error:
        raise TidemarkError(
            "engine.folder",
            f'folder "{folder}" cannot be used',
            detail=str(error),
            hint="give another state_dir",
        ) from error


def make_shared(folder: Path, *, is_private: bool) -> None:
    """Make an engine's folder, for its user alone.

    is_private: it has a server of its own, which never runs as root: from root's folder that one's
    user gets to its own, and lists nothing.
    """
    make_private(folder, may_pass=is_private and os.geteuid() == 0)
