"""Propose columns from samples or schemas, to be shown and approved before use.

Samples prove a type only for themselves: the narrowest type that fits all of them is proposed, and
NULLs are always allowed. Schemas (Avro, Protobuf) give both. Objects are followed to their leaves;
values without a fixed shape are jsonb.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from connectors.extras import extra_required
from connectors.formats.columns import column_of_texts
from connectors.formats.csv_reader import CSV, Dialect, read_dialect, split_record
from connectors.formats.declared import declared_type
from connectors.formats.fields import utf8_fault
from connectors.formats.jsonb_text import Numeral, load_json
from connectors.formats.registry import SchemaRegistry
from dataflow.delta import KIND_BYTES, Column
from dataflow.errors import SourceError

Proposal = dict[str, Any]
Path = tuple[str, ...]

MAX_COLUMNS = 500
# Samples become objects of Python, which take up to a hundred times as much.
SAMPLE_BYTES = 2 << 20
_DEPTH = 4
_NAME_BYTES = 63
_ZERO_FIRST = re.compile(r"[+-]?0[0-9]")
_PLAIN_KEY = re.compile(r"[^.\[\]'\"$]+")
_OF_NUMBERS = ("int8", "numeric")
_OF_TEXTS = ("uuid", "date", "timestamp", "timestamptz")


def _bounded(samples: Sequence[bytes]) -> list[bytes]:
    """Return as many samples as fit into SAMPLE_BYTES together, in order."""
    found, left = [], SAMPLE_BYTES
    for sample in samples:
        if len(sample) <= left:
            left -= len(sample)
            found.append(sample)
    return found


def propose_columns(
    options: Mapping[str, Any], samples: Sequence[bytes], registry: SchemaRegistry | None = None
) -> list[Proposal]:
    """Return [{"name", "type", "nullable", "path"}] for a format's options.

    SourceError format.no_samples if there is nothing to infer from, and the errors of open_format.

    >>> propose_columns({"format": "json"}, [b'{"a": {"b": 1}, "c": "2024-01-01"}'])[0]["path"]
    '$.a.b'
    """
    samples = _bounded(samples)
    name = options.get("format")
    if registry is None and options.get("registry") is not None:
        registry = SchemaRegistry(options["registry"])
    rest = {key: value for key, value in options.items() if key not in ("registry", "key")}
    if name == "json":
        found = _of_objects([_loaded(sample) for sample in samples])
    elif name == "debezium-json":
        found = _of_objects([_row_of(_loaded(sample)) for sample in samples])
    elif name == CSV:
        found = _of_cells(rest, samples)
    elif name == "text":
        found = [((), _type_of_texts([s.decode(errors="replace") for s in samples]), True)]
    elif name in ("avro", "debezium-avro"):
        with extra_required(f"record format {name}"):
            from connectors.formats.propose_avro import columns_of_avro
        root = ("after",) if name == "debezium-avro" else ()
        found = columns_of_avro(rest, samples, registry, root, depth=_DEPTH)
    elif name == "protobuf":
        with extra_required("record format protobuf"):
            from connectors.formats.propose_protobuf import columns_of_protobuf
        found = columns_of_protobuf(rest, samples, registry, depth=_DEPTH)
    else:
        raise SourceError(
            "format.unknown",
            f'record format "{name}" does not exist',
            hint="use json, csv, text, avro, protobuf, debezium-json or debezium-avro",
        )
    if not found:
        raise SourceError(
            "format.no_samples",
            f"no columns can be proposed: none of {len(samples)} samples is {name}",
            hint="declare the columns, or retry once there are records",
        )
    return _named(found[:MAX_COLUMNS])


def _loaded(sample: bytes) -> Any:
    try:
        return load_json(sample.decode())
    except ValueError:
        return None


def _row_of(envelope: Any) -> Any:
    """Return the row of a Debezium envelope."""
    if isinstance(envelope, dict) and isinstance(envelope.get("payload"), dict):
        envelope = envelope["payload"]
    if not isinstance(envelope, dict):
        return None
    return envelope.get("after") or envelope.get("before")


def _of_objects(samples: Sequence[Any]) -> list[tuple[Path, str, bool]]:
    """Return the leaves in order of first appearance."""
    values: dict[Path, list[Any]] = {}
    for sample in samples:
        if isinstance(sample, dict):
            for path, value in _leaves(sample, ()):
                values.setdefault(path, []).append(value)
    # A path that is a leaf in one sample and an object in another has no fixed shape.
    mixed = {path for path in values for other in values
             if other != path and other[: len(path)] == path and any(
                 value is not None for value in values[path])}  # fmt: skip
    found = []
    for path, given in values.items():
        if any(path != one and path[: len(one)] == one for one in mixed):
            continue
        if path not in mixed and any(o != path and o[: len(path)] == path for o in values):
            continue
        found.append((path, "jsonb" if path in mixed else _type_of_values(given), True))
    return found


def _leaves(value: dict[str, Any], path: Path) -> Iterator[tuple[Path, Any]]:
    for key, inner in value.items():
        if isinstance(inner, dict) and inner and len(path) + 1 < _DEPTH and _is_reported(key):
            yield from _leaves(inner, (*path, key))
        elif key and _is_reported(key):
            yield (*path, key), inner


def _is_reported(key: str) -> bool:
    """Return True if a key can be declared: it is text that PostgreSQL can hold."""
    return "\0" not in key and not any("\ud800" <= character <= "\udfff" for character in key)


def _type_of_values(values: Sequence[Any]) -> str:
    given = [value for value in values if value is not None]
    kinds = {Numeral if isinstance(value, Numeral) else type(value) for value in given}
    if not kinds:
        return "text"
    if kinds == {bool}:
        return "bool"
    if kinds == {Numeral}:
        if any("e" in value.lower() for value in given):
            return "float8"
        return _fitting(given, _OF_NUMBERS) or "numeric"
    if kinds == {str}:
        return _fitting(given, _OF_TEXTS) or "text"
    return "jsonb" if kinds & {dict, list} else "text"


def _type_of_texts(texts: Sequence[str]) -> str:
    if all(text in ("true", "false", "t", "f") for text in texts):
        return "bool" if texts else "text"
    if any(_ZERO_FIRST.match(text) for text in texts):
        return _fitting(texts, _OF_TEXTS) or "text"
    return _fitting(texts, (*_OF_NUMBERS, *_OF_TEXTS)) or "text"


def _fitting(texts: Sequence[str], names: Sequence[str]) -> str:
    """Return the first of these types that accepts all texts, as PostgreSQL's input would."""
    column = Column.of(KIND_BYTES, [text.encode(errors="replace") for text in texts])
    for name in names:
        has_zone = [re.search(r"(Z|z|[+-]\d\d(:?\d\d)?)$", text[10:]) is not None
                    for text in texts]  # fmt: skip
        if name == "timestamp" and any(has_zone):
            continue
        if name == "date" and any(len(text.strip()) > 12 for text in texts):
            continue
        if texts and not column_of_texts(declared_type(name)[0], column)[1]:
            return name
    return ""


