"""The refusal of a folder that an engine cannot use, the same in both of its processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dataflow.errors import TidemarkError


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
