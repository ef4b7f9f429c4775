"""Files of a service that continues: they, and their folders, come and go while one looks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


def files_below(*folders: Path) -> Iterator[Path]:
    """All files; a folder that is gone when its turn comes has none."""
    for folder in folders:
        for place, _, names in os.walk(folder):
            for name in names:
                yield Path(place, name)
