"""Which tests a run has, and how often they repeat: `make test` has the fast tier, `make test-all`
everything.

A test is outside the fast tier if it is marked `whole`, if it is a case that `CASES` does not list,
or if it asks a second version of PostgreSQL without the marker `versions`. Numbers of kills, seeds
and files come from `count`. Invariant: a test whose node is named on the command line always runs.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

VARIABLE = "TIDEMARK_TEST_FAST"
TESTS = Path(__file__).parent.parent

# Markers that say what a test needs, by the first folder of its path; `core` needs no server.
KINDS = {"unit": "core", "property": "core", "recovery": "fault", "simulation": "fault"}

# Of tests with many cases: those that the fast tier has.
CASES = {
    "end_to_end/test_recursion.py::test_what_does_not_end_stops_no_one": ("live",),
    "end_to_end/test_serve.py::test_a_dsn_that_is_wrong": ("port", "word"),
    "equality/test_queries.py::test_every_view_equals_its_query": (
        *("hr-rocks", "bank-rocks", "wide-rocks", "logs-rocks", "events-rocks"),
        *("lists-memory", "odd-memory", "nested-memory", "figures-memory", "market-memory"),
    ),
    "equality/test_shared.py::test_views_that_share_equal_their_queries": ("hr-rocks",),
    "equality/test_generated.py::test_generated_queries_equal_postgres": ("0", "1"),
    "equality/test_service.py::test_kept_tables_equal_their_queries": ("shop", "odd"),
    "recovery/test_connections.py::test_other_sources_go_on_while_the_database_is_away": (
        "half-open",
    ),
    "recovery/test_state_of_sources.py::test_state_behind_the_sink": ("lost",),
    "security/test_authorization.py::test_every_route_as_every_caller": ("own", "granted"),
    "simulation/test_mutations.py::test_the_simulation_finds": (
        *("errors lost", "refused with its epoch", "beyond the sink", "refused and kept"),
        *("shapes forgotten", "mute forgotten"),
    ),
    "unit/service/test_kernels.py::test_compiled_once_and_again_when_sources_change": ("True",),
    "unit/storage/test_recovery.py::test_killed_state_is_the_last_commit": ("0",),
}


def is_fast() -> bool:
    """Return whether this run is the fast tier."""
    return os.environ.get(VARIABLE) == "1"


def count(variable: str, fast: int, every: int) -> int:
    """Return how often: what the environment says, else the number of the tier."""
    given = os.environ.get(variable)
    return int(given) if given else fast if is_fast() else every


def add_option(parser: pytest.Parser) -> None:
    """`--fast`."""
    parser.addoption("--fast", action="store_true", help="the fast tier alone, as `make test`")


def configure(config: pytest.Config) -> None:
    """Tell the modules of the tests, which read their numbers when they are imported."""
    if config.getoption("--fast"):
        os.environ[VARIABLE] = "1"


def folder_of(item: pytest.Item) -> str:
    """Return the first folder of a test's path; "." for a file beside the folders."""
    parts = item.path.relative_to(TESTS).parts
    return parts[0] if len(parts) > 1 else "."


def is_whole_run(config: pytest.Config) -> bool:
    """Return whether all folders are asked for, and nothing picks among their tests."""
    picked = (config.getoption(name, None) for name in ("keyword", "markexpr", "lf", "maxfail"))
    return config.args == config.getini("testpaths") and not any(picked)


def select(config: pytest.Config, items: list[pytest.Item], versions: Sequence[int]) -> None:
    """Mark the tests by kind, and leave out of the fast tier what does not belong to it.

    UsageError where `CASES` lists a case that a run of all folders does not have.
    """
    for item in items:
        item.add_marker(KINDS.get(folder_of(item), "server"))
    if not is_fast() or any("::" in argument for argument in config.args):
        return
    if is_whole_run(config):
        _require_cases(items)
    left_out = [item for item in items if _is_left_out(item, versions)]
    if left_out:
        gone = set(left_out)
        items[:] = [item for item in items if item not in gone]
        config.hook.pytest_deselected(items=left_out)


def _case_of(item: pytest.Item) -> tuple[str, str]:
    """Return (file::test, id of its parameters), as in `CASES`; no id for one without
    parameters."""
    callspec = getattr(item, "callspec", None)
    test = f"{item.path.relative_to(TESTS)}::{getattr(item, 'originalname', item.name)}"
    return test, "" if callspec is None else callspec.id


def _require_cases(items: Sequence[pytest.Item]) -> None:
    listed = {(test, case) for test, cases in CASES.items() for case in cases}
    missing = sorted(listed.difference(map(_case_of, items)))
    if missing:
        raise pytest.UsageError(
            f"CASES of tests/harness/tiers.py lists what is not there: {missing}"
        )


def _is_left_out(item: pytest.Item, versions: Sequence[int]) -> bool:
    if item.get_closest_marker("whole"):
        return True
    test, case = _case_of(item)
    if test in CASES and case not in CASES[test]:
        return True
    callspec = getattr(item, "callspec", None)
    version = None if callspec is None else callspec.params.get("every_postgres")
    if version in (None, versions[0]):
        return False
    return item.get_closest_marker("versions") is None
