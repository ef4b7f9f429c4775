"""Find a view's catalog row by the name that a user typed."""

from __future__ import annotations

from connectors.postgres.catalog.catalog import Control, ViewRow
from dataflow.errors import TidemarkError
from service.runtime.view_names import parse_name


def find_view(control: Control, name: str) -> ViewRow:
    """Return the catalog row of a view. TidemarkError view.not_found."""
    schema, plain = parse_name(name)
    row = control.get_view(schema, plain)
    if row is None:
        raise view_not_found(schema, plain, control.other_service_of(schema, plain))
    return row


def rights_revoked(row: ViewRow) -> TidemarkError:
    """Return the error for a view whose rows are withheld (service/pipeline/view_rights.py)."""
    why = row.withheld or {}
    return TidemarkError(
        "view.rights_revoked",
        f'the owner of view "{row.title}" may not read any more what it reads',
        detail=why.get("detail") or "",
        hint=why.get("hint") or "",
    )


def require_readable(row: ViewRow) -> None:
    """Require that a view's rows may be read at all. TidemarkError view.rights_revoked."""
    if row.withheld is not None:
        raise rights_revoked(row)


def view_not_found(schema: str, name: str, other: str = "") -> TidemarkError:
    """Return the error for a view that does not exist or is being dropped.

    other: the service of the same database that has a view of this name.
    """
    what = f'view "{schema}.{name}" does not exist'
    if other:
        detail = f'the service "{other}", which writes to this database too, has such a view'
        return TidemarkError("view.not_found", what, detail=detail, hint=f'ask "{other}" for it')
    return TidemarkError(
        "view.not_found", what, hint="check the name: the list of views has all of them"
    )
