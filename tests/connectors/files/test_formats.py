"""Oracle: csv through pandas, json, ElementTree and pyarrow, reading the same bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.connectors.files.formats import (
    COLUMNS,
    FORMATS,
    declared,
    packed,
    random_rows,
    read,
    write,
)
from tests.connectors.files.source_mirror import SourceMirror, make_source


def options_of(path: str, format: str, **more: Any) -> dict[str, Any]:
    own = {"row_tag": "item"} if format == "xml" else {}
    relation = {"path": path, "format": format, "columns": declared(), **own, **more}
    return {"settle_ms": 0, "poll_interval_ms": 10, "relations": {"t": relation}}


def rows_of(kept: SourceMirror) -> list[dict[str, str | None]]:
    """The rows in the order of their files, without metadata."""
    names = [name for name, _ in COLUMNS]
    found = [row for _, row in sorted(kept.rows.items())]
    return [dict(zip(names, row[: len(names)], strict=True)) for row in found]


def check(found: list[dict[str, str | None]], wanted: list[dict[str, str | None]]) -> None:
    assert len(found) == len(wanted)
    for number, (left, right) in enumerate(zip(found, wanted, strict=True)):
        for name, type in COLUMNS:
            same = left[name] == right[name]
            if type == "float8" and left[name] is not None and right[name] is not None:
                same = float(left[name]) == float(right[name])  # type: ignore[arg-type]
            assert same, (number, name, left[name], right[name])


@pytest.mark.parametrize("is_packed", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize("format", FORMATS)
def test_every_format_as_snapshot_and_as_change(
    format: str, is_packed: bool, tmp_path: Path
) -> None:
    contents = [write(format, random_rows(500, seed)) for seed in (1, 2)]
    files = [packed(content) if is_packed else content for content in contents]
    suffix = f"{format}.gz" if is_packed else format
    (tmp_path / f"1.{suffix}").write_bytes(files[0])
    source = make_source(options_of(f"{tmp_path}/*", format))
    source.check()
    kept = SourceMirror(source)
    kept.begin(source)
    check(rows_of(kept), read(format, contents[0]))
    (tmp_path / f"2.{suffix}").write_bytes(files[1])
    kept.follow(source, lambda kept: len(kept.rows) == 1000)
    wanted = read(format, contents[0]) + read(format, contents[1])
    check(rows_of(kept), wanted)
    kept.load(source)
    check(rows_of(kept), wanted)
    assert not kept.rejected
