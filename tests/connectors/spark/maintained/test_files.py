"""Oracle: what was encoded, and a refusal for every other byte."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from connectors.spark.maintained import files
from connectors.spark.maintained.files import (
    Base,
    EpochInput,
    Manifest,
    input_name,
    number_of,
    numbered,
    pack,
    pack_sections,
    unpack,
)
from dataflow.errors import TidemarkError

SPREAD = [[2, 0, 2**64 - 1]]
INPUT = EpochInput(
    7,
    "b7",
    4,
    {"pg": 12, "kafka": {"t": [1, 2]}},
    "",
    {"2": [0, 9]},
    True,
    parts=[["input/7-x", {"0": [0, 5], "2": [5, 9]}], ["input/7-y", {"0": [0, 8]}]],
    spread=SPREAD,
)
MANIFEST = Manifest(
    7,
    "b7",
    3,
    4,
    {"pg": 12},
    logs=[[1, 0, 2, "log/7/x"]],
    answered=[65_536],
    outs=["out/7-y"],
    bases={"0-1": ["base/0-1/5-x/base"]},
    spread=SPREAD,
)
BASE = Base(7, "b7", [["v/01/rows", "base/x/0000.sst", 3, 1, "00ff"]], 900)


@pytest.mark.parametrize("document", [INPUT, MANIFEST, BASE])
def test_documents_come_back(document) -> None:
    kind = type(document)
    assert kind.decode(document.encode(b"payload")) == (document, b"payload")


def test_parts_have_the_pages_of_their_buckets() -> None:
    assert list(INPUT.stored(0)) == [("input/7-x", 0, 5), ("input/7-y", 0, 8)]
    assert list(INPUT.stored(2)) == [("input/7-x", 5, 9)]
    assert list(INPUT.stored(1)) == []
    pages = {2: [(5, 0, b"five")], 0: [(1, 0, b"a"), (1, 1, b"b")]}
    content, ranges = pack_sections(pages)
    found = {bucket: list(unpack(content[at:stop])) for bucket, (at, stop) in ranges.items()}
    assert found == {"0": pages[0], "2": pages[2]}


def test_changed_bytes_are_refused() -> None:
    content = INPUT.encode(b"payload")
    for at in range(len(content)):
        changed = content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
        with pytest.raises(TidemarkError, match=r"spark\.damaged_file"):
            EpochInput.decode(changed)
        with pytest.raises(TidemarkError, match=r"spark\.damaged_file"):
            EpochInput.decode(content[:at])
    with pytest.raises(TidemarkError, match=r"spark\.damaged_file"):
        Manifest.decode(content)


def test_documents_of_earlier_versions_are_read(monkeypatch) -> None:
    content, newest = INPUT.encode(b"payload"), files._VERSION
    for version in range(1, newest):
        monkeypatch.setattr(files, "_VERSION", version)
        earlier = INPUT.encode(b"payload")
        monkeypatch.setattr(files, "_VERSION", newest)
        assert earlier != content
        assert EpochInput.decode(earlier) == EpochInput.decode(content) == (INPUT, b"payload")


def test_unknown_fields_are_refused_and_missing_ones_have_defaults(monkeypatch) -> None:
    facts = {**asdict(INPUT)}
    del facts["moved_to"]
    for given, is_known in ((facts, True), ({**facts, "newer": 1}, False)):
        monkeypatch.setattr(files, "asdict", lambda _, given=given: given)
        content = INPUT.encode()
        if is_known:
            assert EpochInput.decode(content) == (INPUT, b"")
        else:
            with pytest.raises(TidemarkError, match=r"spark\.damaged_file") as refused:
                EpochInput.decode(content)
            assert "newer" in refused.value.detail


def test_rows_come_back_by_slot() -> None:
    rows = [(5, 0, b"five"), (-1, 2, b""), (5, 1, b"more"), (1 << 40, 0, b"far")]
    content = pack(rows)
    assert list(unpack(content)) == rows
    assert list(unpack(content, {5})) == [rows[0], rows[2]]
    assert list(unpack(pack([]))) == []
    for at in range(12 + 20 * len(rows)):
        with pytest.raises(TidemarkError, match=r"spark\.damaged_file"):
            list(unpack(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]))


def test_names_sort_by_their_number() -> None:
    names = [numbered("manifest", n) for n in (9, 10, 11_000)]
    assert names == sorted(names)
    assert [number_of(n) for n in names] == [9, 10, 11_000]
    assert number_of(input_name(8, "abc")) == 8
    assert input_name(1, "") != input_name(1, "abc")
