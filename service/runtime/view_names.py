"""Names of views as users write them: `name` or `schema.name`, folded and quoted as in SQL."""

from __future__ import annotations

import re

from dataflow.errors import TidemarkError

DEFAULT_SCHEMA = "public"
MAX_BYTES = 63
RESERVED_SCHEMAS = ("pg_catalog", "information_schema", "tidemark")
_PART = re.compile(r'\s*(?:"((?:[^"]|"")+)"|([^\W\d][\w$]*))\s*(\.|$)')


def parse_name(text: str) -> tuple[str, str]:
    """Return (schema, name); the schema defaults to public. TidemarkError view.bad_name.

    >>> parse_name('Sales."By Day"')
    ('sales', 'By Day')
    """
    parts, at = [], 0
    while at < len(text) or not parts:
        match = _PART.match(text, at)
        if match is None or len(parts) == 2:
            raise _bad_name(text, "a name is `name` or `schema.name`, double-quoted where needed")
        quoted, plain, dot = match.groups()
        parts.append(quoted.replace('""', '"') if quoted is not None else plain.lower())
        at = match.end()
        if dot == "." and at == len(text):
            raise _bad_name(text, "the name ends with a dot")
    for part in parts:
        if len(part.encode()) > MAX_BYTES or "\x00" in part:
            raise _bad_name(text, f"a name has at most {MAX_BYTES} bytes and no NUL")
    schema, name = parts if len(parts) == 2 else (DEFAULT_SCHEMA, parts[0])
    if schema in RESERVED_SCHEMAS or schema.startswith("pg_"):
        raise _bad_name(text, f'schema "{schema}" is reserved')
    return schema, name


def path_name(schema: str, name: str) -> str:
    """Return the name for a URL path, which `parse_name` reads back.

    >>> print(path_name("Sales", "By Day"))
    "Sales"."By Day"
    """
    return ".".join('"' + part.replace('"', '""') + '"' for part in (schema, name))


def _bad_name(text: str, why: str) -> TidemarkError:
    return TidemarkError("view.bad_name", f'"{text}" is not a valid view name', detail=why)
