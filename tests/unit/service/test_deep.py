"""Oracle: how deep the work is that is handed over; texts whose deepest place is seen by eye."""

from __future__ import annotations

import sys
import threading

import pytest

from dataflow.errors import Position
from service.factory.planning import too_deep
from service.runtime.deep_stack import PLANNED, deeply


def _down(depth: int) -> int:
    return 0 if depth == 0 else 1 + _down(depth - 1)


def test_deeper_work_than_usual_is_done() -> None:
    usual, usual_bytes = sys.getrecursionlimit(), threading.stack_size()
    depth = PLANNED - 1_000
    assert deeply(lambda: _down(depth)) == depth
    assert sys.getrecursionlimit() == usual
    assert threading.stack_size() == usual_bytes


def test_too_deep_work_ends_in_an_error() -> None:
    usual = sys.getrecursionlimit()
    with pytest.raises(RecursionError):
        deeply(lambda: _down(PLANNED + 1_000))
    with pytest.raises(RecursionError):
        deeply(lambda: _down(3_000), 2_000)
    assert sys.getrecursionlimit() == usual


def test_other_errors_come_through_at_any_depth() -> None:
    def fail() -> None:
        _down(5_000)
        raise ValueError("of the work")

    with pytest.raises(ValueError, match="of the work"):
        deeply(fail)


@pytest.mark.parametrize(
    ("query", "position"),
    [
        ("SELECT a,\n f(g(h(b))), (c)", Position(2, 7)),
        ("SELECT CASE WHEN a THEN b ELSE\nCASE WHEN c THEN (d) END END, (e)", Position(2, 18)),
        ("SELECT a + b,\n a + b + c + d", Position(2, 12)),
        ("SELECT '((((((', \"((((\", (a) /* (((( */", Position(1, 26)),
        ("SELECT * FROM (SELECT 1) a,\n(SELECT * FROM (SELECT 2) a) b", Position(2, 16)),
    ],
)
def test_the_deepest_position_is_reported(query: str, position: Position) -> None:
    error = too_deep(query)
    assert error.code == "sql.too_deep"
    assert error.position == position
    assert "levels" in error.detail
