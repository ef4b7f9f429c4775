"""`python -m connectors.python.child`: calls one function in a process of its own.

Standard input has the call as JSON; standard output gets a JSON record a line, and as the last line
a list: one of the parameters that the function takes, or code, text, detail and hint of the error.
What the function prints itself goes to standard error.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any

import orjson

from connectors.polled.values import records_of
from connectors.pushdown import PushdownRequirement
from connectors.python.conditions import Requirement, condition_facts, read_condition
from connectors.python.function import COLUMNS, Function
from dataflow.errors import SourceError, TidemarkError
from storage.parent_process import die_with_parent


def main() -> int:
    """Run the call; return 0 if all rows were written."""
    # A print of the function must not come between the records.
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    call = orjson.loads(sys.stdin.buffer.read())
    die_with_parent(call["parent"])
    try:
        function = _function(call)
        end: list[Any] = [sorted(function.takes)]
        left, required = call["count"], _required(call)
        for batch in function.read(required) if call["is_read"] else ():
            names = batch.names or _names_of_tuples(function, call, len(batch.columns))
            rows = list(zip(*batch.columns, strict=True))
            out.writelines(record + b"\n" for record in records_of(names, rows[:left]))
            left -= len(rows)
            if left < 0:
                break
    except TidemarkError as error:
        end = [error.code, error.what, error.detail, error.hint]
    out.write(orjson.dumps(end) + b"\n")
    out.flush()
    return 1 if len(end) > 1 else 0


def _required(call: dict[str, Any]) -> Requirement:
    """Return what is passed to the function. Conditions that Python cannot hold are left out."""
    given = PushdownRequirement.of(call["required"])
    conditions = [read_condition(condition_facts(c)) for c in given.conditions]
    return Requirement(given.columns, tuple(c for c in conditions if c is not None))


def _names_of_tuples(function: Function, call: dict[str, Any], width: int) -> Sequence[str]:
    """Return the columns of tuples: those that the function got, or all declared ones."""
    names = [call["required"]["columns"]] if COLUMNS in function.takes else []
    for found in (*names, call["columns"]):
        if len(found) == width:
            return found
    what = f"rows have {width} values, declared are {len(call['columns'])}"
    raise SourceError("function.bad_row", what, hint="return dicts, or all columns")


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
