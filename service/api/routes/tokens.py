"""Tokens: create, list, revoke; for admins.

Invariant: only the response to the creation of a token contains the token.
"""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from service.access.tokens import Caller, Tokens
from service.api.token_models import CreateToken, NewToken, TokenList, TokenModel

router = APIRouter(prefix="/tokens", tags=["tokens"])

_DAY_S = 86_400


def _tokens(request: Request) -> Tokens:
    return request.app.state.tokens


def _caller(request: Request) -> Caller:
    return request.state.caller


@router.post("", status_code=201)
def create_token(request: Request, body: CreateToken, response: Response) -> NewToken:
    """Create a token. It is shown once: only its hash is stored."""
    if body.db_role is not None:
        request.app.state.factory.source.check_role(body.db_role)
    token, row = _tokens(request).create(
        body.name,
        body.role,
        db_role=body.db_role or "",
        lifetime_s=None if body.expires_days is None else body.expires_days * _DAY_S,
        by=_caller(request).name,
    )
    response.headers["Cache-Control"] = "no-store"
    return NewToken(token=token, facts=TokenModel.of(row))


@router.get("")
def list_tokens(request: Request) -> TokenList:
    """List all tokens, including revoked ones."""
    return TokenList(tokens=[TokenModel.of(row) for row in _tokens(request).list()])


@router.delete("/{name}", status_code=204)
def revoke_token(request: Request, name: str) -> Response:
    """Revoke a token; within seconds it is refused everywhere."""
    _tokens(request).revoke(name, _caller(request).name)
    return Response(status_code=204)
