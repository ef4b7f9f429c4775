"""Oracle: folders as earlier and later versions leave them, made by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from service.engine import state_version
from service.engine.state_version import FILE, STORE, VERSION, check, claim
from storage.errors import StorageError


def write(folder: Path, text: str) -> None:
    (folder / STORE).mkdir(parents=True, exist_ok=True)
    (folder / FILE).write_text(text)


def version_of(folder: Path) -> int:
    return json.loads((folder / FILE).read_text())["version"]


def test_a_new_state_gets_the_version_and_keeps_it(tmp_path: Path) -> None:
    claim(tmp_path / "new")
    assert version_of(tmp_path / "new") == VERSION
    before = (tmp_path / "new" / FILE).read_text()
    claim(tmp_path / "new")
    assert (tmp_path / "new" / FILE).read_text() == before


def test_a_state_of_before_versions_is_brought_up(tmp_path: Path) -> None:
    (tmp_path / STORE).mkdir()
    assert check(tmp_path) == 0
    claim(tmp_path)
    assert version_of(tmp_path) == VERSION


def test_every_step_on_the_way_is_taken_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []
    steps = {n: lambda folder, n=n: taken.append(n) for n in (1, 2, 3)}
    monkeypatch.setattr(state_version, "VERSION", 4)
    monkeypatch.setattr(state_version, "UPGRADES", steps)
    write(tmp_path, '{"version": 2}')
    claim(tmp_path)
    assert taken == [2, 3] and version_of(tmp_path) == 4
    write(tmp_path, '{"version": 0}')
    with pytest.raises(StorageError, match="too old"):
        claim(tmp_path)
    assert taken == [2, 3] and version_of(tmp_path) == 0


@pytest.mark.parametrize(
    "text", [f'{{"version": {VERSION + 1}}}', "{}", '{"version": "a"}', "[", ""]
)
def test_what_is_newer_or_unknown_is_refused_and_left_alone(tmp_path: Path, text: str) -> None:
    write(tmp_path, text)
    with pytest.raises(StorageError) as caught:
        claim(tmp_path)
    assert caught.value.code == "state.version" and "move the directory away" in caught.value.hint
    assert (tmp_path / FILE).read_text() == text
