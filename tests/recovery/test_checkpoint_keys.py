"""Oracle: the state that was copied, row for row; whoever can write where the checkpoints lie, and
has not the service's key, gets nothing restored (a marker file stays away)."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from dataflow.errors import TidemarkError
from service.checkpoint.checkpoint_repository import manifest_name
from service.runtime.checked_json import as_written, checked
from service.runtime.service_key import FILE, configured_key, read_key, service_key
from service.runtime.settings import Settings
from storage.errors import StorageError
from tests.harness.tiers import is_fast
from tests.harness.trap import Trap
from tests.recovery.history import make
from tests.recovery.test_checkpoints import Copied

GROUP = "tidemark/default"
OTHER_KEY = b"0123456789abcdef0123456789abcdef"


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state, closed."""
    folder = tmp_path_factory.mktemp("stopped")
    make(0, folder, is_closed=True)
    return folder


@pytest.fixture
def copied(stopped: Path, tmp_path: Path) -> Iterator[Copied]:
    """With two checkpoints of different rows."""
    made = Copied(Path(shutil.copytree(stopped, tmp_path / "ours")))
    made.copy()
    made.step(3)
    made.copy()
    yield made
    made.close()


def rewrite(copied: Copied, number: int, change: Callable[[dict[str, Any]], object]) -> None:
    """Change what a manifest says, as anybody can: its checksum needs no key."""
    path = copied.place / GROUP / manifest_name(number)
    facts = as_written(path.read_bytes())
    assert facts is not None
    change(facts)
    path = copied.place / GROUP / manifest_name(facts["number"])
    path.write_text(json.dumps(checked(facts)))


def refuse(copied: Copied, code: str, number: int | None = None, **options: Any) -> TidemarkError:
    """It is refused with a code, and nothing is there."""
    with pytest.raises(TidemarkError) as refused:
        copied.restored(number, **options)
    assert refused.value.code == code, refused.value
    assert not (copied.folder / "restored").exists()
    return refused.value


def make_plain(copied: Copied, number: int) -> None:
    """As versions wrote it that had no MAC."""

    def change(facts: dict[str, Any]) -> None:
        del facts["mac"]
        facts["format"] = 1

    rewrite(copied, number, change)


def test_the_state_of_somebody_else_never_runs(
    copied: Copied, stopped: Path, tmp_path: Path
) -> None:
    """Another service's checkpoint in the place of ours, with a pickle among its definitions."""
    marker = tmp_path / "ran"
    theirs = Copied(Path(shutil.copytree(stopped, tmp_path / "theirs")))
    theirs.step(1)
    theirs.engine.store.put("view/trap", pickle.dumps(Trap(marker)))
    theirs.engine.store.commit()
    theirs.copy()
    theirs.close()
    shutil.copytree(theirs.place, copied.place, dirs_exist_ok=True)
    refuse(copied, "checkpoint.unauthentic", 1)
    assert not marker.exists()
    # The flag says that nobody else can write there; then it is opened, and runs no code even so.
    with pytest.raises(StorageError, match=r"state\.corrupt"):
        copied.restored(1, is_trusted=True)
    assert not marker.exists()


def test_what_a_manifest_says_cannot_be_changed(copied: Copied) -> None:
    one, two = (json.loads((copied.place / GROUP / manifest_name(n)).read_text()) for n in (1, 2))
    assert one["files"] != two["files"]
    good = copied.restored()
    changes: list[dict[str, Any]] = [
        {"files": one["files"]},
        {"files": two["files"][:-1]},
        {"files": [*two["files"], one["files"][-1]]},
        {"positions": one["positions"]},
        {"epoch": two["epoch"] + 1},
        {"source": ["1", 1, "shop"]},
        {"program": "9.9"},
        {"at": two["at"] + 1},
        {"mac": one["mac"]},
        {"mac": ""},
    ]
    for change in changes[:: 3 if is_fast() else 1]:
        rewrite(copied, 2, lambda facts, change=change: facts.update(change))
        refuse(copied, "checkpoint.unauthentic")
        rewrite(copied, 2, lambda facts: facts.update(two) or facts.pop("check"))
        assert copied.restored() == good, change


def test_a_checkpoint_stays_what_it_was_made_as(copied: Copied) -> None:
    """Of its number, its group and its prefix."""
    place = copied.place / GROUP
    shutil.copy(place / manifest_name(1), place / manifest_name(3))
    refuse(copied, "checkpoint.corrupt")
    rewrite(copied, 1, lambda facts: facts.update(number=3))
    refuse(copied, "checkpoint.unauthentic")
    (place / manifest_name(3)).unlink()
    for elsewhere, options in (("tidemark/eu", {}), ("other/default", {"prefix": "other"})):
        shutil.copytree(place, copied.place / elsewhere)
        refuse(copied, "checkpoint.corrupt", **options)
        shutil.rmtree(copied.place / elsewhere)
    copied.restored()


@pytest.mark.parametrize("name", ["../../outside", "..", "", "a/b", "a\0b"])
def test_a_file_of_a_checkpoint_lies_in_its_folder(name: str, copied: Copied) -> None:
    rewrite(copied, 2, lambda facts: facts["files"][0].update(name=name))
    for is_trusted in (False, True):
        refuse(copied, "checkpoint.corrupt", is_trusted=is_trusted)
    done = command(copied, "checkpoints", str(copied.place), "--verify")
    assert done.returncode == 0, done.stderr
    assert "unknown" in done.stdout
    assert not list(copied.folder.rglob("outside"))


