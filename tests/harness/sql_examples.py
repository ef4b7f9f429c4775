"""The SQL examples of a Markdown page, with what the page says of each.

In a fenced sql block every statement ends with a semicolon at the end of a line, where a comment
may follow: `-- key: id`, `-- multiset`, `-- refused: code`, and behind a comma `warning: text` and
`in PostgreSQL: text`. Lines `--> a | b` below a statement are the rows that the view shows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

_END = re.compile(r"^(?P<sql>.*);\s*(?:--(?P<note>.*))?$")
_FACTS = ("key", "multiset", "refused", "warning", "in PostgreSQL")


@dataclass
class Example:
    """One statement. facts: what its comment says; shown: rows, None when it tells none."""

    line: int
    sql: str
    facts: dict[str, str]
    shown: list[tuple[str, ...]] | None = field(default=None)

    @property
    def is_query(self) -> bool:
        """Whether it is to be a view; other statements are run as they are."""
        return self.sql.split()[0].upper() in ("SELECT", "WITH", "VALUES")


def read_examples(path: Path) -> list[Example]:
    """The examples of a page in order."""
    found: list[Example] = []
    text: list[str] = []
    for number, line in _lines(path):
        if line.startswith("--> "):
            example = found[-1]
            row = tuple(cell.strip() for cell in line[4:].split("|"))
            example.shown = [*(example.shown or []), row]
            continue
        end = _END.match(line)
        text.append(end["sql"] if end else line)
        if end:
            sql = "\n".join(text).strip()
            found.append(Example(number, sql, _facts(end["note"] or "", f"{path.name}:{number}")))
            text = []
    assert not "".join(text).strip(), f"{path.name}: a statement does not end: {text}"
    return found


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    is_sql = False
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        if line.startswith("```"):
            is_sql = line == "```sql"
        elif is_sql:
            yield number, line


def _facts(note: str, where: str) -> dict[str, str]:
    facts = {}
    for part in filter(None, (p.strip() for p in note.split(", "))):
        name, _, value = part.partition(":")
        assert name in _FACTS, f"{where}: what is {part!r}?"
        facts[name] = value.strip()
    return facts
