"""Native kernels compiled in advance, so that no epoch waits for the compiler.

kernels.txt lists every kernel with the argument types it is called with. It is written from the
caches of the test suite's own runs (`python -m service.runtime.kernels --record`). Numba caches
compiled code next to the sources, but checks only a kernel's own file, while kernels of other files
may be inlined in it. So `compile_all` recompiles a module if any of those files changed. Invariant:
after `ensure`, every listed kernel loads from disk and is not compiled again.
"""

from __future__ import annotations

import ast
import fcntl
import hashlib
import importlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dataflow.errors import TidemarkError
from service.runtime import signals
from service.runtime.log import configure, log
from service.runtime.private_files import replace_file
from service.runtime.process_title import set_title
from service.runtime.settings import Settings, parent_pid
from storage.parent_process import die_with_parent

LIST = Path(__file__).with_name("kernels.txt")
ROOT = LIST.parents[2]
STAMP = "tidemark-kernels"
REMEMBERED = "kernels.json"
COMPILING = "kernels.compiling.json"
PACKAGES = ("storage", "dataflow", "connectors")
SHOW_EACH = 50
# What nearly every view calls at its first change: of the stream, the sink, values, and the state.
COMMON = {
    "connectors.postgres.replication.decode_kernels": ("heads", "walk_tuples", "gather_bytes"),
    "connectors.postgres.session.copy_kernels": ("add_sizes", "put_values", "array_literal"),
    "storage.kernels": (
        *("mix_fixed", "mix_bytes", "take_bytes", "equal_bytes", "group_hashes", "sum_by_group"),
    ),
    "storage.page_kernels": (
        *("gather_words", "gather_bytes", "hash_rows", "heap_ends", "pack_bytes", "write_page"),
    ),
    "storage.page_merge": ("merge",),
    "storage.page_probe": ("probe",),
}

OnProgress = Callable[[int, int], None]


def listed() -> list[tuple[str, str, str]]:
    """Return (module, kernel, argument types) of each line of the list."""
    found = []
    for line in LIST.read_text().splitlines():
        name, _, types = line.partition("(")
        module, _, kernel = name.rpartition(".")
        found.append((module, kernel, types.removesuffix(")")))
    return found


def ensure(state: Path, show: OnProgress) -> None:
    """Compile, in a child process, whatever is not compiled yet; return at once if everything is.

    TidemarkError kernels.failed.
    """
    remembered = state / REMEMBERED
    if is_done(state):
        return
    command = [sys.executable, "-m", "service.runtime.kernels", str(os.getpid())]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        stamp = ""
        for line in child.stdout:
            done, _, total = line.strip().partition("/")
            if total.isdigit():
                show(int(done), int(total))
            else:
                stamp = line.strip()
    if child.returncode or not stamp.startswith("stamp "):
        raise TidemarkError(
            "kernels.failed",
            "the native kernels cannot be compiled",
            detail=f"exit code {child.returncode}; standard error has the reason",
            hint="make the package's folder, or NUMBA_CACHE_DIR, writable; check its free space",
        )
    state.mkdir(parents=True, exist_ok=True)
    remembered.write_text(json.dumps({"stamp": stamp.removeprefix("stamp ")}))


def is_done(state: Path) -> bool:
    """Return True if `ensure` has nothing to do."""
    try:
        return _compiled(Path(json.loads((state / REMEMBERED).read_text())["stamp"])) == _digests()
    except (OSError, ValueError):
        return False


def main_of(settings: Settings) -> int:
    """Compile for a service whose API already answers; return the exit code."""
    die_with_parent(parent_pid())
    set_title("kernels")
    configure(settings.log_level, "kernels", settings.log_format)

    def show(done: int, total: int) -> None:
        show_on_terminal(done, total)
        with suppress(OSError):
            replace_file(settings.state / COMPILING, {"done": done, "total": total})

    try:
        ensure(settings.state, show)
    except TidemarkError as error:
        log.error("kernels.failed", code=error.code, why=str(error), hint=error.hint)
        return signals.FINAL
    finally:
        (settings.state / COMPILING).unlink(missing_ok=True)
    return 0


def compiling(state: Path) -> str:
    """Return what must still be compiled before any view is maintained; "" for nothing."""
    try:
        facts = json.loads((state / COMPILING).read_text())
        return f"native kernels are being compiled: {facts['done']} of {facts['total']}"
    except (OSError, ValueError, KeyError):
        return ""


