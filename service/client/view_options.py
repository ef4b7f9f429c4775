"""The options of a view, as an editor and a type checker know them.

The service checks them: it refuses an unknown one and names the nearest (`ViewOptions` of the API).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict


class ViewOptions(TypedDict, total=False):
    """What `create`, `replace`, `validate` and `Engine.view` take besides name and query.

    backfill: auto, spark or local. runtime: local, spark or auto (docs/SCALE.md). group: views of
    one group show one position. max_rows: maximum estimated rows of any part of the plan. now:
    moving or pinned; refresh: how often values of now() change. history: such as "7 days"
    (docs/HISTORY.md). lateness and the options after it: docs/TIME.md (late: applied, dead-letter
    or error; emit: changes or final). None leaves an option at its default.
    """

    backfill: str | None
    runtime: str | None
    group: str | None
    changes_retention_s: int | None
    max_rows: int | None
    now: str | None
    refresh: str | None
    time_zone: str | None
    history: str | None
    lateness: Mapping[str, str] | None
    late: str | None
    lateness_by: Mapping[str, str] | None
    idle_timeout_s: float | None
    emit: str | None
    window: Mapping[str, str] | None
    retain: str | None
