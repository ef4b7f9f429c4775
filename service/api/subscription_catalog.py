"""Named readers of a view: create, list, acknowledge, drop.

Invariant: a reader's epoch is one that its view has shown, and only moves forward. Thread-safe.
"""

from __future__ import annotations

from connectors.postgres.catalog import history_records
from connectors.postgres.catalog.catalog import ViewRow
from connectors.postgres.catalog.history_records import HistoryRow, SubscriptionRow
from connectors.postgres.query.history_rows import no_history, point_of
from dataflow.errors import TidemarkError
from service.access.tokens import Caller, Role
from service.api.subscription_models import CreateSubscription, SubscriptionModel
from service.factory.service_factory import ServiceFactory
from service.views.requested_changes import table_of
from service.views.view_lookup import find_view

MAX_OF_A_VIEW = 1_000
NEWEST = "newest"
READY, EXPIRED = "ready", "expired"


class SubscriptionCatalog:
    """One per API process; thread-safe. by: the caller, who may read the view."""

    def __init__(self, factory: ServiceFactory) -> None:
        self._sink = factory.settings.sink
        self._control = factory.control()

    def create(self, view: str, body: CreateSubscription, by: Caller) -> SubscriptionModel:
        """Create a reader. TidemarkError history.*, subscription.*."""
        row, past = self._retained(view)
        point = str(past.newest_epoch) if body.start == NEWEST else body.start
        start = point_of(self._sink, table_of(row), point, by.db_role)
        found = history_records.add_subscription(
            self._control, row.identity, (body.name, start.epoch, by.name, by.id), MAX_OF_A_VIEW
        )
        if found is not None:
            return _model(row, found, past)
        if len(history_records.subscriptions(self._control, row.identity)) >= MAX_OF_A_VIEW:
            raise TidemarkError(
                "subscription.too_many",
                f'view "{row.title}" has {MAX_OF_A_VIEW} subscriptions',
                hint="drop those that are no longer used",
            )
        raise TidemarkError(
            "subscription.exists",
            f'view "{row.title}" has a subscription "{body.name}"',
            hint="choose another name, or drop it",
        )

    def list(self, view: str) -> list[SubscriptionModel]:
        """Return the readers of a view, by name."""
        row = find_view(self._control, view)
        past = history_records.histories(self._control).get((row.schema, row.name))
        found = history_records.subscriptions(self._control, row.identity)
        return [_model(row, one, past) for one in found]

    def show(self, view: str, name: str) -> SubscriptionModel:
        """Return one reader. TidemarkError subscription.not_found."""
        for found in self.list(view):
            if found.name == name:
                return found
        raise _not_found(view, name)

    def acknowledge(self, view: str, name: str, epoch: int, by: Caller) -> SubscriptionModel:
        """Move a reader on to an epoch; one before its own changes nothing. TidemarkError
        subscription.not_found, history.not_reached, auth.rights."""
        row, past = self._retained(view)
        self._require_own(view, name, by)
        if epoch > past.newest_epoch:
            raise TidemarkError(
                "history.not_reached",
                f"epoch {epoch} is not reached yet",
                detail=f"newest is epoch {past.newest_epoch}",
                hint="acknowledge an epoch that was read",
            )
        history_records.acknowledge(self._control, row.identity, name, epoch)
        return self.show(view, name)

    def drop(self, view: str, name: str, by: Caller) -> None:
        """Remove a reader. TidemarkError subscription.not_found, auth.rights."""
        row = find_view(self._control, view)
        self._require_own(view, name, by)
        if not history_records.drop_subscription(self._control, row.identity, name):
            raise _not_found(view, name)

    def _require_own(self, view: str, name: str, by: Caller) -> None:
        """Require that a caller has created a reader, or is an operator."""
        row = find_view(self._control, view)
        owned = history_records.subscriptions(self._control, row.identity)
        found = next((one for one in owned if one.name == name), None)
        if found is None:
            raise _not_found(view, name)
        if by.role < Role.OPERATOR and found.token_id != by.id:
            raise TidemarkError(
                "auth.rights",
                f'subscription "{name}" belongs to token "{found.created_by}"',
                detail=f'this token is "{by.name}", with the role "{by.role.word}"',
                hint="use that token, or one of an operator",
            )

    def _retained(self, view: str) -> tuple[ViewRow, HistoryRow]:
        self._control.ensure()
        row = find_view(self._control, view)
        past = history_records.histories(self._control).get((row.schema, row.name))
        if past is None:
            raise no_history(row.title)
        return row, past


def _not_found(view: str, name: str) -> TidemarkError:
    return TidemarkError(
        "subscription.not_found",
        f'view "{view}" has no subscription "{name}"',
        hint="check the name: the list of the view's named readers has all of them",
    )


def _model(row: ViewRow, found: SubscriptionRow, past: HistoryRow | None) -> SubscriptionModel:
    is_ready = past is not None and found.epoch >= past.oldest_epoch
    return SubscriptionModel(
        view=row.title,
        name=found.name,
        status=READY if is_ready else EXPIRED,
        epoch=found.epoch,
        newest_epoch=None if past is None else past.newest_epoch,
        oldest_epoch=None if past is None else past.oldest_epoch,
        created_by=found.created_by,
        created_at=found.created_at,
        acknowledged_at=found.acknowledged_at,
    )