def compile_all(show: OnProgress) -> Path:
    """Compile, or load, every listed kernel in this process; return the stamp file that records it.

    Return at once if the stamp is current. One process at a time compiles; the others load its
    results.
    """
    digests, stamp = _digests(), _stamp()
    if _compiled(stamp) == digests:
        return stamp
    with stamp.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        compiled = _compiled(stamp)
        if compiled == digests:
            return stamp
        still = {name: digest for name, digest in compiled.items() if digests.get(name) == digest}
        # If the process is killed from here on, only these modules are trusted.
        _write(stamp, still)
        for name in digests.keys() - still.keys():
            _forget(name)
        lines = listed()
        for done, (module, kernel, types) in enumerate(lines):
            show(done, len(lines))
            # The list is updated from time to time; a kernel that changed since then is compiled on
            # its first call.
            _compile(module, kernel, types)
        show(len(lines), len(lines))
        _write(stamp, digests)
    return stamp


def loading() -> Iterator[str]:
    """Load the compiled kernels that nearly every view needs; yield the name of each.

    A kernel is loaded at its first call, which takes about 5 ms; the first change would wait for
    all of them.
    """
    for module, kernel, types in listed():
        if kernel in COMMON.get(module, ()):
            _compile(module, kernel, types)
            yield f"{module}.{kernel}"


def show_on_terminal(done: int, total: int) -> None:
    """Update one line of progress on standard error; print a few lines if it is no terminal."""
    if sys.stderr.isatty():
        print(f"\rcompiling kernels {done}/{total}", end="", file=sys.stderr, flush=True)
        if done == total:
            print(file=sys.stderr)
    elif done % SHOW_EACH == 0 or done == total:
        print(f"compiling kernels {done}/{total}", file=sys.stderr, flush=True)


def watch(compiled: Callable[[str], None]) -> None:
    """Call `compiled` with the name of each kernel that this process compiles from now on."""
    from numba.core import event

    class Late(event.Listener):
        def on_start(self, event: Any) -> None:
            return

        def on_end(self, event: Any) -> None:
            kernel = event.data["dispatcher"].py_func
            compiled(f"{kernel.__module__}.{kernel.__name__}")

    event.register("numba:compile", Late())


@cache
def _digests() -> dict[str, str]:
    """Return a digest by module of everything its compiled kernels depend on.

    That is its sources, the machine, and the file's modification time, which numba checks.
    """
    from llvmlite import binding

    facts = (version("numba"), platform.python_version(), binding.get_host_cpu_name())
    paths = {_module_of(path): path for path in _sources()}
    sources = {name: path.read_bytes() for name, path in paths.items()}
    found = {}
    for name, path in paths.items():
        written = str(path.stat().st_mtime_ns)
        digest = hashlib.sha256(" ".join((*facts, written)).encode())
        for used in sorted(_closure(name, sources)):
            digest.update(sources[used])
        found[name] = digest.hexdigest()
    return {**found, "": hashlib.sha256(LIST.read_bytes()).hexdigest()}


def _closure(name: str, sources: dict[str, bytes]) -> set[str]:
    """Return a module of kernels plus the modules whose kernels may be inlined in it."""
    found, waiting = {name}, [name]
    while waiting:
        new = _imported(sources[waiting.pop()]) & sources.keys() - found
        found |= new
        waiting += new
    return found


@cache
def _imported(source: bytes) -> frozenset[str]:
    """Return the modules from which a module imports names."""
    nodes = ast.walk(ast.parse(source))
    return frozenset(n.module for n in nodes if isinstance(n, ast.ImportFrom) and n.module)


def record() -> list[str]:
    """Return the lines of the list: current ones that are still valid, and those of all caches."""
    lines = set()
    for module, kernel, types in listed() if LIST.is_file() else []:
        if _compile(module, kernel, types):
            lines.add(f"{module}.{kernel}({types})")
    for name, dispatcher in _dispatchers():
        # A private attribute, used only to write the list.
        for key in dispatcher._cache._cache_file._load_index():
            types = [_text(t) for t in key[0]]
            if all(types):
                lines.add(f"{name}({', '.join(types)})")
    return sorted(lines)


def _sources() -> list[Path]:
    """Return the files that contain kernels."""
    files = (p for name in PACKAGES for p in sorted((ROOT / name).rglob("*.py")))
    return [p for p in files if "@njit" in p.read_text()]


