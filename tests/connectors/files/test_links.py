"""Oracle: the rows of the files in allowed folders, by where they really lie; nothing of others."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from connectors import netguard
from connectors.files.folder import LocalFolder
from connectors.files.pattern import split_pattern
from connectors.files.reading import FileReader
from connectors.files.stream import UnreadableFile
from connectors.netguard import Guard
from dataflow.errors import SourceError
from tests.connectors.files.source_mirror import SourceMirror, make_source

COLUMNS = [{"name": "id", "type": "int4"}, {"name": "secret", "type": "text"}]


class Place:
    """An allowed folder with a forbidden one inside, and what lies outside."""

    def __init__(self, root: Path) -> None:
        self.open, self.shut, self.state = root / "open", root / "shut", root / "open" / "state"
        for folder in (self.open, self.open / "in", self.shut, self.shut / "deep", self.state):
            folder.mkdir()
        for file in (self.shut / "a.csv", self.shut / "deep" / "a.csv", self.state / "a.csv"):
            file.write_text("id,secret\n9,hunter2\n")
        (self.open / "a.csv").write_text("id,secret\n1,a\n")
        (self.open / "in" / "a.csv").write_text("id,secret\n2,b\n")
        self.allow()

    def allow(self, *more: Path) -> None:
        folders = (str(self.open), *map(str, more))
        netguard.install(Guard(folders=folders, forbidden=(str(self.state),)))

    def source(self, pattern: str, on_error: str = "dead_letter", **more: Any) -> Any:
        relation = {"path": f"{self.open}/{pattern}", "columns": COLUMNS, "on_error": on_error}
        options = {"settle_ms": 0, "poll_interval_ms": 10, "relations": {"t": {**relation, **more}}}
        return make_source(options)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    before = netguard.installed()
    yield Place(tmp_path)
    netguard.install(before)


def files_of(fed: SourceMirror) -> list[str]:
    assert not any(b"hunter2" in repr(row).encode() for row in fed.rows.values())
    return sorted(file for file, _ in fed.rows)


def link_all(place: Place) -> set[str]:
    """Links of each kind that must not be followed; return the paths that are reported."""
    (place.open / "file.csv").symlink_to(place.shut / "a.csv")
    (place.open / "in" / "again.csv").symlink_to(place.open / "file.csv")
    (place.open / "up.csv").symlink_to("../shut/a.csv")
    (place.open / "loop.csv").symlink_to("loop.csv")
    (place.open / "gone.csv").symlink_to(place.shut / "none.csv")
    (place.open / "here.csv").symlink_to(place.open / "in" / "a.csv")
    # A folder is followed by patterns of a fixed depth alone.
    (place.open / "shut").symlink_to(place.shut)
    (place.open / "near").symlink_to(place.open / "in")
    return {"file.csv", "up.csv", "loop.csv"}


@pytest.mark.parametrize(
    ("on_error", "append"), [("dead_letter", False), ("dead_letter", True), ("skip", False)]
)
@pytest.mark.parametrize(
    ("pattern", "read", "barred"),
    [
        ("*.csv", {"a.csv", "here.csv"}, set()),
        ("**/*.csv", {"a.csv", "here.csv", "in/a.csv"}, {"in/again.csv", "state"}),
        (
            "*/*.csv",
            {"in/a.csv", "near/a.csv"},
            {"in/again.csv", "near/again.csv", "shut", "state"},
        ),
    ],
)
def test_a_link_that_leads_out_is_a_dead_letter_and_others_are_read(
    place: Place, pattern: str, read: set[str], barred: set[str], on_error: str, append: bool
) -> None:
    source = place.source(pattern, on_error, append_only=append)
    fed = SourceMirror(source)
    fed.begin(source)
    at_the_top = link_all(place)
    barred = barred if pattern.startswith("*/") else barred | at_the_top
    source.check()
    awaited = barred if on_error == "dead_letter" else set()
    fed.follow(source, lambda kept: {f for f, _ in kept.rows} == read
               and kept.rejected.keys() == awaited)  # fmt: skip
    whole = SourceMirror(source)
    whole.begin(source)
    for kept in (fed, whole):
        assert set(files_of(kept)) == read
        assert kept.rejected.keys() == awaited
        assert {(code, value) for code, value in kept.rejected.values()} <= {("record.file", b"")}
    for stat in LocalFolder(split_pattern(f"{place.open}/{pattern}"), 0).list_files():
        reason = "loop" if stat.path == "loop.csv" else "outside"
        assert reason in stat.fault if stat.path in barred else not stat.fault


def test_a_relation_that_leaves_nothing_out_stops_at_the_link(place: Place) -> None:
    source = place.source("*.csv", "fail")
    fed = SourceMirror(source)
    fed.begin(source)
    (place.open / "file.csv").symlink_to(place.shut / "a.csv")
    with pytest.raises(SourceError) as refused:
        source.check()
    assert refused.value.code == "path.forbidden" and "file.csv" in refused.value.what
    with pytest.raises(SourceError) as stopped:
        fed.follow(source, lambda _: False)
    assert stopped.value.code == "source.bad_record" and "file.csv" in stopped.value.what
    # A file that the pattern names is asked for, and not one of many.
    with pytest.raises(SourceError) as refused:
        place.source("file.csv").check()
    assert refused.value.code == "path.forbidden"


@pytest.mark.parametrize("on_removed", ["retract", "keep"])
def test_what_a_name_leads_to_changes(place: Place, on_removed: str) -> None:
    """A file, a link out, a link that is allowed since, a file again."""
    source = place.source("*.csv", on_removed=on_removed)
    fed = SourceMirror(source)
    fed.begin(source)
    path = place.open / "b.csv"
    path.write_text("id,secret\n3,c\n4,d\n")
    fed.follow(source, lambda kept: len(kept.rows) == 3)
    path.unlink()
    path.symlink_to(place.shut / "a.csv")
    fed.follow(source, lambda kept: kept.rejected.keys() == {"b.csv"})
    assert files_of(fed) == ["a.csv"]
    whole = SourceMirror(source)
    whole.begin(source)
    assert files_of(whole) == ["a.csv"] and whole.rejected.keys() == {"b.csv"}
    place.allow(place.shut)
    fed.follow(source, lambda kept: len(kept.rows) == 2)
    assert ("b.csv", 2) in fed.rows
    place.allow()
    fed.follow(source, lambda kept: len(kept.rows) == 1)
    path.unlink()
    path.write_text("id,secret\n5,e\n")
    fed.follow(source, lambda kept: len(kept.rows) == 2)


def test_a_name_that_leads_out_since_it_was_listed_is_not_read(place: Place) -> None:
    shape = place.source("*.csv")._shapes["t"]
    folder = LocalFolder(split_pattern(f"{place.open}/*.csv"), 0)
    (stat,) = folder.list_files()
    os.unlink(place.open / "a.csv")
    (place.open / "a.csv").symlink_to(place.shut / "a.csv")
    with pytest.raises(UnreadableFile, match="outside"):
        list(FileReader(shape, folder).read(stat))
