"""Oracle: the kernel's count of a process's memory, and for each bomb the reason of its refusal;
the largest that is allowed is read before, by the same process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from connectors import netguard
from connectors.files import discover
from connectors.files import source as files
from connectors.formats import record_format
from connectors.formats.declared import declare_columns
from connectors.formats.open_format import open_format
from tests.harness.tiers import is_fast
from tests.security.bombs import ALLOWED, BOMBS

# What the process may need beyond its start: the largest allowed record of 64 MB, some copies of
# it, and its values.
MARGIN_MB = 700
TIMEOUT_S = 900
# Of each kind the worst one.
FAST = (
    *("avro: values without bytes", "avro: doubled records", "avro: a list of a million links"),
    "avro: doubled defaults",
    *("protobuf: messages without bytes", "protobuf: deep messages"),
    *("json: long numbers", "csv: many cells"),
    *("xml: many attributes", "xml: deep elements", "xml: entities"),
    *(name for name in BOMBS if name.startswith("parquet: ")),
)
FAST_ALLOWED = ("avro deep", "protobuf", "numbers", "csv", "xml deep", "gzip")
FAST_ALLOWED += tuple(name for name in ALLOWED if name.startswith("parquet"))


def test_what_stands_for_much_takes_little() -> None:
    allowed = FAST_ALLOWED if is_fast() else tuple(ALLOWED)
    names = FAST if is_fast() else tuple(BOMBS)
    root = Path(__file__).parents[2]
    child = subprocess.run(
        [sys.executable, "-m", "tests.security.bombs", *allowed, *names],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert child.returncode == 0, child.stderr.decode()[-2000:]
    found = {name: (what, mb) for name, what, mb in map(json.loads, child.stdout.splitlines())}
    start = found["start"][1]
    for name in allowed:
        what, mb = found[name]
        assert isinstance(what, int) and what > 0, (name, what)
        assert mb - start < MARGIN_MB, (name, mb)
    for name in names:
        what, mb = found[name]
        assert BOMBS[name][1] in str(what), (name, what)
        assert mb - start < MARGIN_MB, (name, mb)


@pytest.mark.parametrize("name", ["json", "avro", "protobuf", "text"])
def test_a_record_that_is_too_long_is_rejected_alone(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_format, "MOST_RECORD_BYTES", 100)
    monkeypatch.setattr(record_format, "SLICE_BYTES", 64)
    good, options = {
        "json": (b'{"x":"good"}', {}),
        "text": (b"good", {}),
        "avro": (
            b"\x08good",
            {"schema": '{"type":"record","name":"R","fields":[{"name":"x","type":"string"}]}'},
        ),
        "protobuf": (b"\x0a\x04good", {"schema": 'syntax="proto3"; message M { string x = 1; }'}),
    }[name]
    columns = declare_columns([{"name": "x", "type": "text"}])
    opened = open_format({"format": name, **options}, columns)
    records = [good, good * 50, *[good] * 20, b"\xff" * 101, good]
    decoded = opened.decode(records)
    assert [bad.number for bad in decoded.bad] == [1, 22]
    assert decoded.records.tolist() == [n for n in range(24) if n not in (1, 22)]
    assert set(decoded.columns[0].to_list()) == {b"good"}


@pytest.mark.parametrize("name", ["x.csv", "x.jsonl", "x.json", "x.xml"])
def test_a_sample_has_a_size(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what is within the sample decides the type."""
    values = [*(b"%d" % n for n in range(20)), b"word"]
    in_json = [*values[:-1], b'"word"']
    texts = {
        "x.csv": b"x\n" + b"\n".join(values),
        "x.jsonl": b"\n".join(b'{"x":%s}' % v for v in in_json),
        "x.json": b"[%s]" % b",".join(b'{"x":%s}' % v for v in in_json),
        "x.xml": b"<r>%s</r>" % b"".join(b"<row><x>%s</x></row>" % v for v in values),
    }
    (tmp_path / name).write_bytes(texts[name])
    tag = {"row_tag": "row"} if name == "x.xml" else {}
    options = {"relations": {"r": {"path": str(tmp_path / name), **tag}}}
    before = netguard.installed()
    netguard.install(netguard.Guard(folders=(str(tmp_path),)))
    try:
        whole = files.discover(options)["relations"]["r"]["columns"][0]
        monkeypatch.setattr(discover, "SAMPLE_BYTES", 15)
        part = files.discover(options)["relations"]["r"]["columns"][0]
    finally:
        netguard.install(before)
    assert whole["type"] == "text"
    assert part["type"] == "int8"
