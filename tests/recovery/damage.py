"""What disks do to files: bits flip, ends are cut off, blocks are zero, files go or come back as
they were some time ago. One file at a time; everything is drawn from a seed."""

from __future__ import annotations

import random
import shutil
from dataclasses import dataclass
from pathlib import Path

DAMAGES = ("flip", "flips", "truncate", "zero", "delete", "older", "append", "repeat")
# Drawn alike, though a state has a hundred of one kind and one of the other.
NAMES = (
    "*.sst",
    "*.log",
    "MANIFEST-*",
    "CURRENT",
    "OPTIONS-*",
    "LOCK",
    "IDENTITY",
    "seal",
    "*.json",
)


@dataclass(frozen=True)
class Damage:
    """What was done to which file, for people. is_none: it left the file as it was."""

    kind: str
    path: str
    where: str = ""
    is_none: bool = False

    def __str__(self) -> str:
        return f"{self.kind} {self.path} {self.where}".strip()


def damage(
    pick: random.Random, folder: Path, older: Path, names: tuple[str, ...] = NAMES
) -> Damage:
    """Damage one file below a folder, of which `older` is an earlier copy."""
    while True:
        found = sorted(p for p in folder.rglob(pick.choice(names)) if p.is_file())
        if found:
            break
    path = pick.choice(found)
    name = str(path.relative_to(folder))
    return damage_file(pick, path, older / name, pick.choice(DAMAGES), name)


def damage_file(pick: random.Random, path: Path, older: Path, kind: str, name: str) -> Damage:
    """Damage a file in one way."""
    content = bytearray(path.read_bytes())
    before, where = bytes(content), ""
    if kind == "delete":
        path.unlink()
        return Damage(kind, name)
    if kind == "older":
        if not older.is_file():
            return Damage(kind, name, "(there was none)", is_none=True)
        shutil.copyfile(older, path)
        return Damage(kind, name, is_none=path.read_bytes() == before)
    if kind == "append":
        content += pick.randbytes(pick.choice((1, 7, 100)))
    elif content:
        at = pick.randrange(len(content))
        size = min(pick.choice((1, 16, 512, 4096)), len(content) - at)
        where = f"at {at} of {len(content)}"
        if kind == "flip":
            content[at] ^= 1 << pick.randrange(8)
        elif kind == "flips":
            content[at : at + size] = pick.randbytes(size)
        elif kind == "truncate":
            del content[at:]
        elif kind == "zero":
            content[at : at + size] = bytes(size)
        elif kind == "repeat":
            content[at : at + size] = content[:size]
    path.write_bytes(content)
    return Damage(kind, name, where, is_none=bytes(content) == before)
