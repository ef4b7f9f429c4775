"""Named readers of a view: create, list, show, acknowledge, drop.

They read by `GET /views/{name}/changes?subscription=...`. Blocking calls run in the thread pool.
"""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from service.api.subscription_catalog import SubscriptionCatalog
from service.api.subscription_models import (
    Acknowledge,
    CreateSubscription,
    SubscriptionList,
    SubscriptionModel,
)

router = APIRouter(prefix="/views/{view}/subscriptions", tags=["changes"])


def _catalog(request: Request) -> SubscriptionCatalog:
    return request.app.state.subscription_catalog


@router.post("", status_code=201)
def create_subscription(request: Request, view: str, body: CreateSubscription) -> SubscriptionModel:
    """Create a named reader of a view with a history. Its epoch is kept until it is dropped."""
    return _catalog(request).create(view, body, request.state.caller)


@router.get("")
def list_subscriptions(request: Request, view: str) -> SubscriptionList:
    """List the named readers of a view, with the epoch that each has acknowledged."""
    return SubscriptionList(subscriptions=_catalog(request).list(view))


@router.get("/{subscription}")
def show_subscription(request: Request, view: str, subscription: str) -> SubscriptionModel:
    """Return one named reader."""
    return _catalog(request).show(view, subscription)


@router.post("/{subscription}/acknowledge")
def acknowledge(
    request: Request, view: str, subscription: str, body: Acknowledge
) -> SubscriptionModel:
    """Move a reader on to an epoch that it has read. An epoch before its own changes nothing."""
    caller = request.state.caller
    return _catalog(request).acknowledge(view, subscription, body.epoch, caller)


@router.delete("/{subscription}", status_code=204)
def drop_subscription(request: Request, view: str, subscription: str) -> Response:
    """Drop a named reader."""
    _catalog(request).drop(view, subscription, request.state.caller)
    return Response(status_code=204)
