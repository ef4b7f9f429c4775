"""Python functions as sources of the running service (see `connectors/<type>/source`).

A function is called by interval in a child process, and its rows are compared by key. Invariants: a
call that fails, ends early or takes too long changes nothing; what a function does to its process
does not reach the service, and the process ends with it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import IO, Any

import orjson

from connectors import netguard, secrets
from connectors.feed_source import DeclaredRelation
from connectors.formats.declared import declare_columns
from connectors.polled.contents import Fetched
from connectors.polled.rows import SAMPLES, RowReader, declared_relation, with_columns
from connectors.polled.source import Polled, PolledSource
from connectors.python.options import FunctionRelation, read_options
from dataflow.errors import SourceError, TemporaryError, TidemarkError
from dataflow.schema import Relation

_SHOWN = 500
_OWN_SETTINGS = "TIDEMARK_"


def declare(options: Mapping[str, Any]) -> Sequence[DeclaredRelation]:
    """Return the relations that the options declare."""
    return [declared_relation(relation.rows) for relation in read_options(options)]


def make(name: str, options: Mapping[str, Any], relations: Sequence[Relation]) -> PolledSource:
    """Return the source, with its declared relations. SourceError source.bad_option."""
    polled = [Polled(r.rows, partial(_Fetch, r)) for r in read_options(options)]
    return PolledSource(name, relations, polled)


def discover(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the options with columns proposed for each relation that has none."""
    found = {relation.name: relation for relation in read_options(options)}
    sample = lambda name: call(found[name], (), SAMPLES)  # noqa: E731
    return with_columns(options, [relation.rows for relation in found.values()], sample)


@dataclass(frozen=True)
class _Fetch:
    """Reads one relation; see `connectors.polled.feed.Fetch`."""

    relation: FunctionRelation
    reader: RowReader

    def __call__(self, validators: Mapping[str, str]) -> Fetched:
        """See Fetch."""
        relation = self.relation
        columns = [c.path[0] for c in declare_columns(relation.rows.columns) if c.path]
        records = call(relation, tuple(dict.fromkeys(columns)), relation.max_rows)
        if len(records) > relation.max_rows:
            what = f'function "{relation.path}" returns more than {relation.max_rows:,} rows'
            raise SourceError("function.too_many_rows", what, hint="raise max_rows, or return less")
        return self.reader.read(records, {})


def call(relation: FunctionRelation, columns: Sequence[str], count: int) -> list[bytes]:
    """Return the rows of a function as JSON, at most one more than `count`.

    columns: those that are read, for `dynamic_columns`. SourceError function.*, module.forbidden;
    TemporaryError function.timeout, function.died.
    """
    netguard.check_module(relation.module)
    request = {
        "path": relation.path,
        "arguments": secrets.resolve_all(relation.arguments),
        "columns": list(columns),
        "count": count + 1,
        "parent": os.getpid(),
    }
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as printed:
        child = subprocess.Popen(
            [sys.executable, "-m", "connectors.python.child"],
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=printed,
            env=_environment(),
        )
        try:
            child.communicate(orjson.dumps(request), relation.timeout_s)
        except subprocess.TimeoutExpired:
            what = f'function "{relation.path}" takes longer than {relation.timeout_s:g} s'
            hint = "make it faster, or raise timeout_ms"
            raise TemporaryError("function.timeout", what, hint=hint) from None
        finally:
            if child.poll() is None:
                child.kill()
                child.wait()
        return _records(relation, out, printed)


def _records(relation: FunctionRelation, out: IO[bytes], printed: IO[bytes]) -> list[bytes]:
    out.seek(0)
    lines = out.read().splitlines()
    end = lines.pop() if lines and lines[-1].startswith(b"[") else None
    if end is None:
        # It was killed, or has ended its process.
        size = printed.seek(0, os.SEEK_END)
        printed.seek(max(0, size - _SHOWN))
        detail = secrets.hide(printed.read().decode(errors="replace"))
        what = f'the process of function "{relation.path}" has ended early'
        hint = "see the detail; run the function by itself"
        raise TemporaryError("function.died", what, detail=detail, hint=hint)
    if error := orjson.loads(end):
        raise _failure(*error)
    return lines


def _failure(code: str, what: str, detail: str, hint: str) -> TidemarkError:
    """Return the error of the child. What a function raises may pass, so it is tried again."""
    if code == "function.failed":
        hint = "see the detail; run the function by itself"
        return TemporaryError(code, what, detail=secrets.hide(detail), hint=hint)
    return SourceError(code, what, detail=secrets.hide(detail), hint=hint)


def _environment() -> dict[str, str]:
    """Return the environment without the service's settings, which have its passwords."""
    own = {n: v for n, v in os.environ.items() if not n.startswith(_OWN_SETTINGS)}
    paths = [path for path in sys.path if path]
    return {**own, "PYTHONPATH": os.pathsep.join(paths)}