def test_a_restore_needs_the_key(copied: Copied) -> None:
    good = copied.restored()
    refuse(copied, "checkpoint.no_key", key=None)
    refused = refuse(copied, "checkpoint.unauthentic", key=OTHER_KEY)
    assert "checkpoint 2 of group default" in refused.what
    assert copied.restored(is_trusted=True, key=None) == good
    assert not (copied.folder / "restored" / FILE).exists()
    make_plain(copied, 2)
    for key in (None, OTHER_KEY):
        assert "no MAC" in refuse(copied, "checkpoint.unauthentic", key=key).what
    assert copied.restored(is_trusted=True) == good


def test_the_location_is_trusted_no_further_than_its_hashes(copied: Copied) -> None:
    make_plain(copied, 2)
    manifest = json.loads((copied.place / GROUP / manifest_name(2)).read_text())
    # One of this checkpoint: the folder also holds those that only the first one names.
    stored = manifest["files"][0]["sha256"]
    (copied.place / GROUP / "files" / stored).write_bytes(b"other")
    refuse(copied, "checkpoint.corrupt", is_trusted=True)


def test_a_service_continues_beside_what_is_not_its_own(copied: Copied) -> None:
    """Checkpoints from before there were keys stay until there are enough, and hold up nothing."""
    make_plain(copied, 1)
    make_plain(copied, 2)
    checkpoints = copied.checkpoints
    checkpoints._list()
    checkpoints._is_listed = True
    assert checkpoints.confirmable(1000) == 1000
    copied.step(1)
    third, _ = checkpoints._make()
    assert checkpoints.confirmable(1000) == third.position
    assert [m.number for m in copied.kept()] == [3]
    assert copied.restored(2, is_trusted=True)
    copied.step(1)
    checkpoints._make()
    assert [m.number for m in copied.kept()] == [3, 4]
    names = sorted(path.name for path in (copied.place / GROUP / "checkpoints").iterdir())
    assert names == ["0000000003.json", "0000000004.json"]


def test_checkpoints_of_another_server_are_left_alone(copied: Copied) -> None:
    """Also where another key vouches for them."""
    rewrite(copied, 2, lambda facts: facts.update(source=["7", 1, "shop"]))
    copied.checkpoints.identity = lambda: ("8", 1, "shop")
    copied.checkpoints._of = ("8", 1, "shop")
    with pytest.raises(TidemarkError, match=r"\[checkpoint\.foreign\]"):
        copied.copy()


# --- the key ----------------------------------------------------------------------------------


def settings(state: Path, **others: Any) -> Settings:
    return Settings(source="-", state=state, **others)  # type: ignore[call-arg]


def test_all_groups_have_one_key_that_nobody_else_reads(tmp_path: Path) -> None:
    service = settings(tmp_path / "state")
    groups = [service, *(service.for_group(name) for name in ("eu", "us"))] * 4
    with ThreadPoolExecutor(len(groups)) as pool:
        keys = set(pool.map(service_key, groups))
    [key] = keys
    assert len(key) == 64
    path = tmp_path / "state" / FILE
    assert path.stat().st_mode & 0o777 == 0o600
    assert [p.name for p in (tmp_path / "state").iterdir()] == [FILE]
    assert read_key(path) == key != service_key(settings(tmp_path / "other"))


def test_a_key_may_come_from_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "key").write_bytes(OTHER_KEY + b"\n")
    monkeypatch.setenv("KEY_OF_A_TEST", OTHER_KEY.decode())
    monkeypatch.setenv("SHORT_KEY_OF_A_TEST", "short")
    for setting in (f"${{file:{tmp_path}/key}}", "${env:KEY_OF_A_TEST}"):
        found = settings(tmp_path / "state", checkpoint_key=setting)
        assert service_key(found) == OTHER_KEY == read_key(tmp_path / "key")
        assert setting not in repr(found)
    assert not (tmp_path / "state").exists()
    for setting, code in (
        ("${env:SHORT_KEY_OF_A_TEST}", "checkpoint.key"),
        ("${env:NO_KEY_OF_A_TEST}", "secret.missing"),
    ):
        with pytest.raises(TidemarkError) as refused:
            configured_key(setting)
        assert refused.value.code == code
        assert "short" not in f"{refused.value.described}{refused.value}"


def command(copied: Copied, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "service.cli.main", *arguments],
        env={**os.environ, "COLUMNS": "300", **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.whole
def test_the_commands_say_which_are_authentic(copied: Copied, tmp_path: Path) -> None:
    place, key = str(copied.place), str(copied.folder / "state" / FILE)
    environment = {"TIDEMARK_CHECKPOINT_KEY": f"${{file:{key}}}"}
    ours = command(copied, "checkpoints", place, "--verify", "--key", key)
    assert ours.returncode == 0, ours.stderr
    assert command(copied, "checkpoints", place, "--verify", **environment).stdout == ours.stdout
    (tmp_path / "other").write_bytes(OTHER_KEY)
    theirs = command(copied, "checkpoints", place, "--verify", "--key", str(tmp_path / "other"))
    assert (theirs.returncode, theirs.stdout.count("no [checkpoint.unauthentic]")) == (1, 2)

    def restore(*options: str, **environment: str) -> subprocess.CompletedProcess:
        shutil.rmtree(tmp_path / "state", ignore_errors=True)
        state = str(tmp_path / "state")
        return command(copied, "restore", place, "--state", state, *options, **environment)

    assert "checkpoint.no_key" in restore().stderr
    assert "checkpoint.key" in restore("--key", str(tmp_path / "none")).stderr
    assert restore(**environment).returncode == 0
    assert not (tmp_path / "state" / FILE).exists(), "the service has it from its environment"
    assert restore("--trust-storage").returncode == 0
    assert restore("--key", key).returncode == 0
    assert read_key(tmp_path / "state" / FILE) == read_key(Path(key))
    assert (tmp_path / "state" / FILE).stat().st_mode & 0o777 == 0o600
