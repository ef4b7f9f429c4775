"""`python -m connectors.python.child`: calls one function in a process of its own.

Standard input has the call as JSON; standard output gets a JSON record a line, and as the last line
a list: empty, or code, text, detail and hint of the error. What the function prints itself goes to
standard error.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
from typing import Any

import orjson

from connectors.polled.values import records_of
from connectors.python.conditions import Requirement
from connectors.python.function import Function
from dataflow.errors import SourceError, TidemarkError
from storage.parent_process import die_with_parent


def main() -> int:
    """Run the call; return 0 if all rows were written."""
    # A print of the function must not come between the records.
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    call = orjson.loads(sys.stdin.buffer.read())
    die_with_parent(call["parent"])
    end: list[str] = []
    try:
        left = call["count"]
        required = Requirement(tuple(call["columns"]))
        for batch in _function(call).read(required):
            names = batch.names or call["columns"]
            rows = list(zip(*batch.columns, strict=True))
            if len(names) != len(batch.columns):
                what = f"rows have {len(batch.columns)} values, declared are {len(names)}"
                raise SourceError("function.bad_row", what, hint="return dicts, or all columns")
            out.writelines(record + b"\n" for record in records_of(names, rows[:left]))
            left -= len(rows)
            if left < 0:
                break
    except TidemarkError as error:
        end = [error.code, error.what, error.detail, error.hint]
    out.write(orjson.dumps(end) + b"\n")
    out.flush()
    return 1 if end else 0


def _function(call: dict[str, Any]) -> Function:
    module_name, _, path = call["path"].partition(":")
    try:
        found: Any = importlib.import_module(module_name)
        for name in path.split("."):
            found = getattr(found, name)
    except Exception as error:
        what = f'function "{call["path"]}" cannot be imported'
        hint = "install its package where the service runs, and check the name"
        detail = f"{type(error).__name__}: {error}"
        raise SourceError("function.missing", what, detail=detail, hint=hint) from None
    if call["arguments"]:
        found = functools.partial(found, **call["arguments"])
    return Function(call["path"], found)


if __name__ == "__main__":
    sys.exit(main())
