"""The only SQL that writes the status of a view.

Each statement is generated from the transition table (connectors/view_states.py). It moves a row
from the status that the row has at that moment, so concurrent writers (the API, the pipeline,
epochs of the sink) cannot overrule one another. Invariant: a view to be dropped takes no other
status, except what the sink reports about it within an epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from connectors.postgres.session.quoting import quote_name, quote_text
from connectors.view_states import (
    DesiredState,
    ViewEvent,
    ViewState,
    follow,
    follow_retried,
    illegal_transition,
    is_absorbed,
)

Run = Callable[..., Sequence[tuple[Any, ...]]]
# Tries per row: another writer may change it between a statement and its check.
_TRIES = 3


def assignment(
    events: Sequence[ViewEvent], unanswered: Collection[ViewEvent] = ()
) -> tuple[str, str]:
    """Return the status expression for these events, and the condition under which it applies."""
    found = {state: follow_retried(state, events, unanswered) for state in ViewState}
    moves = {state: after for state, after in found.items() if after is not None}
    cases = " ".join(f"WHEN {quote_text(a)} THEN {quote_text(b)}" for a, b in moves.items())
    status, condition = f"CASE status {cases} END", f"status IN ({_listed(list(moves))})"
    if all(map(is_absorbed, events)):
        is_dropped = f"desired = {quote_text(DesiredState.DROPPED)}"
        status = f"CASE WHEN {is_dropped} THEN status ELSE {status} END"
        condition = f"({is_dropped} OR {condition})"
    return status, condition


def change(
    run: Run,
    where: tuple[str, Sequence[Any]],
    events: Sequence[ViewEvent],
    reason: str = "",
    columns: Sequence[tuple[str, Any]] = (),
    *,
    unanswered: Collection[ViewEvent] = (),
) -> bool:
    """Apply events to a view's status and set columns; return False when there is no row.

    run: executes a statement and returns its rows. where: the condition for one view, and its
    parameters. unanswered: the last events of earlier writes whose outcome is unknown.
    InvariantError view.illegal_transition.
    """
    condition, parameters = where
    status, is_legal = assignment(events, unanswered)
    sets = "".join(f", {quote_name(name)} = %s" for name, _ in columns)
    for _ in range(_TRIES):
        if run(
            f"UPDATE tidemark.views SET updated_at = now(), status = {status}{sets} "
            f"WHERE {condition} AND {is_legal} RETURNING 1",
            *(value for _, value in columns),
            *parameters,
        ):
            return True
        found = run(
            f"SELECT schema || '.' || name, status FROM tidemark.views WHERE {condition}",
            *parameters,
        )
        if not found:
            return False
        title, before = found[0]
        if follow_retried(before, events, unanswered) is None:
            break
    raise illegal_transition(title, before, events, reason)


def run_in(cursor: Any) -> Run:
    """Return a function that executes statements within the transaction of a cursor."""

    def run(sql: str, *parameters: Any) -> Sequence[tuple[Any, ...]]:
        cursor.execute(sql, parameters)
        return cursor.fetchall()

    return run


def recalled(condition: str) -> str:
    """Return the statement that marks live views matching a condition for a rebuild."""
    after = follow(ViewState.LIVE, [ViewEvent.RECALL])
    assert after is not None
    return (
        f"UPDATE tidemark.views SET status = {quote_text(after)}, updated_at = now() "
        f"WHERE status = {quote_text(ViewState.LIVE)} "
        f"AND desired <> {quote_text(DesiredState.DROPPED)} AND {condition}"
    )


def _listed(states: Sequence[ViewState]) -> str:
    return ", ".join(map(quote_text, states))
