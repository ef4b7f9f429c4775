"""Pydantic models of REST's requests and responses about tokens.

Invariant: none contains a hash, and only the response to a token's creation contains the token.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from connectors.postgres.catalog.token_records import TokenRow
from service.api.models import Number, Text


class CreateToken(BaseModel):
    """A token to create."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"example": {"name": "grafana", "role": "reader", "expires_days": 90}},
    )

    name: str = Field(
        title="Name",
        pattern=r"^[A-Za-z0-9._@-]{1,63}$",
        description="the user or program of the token",
        examples=["grafana"],
    )
    role: Literal["reader", "operator", "admin"] = Field(
        title="Role",
        description="reader: rows and views; operator: also creates and drops; admin: also tokens",
    )
    db_role: Text | None = Field(
        None,
        title="Database role",
        min_length=1,
        max_length=63,
        description="database role whose rights apply to the token's views; null: the service's",
    )
    expires_days: Number | None = Field(
        None,
        title="Expires after",
        gt=0,
        le=36500,
        description="null: never",
        json_schema_extra={"x-unit": "days"},
    )


class TokenModel(BaseModel):
    """A token's facts, without the token."""

    id: str
    name: str
    role: str
    db_role: str | None
    created_by: str
    created_at: str
    last_used_at: str | None = Field(description="with a precision of some minutes")
    expires_at: str | None
    revoked_at: str | None

    @classmethod
    def of(cls, row: TokenRow) -> TokenModel:
        """Return the facts of a row, without its hash."""
        times = {
            name: at.isoformat() if (at := getattr(row, name)) else None
            for name in ("last_used_at", "expires_at", "revoked_at")
        }
        return cls(
            id=row.id,
            name=row.name,
            role=row.role,
            db_role=row.db_role,
            created_by=row.created_by,
            created_at=row.created_at.isoformat() if row.created_at else "",
            **times,
        )


class NewToken(BaseModel):
    """A new token. token: shown in this response only."""

    token: str
    facts: TokenModel


class TokenList(BaseModel):
    """All tokens, including revoked ones, oldest first."""

    tokens: list[TokenModel]
