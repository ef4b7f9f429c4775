"""`CALL tidemark.verify_view(...)`: a view compared with PostgreSQL's own answer, for its owner.

Equal is a notice; rows that differ are an error, with the first of them, so that a script stops.
All that was found stands in `tidemark.asked` either way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pydantic import BaseModel, ConfigDict, Field

from connectors.postgres.catalog.requests import Outcome, Request
from dataflow.errors import TidemarkError
from service.psql.psql_errors import failure_of
from service.psql.psql_operations import Owned, Poll, Subject, parsed
from service.runtime.view_names import path_name
from service.verify.comparison import DIFFERENT, MOST_EXAMPLES, Verify
from service.verify.verify_models import VerificationModel

MOST_SHOWN = 5


class VerifyOptions(BaseModel):
    """limit: how many rows that differ are kept."""

    model_config = ConfigDict(extra="forbid")

    limit: int = Field(20, ge=0, le=MOST_EXAMPLES)


class VerifyView(Subject):
    """The arguments of verify_view."""

    options: VerifyOptions


def operations(owned: Owned, verify: Verify) -> Mapping[str, Callable[[Request], Poll]]:
    """The operation by the name of its procedure."""

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
    shown = [str(example) for example in found.examples[:MOST_SHOWN]]
    error = TidemarkError(
        "verify.different",
        f'view "{found.view}" differs from the answer of its query in {count} rows',
        detail="\n".join(shown),
        hint="has somebody written to its table? Else please report it; drop it and create it"
        " again",
    )
    return failure_of(error, facts=facts)
