"""`CALL tidemark.verify_view(...)`: compare a view with PostgreSQL's answer, for its owner.

Equal rows give a notice. Differing rows give an error with the first of them, so that a script
stops. `tidemark.my_requests` has the whole result in both cases.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pydantic import BaseModel, ConfigDict, Field

from connectors.postgres.catalog.requests import Outcome, Request
from dataflow.errors import TidemarkError
from service.psql.psql_errors import failure_of
from service.psql.psql_operations import Owned, Poll, Subject, parsed
from service.runtime.view_names import path_name
from service.verify.comparison import DIFFERENT, MAX_EXAMPLES, Verify
from service.verify.verify_models import VerificationModel

MAX_SHOWN = 5


class VerifyOptions(BaseModel):
    """limit: maximum number of differing rows in the result."""

    model_config = ConfigDict(extra="forbid")

    limit: int = Field(20, ge=0, le=MAX_EXAMPLES)


class VerifyView(Subject):
    """The arguments of verify_view."""

    options: VerifyOptions


def operations(owned: Owned, verify: Verify) -> Mapping[str, Callable[[Request], Poll]]:
    """Return the operation by procedure name."""

    def verify_view(request: Request) -> Poll:
        body = parsed(VerifyView, request.arguments)
        row = owned.find(request, body.name)
        if row is None:
            raise TidemarkError("view.not_found", f"view {body.name} was dropped")
        owned.note(request, row.identity)
        found = verify.verify(path_name(row.schema, row.name), body.options.limit)
        outcome = _outcome(found)
        return lambda _: outcome

    return {"verify_view": verify_view}


def _outcome(found: VerificationModel) -> Outcome:
    facts = found.model_dump()
    if found.result != DIFFERENT:
        why = f": {'; '.join(found.reasons)}" if found.reasons else ""
        said = f"view {found.view}: {found.result}, {found.rows} rows compared{why}"
        return Outcome(said, facts)
    count = found.missing + found.surplus + found.different
    shown = [str(example) for example in found.examples[:MAX_SHOWN]]
    what = f'view "{found.view}" differs from the answer of its query in {count} rows'
    hint = (
        "if nobody wrote to the view's table, please report this; then drop the view and create it"
        " again"
    )
    if found.history is not None and (wrong := found.history.described):
        shown += [f"history: {wrong}", *map(str, found.history.examples[:MAX_SHOWN])]
        if not count:
            what = f'the history of view "{found.view}" is wrong: {wrong}'
            hint = (
                "if nobody wrote to the history's table, please report this; to begin another"
                " history, replace the view with the option none, then with the period again"
            )
    code = "verify.different"
    if found.clock is not None:
        shown.append(f"clock: {found.clock.described}")
        if not count:
            code = "verify.clock_stands"
            what = f'the clock of view "{found.view}" has stopped: {found.clock.described}'
            hint = "please report this; rebuild the view, or restart the service"
    error = TidemarkError(code, what, detail="\n".join(shown), hint=hint)
    return failure_of(error, facts=facts)
