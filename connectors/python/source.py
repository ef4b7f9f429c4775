"""Python functions as sources of the running service (see `connectors/<type>/source`).

A function is called by interval in a child process, and its rows are compared by key. Invariants: a
call that fails, ends early or takes too long changes nothing; what a function does to its process
does not reach the service, and the process ends with it.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from itertools import islice
from typing import IO, Any

import orjson

from connectors import netguard, secrets
from connectors.feed_source import DeclaredRelation
from connectors.formats.declared import DeclaredColumn, declare_columns
from connectors.outside import texts
from connectors.polled.contents import Fetched
from connectors.polled.rows import SAMPLES, RowReader, declared_relation, with_columns
from connectors.polled.source import Polled, PolledSource
from connectors.pushdown import Pushdown, PushdownCondition, PushdownRequirement
from connectors.python.conditions import condition_facts, read_condition
from connectors.python.function import COLUMNS, WHERE
from connectors.python.options import FunctionRelation, read_options
from dataflow.errors import SourceError, TemporaryError, TidemarkError
from dataflow.schema import Relation

_SHOWN = 500
# What one call may write: its rows, and what it prints.
MOST_BYTES = 256 << 20
_CHECK_S = 0.2
# What the child reports itself.
_CODE = re.compile(r"function\.[a-z_]+|source\.python_value")
_OWN_SETTINGS = "TIDEMARK_"
# What a program needs of its environment: none of these is a secret.
_NEEDED = (
    *("PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "LC_*", "TZ", "TZDIR", "TMPDIR"),
    *("PYTHON*", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "SSL_CERT_FILE", "SSL_CERT_DIR"),
)
_NOTHING = PushdownRequirement(()).facts()


def declare(options: Mapping[str, Any]) -> Sequence[DeclaredRelation]:
    """Return the relations that the options declare."""
    return [declared_relation(relation.rows) for relation in read_options(options)]


def make(name: str, options: Mapping[str, Any], relations: Sequence[Relation]) -> PolledSource:
    """Return the source, with its declared relations. SourceError source.bad_option."""
    declared = read_options(options)
    polled = [Polled(r.rows, partial(_Fetch, r), is_selective=True) for r in declared]
    return PolledSource(name, relations, polled)


def pushdown(options: Mapping[str, Any]) -> Mapping[str, Pushdown]:
    """Return which of its relations' functions get the columns and conditions that are needed.

    SourceError function.*, module.forbidden; TemporaryError function.timeout, function.died.
    """
    return {r.name: _pushdown_of(r, parameters_of(r)) for r in read_options(options)}


def _pushdown_of(relation: FunctionRelation, takes: Collection[str]) -> Pushdown:
    lacks = {p: f"its function has no parameter {p}" for p in (COLUMNS, WHERE) if p not in takes}
    excepted = {}
    for column in declare_columns(relation.rows.columns):
        if len(column.path) != 1:
            excepted[column.field.name] = "the column is a part of what its function returns"
        elif column.unit:
            excepted[column.field.name] = "its function returns it as a number"
    return Pushdown(lacks.get(COLUMNS, ""), lacks.get(WHERE, ""), excepted)


def discover(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the options with columns proposed for each relation that has none."""
    found = {relation.name: relation for relation in read_options(options)}
    sample = lambda name: call(found[name], (), SAMPLES)[0]  # noqa: E731
    return with_columns(options, [relation.rows for relation in found.values()], sample)


@dataclass(frozen=True)
class _Fetch:
    """Reads one relation; see `connectors.polled.feed.SelectiveFetch`."""

    relation: FunctionRelation
    reader: RowReader

    def __call__(
        self, validators: Mapping[str, str], required: PushdownRequirement | None = None
    ) -> Fetched:
        """See SelectiveFetch."""
        relation = self.relation
        declared = declare_columns(relation.rows.columns)
        chosen = self._chosen(declared, required)
        records, takes = call(relation, _top_names(declared), relation.max_rows, chosen)
        if len(records) > relation.max_rows:
            what = f'function "{relation.path}" returns more than {relation.max_rows:,} rows'
            raise SourceError("function.too_many_rows", what, hint="raise max_rows, or return less")
        found = self.reader.read(records, {})
        return replace(found, required=None if required is None else self._read(required, takes))

    def _chosen(
        self, declared: Sequence[DeclaredColumn], required: PushdownRequirement | None
    ) -> PushdownRequirement | None:
        """Return what is required, in the function's own names; its key is always needed."""
        if required is None:
            return None
        paths = {column.field.name: column.path for column in declared}
        columns = [c for c in declared if c.field.name in self._columns(required, declared)]
        conditions = [replace(c, column=paths[c.column][0]) for c in self._conditions(required)]
        return PushdownRequirement(_top_names(columns), tuple(conditions))

    def _read(self, required: PushdownRequirement, takes: Collection[str]) -> PushdownRequirement:
        """Return what of a relation a call has read."""
        declared = declare_columns(self.relation.rows.columns)
        columns = {c.field.name for c in declared}
        if COLUMNS in takes:
            columns = self._columns(required, declared)
        conditions = self._conditions(required) if WHERE in takes else ()
        return PushdownRequirement(tuple(sorted(columns)), tuple(conditions))

    def _columns(
        self, required: PushdownRequirement, declared: Sequence[DeclaredColumn]
    ) -> set[str]:
        """Return the columns to read. Without those that must not be NULL, a row would not fit."""
        never_null = {c.field.name for c in declared if not c.field.is_nullable}
        found = {*required.columns, *self.relation.rows.key, *never_null}
        if any(not c.path for c in declared if c.field.name in found):
            # That is all that the function returns.
            return {c.field.name for c in declared}
        return found

    def _conditions(self, required: PushdownRequirement) -> Sequence[PushdownCondition]:
        excepted = _pushdown_of(self.relation, (COLUMNS, WHERE)).excepted
        return [
            c
            for c in required.conditions
            if c.column not in excepted and read_condition(condition_facts(c)) is not None
        ]


