"""Oracle: by hand: what is on disk before and after, and who may remove it."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from service.engine.state_version import STORE
from service.factory import handed_state
from service.metrics.metrics import FILE, is_fresh
from service.pipeline.view_handovers import ViewHandovers
from service.runtime.settings import Settings
from service.views.handover_folder import MOVES, HandoverFolder, folders_in, take_over
from storage.memory import MemoryStore

GROUP = "spark0123456789abcdef"


def settings_of(home: Path, group: str) -> Settings:
    return Settings.load(source="dbname=none", state=home).for_group(group)


def test_a_folder_says_whose_it_is_from_the_first_moment(tmp_path: Path) -> None:
    folder = HandoverFolder(tmp_path, GROUP)
    assert folders_in(tmp_path) == []
    # A process was killed before the folder said anything.
    (tmp_path / MOVES / f"{GROUP}.draft").mkdir(parents=True)
    assert folders_in(tmp_path) == []
    folder.mark("default")
    folder.mark("other")
    assert folders_in(tmp_path) == [folder] and folder.giver == "default"
    folder.remove()
    assert not (tmp_path / MOVES).exists()


@pytest.mark.parametrize("moved", [(), (FILE, "version.json"), (FILE, "buckets", "version.json")])
def test_a_state_is_taken_by_whoever_starts_next(tmp_path: Path, moved: tuple[str, ...]) -> None:
    """moved: what a process that was killed had already moved."""
    settings, folder = settings_of(tmp_path, GROUP), HandoverFolder(tmp_path, GROUP)
    take_over(settings)
    assert not settings.state.exists()
    folder.mark("default")
    for name in (STORE, "buckets"):
        (folder.state / name).mkdir(parents=True)
        (folder.state / name / "content").write_text(name)
    (folder.state / "version.json").write_text("{}")
    (folder.state / FILE).write_text("{}")
    # The API has asked for changes before the group was there.
    (settings.state / "changes").mkdir(parents=True)
    for name in moved:
        (folder.state / name).rename(settings.state / name)
    take_over(settings)
    names = {path.name for path in settings.state.iterdir()}
    assert names == {STORE, "buckets", "changes", "version.json", FILE}
    assert (settings.state / STORE / "content").read_text() == STORE
    assert is_fresh(json.loads((settings.state / FILE).read_text()), 10)
    assert not (tmp_path / MOVES).exists()
    take_over(settings)


class Pipeline:
    """The handovers of one group, of whose catalog only the names of groups matter."""

    def __init__(self, home: Path, group: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.named, self.removed = {"default"}, list[str]()

        self._patch = monkeypatch
        reconciler: Any = SimpleNamespace(
            rows=[], to_hand_over=list, groups=lambda: set(self.named)
        )
        factory: Any = SimpleNamespace(settings=settings_of(home, group), beside=lambda _: None)
        nothing: Any = None
        self.handovers = ViewHandovers(
            engine=SimpleNamespace(store=MemoryStore()),  # type: ignore[arg-type]
            epochs=SimpleNamespace(writer=SimpleNamespace(written=0)),  # type: ignore[arg-type]
            builds=SimpleNamespace(are_resumed=True),  # type: ignore[arg-type]
            reconciler=reconciler,
            subscriptions=nothing,
            sink_workers=nothing,
            watch=nothing,
            waiting=nothing,
            factory=factory,
            while_waiting=lambda: None,
            runtime=nothing,
        )

    def turn(self) -> list[str]:
        """Act upon the catalog; return what was removed."""
        self._patch.setattr(handed_state, "discard_state", self._remove)
        self.handovers.reconcile(is_blocked=False)
        found, self.removed = self.removed, []
        return found

    def _remove(self, _: Any, folder: HandoverFolder) -> None:
        self.removed.append(folder.group)
        folder.remove()


def test_only_the_giver_removes_what_nobody_wants(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    default = Pipeline(tmp_path, "default", monkeypatch)
    other = Pipeline(tmp_path, "other", monkeypatch)
    settings_of(tmp_path, "other").state.mkdir(parents=True)
    HandoverFolder(tmp_path, GROUP).mark("other")
    assert [default.turn() for _ in range(3)] == [[], [], []]
    other.named.add(GROUP)
    assert other.turn() == []
    other.named.remove(GROUP)
    assert other.turn() == [GROUP]
    assert folders_in(tmp_path) == []


def test_the_default_group_waits_for_a_catalog_of_after_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The giver has ended since the catalog was read: only the next one says who has the view."""
    default = Pipeline(tmp_path, "default", monkeypatch)
    HandoverFolder(tmp_path, GROUP).mark("other")
    assert default.turn() == []
    default.named.add(GROUP)
    assert default.turn() == []
    default.named.remove(GROUP)
    # A view that was handed over, and dropped before its process had started.
    assert [default.turn() for _ in range(3)] == [[], [GROUP], []]
