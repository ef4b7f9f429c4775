"""The tour of a page, block for block: what is to be typed where, and what it is to print.

Fenced blocks of the section in their order: `sh` for a shell, `sql` for psql, `python` for a
script; a block without a language behind one of them is what it prints. In that, `...` stands for
anything, as a line of its own for any lines or none: all else must be just so, blanks apart.
"""

from __future__ import annotations

import doctest
import re
from dataclasses import dataclass, replace
from pathlib import Path

SECTION = "## Five minutes"
PLACES = ("sh", "sql", "python")
_SOME_LINES = re.compile(r"^\.\.\.\n", re.MULTILINE)
_RULES = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@dataclass(frozen=True)
class Step:
    """One block. shown: what it prints, None where the page does not say."""

    line: int
    place: str
    text: str
    shown: str | None = None
    page: str = ""

    def differs(self, printed: str) -> str:
        """Return how what was printed differs from what the page shows, "" if it does not."""
        if self.shown is None:
            return ""
        checker = doctest.OutputChecker()
        if checker.check_output(_SOME_LINES.sub("...", self.shown), printed, _RULES):
            return ""
        reported = doctest.Example(self.text, self.shown)
        return checker.output_difference(reported, printed, _RULES & ~doctest.NORMALIZE_WHITESPACE)


def read_tour(page: Path, section: str = SECTION) -> list[Step]:
    """The steps of a page's section."""
    steps: list[Step] = []
    language: str | None = None
    block: list[str] = []
    is_inside = False
    for number, line in enumerate(page.read_text().splitlines(), start=1):
        if language is None and line.startswith("## "):
            is_inside = line.startswith(section)
        elif not is_inside:
            continue
        elif line.startswith("```") and language is None:
            language, block = line.removeprefix("```"), []
        elif line == "```":
            text = "\n".join(block) + "\n"
            if language:
                assert language in PLACES, f"{page.name}:{number}: a block of {language}"
                steps.append(Step(number - len(block), language, text, page=page.name))
            else:
                done = steps.pop()
                assert done.shown is None, f"{page.name}:{number}: whose output is this?"
                steps.append(replace(done, shown=text))
            language = None
        else:
            block.append(line)
    return steps