def _top_names(columns: Sequence[DeclaredColumn]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(c.path[0] for c in columns if c.path))


def parameters_of(relation: FunctionRelation) -> Collection[str]:
    """Return those of `dynamic_columns` and `dynamic_where` that a function takes; see `call`."""
    return _run(relation, {"is_read": False, "columns": [], "count": 0})[1]


def call(
    relation: FunctionRelation,
    columns: Sequence[str],
    count: int,
    required: PushdownRequirement | None = None,
) -> tuple[list[bytes], Collection[str]]:
    """Return the rows of a function as JSON, at most one more than `count`; see `parameters_of`.

    columns: all that are declared. required: for `dynamic_columns` and `dynamic_where`. SourceError
    function.*, module.forbidden; TemporaryError function.timeout, function.died.
    """
    needed = required or PushdownRequirement(tuple(columns))
    facts = {"columns": list(columns), "count": count + 1, "required": needed.facts()}
    return _run(relation, {"is_read": True, **facts})


def _run(
    relation: FunctionRelation, facts: Mapping[str, Any]
) -> tuple[list[bytes], Collection[str]]:
    netguard.check_module(relation.module)
    arguments = secrets.resolve_all(relation.arguments)
    base = {"path": relation.path, "arguments": arguments, "parent": os.getpid()}
    request = {**base, "required": _NOTHING, **facts}
    with (
        tempfile.TemporaryFile() as given,
        tempfile.TemporaryFile() as out,
        tempfile.TemporaryFile() as printed,
    ):
        given.write(orjson.dumps(request))
        given.seek(0)
        child = subprocess.Popen(
            [sys.executable, "-m", "connectors.python.child"],
            stdin=given,
            stdout=out,
            stderr=printed,
            env=_environment(),
            # What the function starts ends with it.
            start_new_session=True,
        )
        try:
            _await(child, relation, (out, printed))
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        return _records(relation, out, printed, facts["count"])


def _await(
    child: subprocess.Popen[bytes],
    relation: FunctionRelation,
    written: Sequence[IO[bytes]],
) -> None:
    """Wait until the call ends. TemporaryError function.timeout; SourceError function.too_large."""
    deadline = time.monotonic() + relation.timeout_s
    while True:
        left_s = deadline - time.monotonic()
        with suppress(subprocess.TimeoutExpired):
            child.wait(max(0.0, min(left_s, _CHECK_S)))
            return
        if any(os.fstat(file.fileno()).st_size > MOST_BYTES for file in written):
            raise _too_large(relation)
        if left_s <= 0:
            what = f'function "{relation.path}" takes longer than {relation.timeout_s:g} s'
            hint = "make it faster, or raise timeout_ms"
            raise TemporaryError("function.timeout", what, hint=hint)


def _too_large(relation: FunctionRelation) -> SourceError:
    what = f'function "{relation.path}" writes more than {MOST_BYTES >> 20} MB'
    return SourceError("function.too_large", what, hint="return fewer rows, and print less")


def _records(
    relation: FunctionRelation, out: IO[bytes], printed: IO[bytes], count: int
) -> tuple[list[bytes], Collection[str]]:
    """Return what a call has written, which may be anything."""
    if out.seek(0, os.SEEK_END) > MOST_BYTES:
        raise _too_large(relation)
    out.seek(0)
    # Never more than a row too many, and the end.
    lines = [line.rstrip(b"\n") for line in islice(out, count + 2)]
    end = _end_of(lines.pop()) if lines else None
    if end is None:
        # It was killed, or has ended its process.
        size = printed.seek(0, os.SEEK_END)
        printed.seek(max(0, size - _SHOWN))
        detail = texts.shown(printed.read(_SHOWN), _SHOWN)
        what = f'the process of function "{relation.path}" has ended early'
        hint = "see the detail; run the function by itself"
        raise TemporaryError("function.died", what, detail=detail, hint=hint)
    if isinstance(end, TidemarkError):
        raise end
    return lines, end


def _end_of(line: bytes) -> Collection[str] | TidemarkError | None:
    """Return what the last line says: parameters, or an error; None if it is no such line."""
    try:
        found = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    match found:
        case [[*names]] if all(isinstance(name, str) for name in names):
            return names
        case [str(code), str(what), str(detail), str(hint)] if _CODE.fullmatch(code):
            return _failure(code, *(texts.shown(text, _SHOWN) for text in (what, detail, hint)))
    return None


def _failure(code: str, what: str, detail: str, hint: str) -> TidemarkError:
    """Return the error of the child. What a function raises may pass, so it is tried again."""
    if code == "function.failed":
        hint = "see the detail; run the function by itself"
        return TemporaryError(code, what, detail=detail, hint=hint)
    return SourceError(code, what, detail=detail, hint=hint)


def _environment() -> dict[str, str]:
    """Return what a function's process gets of the environment, which has the service's passwords:
    what it needs, and what the operator names.
    """
    globs = (*_NEEDED, *netguard.installed().variables)
    own = {
        name: value
        for name, value in os.environ.items()
        if any(fnmatchcase(name, glob) for glob in globs) and not name.startswith(_OWN_SETTINGS)
    }
    paths = [path for path in sys.path if path]
    return {**own, "PYTHONPATH": os.pathsep.join(paths)}
