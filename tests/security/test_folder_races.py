"""Oracle: whatever is replaced by a link while a sink works, at each of its calls of the system, a
folder outside has the same files afterwards, and nothing of them is returned."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from connectors import netguard
from connectors.authenticated_shuffle import AuthenticatedExchange, new_key
from connectors.objects.folder_storage import FolderStorage, SinkFolder
from connectors.objects.open_folder import parts_of
from connectors.objects.shared_storage import NameTakenError
from connectors.shuffle_storage import Exchange, FolderExchange
from dataflow.errors import TidemarkError

CALLS = ("open", "mkdir", "link", "replace", "unlink", "rmdir", "stat", "scandir")
THEIRS = b"theirs"
# What may go wrong while folders are replaced; anything else is a bug.
EXPECTED = (TidemarkError, OSError, NameTakenError)


class Ground:
    """A sink's folder, a folder outside with the same names, and what swaps one for the other."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "in" / "sink"
        self.outside = folder / "outside"
        self.local = folder / "local"
        for base, content in ((self.root, b"ours"), (self.outside, THEIRS)):
            (base / "data").mkdir(parents=True)
            for name in ("a", "data/a", "data/.draft"):
                (base / name).write_bytes(content)
        (self.outside / "check").mkdir()
        self.local.write_bytes(b"sent")

    def swap(self, name: str) -> None:
        """Replace the sink's folder, or one in it, by a link to that of the same name outside."""
        path = self.root / name if name else self.root
        if path.is_symlink() or not path.exists():
            return
        path.rename(path.with_name(f"{path.name}-moved"))
        path.symlink_to(self.outside / name)

    def outside_files(self) -> dict[str, bytes | None]:
        """Every name outside, with the content of files."""
        return {
            str(path): path.read_bytes() if path.is_file() else None
            for path in sorted(self.outside.rglob("*"))
        }


OPERATIONS: dict[str, Callable[[FolderStorage, Ground], Any]] = {
    "create": lambda s, g: s.create("data/new", b"x"),
    "create taken": lambda s, g: s.create("data/a", b"ours"),
    "put": lambda s, g: s.put("data/a", b"x"),
    "put deep": lambda s, g: s.put("data/x/y/z", b"x"),
    "send": lambda s, g: s.send(g.local, "data/b"),
    "get": lambda s, g: s.get("data/a"),
    "names": lambda s, g: s.names("data"),
    "delete": lambda s, g: s.delete("data/a"),
    "drafts": lambda s, g: s.remove_drafts(["data"]),
    "empty": lambda s, g: s.remove_empty("check"),
}


