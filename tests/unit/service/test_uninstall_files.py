"""Oracle: the files that the test has put there: those of the service go, those of others stay."""

from __future__ import annotations

from pathlib import Path

from service.engine.bucket_views import LOST_FILE
from service.factory import spark_storage
from service.factory.on_spark import CACHES, MOVING
from service.runtime.service_key import service_key
from service.runtime.settings import Settings
from service.setup import uninstall_files


def settings_of(folder: Path, **more: object) -> Settings:
    return Settings(source="dbname=x", state=folder / "state", **more)  # type: ignore[arg-type]


def outcomes(settings: Settings, *, drops_checkpoints: bool = False) -> list[tuple[str, str]]:
    """Carry the plan out, and return (location, outcome) of each thing."""
    plan = list(uninstall_files.find(settings, drops_checkpoints=drops_checkpoints))
    for removal in plan:
        if removal.act is not None:
            removal.act()
    return [(removal.location, removal.outcome) for removal in plan]


def test_names_of_the_views_on_spark_are_those_of_their_modules() -> None:
    names = {spark_storage.FILE, spark_storage.STORAGE, CACHES, MOVING, LOST_FILE}
    assert names == {*uninstall_files.OF_SPARK}


def test_a_state_goes_and_what_is_not_of_it_stays(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    assert outcomes(settings) == []
    for name in uninstall_files.ENTRIES:
        (settings.state / name).mkdir(parents=True)
    (settings.state / "pipeline.json.part").write_text("{}")
    assert outcomes(settings) == [("state", "remove")]
    assert not settings.state.exists()
    (settings.state / "store").mkdir(parents=True)
    (settings.state / "lock").write_text("")
    (settings.state / "letters.txt").write_text("mine")
    ((what, note),) = [
        (one.what, one.note) for one in uninstall_files.find(settings, drops_checkpoints=False)
    ]
    assert (str(settings.state) in what, "letters.txt" in note) == (True, True)
    outcomes(settings)
    assert [path.name for path in settings.state.iterdir()] == ["letters.txt"]


def test_a_folder_that_is_no_state_stays(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    (settings.state / "store").mkdir(parents=True)
    (settings.state / "groups").write_text("of mine")
    assert outcomes(settings) == [("state", "keep")]
    assert len(list(settings.state.iterdir())) == 2


def test_a_shared_storage_goes_if_its_mark_is_the_state_s(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    settings = settings_of(tmp_path, spark_storage=str(shared))
    settings.state.mkdir()
    root = Path(spark_storage.root_of(settings))
    root.mkdir()
    spark_storage.taken_mark(settings, service_key(settings))
    (root / "view" / "part").mkdir(parents=True)
    (shared / "others").mkdir()
    (settings.state / "lock").write_text("")
    # Another service's, or no storage at all: nothing is deleted.
    for change in (lambda: root.rename(tmp_path / "away"), lambda: root.mkdir()):
        change()
        plan = list(uninstall_files.find(settings, drops_checkpoints=False))
        assert (plan[0].location, plan[0].outcome) == ("storage", "by hand")
    root.rmdir()
    (tmp_path / "away").rename(root)
    assert outcomes(settings) == [("storage", "remove"), ("state", "remove")]
    assert [path.name for path in shared.iterdir()] == ["others"]
    assert outcomes(settings) == []


def test_checkpoints_stay_unless_they_are_named(tmp_path: Path) -> None:
    copies = tmp_path / "copies"
    settings = settings_of(tmp_path, checkpoint_to=str(copies))
    (copies / "tidemark" / "default" / "files").mkdir(parents=True)
    (copies / "other" / "default").mkdir(parents=True)
    assert outcomes(settings) == [("checkpoints", "keep")]
    assert outcomes(settings, drops_checkpoints=True) == [("checkpoints", "remove")]
    assert [path.name for path in copies.iterdir()] == ["other"]
    assert outcomes(settings, drops_checkpoints=True) == []