def _module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def _dispatchers() -> Iterator[tuple[str, Any]]:
    """Yield all kernels by their full names."""
    from numba.core.dispatcher import Dispatcher

    for name in map(_module_of, _sources()):
        for key, found in vars(importlib.import_module(name)).items():
            if isinstance(found, Dispatcher) and found.py_func.__module__ == name:
                yield f"{name}.{key}", found


def _kernel(module: str, kernel: str) -> Any:
    try:
        return getattr(importlib.import_module(module), kernel, None)
    except ModuleNotFoundError:
        return None


def _compile(module: str, kernel: str, types: str) -> bool:
    """Compile or load a kernel; return False if it is missing or no longer takes these types."""
    from numba.core.errors import NumbaError

    dispatcher, signature = _kernel(module, kernel), _signature(types)
    if dispatcher is None or dispatcher.py_func.__code__.co_argcount != len(signature):
        return False
    try:
        dispatcher.compile(signature)
    except NumbaError:
        return False
    return True


def _stamp() -> Path:
    _, first = next(_dispatchers())
    folder = Path(first.stats.cache_path)
    folder.mkdir(parents=True, exist_ok=True)
    return folder / STAMP


def _compiled(stamp: Path) -> dict[str, str]:
    """Return the digests of the modules that a stamp records as compiled."""
    try:
        return json.loads(stamp.read_text())
    except (OSError, ValueError):
        return {}


def _write(stamp: Path, digests: dict[str, str]) -> None:
    draft = stamp.with_suffix(".draft")
    draft.write_text(json.dumps(digests))
    draft.replace(stamp)


def _forget(module: str) -> None:
    """Delete the compiled code of a module whose sources have changed."""
    for name, dispatcher in _dispatchers():
        if name.rpartition(".")[0] == module:
            folder = Path(dispatcher.stats.cache_path)
            for index in folder.glob(f"{module.rpartition('.')[2]}.*.nbi"):
                index.unlink(missing_ok=True)


def _signature(types: str) -> tuple[Any, ...]:
    """Return argument types from their text, as `_text` writes them."""
    from numba import types as numba_types

    names: dict[str, Any] = {
        n: getattr(numba_types, n)
        for n in ("int64", "uint64", "int32", "uint32", "int16", "uint16", "int8", "uint8")
    }
    names |= {n: getattr(numba_types, n) for n in ("float64", "float32", "none")}
    names["boolean"] = numba_types.boolean
    names["const"] = lambda t: t.copy(readonly=True)
    found = eval(f"({types},)" if types else "()", {"__builtins__": {}}, names)
    return tuple(_tuple_type(t) for t in found)


def _tuple_type(found: Any) -> Any:
    from numba import types as numba_types

    if not isinstance(found, tuple):
        return found
    return numba_types.BaseTuple.from_types(tuple(_tuple_type(t) for t in found))


def _text(found: Any) -> str:
    """Return a type as the list writes it; "" for types that only kernels pass to each other."""
    from numba import types as numba_types

    if isinstance(found, numba_types.Array):
        axes = [":"] * found.ndim
        if found.layout != "A":
            axes[-1 if found.layout == "C" else 0] = "::1"
        text = f"{_text(found.dtype)}[{', '.join(axes)}]"
        return text if found.mutable else f"const({text})"
    if isinstance(found, numba_types.BaseTuple):
        parts = [_text(t) for t in found.types]  # type: ignore[attr-defined]
        return f"({', '.join(parts)},)" if all(parts) else ""
    if isinstance(found, numba_types.Boolean):
        return "boolean"
    is_plain = isinstance(found, numba_types.Integer | numba_types.Float | numba_types.NoneType)
    return str(found) if is_plain and not isinstance(found, numba_types.IntegerLiteral) else ""


def main(arguments: list[str]) -> int:
    """Compile and print progress as "37/120"; --show: for people; --record: write the list."""
    if arguments == ["--record"]:
        LIST.write_text("".join(f"{line}\n" for line in record()))
        return 0
    if arguments == ["--show"]:
        compile_all(show_on_terminal)
        return 0
    if arguments:
        die_with_parent(int(arguments[0]))
    stamp = compile_all(lambda done, total: print(f"{done}/{total}", flush=True))
    print(f"stamp {stamp}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
