"""The options of files as a JSON Schema (connectors/option_schema.py).

Every option may stand at the source, as a default of its relations; the form asks for it where it
is usual.
"""

from __future__ import annotations

from connectors.objects.bucket_schema import BUCKET
from connectors.option_schema import (
    DAY_MS,
    Schema,
    advanced,
    by_name,
    choice,
    columns,
    flag,
    group,
    number,
    on_error,
    text,
    texts,
)

_CHARACTER = "One ASCII character"
_OF_FILES: dict[str, Schema] = {
    "format": choice(
        "Format",
        dict.fromkeys(("csv", "json", "jsonl", "xml", "parquet"), ""),
        None,
        "Of the files; by default from their suffix.",
    ),
    "compression": advanced(
        choice("Compression", {"auto": "by suffix", "gzip": "", "none": ""}, "auto")
    ),
    "encoding": advanced(text("Encoding", "Of text; default: utf-8.", examples=["windows-1252"])),
    "header": advanced(flag("Header", "CSV: the first line has names of columns.", default=True)),
    "delimiter": advanced(text("Delimiter", f"CSV: {_CHARACTER}; default: comma, of .tsv tab.")),
    "quote": advanced(text("Quote", f"CSV: {_CHARACTER}; default: a double quote.")),
    "escape": advanced(text("Escape", f"CSV: {_CHARACTER}; default: a doubled quote.")),
    "null": advanced(text("NULL", "CSV: the unquoted cell that is NULL; default: an empty one.")),
    "row_tag": advanced(text("Row element", "XML: the name of the element that is a row.")),
    "ignore": advanced(texts("Ignore", "Patterns of names that are left out.")),
    "append_only": flag("Append only", "Files only grow, and rows are never removed."),
    "on_removed": advanced(
        choice(
            "Removed files",
            {"retract": "their rows are removed", "keep": "their rows stay"},
            None,
            "By default as the option append only says.",
        )
    ),
    "on_error": on_error(),
    "poll_interval_ms": number(
        "Poll interval", "Pause between two listings.", 1000, unit="ms", minimum=0, maximum=DAY_MS
    ),
    "settle_ms": advanced(
        number(
            "Settling time",
            "How long a file must not have changed before it is read.",
            1000,
            unit="ms",
            minimum=0,
            maximum=DAY_MS,
        )
    ),
    **BUCKET,
}
_PATH = text(
    "Path",
    "Absolute, with * and ** for any names, or in a bucket.",
    examples=["/srv/prices/*.csv", "s3://bucket/prices/*.parquet"],
)
RELATION = group(
    "Relation",
    "Files of one kind.",
    {"path": _PATH, "columns": columns(), **_OF_FILES},
    ("path", "columns"),
)
SCHEMA = group(
    "Files and S3 buckets",
    "Rows of CSV, JSON, XML and Parquet files in folders and buckets, which are watched.",
    {
        "relations": by_name("Relations", "Each is what queries name source.relation.", RELATION),
        "path": advanced({**_PATH, "description": "Of relations without a path of their own."}),
        "columns": advanced({**columns(), "description": "Of relations without their own."}),
        **{name: advanced(one) for name, one in _OF_FILES.items()},
    },
    ("relations",),
)