@pytest.mark.parametrize("swapped", ["", "data"])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_nothing_outside_is_touched(
    operation: str, swapped: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(netguard, "_guard", netguard.Guard(writable=(f"{tmp_path}",)))
    number, has_more = 0, True
    while has_more:
        ground = Ground(tmp_path / str(number))
        guard = netguard.Guard(writable=(f"{tmp_path}/{number}/in",))
        monkeypatch.setattr(netguard, "_guard", guard)
        before = ground.outside_files()
        storage = SinkFolder(ground.root, "sink.unreachable")
        found, has_more = _with_swap(OPERATIONS[operation], ground, swapped, number, storage)
        assert ground.outside_files() == before, f"at call {number}"
        assert found != THEIRS, f"at call {number}"
        number += 1
    # The last round had no swap: the operation works.
    assert number > 2 and not isinstance(found, Exception), found


def _with_swap(
    operation: Callable[[Any, Ground], Any], ground: Ground, swapped: str, at: int, storage: Any
) -> tuple[Any, bool]:
    """Run with a swap before call `at`; return what came of it, and whether it came to that."""
    calls = 0

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == at + 1:
                with pytest.MonkeyPatch.context() as restored:
                    for name, function in reals.items():
                        restored.setattr(os, name, function)
                    ground.swap(swapped)
            return real(*args, **options)

        return call

    reals = {name: getattr(os, name) for name in CALLS}
    with pytest.MonkeyPatch.context() as patched:
        for name, function in reals.items():
            patched.setattr(os, name, counted(function))
        try:
            found: Any = operation(storage, ground)
        except EXPECTED as error:
            found = error
    return found, calls > at


def _drafted(exchange: Exchange, name: str) -> None:
    with exchange.draft(name) as draft:
        draft.write_bytes(b"x")


EXCHANGE_OPERATIONS: dict[str, Callable[[Exchange, Ground], Any]] = {
    "put": lambda e, g: e.put("data/a", b"x"),
    "put deep": lambda e, g: e.put("data/x/y/z", b"x"),
    "draft": lambda e, g: _drafted(e, "data/a"),
    "send": lambda e, g: e.send(g.local, "data/b"),
    "get": lambda e, g: e.get("data/a"),
    "sizes": lambda e, g: e.sizes("data"),
    "folders": lambda e, g: e.folders(),
    "delete": lambda e, g: e.delete("data/a"),
    "remove": lambda e, g: e.below("data").remove(),
}


@pytest.mark.parametrize("swapped", ["", "data"])
@pytest.mark.parametrize("operation", EXCHANGE_OPERATIONS)
@pytest.mark.parametrize("is_sealed", [False, True], ids=["plain", "with MACs"])
def test_nothing_outside_an_exchange_is_touched(
    operation: str, swapped: str, is_sealed: bool, tmp_path: Path
) -> None:
    if is_sealed and operation == "get":
        pytest.skip("no file of others has a MAC")
    number, has_more = 0, True
    while has_more:
        ground = Ground(tmp_path / str(number))
        exchange: Exchange = FolderExchange(ground.root.parent, (ground.root.name,))
        if is_sealed:
            exchange = AuthenticatedExchange(exchange, new_key())
        before = ground.outside_files()
        run = EXCHANGE_OPERATIONS[operation]
        found, has_more = _with_swap(run, ground, swapped, number, exchange)
        assert ground.outside_files() == before, f"at call {number}"
        assert found != THEIRS, f"at call {number}"
        number += 1
    assert number > 1 and not isinstance(found, Exception), found


def test_a_draft_that_was_replaced_is_not_written_to(tmp_path: Path) -> None:
    """By a link, or by another name of a file elsewhere."""
    ground = Ground(tmp_path)
    exchange = AuthenticatedExchange(FolderExchange(ground.root), new_key())
    for replace in (os.symlink, os.link):
        before = ground.outside_files()
        with pytest.raises(EXPECTED), exchange.draft("data/a") as draft:
            draft.write_bytes(b"x")
            draft.unlink()
            replace(ground.outside / "a", draft)
        assert ground.outside_files() == before
    assert exchange.exchange.get("data/a") == b"ours"


def test_links_in_an_exchange_are_refused(tmp_path: Path) -> None:
    ground = Ground(tmp_path)
    exchange = FolderExchange(ground.root)
    assert exchange.get("data/a") == b"ours"
    ground.swap("data")
    for operation in ("put", "get", "sizes", "delete", "send"):
        with pytest.raises(TidemarkError, match=r"path\.forbidden"):
            EXCHANGE_OPERATIONS[operation](exchange, ground)
    for name in ("../outside/a", "data/../../outside/a", "/etc/hostname", "a/./b"):
        with pytest.raises(TidemarkError, match=r"path\.forbidden"):
            exchange.get(name)


def test_a_folder_that_was_swapped_before_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ground = Ground(tmp_path)
    monkeypatch.setattr(netguard, "_guard", netguard.Guard(writable=(f"{tmp_path}/in",)))
    assert SinkFolder(ground.root).get("data/a") == b"ours"
    ground.swap("")
    for operation in (OPERATIONS["put"], OPERATIONS["names"], OPERATIONS["delete"]):
        with pytest.raises(TidemarkError, match=r"path\.forbidden"):
            operation(SinkFolder(ground.root), ground)


def test_a_link_of_the_operator_s_may_name_the_folder(tmp_path: Path) -> None:
    """The folder itself may lie behind a link that leads to an allowed place."""
    ground = Ground(tmp_path)
    (tmp_path / "link").symlink_to(ground.root)
    assert FolderStorage(tmp_path / "link").get("data/a") == b"ours"
    FolderStorage(tmp_path / "link" / "deep" / "er").put("x", b"1")
    assert (ground.root / "deep" / "er" / "x").read_bytes() == b"1"


def test_pipes_and_devices_are_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    storage = FolderStorage(tmp_path)
    with pytest.raises(TidemarkError, match=r"spark\.storage"):
        storage.get("pipe")
    assert storage.names("") == []


@pytest.mark.parametrize(
    "name", ["../a", "a/../../b", "/etc/passwd", "a//b", ".", "", "a\0b", "./a"]
)
def test_names_lead_nowhere_else(name: str, tmp_path: Path) -> None:
    assert parts_of("data/a") == ["data", "a"]
    for call in (FolderStorage.get, FolderStorage.delete):
        with pytest.raises(TidemarkError, match=r"path\.forbidden"):
            call(FolderStorage(tmp_path), name)
    with pytest.raises(TidemarkError, match=r"path\.forbidden"):
        FolderStorage(tmp_path).put(name, b"x")
