"""Oracle: whatever is in a sink's manifests, a writer opens with the epoch that it knows or fails
with a code; files outside of the sink's folder stay as they are, and no error quotes one."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from connectors import netguard
from connectors.parquet.sink import make
from dataflow.errors import TidemarkError
from tests.harness.sink_contract import FINITE, Model, new_identity
from tests.harness.tiers import count

FILES = count("TIDEMARK_TEST_FILES", 8, 30)
PLANTED = "planted-line-of-another-file"
VALUES: list[Any] = [None, [], {}, -1, 1.5, "x", True, [[]], [{"path": []}], 1 << 80, PLANTED]


class Ground:
    def __init__(self, folder: Path) -> None:
        self.path = folder / "in" / "sink"
        self.secret = folder / "secret"
        self.secret.write_text(PLANTED)
        self.model, self.identity = Model(FINITE[:3]), new_identity()
        self.options = {"path": str(self.path)}
        sink = self.writer()
        sink.open(None)
        sink.write([self.model.epoch()])
        sink.close()

    def writer(self) -> Any:
        return make(self.options, self.model.table, self.identity, "t")

    def newest(self) -> Path:
        return max((self.path / "_tidemark").glob("manifest-*"))

    def attempt(self) -> str:
        """Open, write and close; return the error's code, "" for none."""
        sink = self.writer()
        try:
            sink.open(self.model.number)
            sink.write([self.model.epoch()])
        except TidemarkError as error:
            assert PLANTED not in f"{error} {error.described} {error.hint}"
            return error.code
        finally:
            sink.close()
        return ""


@pytest.fixture
def ground(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ground:
    monkeypatch.setattr(netguard, "_guard", netguard.Guard(writable=(f"{tmp_path}/in",)))
    return Ground(tmp_path)


def test_a_manifest_of_others_is_an_error_with_a_code(ground: Ground) -> None:
    whole, chosen = json.loads(ground.newest().read_text()), random.Random(5)
    broken = [json.dumps({**whole, key: chosen.choice(VALUES)}) for key in whole for _ in (1, 2)]
    text = json.dumps(whole)
    broken += [text[: chosen.randrange(len(text))] for _ in range(FILES)]
    broken += ["", "[" * 100_000, "null", "[]", "\0", json.dumps({**whole, "more": PLANTED})]
    codes = set()
    for content in broken:
        path = ground.newest()
        before = path.read_bytes()
        path.write_text(content)
        codes.add(ground.attempt())
        for made in (ground.path / "_tidemark").glob("manifest-*"):
            if made > path:
                made.unlink()
        path.write_bytes(before)
    assert "sink.bad_metadata" in codes
    assert all(code == "" or code.startswith("sink.") for code in codes), codes
    assert ground.attempt() == "", "the positive control"


@pytest.mark.parametrize("name", ["../../secret", "/etc/passwd", "_tidemark/../../../secret"])
def test_a_checkpoint_elsewhere_is_not_read(ground: Ground, name: str) -> None:
    path = ground.newest()
    before = path.read_text()
    path.write_text(json.dumps({**json.loads(before), "checkpoints": [name]}))
    assert ground.attempt() == "path.forbidden"
    assert ground.secret.read_text() == PLANTED


def test_links_and_odd_names_among_the_manifests(ground: Ground) -> None:
    folder = ground.path / "_tidemark"
    (folder / "files-odd.json").write_text("x")
    (folder / "manifest-odd.json").write_text("x")
    (folder / "manifest-00000000000000000099.json").symlink_to(ground.secret)
    assert ground.attempt() == ""
    assert ground.secret.read_text() == PLANTED
