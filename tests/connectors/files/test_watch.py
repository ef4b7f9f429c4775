"""Oracle: the folder itself, read anew with the json module: each line of each file that counts."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from connectors.files import records, watch
from connectors.files.folder import LocalFolder
from connectors.files.journal import decode_note, owner_of
from connectors.files.pattern import split_pattern
from dataflow.errors import SourceError, TemporaryError
from tests.connectors.files.source_mirror import SourceMirror, make_source

COLUMNS = [{"name": "id", "type": "int8"}, {"name": "v", "type": "text"}]
FAST = {"settle_ms": 40, "poll_interval_ms": 10}


def source_of(folder: Path, **more: Any) -> Any:
    relation = {"path": f"{folder}/**/*.jsonl", "columns": COLUMNS, **more}
    return make_source({**FAST, "relations": {"t": relation}})


def lines(*rows: tuple[int, str]) -> str:
    return "".join(json.dumps({"id": i, "v": v}) + "\n" for i, v in rows)


def there(folder: Path) -> dict[tuple[str, int], tuple[str, str]]:
    """What the folder holds, by file and line."""
    found = {}
    for path in sorted(folder.rglob("*.jsonl")):
        name = path.relative_to(folder).as_posix()
        if any(part.startswith((".", "_")) for part in name.split("/")):
            continue
        for number, line in enumerate(path.read_text().split("\n"), start=1):
            if line.strip():
                row = json.loads(line)
                found[name, number] = (str(row["id"]), row["v"])
    return found


def content(kept: SourceMirror) -> dict[tuple[str, int], tuple[Any, Any]]:
    return {key: (row[0], row[1]) for key, row in kept.rows.items()}


def follows(folder: Path) -> Any:
    return lambda kept: content(kept) == there(folder)


def is_through(folder: Path) -> Any:
    """Every file was told to its end in the version that is there."""

    def holds(kept: SourceMirror) -> bool:
        found = LocalFolder(split_pattern(f"{folder}/**/*.jsonl"), 0).list_files()
        notes = {owner_of(key)[2]: decode_note(note) for key, note in kept.notes.items()}
        told = {path: note.version for path, note in notes.items()}
        # One that is not done may be of a file that is gone, with rows yet to be taken back.
        is_done = all(note.is_done for note in notes.values())
        return is_done and told == {stat.path: stat.version for stat in found}

    return holds


def test_new_replaced_and_removed_files(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(lines((1, "one"), (2, "two"), (3, "three")))
    source = source_of(tmp_path)
    source.check()
    kept = SourceMirror(source)
    kept.begin(source)
    assert content(kept) == there(tmp_path) and len(kept.rows) == 3

    (tmp_path / "b.jsonl").write_text(lines((4, "four")))
    kept.follow(source, follows(tmp_path))
    assert len(kept.rows) == 4
    (tmp_path / "new").write_text(lines((1, "uno")))
    (tmp_path / "new").rename(tmp_path / "a.jsonl")
    kept.follow(source, follows(tmp_path))
    assert len(kept.rows) == 2
    with (tmp_path / "a.jsonl").open("a") as file:
        file.write(lines((7, "seven")))
    kept.follow(source, follows(tmp_path))
    assert len(kept.rows) == 3
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "a.jsonl").rename(tmp_path / "deep" / "er" / "c.jsonl")
    kept.follow(source, follows(tmp_path))
    assert ("deep/er/c.jsonl", 2) in kept.rows
    (tmp_path / "b.jsonl").unlink()
    kept.follow(source, follows(tmp_path))
    assert len(kept.rows) == 2
    assert len(kept.notes) == 1


def test_rows_of_removed_files_stay_if_requested(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(lines((1, "one"), (2, "two")))
    (tmp_path / "b.jsonl").write_text(lines((3, "three")))
    source = source_of(tmp_path, on_removed="keep")
    kept = SourceMirror(source)
    kept.begin(source)
    (tmp_path / "a.jsonl").unlink()
    (tmp_path / "c.jsonl").write_text(lines((4, "four")))
    kept.follow(source, lambda kept: len(kept.rows) == 4)
    # What comes back under the name takes the place of what was kept.
    (tmp_path / "a.jsonl").write_text(lines((5, "five")))
    kept.follow(source, follows(tmp_path))
    # Who reads the relation from now on has no rows of what is gone.
    (tmp_path / "b.jsonl").unlink()
    kept.load(source)
    assert content(kept) == there(tmp_path) and len(kept.rows) == 2


def test_a_file_counts_when_it_is_left_alone(tmp_path: Path) -> None:
    source = make_source(
        {
            "settle_ms": 600,
            "poll_interval_ms": 10,
            "relations": {"t": {"path": f"{tmp_path}/*.jsonl", "columns": COLUMNS}},
        }
    )
    kept = SourceMirror(source)
    kept.begin(source)
    ready = threading.Event()
    feed = kept.open(source, ready.set)
    try:
        with (tmp_path / "a.jsonl").open("w") as file:
            # Written on for longer than a look takes: nothing of it may be told.
            written = time.monotonic()
            for number in range(30):
                file.write(lines((number, "x")))
                file.flush()
                ready.wait(0.02)
                if time.monotonic() - written < 0.5:
                    assert feed.poll(1000) is None
                written = time.monotonic()
        kept.drain(feed, ready, follows(tmp_path), 1000)
    finally:
        feed.close()
    assert len(kept.rows) == 30


def test_unfinished_names_are_ignored(tmp_path: Path) -> None:
    for name in ("a.jsonl.tmp", ".a.jsonl", "_a.jsonl", "_temporary/a.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(lines((1, "no")))
    (tmp_path / "b.jsonl").write_text(lines((2, "yes")))
    source = source_of(tmp_path)
    kept = SourceMirror(source)
    kept.begin(source)
    assert list(kept.rows) == [("b.jsonl", 1)]
    (tmp_path / "a.jsonl.tmp").rename(tmp_path / "a.jsonl")
    kept.follow(source, lambda kept: ("a.jsonl", 1) in kept.rows)
    other = source_of(tmp_path, ignore=["b*"])
    kept = SourceMirror(other)
    kept.begin(other)
    assert {file for file, _ in kept.rows} == {
        "a.jsonl",
        ".a.jsonl",
        "_a.jsonl",
        "_temporary/a.jsonl",
    }


def test_rows_that_are_only_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "BLOCK_RECORDS", 3)
    (tmp_path / "a.jsonl").write_text(lines((1, "one")))
    source = source_of(tmp_path, append_only=True)
    assert source.relations()[0].is_append
    kept = SourceMirror(source)
    kept.begin(source)
    (tmp_path / "b.jsonl").write_text(lines(*((i, "x") for i in range(20))))
    # Interrupted after each piece, a file continues where it was: Kept refuses a row told twice.
    while len(kept.rows) < 21:
        before = len(kept.rows)
        kept.follow(source, lambda kept, n=before: len(kept.rows) > n, max_rows=1)
    (tmp_path / "a.jsonl").unlink()
    (tmp_path / "c.jsonl").write_text(lines((9, "nine")))
    kept.follow(source, lambda kept: len(kept.rows) == 22)
    with (tmp_path / "b.jsonl").open("a") as file:
        file.write(lines((99, "more")))
    with pytest.raises(SourceError) as refused:
        kept.follow(source, lambda kept: False)
    assert refused.value.code == "source.file_replaced"
    assert refused.value.relation == kept.relation.name
    assert "b.jsonl" in refused.value.what


def test_a_folder_that_is_away_takes_nothing_back(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.jsonl").write_text(lines((1, "one")))
    source = source_of(folder)
    kept = SourceMirror(source)
    kept.begin(source)
    folder.rename(tmp_path / "away")
    with pytest.raises(TemporaryError) as away:
        kept.follow(source, lambda kept: not kept.rows)
    assert away.value.code == "source.folder"
    with pytest.raises(SourceError):
        source.check()
    (tmp_path / "away").rename(folder)
    (folder / "b.jsonl").write_text(lines((2, "two")))
    kept.follow(source, follows(folder))
    assert len(kept.rows) == 2


def test_a_snapshot_of_a_file_that_was_replaced_since_says_so(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(lines((1, "one")))
    source = source_of(tmp_path)
    kept = SourceMirror(source)
    kept.begin(source)
    (tmp_path / "a.jsonl").write_text(lines((1, "one"), (2, "two")))
    with pytest.raises(TemporaryError) as changed:
        kept.load(source)
    assert changed.value.code == "source.file_changed"


def test_positions_that_are_not_to_be_passed(tmp_path: Path) -> None:
    source = source_of(tmp_path)
    kept = SourceMirror(source)
    kept.begin(source)
    for name in "abcd":
        (tmp_path / f"{name}.jsonl").write_text(lines((1, name)))
    kept.follow(source, lambda kept: len(kept.rows) == 2, max_rows=1)
    ready = threading.Event()
    feed = kept.open(source, ready.set)
    limit: Mapping[str, Any] = {"t": {**kept.position, "event": kept.position["event"] + 2}}
    try:
        end = time.monotonic() + 60
        while kept.position["event"] < limit["t"]["event"]:
            assert time.monotonic() < end
            batch = feed.poll(1000, until=limit)
            if batch is None:
                ready.wait(0.05)
            else:
                kept.apply(batch)
        assert kept.position == limit["t"]
        assert feed.poll(1000, until=limit) is None
        assert feed.lag > 0
    finally:
        feed.close()


def test_notes_of_an_earlier_reading_are_dropped(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(lines((1, "one")))
    source = source_of(tmp_path)
    kept = SourceMirror(source)
    kept.begin(source)
    stale = dict(kept.notes)
    kept.begin(source)
    kept.notes |= stale
    assert len(kept.notes) == 2
    kept.follow(source, lambda kept: len(kept.notes) == 1)
    assert not kept.notes.keys() & stale.keys()


class Folder:
    """Random things that happen to a folder."""

    def __init__(self, root: Path, random: random.Random) -> None:
        self._root = root
        self._random = random
        self._made = 0

    def step(self, is_append: bool) -> None:
        files = sorted(self._root.rglob("*.jsonl"))
        ways = ["new", "new"] if is_append else ["new", "rewrite", "append", "cut", "gone", "move"]
        way = self._random.choice(ways) if files else "new"
        path = self._random.choice(files) if files else self._root
        if way == "new":
            self._place(self._root / self._name(), self._text())
        elif way == "rewrite":
            self._place(path, self._text())
        elif way == "append":
            with path.open("a") as file:
                file.write(self._text())
        elif way == "cut":
            kept = path.read_text().split("\n")
            path.write_text("".join(line + "\n" for line in kept[: len(kept) // 2]))
        elif way == "gone":
            path.unlink()
        else:
            new = self._root / self._name()
            new.parent.mkdir(parents=True, exist_ok=True)
            path.rename(new)

    def _name(self) -> str:
        self._made += 1
        return self._random.choice(["", "sub/", "sub/p=1/"]) + f"{self._made}.jsonl"

    def _place(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        (self._root / "making.tmp").write_text(text)
        (self._root / "making.tmp").rename(path)

    def _text(self) -> str:
        rows = []
        for number in range(self._random.randrange(25)):
            if self._random.random() < 0.1:
                rows.append("\n")
            rows.append(lines((number, "v" * self._random.randrange(9))))
        return "".join(rows)


@pytest.mark.parametrize("seed", range(6))
def test_random_changes_with_restarts_anywhere(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "BLOCK_RECORDS", 4)
    monkeypatch.setattr(records, "BLOCK_BYTES", 64)
    monkeypatch.setattr(watch, "REMOVED_ROWS", 3)
    random_ = random.Random(seed)
    is_append = seed % 3 == 2
    folder = Folder(tmp_path, random_)
    for _ in range(5):
        folder.step(is_append)
    source = source_of(tmp_path, append_only=is_append)
    kept = SourceMirror(source)
    kept.begin(source, parts=random_.randrange(1, 6))
    feed, ready = kept.open(source), threading.Event()
    try:
        for _ in range(120):
            if random_.random() < 0.5:
                folder.step(is_append)
            for _ in range(random_.randrange(4)):
                batch = feed.poll(random_.choice([1, 5, 100]))
                if batch is not None and random_.random() < 0.9:
                    kept.apply(batch)
                elif batch is not None:
                    # A crash: what was handed out is lost.
                    feed.close()
                    feed = kept.open(source)
            if random_.random() < 0.1:
                # A view that is made in the middle of it all: its snapshot, then the same feed.
                feed.close()
                with suppress(TemporaryError):
                    kept.load(source, parts=random_.randrange(1, 4))
                feed = kept.open(source)
            ready.wait(random_.choice([0, 0.005, 0.02]))
            if random_.random() < 0.1:
                feed.close()
                feed = kept.open(source)
        kept.drain(feed, ready, is_through(tmp_path), 10)
    finally:
        feed.close()
    assert content(kept) == there(tmp_path), f"seed {seed}"
    kept.load(source, parts=4)
    assert content(kept) == there(tmp_path), f"seed {seed}"
