"""Oracle: what somebody who pipes a command's output, or gives it a file, must get."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import typer

from service.cli.output import console, read_json, table_of

LONG = "a_very_long_name_of_a_view_" * 12


def test_nothing_is_cut_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "_file", io.StringIO())
    table = table_of("view", "status", "reason")
    table.add_row(LONG, "live", "x" * 500)
    table.add_row("short", "live", "")
    console.print(table)
    console.print(f"plan: {LONG}", highlight=False, markup=False)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    lines = [line.rstrip() for line in shown.splitlines()]
    assert len(lines) == 4 and LONG in lines[1] and "x" * 500 in lines[1] and "…" not in shown
    assert lines[3] == f"plan: {LONG}"


BAD = [
    *(b"", b"{", b"{]", b'{"a": NaN}', b'{"a": -Infinity}', b'{"a": "\\ud800"}', b'{"\\udc00": 1}'),
    *(
        b"\xff",
        b'{"a": "\xe9"}',
        b"\xef\xbb\xbf{}",
        b"\xff\xfe{\0}\0",
        b"[]",
        b"7",
        b'"x"',
        b"null",
    ),
    *(b'{"a": 1' + b"0" * 5000 + b"}", b"[" * 100_000, b'{"a": 1e999}', b"{'a': 1}", b'{"a": 1,}'),
]


@pytest.mark.parametrize("content", BAD, ids=range(len(BAD)))
def test_a_file_of_options_that_is_none(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "options.json"
    path.write_bytes(content)
    with pytest.raises(typer.Exit) as ended:
        read_json(path)
    assert ended.value.exit_code == 1
    told = capsys.readouterr().err
    assert "[file." in told.splitlines()[0] and "Traceback" not in told


def test_a_file_that_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in (tmp_path, tmp_path / "none.json", Path("/proc/self/mem")):
        with pytest.raises(typer.Exit):
            read_json(path)
        assert "[file.unreadable]" in capsys.readouterr().err
