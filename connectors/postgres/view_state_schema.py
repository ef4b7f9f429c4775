"""SQL of schema tidemark that holds the catalog to the states of a view.

Made from the table of states (connectors/view_states.py). The text of a released step changes with
that table, but no database runs it again: whoever adds a state appends KNOWN_STATES to the steps
once more.
"""

from __future__ import annotations

from connectors.postgres.quoting import quote_text
from connectors.view_states import DesiredState, ViewState


def _check(column: str, states: type[ViewState] | type[DesiredState]) -> str:
    name, listed = f"views_{column}_known", ", ".join(map(quote_text, states))
    return f"""
ALTER TABLE tidemark.views DROP CONSTRAINT IF EXISTS {name};
ALTER TABLE tidemark.views ADD CONSTRAINT {name} CHECK ({column} IN ({listed}));
"""


KNOWN_STATES = f"""
{_check("status", ViewState)}{_check("desired", DesiredState)}
COMMENT ON COLUMN tidemark.views.status IS {quote_text(", ".join(ViewState))};
"""
