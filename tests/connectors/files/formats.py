"""The same rows written, and read again, by independent libraries in each format."""

from __future__ import annotations

import csv
import datetime as dt
import gzip
import io
import json
import random
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

COLUMNS = (
    ("id", "int8"),
    ("small", "int2"),
    ("name", "text"),
    ("price", "numeric(12,2)"),
    ("big", "numeric"),
    ("ratio", "float8"),
    ("ok", "bool"),
    ("day", "date"),
    ("at", "timestamptz"),
    ("local", "timestamp"),
)
FORMATS = ("csv", "json", "jsonl", "xml", "parquet")
Row = dict[str, Any]
_NAMES = ["", "plain", 'quote " and, comma', "line\nbreak\r\n\ttab", "grüße 日本 🎉"]
_NAMES += ["<&>'", "\\N", "NULL"]
_SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("small", pa.int16()),
        ("name", pa.string()),
        ("price", pa.decimal128(12, 2)),
        ("big", pa.decimal256(50, 20)),
        ("ratio", pa.float64()),
        ("ok", pa.bool_()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("local", pa.timestamp("ms")),
    ]
)


def declared() -> list[dict[str, str]]:
    """The columns as options declare them."""
    return [{"name": name, "type": type} for name, type in COLUMNS]


def random_rows(count: int, seed: int) -> list[Row]:
    """Rows with every kind of value, NULLs among them."""
    found = random.Random(seed)
    rows = []
    for number in range(count):
        moment = dt.datetime(1970, 1, 1) + dt.timedelta(
            milliseconds=found.randrange(-(10**12), 4 * 10**12)
        )
        row: Row = {
            "id": number,
            "small": found.randrange(-(2**15), 2**15),
            "name": found.choice(_NAMES),
            "price": Decimal(found.randrange(-(10**12) + 1, 10**12)).scaleb(-2),
            "big": Decimal(found.randrange(10**30)).scaleb(-20),
            "ratio": found.choice([0.1, -2.5e-300, 1e22, found.random()]),
            "ok": found.random() < 0.5,
            "day": moment.date(),
            "at": moment.replace(tzinfo=dt.UTC),
            "local": moment,
        }
        for name, _ in COLUMNS[1:]:
            if found.random() < 0.1:
                row[name] = None
        rows.append(row)
    return rows


def write(format: str, rows: Sequence[Row]) -> bytes:
    """A file of the rows."""
    if format == "parquet":
        out = pa.BufferOutputStream()
        table = pa.Table.from_pylist(list(rows), _SCHEMA)
        pq.write_table(table, out, row_group_size=max(len(rows) // 3, 1))
        return out.getvalue().to_pybytes()
    plain = [{name: _plain(value) for name, value in row.items()} for row in rows]
    if format == "json":
        return json.dumps(plain, indent=1, ensure_ascii=False).encode()
    if format == "jsonl":
        return "".join(json.dumps(row) + "\n" for row in plain).encode()
    if format == "csv":
        text = io.StringIO(newline="")
        writer = csv.writer(text, quoting=csv.QUOTE_MINIMAL, lineterminator="\r\n")
        writer.writerow(rows[0])
        for row in rows:
            writer.writerow(["" if v is None else _text(v) for v in row.values()])
        return text.getvalue().encode()
    return _xml(rows)


def read(format: str, content: bytes) -> list[dict[str, str | None]]:
    """The rows of a file in PostgreSQL's text, by pandas, pyarrow, json and ElementTree."""
    if format == "parquet":
        found = pq.read_table(pa.BufferReader(content)).to_pylist()
        return [{name: _printed(name, value) for name, value in row.items()} for row in found]
    if format == "csv":
        frame = pd.read_csv(io.BytesIO(content), dtype=str, na_values=[""], keep_default_na=False)
        found = frame.astype(object).where(frame.notna(), None).to_dict("records")
    elif format == "json":
        found = json.loads(content, parse_float=str)
    elif format == "jsonl":
        found = [json.loads(line, parse_float=str) for line in content.splitlines()]
    else:
        found = [
            {child.tag: child.text or "" for child in row}
            for row in ET.fromstring(content).iter("item")
        ]
    names = [name for name, _ in COLUMNS]
    return [{name: _parsed(name, row.get(name)) for name in names} for row in found]


def packed(content: bytes) -> bytes:
    """As two gzip members, as concatenated files are."""
    half = len(content) // 2
    return gzip.compress(content[:half]) + gzip.compress(content[half:])


def _xml(rows: Sequence[Row]) -> bytes:
    root = ET.Element("items")
    for row in rows:
        item = ET.SubElement(root, "item")
        for name, value in row.items():
            if value is not None:
                # A parser makes one line feed of every line end that is written as it is.
                ET.SubElement(item, name).text = _text(value).replace("\r\n", "\n")
    return ET.tostring(root, encoding="utf-8", xml_declaration=True)


def _plain(value: Any) -> Any:
    if isinstance(value, Decimal | dt.date):
        return _text(value)
    return value


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dt.datetime):
        return value.isoformat()
    return str(value)


def _parsed(name: str, value: Any) -> str | None:
    """A value of text formats, in PostgreSQL's text."""
    if value is None:
        return None
    kinds = dict(COLUMNS)
    text = _text(value)
    if kinds[name] == "bool":
        return _printed(name, text == "true")
    if kinds[name] in ("numeric(12,2)", "numeric"):
        return _printed(name, Decimal(text))
    if kinds[name] == "float8":
        return _printed(name, float(text))
    if kinds[name] == "date":
        return _printed(name, dt.date.fromisoformat(text))
    if kinds[name] in ("timestamptz", "timestamp"):
        return _printed(name, dt.datetime.fromisoformat(text))
    return text


def _printed(name: str, value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, bool):
        return "t" if value else "f"
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, Decimal):
        return f"{value:.2f}" if name == "price" else f"{value:f}"
    if isinstance(value, dt.datetime):
        text = value.strftime("%Y-%m-%d %H:%M:%S")
        text += f".{value.microsecond:06d}".rstrip("0") if value.microsecond else ""
        return text + ("+00" if value.tzinfo else "")
    return str(value)
