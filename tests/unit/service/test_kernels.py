"""Oracle: numba itself, asked what a kernel was compiled for and whether it compiled or loaded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from service.metrics.metrics import PipelineMetrics
from service.runtime import kernels


def test_types_are_read_as_they_are_written() -> None:
    lines = kernels.listed()
    assert len(lines) > 100
    for module, kernel, types in lines:
        written = ", ".join(kernels._text(t) for t in kernels._signature(types))
        assert written == types, f"{module}.{kernel}"


def test_what_nearly_every_view_calls_is_loaded_in_advance() -> None:
    found = list(kernels.loading())
    assert set(found) == {f"{m}.{name}" for m, names in kernels.COMMON.items() for name in names}
    module, kernel, types = next(line for line in kernels.listed() if line[1] == "walk_tuples")
    assert kernels._signature(types) in kernels._kernel(module, kernel).signatures


def test_what_a_kernel_may_hold_inlined() -> None:
    sources = {
        "a": b"from b import f\nimport numpy",
        "b": b"from c import g",
        "c": b"x = 1",
        "d": b"from b import f",
    }
    assert kernels._closure("a", sources) == {"a", "b", "c"}
    assert kernels._closure("c", sources) == {"c"}


AT_ONCE = """
from pathlib import Path
from service.runtime import kernels
kernels.LIST, late = Path("list.txt"), []
kernels.watch(late.append)
kernels.compile_all(lambda done, total: None)
print(len(late))
"""
SCRIPT = """
from pathlib import Path
import numpy as np
from service.runtime import kernels
kernels.LIST = Path("list.txt")
gone = "storage.kernels.gone(int64)"
changed = "storage.kernels.group_hashes((int64, int64,), int64)"
kernels.LIST.write_text(f"{{gone}}\\n{{changed}}\\n{line}\\n")
shown, late = [], []
kernels.watch(late.append)
stamp = kernels.compile_all(lambda done, total: shown.append((done, total)))
assert shown in ([], [(0, 3), (1, 3), (2, 3), (3, 3)]), shown
print(len(shown), len([name for name in late if name.endswith(".{kernel}")]))
if {is_changed}:
    name = '"storage.page_kernels": "'
    stamp.write_text(stamp.read_text().replace(name, name + "x"))
"""


def _apart(folder: Path) -> dict[str, str]:
    """The environment of a process with a cache of its own."""
    cache = {"NUMBA_CACHE_DIR": str(folder / "cache"), "PYTHONPATH": os.pathsep.join(sys.path)}
    return {**os.environ, **cache}


@pytest.mark.parametrize("is_changed", [False, True])
def test_compiled_once_and_again_when_sources_change(tmp_path: Path, is_changed: bool) -> None:
    kernel, types = next(
        (kernel, types)
        for module, kernel, types in kernels.listed()
        if module == "storage.page_kernels"
    )
    line = f"storage.page_kernels.{kernel}({types})"
    script = SCRIPT.format(line=line, kernel=kernel, is_changed=is_changed)
    compiled = [
        subprocess.run(
            [sys.executable, "-c", script],
            env=_apart(tmp_path),
            cwd=tmp_path,
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()
        for _ in range(2)
    ]
    assert compiled == ["4 1", "4 1" if is_changed else "0 0"]


@pytest.mark.whole
def test_two_at_once_compile_once(tmp_path: Path) -> None:
    """A service that starts while another one does takes nothing away from it."""
    lines = [line for line in kernels.listed() if line[0] == "storage.page_kernels"][:2]
    (tmp_path / "list.txt").write_text("".join(f"{m}.{k}({t})\n" for m, k, t in lines))
    both = [
        subprocess.Popen(
            [sys.executable, "-c", AT_ONCE],
            env=_apart(tmp_path),
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    told = sorted(process.communicate(timeout=300)[0].strip() for process in both)
    assert told[0] == "0" and int(told[1]) >= len({k for _, k, _ in lines}), told


def test_a_late_kernel_is_counted(tmp_path: Path) -> None:
    metrics = PipelineMetrics(tmp_path)
    metrics.kernel_compiled("storage.kernels.fold")
    assert metrics.snapshot()["kernels_compiled_total"] == 1