def _of_cells(options: Mapping[str, Any], samples: Sequence[bytes]) -> list[tuple[Path, str, bool]]:
    dialect = read_dialect(options)
    split = [_cells_of(sample, dialect) for sample in samples if not utf8_fault(sample)]
    rows = [row for row in split if row is not None]
    if not rows:
        return []
    header = options.get("header") or [f"column{at + 1}" for at in range(len(rows[0]))]
    found = []
    for at, name in enumerate(header):
        cells = [row[at] for row in rows if len(row) == len(header)]
        found.append(
            ((name,), _type_of_texts([cell for cell in cells if cell != dialect.null]), True)
        )
    return found


def _cells_of(sample: bytes, dialect: Dialect) -> list[str] | None:
    try:
        return split_record(sample, dialect)
    except ValueError:
        return None


def _named(found: Sequence[tuple[Path, str, bool]]) -> list[Proposal]:
    """Return proposals with unique names from the keys of the paths."""
    taken: set[str] = set()
    proposals = []
    for path, type, is_nullable in found:
        name = base = _cut("_".join(path) or "value", _NAME_BYTES)
        number = 1
        while name in taken:
            number += 1
            name = f"{_cut(base, _NAME_BYTES - 4)}_{number}"
        taken.add(name)
        proposals.append(_proposal(path, type, is_nullable, name))
    return proposals


def _proposal(path: Path, type: str, is_nullable: bool, name: str) -> Proposal:
    return {"name": name, "type": type, "nullable": is_nullable, "path": path_text(path)}


def path_text(path: Path) -> str:
    """Return a path as declarations write it.

    >>> path_text(("a", "b c", "d.e"))
    "$.a.b c['d.e']"
    """
    parts = []
    for key in path:
        quote = '"' if "'" in key else "'"
        parts.append(f".{key}" if _PLAIN_KEY.fullmatch(key) else f"[{quote}{key}{quote}]")
    return "$" + "".join(parts)


def _cut(name: str, max_bytes: int) -> str:
    return name.encode()[:max_bytes].decode(errors="ignore")
