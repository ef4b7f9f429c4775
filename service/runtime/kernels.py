"""Native kernels compiled ahead, so that no epoch waits for the compiler.

kernels.txt lists every kernel with the argument types that it is called with; it is written from
the caches of the suite's own runs (`python -m service.runtime.kernels --record`). Numba keeps what
it has
compiled beside the sources, but looks at a kernel's own file only, and kernels of other files may
lie inlined in it: where one of those has changed, it is compiled anew. Invariant: after `ensure`,
what the list names is loaded from disk and compiled no more.
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
from service.runtime.signals import die_with_parent

LIST = Path(__file__).with_name("kernels.txt")
ROOT = LIST.parents[2]
STAMP = "tidemark-kernels"
REMEMBERED = "kernels.json"
COMPILING = "kernels.compiling.json"
PACKAGES = ("storage", "dataflow", "connectors")
SHOW_EACH = 50

OnProgress = Callable[[int, int], None]


def listed() -> list[tuple[str, str, str]]:
    """(module, kernel, its argument types) of each line of the list."""
    found = []
    for line in LIST.read_text().splitlines():
        name, _, types = line.partition("(")
        module, _, kernel = name.rpartition(".")
        found.append((module, kernel, types.removesuffix(")")))
    return found


def ensure(state: Path, show: OnProgress) -> None:
    """Compile in a child what is not compiled yet; at once when all is.

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
            hint="is the folder of the package, or NUMBA_CACHE_DIR, writable, and has it room?",
        )
    state.mkdir(parents=True, exist_ok=True)
    remembered.write_text(json.dumps({"stamp": stamp.removeprefix("stamp ")}))


def is_done(state: Path) -> bool:
    """Whether `ensure` has nothing to do."""
    try:
        return _known(Path(json.loads((state / REMEMBERED).read_text())["stamp"])) == _parts()
    except (OSError, ValueError):
        return False


def main_of(settings: Settings) -> int:
    """The process that compiles for a service, while its API answers already; the exit code."""
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
    """What is still to be compiled before anything is kept up to date, "" for nothing."""
    try:
        facts = json.loads((state / COMPILING).read_text())
        return f"native kernels are being compiled: {facts['done']} of {facts['total']}"
    except (OSError, ValueError, KeyError):
        return ""


def compile_all(show: OnProgress) -> Path:
    """Compile, or load, all that is listed, in this process; the stamp that says so.

    At once when the stamp says so already. One process at a time: what another one has compiled
    is loaded.
    """
    parts, stamp = _parts(), _stamp()
    if _known(stamp) == parts:
        return stamp
    with stamp.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        known = _known(stamp)
        if known == parts:
            return stamp
        still = {name: digest for name, digest in known.items() if parts.get(name) == digest}
        # Killed from here on, no more than this is trusted.
        _write(stamp, still)
        for name in parts.keys() - still.keys():
            _forget(name)
        lines = listed()
        for done, (module, kernel, types) in enumerate(lines):
            show(done, len(lines))
            # The list is written from time to time; a kernel that has changed since then is
            # compiled when it is called first.
            _compile(module, kernel, types)
        show(len(lines), len(lines))
        _write(stamp, parts)
    return stamp


def show_on_terminal(done: int, total: int) -> None:
    """One line on standard error that counts on; a few lines where that is no terminal."""
    if sys.stderr.isatty():
        print(f"\rcompiling kernels {done}/{total}", end="", file=sys.stderr, flush=True)
        if done == total:
            print(file=sys.stderr)
    elif done % SHOW_EACH == 0 or done == total:
        print(f"compiling kernels {done}/{total}", file=sys.stderr, flush=True)


def watch(compiled: Callable[[str], None]) -> None:
    """Call back with the name of each kernel that is compiled in this process from now on."""
    from numba.core import event

    class Late(event.Listener):
        def on_start(self, event: Any) -> None:
            return

        def on_end(self, event: Any) -> None:
            kernel = event.data["dispatcher"].py_func
            compiled(f"{kernel.__module__}.{kernel.__name__}")

    event.register("numba:compile", Late())


@cache
def _parts() -> dict[str, str]:
    """What compiled kernels depend on: by module, a digest of its sources, of the machine and of
    the time of its file, by which numba goes."""
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
    """A module of kernels with those whose kernels it may hold inlined."""
    found, waiting = {name}, [name]
    while waiting:
        new = _imported(sources[waiting.pop()]) & sources.keys() - found
        found |= new
        waiting += new
    return found


@cache
def _imported(source: bytes) -> frozenset[str]:
    """The modules from which a module imports names."""
    nodes = ast.walk(ast.parse(source))
    return frozenset(n.module for n in nodes if isinstance(n, ast.ImportFrom) and n.module)


def record() -> list[str]:
    """Lines for the list: what stands in it and still fits, and all that the caches hold."""
    lines = set()
    for module, kernel, types in listed() if LIST.is_file() else []:
        if _compile(module, kernel, types):
            lines.add(f"{module}.{kernel}({types})")
    for name, dispatcher in _dispatchers():
        # Not public, but only the writer of the list needs it.
        for key in dispatcher._cache._cache_file._load_index():
            types = [_text(t) for t in key[0]]
            if all(types):
                lines.add(f"{name}({', '.join(types)})")
    return sorted(lines)


def _sources() -> list[Path]:
    """The files that hold kernels."""
    files = (p for name in PACKAGES for p in sorted((ROOT / name).rglob("*.py")))
    return [p for p in files if "@njit" in p.read_text()]


def _module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def _dispatchers() -> Iterator[tuple[str, Any]]:
    """All kernels by their full names."""
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
    """Compile a kernel, or load it; False where it is not, or no longer takes these types."""
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


def _known(stamp: Path) -> dict[str, str]:
    """The parts of which a stamp says that they are compiled."""
    try:
        return json.loads(stamp.read_text())
    except (OSError, ValueError):
        return {}


def _write(stamp: Path, parts: dict[str, str]) -> None:
    draft = stamp.with_suffix(".draft")
    draft.write_text(json.dumps(parts))
    draft.replace(stamp)


def _forget(module: str) -> None:
    """Remove what was compiled of a module from other sources than these."""
    for name, dispatcher in _dispatchers():
        if name.rpartition(".")[0] == module:
            folder = Path(dispatcher.stats.cache_path)
            for index in folder.glob(f"{module.rpartition('.')[2]}.*.nbi"):
                index.unlink(missing_ok=True)


def _signature(types: str) -> tuple[Any, ...]:
    """Argument types from their text, as `_text` writes them."""
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
    """A type as the list has it; empty for those that only calls between kernels have."""
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
    """Compile and tell how far it is, "37/120" a line; --show: to people; --record: the list."""
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
