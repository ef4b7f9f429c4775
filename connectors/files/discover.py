"""Propose columns from a sample of the newest files, for a user to check.

Files are sampled here, and connectors/formats/discover.py finds types of records; Parquet files
name their types. Values that do not fit a proposed type are reported when they are read. No state
is stored.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from connectors.files import options as known
from connectors.files.journal import FileStat
from connectors.files.options import FileOptions
from connectors.files.pattern import folder_values
from connectors.files.reading import OF_CONTENT, header_names
from connectors.files.records import LineForm, Records, Stretch, json_records, line_records
from connectors.files.stream import ByteStream, UnreadableFile
from connectors.files.xml_records import XmlColumn, xml_records
from connectors.formats.discover import propose_columns
from dataflow.errors import SourceError

if TYPE_CHECKING:
    import pyarrow as pa

SAMPLE_FILES, SAMPLE_RECORDS = 3, 1000
# Of one file; a record may have 64 MB.
SAMPLE_BYTES = 16 << 20
_ROW = "row"
_Proposal = dict[str, Any]


def discover_columns(options: FileOptions) -> list[_Proposal]:
    """Return proposed columns for a relation that declares none. SourceError source.bad_sample."""
    folder = options.folder()
    there = [stat for stat in folder.list_files() if not stat.fault]
    found = sorted(there, key=lambda stat: (-stat.modified_us, stat.path))[:SAMPLE_FILES]
    columns: dict[str, _Proposal] = {}
    for stat in found:
        try:
            with folder.open(stat) as file:
                proposed = _of_file(
                    options, ByteStream(file, options.compression, options.encoding)
                )
        except (UnreadableFile, *OF_CONTENT) as error:
            raise _refusal(options, stat.path, str(error)) from None
        for column in proposed:
            columns.setdefault(column["name"], column)
    if not columns:
        raise _refusal(options, options.path, "no file with a row was found")
    for name, texts in _folders(found).items():
        columns[name] = {"name": name, "type": _type_of_texts(texts)}
    return list(columns.values())


def _of_file(options: FileOptions, stream: ByteStream) -> list[_Proposal]:
    if options.format == known.PARQUET:
        from connectors.files.parquet_rows import open_parquet

        schema = open_parquet(stream.seekable()).parquet.schema_arrow
        return [{"name": f.name, "type": _type_of_arrow(f.type), **_path(f.name)} for f in schema]
    if options.format == known.XML:
        return _of_xml(options, stream)
    form = LineForm()
    if options.format == known.CSV:
        form = LineForm(*options.dialect.bytes())
    is_json = options.format == known.JSON
    records = json_records(stream) if is_json else line_records(stream, form, Stretch())
    samples = list(_sampled(records))
    if options.format != known.CSV:
        return propose_columns({"format": "json"}, samples) if samples else []
    given: dict[str, Any] = {"format": "csv", **vars(options.dialect)}
    if options.has_header and samples:
        given["header"] = header_names(samples.pop(0), stream, options.dialect)
    return _without_paths(propose_columns(given, samples), options) if samples else []


def _without_paths(found: list[_Proposal], options: FileOptions) -> list[_Proposal]:
    """Remove the paths of a file without a header: its columns are positional."""
    if options.has_header:
        return found
    return [{key: value for key, value in c.items() if key != "path"} for c in found]


def _of_xml(options: FileOptions, stream: ByteStream) -> list[_Proposal]:
    records = xml_records(stream, options.row_tag, [XmlColumn(_ROW, (), True, False)])
    values: dict[str, list[Any]] = {}
    for record in _sampled(records):
        for name, value in json.loads(record)[_ROW].items():
            values.setdefault(name, []).append(value)
    return [
        {"name": name, "type": _type_of_elements(found), **_path(name)}
        for name, found in values.items()
    ]


def _type_of_elements(values: list[Any]) -> str:
    if not all(isinstance(value, str) for value in values):
        return "jsonb"
    return _type_of_texts([value.encode() for value in values if value])


def _type_of_texts(texts: list[bytes]) -> str:
    """Return the narrowest type that all texts fit."""
    return propose_columns({"format": "text"}, texts)[0]["type"] if texts else "text"


def _path(name: str) -> dict[str, str]:
    """Return the path option of a column, if its name alone does not give it."""
    return {} if name.isidentifier() else {"path": f"$['{name}']"}


def _sampled(found: Iterable[Records]) -> Iterator[bytes]:
    """Yield the first records: so many, or so many bytes, and at least one."""
    left = SAMPLE_BYTES
    for record in islice(_each(found), SAMPLE_RECORDS):
        yield record
        left -= len(record)
        if left <= 0:
            return


def _each(found: Iterable[Records]) -> Iterator[bytes]:
    for records in found:
        yield from records.values


def _folders(found: Iterable[FileStat]) -> dict[str, list[bytes]]:
    texts: dict[str, list[bytes]] = {}
    for stat in found:
        for name, text in folder_values(stat.path):
            texts.setdefault(name, []).extend([] if text is None else [text])
    return texts


def _type_of_arrow(type: pa.DataType) -> str:
    from pyarrow import types as t

    if t.is_dictionary(type):
        return _type_of_arrow(type.value_type)
    if t.is_decimal(type):
        return f"numeric({type.precision},{type.scale})" if type.scale >= 0 else "numeric"
    if t.is_timestamp(type):
        return "timestamp" if type.tz is None else "timestamptz"
    for is_meant, name in (
        (t.is_boolean, "bool"),
        (t.is_int8, "int2"),
        (t.is_uint8, "int2"),
        (t.is_int16, "int2"),
        (t.is_uint16, "int4"),
        (t.is_int32, "int4"),
        (t.is_uint64, "numeric"),
        (t.is_integer, "int8"),
        (t.is_float64, "float8"),
        (t.is_floating, "float4"),
        (t.is_date, "date"),
        (t.is_time, "time"),
        (t.is_nested, "jsonb"),
        (t.is_binary, "bytea"),
        (t.is_large_binary, "bytea"),
        (t.is_fixed_size_binary, "bytea"),
    ):
        if is_meant(type):
            return name
    return "text"


def _refusal(options: FileOptions, where: str, detail: str) -> SourceError:
    what = f'no columns can be proposed for relation "{options.relation}"'
    hint = "declare the columns"
    return SourceError("source.bad_sample", what, detail=f"{where}: {detail}", hint=hint)
