"""Globs over paths, their root folder, and the columns that folder names define (`year=2024`).

Paths are relative to the pattern's root, the part before the first wildcard. `*`, `?` and `[...]`
match within one folder; `**` matches any number of folders. Nothing here reads a disk, so one
pattern means the same for a local folder and for a bucket.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from urllib.parse import unquote, unquote_to_bytes

from dataflow.errors import SourceError

WILDCARDS = "*?["
# How Hive and Spark name the folder of NULL.
NULL_FOLDER = b"__HIVE_DEFAULT_PARTITION__"
DEFAULT_IGNORE = (
    ".*",
    "_*",
    "*.tmp",
    "*.temp",
    "*.part",
    "*.partial",
    "*.crdownload",
    "*.filepart",
    "*.inprogress",
    "*._COPYING_",
    "*.swp",
    "*~",
)


@dataclass(frozen=True)
class Pattern:
    """A parsed pattern.

    root: where the glob starts, without a trailing slash. parts: its components below. ignore:
    globs of names; a file or folder below the root with such a name is skipped. A folder that names
    a column (`_day=1`) is never ignored.
    """

    root: str
    parts: tuple[str, ...]
    ignore: tuple[str, ...] = DEFAULT_IGNORE

    def __post_init__(self) -> None:
        for part in self.parts:
            if "**" in part and part != "**":
                what = f'the pattern has "**" next to other characters in "{part}"'
                raise SourceError(
                    "source.bad_option", what, hint='write "**" between two slashes', option="path"
                )

    @cached_property
    def _path(self) -> re.Pattern[str]:
        pieces = [
            "(?:[^/]+/)*" if part == "**" else one_name(part) + ("/" if more else "")
            for part, more in zip(self.parts, [True] * (len(self.parts) - 1) + [False], strict=True)
        ]
        return re.compile("".join(pieces) + r"\Z", re.DOTALL)

    @cached_property
    def _ignored(self) -> re.Pattern[str] | None:
        if not self.ignore:
            return None
        return re.compile("|".join(f"(?:{one_name(g)}\\Z)" for g in self.ignore), re.DOTALL)

    @cached_property
    def _names(self) -> list[re.Pattern[str]]:
        return [re.compile(one_name(part) + r"\Z", re.DOTALL) for part in self.parts]

    @property
    def depth(self) -> int | None:
        """The number of components of a path; None for any number."""
        return None if "**" in self.parts else len(self.parts)

    @property
    def is_exact(self) -> bool:
        """Return True if it names one file."""
        return len(self.parts) == 1 and not any(w in self.parts[0] for w in WILDCARDS)

    def is_ignored(self, name: str) -> bool:
        """Return True if a component names an unfinished or hidden file or folder."""
        if self._ignored is None or not self._ignored.match(name):
            return False
        return "=" not in name

    def matches(self, path: str) -> bool:
        """Return True if the pattern matches a file.

        >>> Pattern("in", ("**", "*.csv")).matches("2024/05/a.csv")
        True
        >>> Pattern("in", ("**", "*.csv")).matches("2024/.hidden/a.csv")
        False
        """
        if not self._path.match(path):
            return False
        return not any(self.is_ignored(name) for name in path.split("/"))

    def enters(self, folders: Sequence[str]) -> bool:
        """Return True if the pattern may match files below these folders."""
        if folders and self.is_ignored(folders[-1]):
            return False
        if self.depth is None:
            fixed = self.parts.index("**")
        elif len(folders) >= len(self.parts):
            return False
        else:
            fixed = len(self.parts)
        return all(
            name.match(folder)
            for name, folder in zip(self._names[:fixed], folders[:fixed], strict=False)
        )


def split_pattern(text: str, ignore: Sequence[str] = DEFAULT_IGNORE) -> Pattern:
    """Split a path, with or without wildcards; its last component is always a pattern.

    >>> split_pattern("/data/in/*/a.csv").root, split_pattern("/data/in/*/a.csv").parts
    ('/data/in', ('*', 'a.csv'))
    """
    parts = text.split("/")
    fixed = next((i for i, part in enumerate(parts) if any(w in part for w in WILDCARDS)), None)
    fixed = len(parts) - 1 if fixed is None else fixed
    below = tuple(part for part in parts[fixed:] if part)
    if not below:
        what = f'the path "{text}" does not name a file'
        raise SourceError(
            "source.bad_option", what, hint="end it with a file's name or a pattern", option="path"
        )
    if below[-1] == "**":
        below = (*below, "*")
    return Pattern("/".join(parts[:fixed]), below, tuple(ignore))


def one_name(glob: str) -> str:
    """Return the regular expression of a glob of one component, without its end."""
    out, at = [], 0
    while at < len(glob):
        character = glob[at]
        at += 1
        if character == "*":
            out.append("[^/]*")
        elif character == "?":
            out.append("[^/]")
        elif character == "[" and (end := glob.find("]", at + 1 + (glob[at : at + 1] == "!"))) > 0:
            inside = glob[at:end]
            negated = inside.startswith(("!", "^"))
            body = re.sub(r"([\\\[\]&~|^])", r"\\\1", inside[1:] if negated else inside)
            out.append(f"(?!/)[{'^' if negated else ''}{body}]")
            at = end + 1
        else:
            out.append(re.escape(character))
    return "".join(out)


def folder_values(path: str) -> Iterator[tuple[str, bytes | None]]:
    """Yield (column, value) of each folder of a path that names a column; None is NULL.

    A value may be invalid UTF-8, like text in a file.

    >>> list(folder_values("year=2024/x/day=1%2F5/f.csv"))
    [('year', b'2024'), ('day', b'1/5')]
    """
    for folder in path.split("/")[:-1]:
        name, found, value = folder.partition("=")
        if found and name:
            text = unquote_to_bytes(value)
            yield unquote(name), None if text == NULL_FOLDER else text
