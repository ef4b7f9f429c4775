"""Formats by name: what users write in a source's options becomes a RecordFormat.

Whatever is wrong with the options is told here, before any record is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from connectors.formats.declared import KEY, VALUE, DeclaredColumn
from connectors.formats.fields import Reader
from connectors.formats.json_reader import JsonReader
from connectors.formats.record_format import RecordFormat
from connectors.formats.row_format import RowFormat
from connectors.formats.text_reader import TextReader
from dataflow.errors import SourceError

Options = Mapping[str, Any]
MakeReader = Callable[[Sequence[DeclaredColumn], Options], Reader]

_READERS: dict[str, MakeReader] = {
    "json": lambda columns, options: JsonReader(columns),
    "text": lambda columns, options: TextReader(columns),
}
_OPTIONS: dict[str, set[str]] = {"json": set(), "text": set()}


def open_format(options: Options, columns: Sequence[DeclaredColumn]) -> RecordFormat:
    """The format of {"format": name, "key": {"format": name}, and its own options}.

    SourceError format.unknown, format.option, format.column and what the format itself refuses.
    """
    in_value = [column for column in columns if column.origin == VALUE]
    in_key = [column for column in columns if column.origin == KEY]
    rest = {name: value for name, value in options.items() if name != "key"}
    value_reader = open_reader(rest, in_value)
    key_options = options.get("key")
    if key_options is None and in_key:
        raise SourceError(
            "format.option",
            f'column "{in_key[0].field.name}" stands in the key, whose format is not given',
            hint='"key": {"format": "text"} for a key that is one bare value, or "json"',
        )
    key_reader = open_reader(key_options, in_key) if in_key and key_options else None
    return RowFormat(columns, value_reader, key_reader)


def open_reader(options: Options, columns: Sequence[DeclaredColumn]) -> Reader:
    """The reader of one part of the records."""
    name = str(options.get("format", ""))
    if name not in _READERS:
        raise SourceError(
            "format.unknown",
            f'there is no record format "{name}"',
            hint=f"one of {', '.join(sorted(_READERS))}",
        )
    unknown = sorted(set(options) - _OPTIONS[name] - {"format"})
    if unknown:
        raise SourceError(
            "format.option",
            f'format "{name}" has no option "{unknown[0]}"',
            hint=f"known: {', '.join(sorted(_OPTIONS[name])) or 'none'}",
        )
    return _READERS[name](columns, options)
