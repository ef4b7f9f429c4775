"""Two hundred names that somebody may give a table, a column or a view, drawn from one seed."""

from __future__ import annotations

from random import Random

_HAND = [
    'x"; DROP TABLE victim; --',
    '"', '""', "'", "''", "$$", "$a$", "`", "\\", "\\'", "E'\\'", ";", "--", "/*", "*/", "%", "%s",
    "%(x)s", "{}", "{0}", "{name}", "${env:PATH}", "$1", ":x", "?", "@", "#", "!", "&", "|", "~",
    " ", "  ", " x", "x ", "a b", "\t", "\n", "\r\n", "x\ny", "\x01", "\x7f", "\u00a0", "\u200b",
    "\u202e", "\ufeff", "\u2028", "é", "e\u0301", "ß", "İ", "日本語", "😀", "👨‍👩‍👧", "\U0010ffff",
    "NULL", "null", "true", "select", "SELECT", "from", "table", "user", "order", "group", "all",
    "default", "pg_class", "oid", "ctid", "xmin", "tableoid", "tidemark_row", "tidemark_analysis",
    "t1", "c1", "a1", "g", "s", "v0", "_", "__", "_x", "1", "1e5", "0x", "-1", "1.5", ".", "..",
    "a.b", "a.b.c", "/", "//", "../x", "..%2f", "%2e%2e", "%00", "a%20b", "a+b", "a=b", "a&b=c",
    "x" * 63, "é" * 31, "😀" * 15, "A", "aA", "Ab C", "validate", "changes", "rows", "plan", "wait",
    "x'; SELECT pg_sleep(9); --", "<script>alert(1)</script>", "{{7*7}}", "\\copy", "\\.",
    "x\\", '\\"', "count", "_count", "tidemark", "public", "information_schema",
]  # fmt: skip
_LETTERS = "ab_ \"'\\;%$.()[]{}<>/*-+=,:?!@#&|~^`\n\t" + "éß日😀\u0301\u200b"


def hostile_names(count: int = 200) -> list[str]:
    """Different names of 1 to 63 bytes without NUL, those that were thought of first."""
    rng = Random("names")
    found = dict.fromkeys(_HAND)
    while len(found) < count:
        name = "".join(rng.choice(_LETTERS) for _ in range(rng.randint(1, 20)))
        if len(name.encode()) <= 63:
            found[name] = None
    return list(found)[:count]
