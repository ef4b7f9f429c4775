"""Options of a file source: location, format, and what to do when files change.

Options are the user's JSON. Invariant: an unknown or contradictory option is refused by name.
Options hold references to secrets, never secrets.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from connectors.extras import extra_required, require_package
from connectors.files.folder import Folder, LocalFolder
from connectors.files.pattern import DEFAULT_IGNORE, split_pattern
from connectors.files.stream import UTF8, canonical_encoding
from connectors.formats.csv_reader import Dialect, read_dialect
from connectors.objects.bucket_options import BucketOptions
from connectors.secrets import refuse_plain
from dataflow.errors import SourceError

FAIL, SKIP, DEAD_LETTER = "fail", "skip", "dead_letter"
RETRACT, KEEP = "retract", "keep"
CSV, JSON, JSONL, XML, PARQUET = "csv", "json", "jsonl", "xml", "parquet"
_FORMATS = {
    ".csv": CSV,
    ".tsv": CSV,
    ".json": JSON,
    ".jsonl": JSONL,
    ".ndjson": JSONL,
    ".xml": XML,
    ".parquet": PARQUET,
}
_BUCKET = "s3://"
# Both become part of the host that is reached.
_BUCKET_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}")
_REGION = re.compile(r"[A-Za-z0-9-]{1,64}")
_SECRETS = ("access_key", "secret_key", "session_token")
_CSV_ONLY = ("header", "delimiter", "quote", "escape", "null")
# name -> (type, allowed values, default).
_KNOWN: dict[str, tuple[type, tuple[Any, ...], Any]] = {
    "path": (str, (), ""),
    "format": (str, (CSV, JSON, JSONL, XML, PARQUET), ""),
    "compression": (str, ("auto", "gzip", "none"), "auto"),
    "encoding": (str, (), ""),
    "columns": (list, (), None),
    "header": (bool, (), True),
    "delimiter": (str, (), ","),
    "quote": (str, (), '"'),
    "escape": (str, (), ""),
    "null": (str, (), ""),
    "row_tag": (str, (), ""),
    "ignore": (list, (), None),
    "append_only": (bool, (), False),
    "on_removed": (str, (RETRACT, KEEP), ""),
    "on_error": (str, (FAIL, SKIP, DEAD_LETTER), FAIL),
    "poll_interval_ms": (int, (), 1000),
    "settle_ms": (int, (), 1000),
    "endpoint": (str, (), ""),
    "region": (str, (), "us-east-1"),
    "access_key": (str, (), ""),
    "secret_key": (str, (), ""),
    "session_token": (str, (), ""),
    "virtual_host": (bool, (), False),
    "ca_file": (str, (), ""),
}


@dataclass(frozen=True)
class FileOptions:
    """The options of one relation.

    columns: as declared, () if they are still to be discovered. dialect, has_header: of CSV.
    poll_s: pause between two listings. settle_s: see LocalFolder. bucket: connection options if the
    path is in a bucket. encoding: of text, "" if the format determines it (XML, Parquet).
    """

    relation: str
    path: str
    format: str
    compression: str = "auto"
    columns: tuple[Mapping[str, Any], ...] = ()
    dialect: Dialect = field(default_factory=Dialect)
    has_header: bool = True
    row_tag: str = ""
    ignore: tuple[str, ...] = DEFAULT_IGNORE
    is_append: bool = False
    on_removed: str = RETRACT
    on_error: str = FAIL
    poll_s: float = 1.0
    settle_s: float = 1.0
    bucket: BucketOptions = field(default_factory=BucketOptions)
    encoding: str = ""

    def folder(self) -> Folder:
        """Return the location of the files; nothing is reached yet."""
        if not self.path.startswith(_BUCKET):
            return LocalFolder(split_pattern(self.path, self.ignore), self.settle_s)
        bucket, _, key = self.path.removeprefix(_BUCKET).partition("/")
        if not _BUCKET_NAME.fullmatch(bucket):
            raise _refusal("path", f'"{bucket}" is not a valid bucket name', "s3://bucket/key*")
        with extra_required("a bucket of S3"):
            from connectors.files.bucket import BucketFolder
        return BucketFolder(bucket, split_pattern(key, self.ignore), self.bucket)


def read_options(options: Mapping[str, Any]) -> list[FileOptions]:
    """Read the relations of a source. SourceError source.bad_option, secret.plain; TidemarkError
    package.missing.

    >>> read_options({"relations": {"p": {"path": "/data/*.csv.gz"}}})[0].format
    'csv'
    """
    relations = options.get("relations")
    if not isinstance(relations, Mapping) or not relations:
        raise _refusal("relations", "no relation is declared", 'give {"name": {"path": ...}}')
    shared = {name: value for name, value in options.items() if name != "relations"}
    found = []
    for name, own in relations.items():
        if not isinstance(own, Mapping):
            raise _refusal(f"relations.{name}", "it is not an object", 'give {"path": ...}')
        try:
            found.append(_relation(str(name), {**shared, **own}))
        except SourceError as error:
            if error.option and error.option not in shared:
                error.option = f"relations.{name}.{error.option}"
            raise
    return found


def _relation(name: str, supplied: Mapping[str, Any]) -> FileOptions:
    values = {known: default for known, (_, _, default) in _KNOWN.items()}
    for option, value in supplied.items():
        values[option] = _checked(option, value)
    path = values["path"]
    if not path.startswith((_BUCKET, "/")):
        raise _refusal(
            "path", f'"{path}" is neither absolute nor in a bucket', "/dir/* or s3://b/*"
        )
    format = values["format"] or _format_of(path)
    if format == PARQUET:
        require_package("pyarrow", 'format "parquet"')
    _check_together(format, values, supplied)
    dialect = {option: values[option] for option in ("quote", "escape", "null")}
    dialect["delimiter"] = _delimiter(path, supplied, values)
    return FileOptions(
        name,
        path,
        format,
        values["compression"],
        tuple(values["columns"] or ()),
        read_dialect(dialect),
        values["header"],
        values["row_tag"],
        DEFAULT_IGNORE if values["ignore"] is None else tuple(map(str, values["ignore"])),
        values["append_only"],
        values["on_removed"] or (KEEP if values["append_only"] else RETRACT),
        values["on_error"],
        values["poll_interval_ms"] / 1000,
        values["settle_ms"] / 1000,
        _bucket_options(values),
        _encoding(format, values["encoding"]),
    )


def _checked(option: str, value: Any) -> Any:
    if option not in _KNOWN:
        raise _refusal(option, "unknown option", f"known: {', '.join(_KNOWN)}")
    kind, allowed, _ = _KNOWN[option]
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise _refusal(option, f"the value must be of type {kind.__name__}", "see docs/FILES.md")
    if allowed and value not in allowed:
        raise _refusal(option, f'"{value}" is not an allowed value', ", ".join(allowed))
    if kind is int and not 0 <= value <= 86_400_000:
        raise _refusal(option, f"{value} is out of range", "0 to 86400000 milliseconds")
    if option == "region" and not _REGION.fullmatch(value):
        raise _refusal(option, f'"{value}" is not a valid region name', "us-east-1")
    if option in _SECRETS and value:
        refuse_plain(option, value)
    return value


def _check_together(format: str, values: Mapping[str, Any], supplied: Mapping[str, Any]) -> None:
    if format == XML and not values["row_tag"]:
        raise _refusal(
            "row_tag", "XML needs the name of the element that is a row", "row_tag: item"
        )
    if values["append_only"] and values["on_removed"] == RETRACT:
        hint = "remove one of the two options"
        raise _refusal("on_removed", "append-only rows cannot be retracted", hint)
    if bool(values["access_key"]) != bool(values["secret_key"]):
        # With only one of them the client would search for the service's own credentials.
        raise _refusal(
            "secret_key", "access_key and secret_key require each other", "give both or none"
        )
    if values["session_token"] and not values["access_key"]:
        raise _refusal("session_token", "it is a part of access_key and secret_key", "give all")
    misplaced = [name for name in _CSV_ONLY if name in supplied] if format != CSV else []
    if misplaced:
        raise _refusal(misplaced[0], f"it does not apply to {format}", "remove it")
    if not values["header"] and any("path" in c for c in values["columns"] or ()):
        raise _refusal(
            "columns",
            "a path names a header, but has_header is false",
            "declare the columns in order",
        )


def _format_of(path: str) -> str:
    suffixes = [s.lower() for s in PurePosixPath(path).suffixes if s.lower() != ".gz"]
    format = _FORMATS.get(suffixes[-1] if suffixes else "", "")
    if not format:
        hint = "csv, json, jsonl, xml or parquet"
        raise _refusal("format", f'the path "{path}" does not show the format', hint)
    return format


def _delimiter(path: str, supplied: Mapping[str, Any], values: Mapping[str, Any]) -> str:
    if "delimiter" not in supplied and ".tsv" in PurePosixPath(path).suffixes:
        return "\t"
    return values["delimiter"]


def _encoding(format: str, supplied: str) -> str:
    if not supplied:
        return "" if format in (XML, PARQUET) else UTF8
    found = canonical_encoding(supplied)
    if found is None:
        hint = "utf-8, utf-16, latin-1, windows-1252, shift_jis and others, see docs/FILES.md"
        raise _refusal("encoding", f'"{supplied}" is not the name of an encoding', hint)
    if format == PARQUET:
        raise _refusal("encoding", "it does not apply to parquet", "remove it")
    return found


def _bucket_options(values: Mapping[str, Any]) -> BucketOptions:
    return BucketOptions(
        values["endpoint"],
        values["region"],
        values["access_key"],
        values["secret_key"],
        values["session_token"],
        values["virtual_host"],
        values["ca_file"],
    )


def _refusal(option: str, why: str, hint: str) -> SourceError:
    what = f'option "{option}": {why}'
    return SourceError("source.bad_option", what, hint=hint, option=option)
