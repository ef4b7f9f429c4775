"""What an operator of the service can set, by option or by environment (TIDEMARK_*)."""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import BaseModel, Field, model_validator

PREFIX = "TIDEMARK_"


class Settings(BaseModel):
    """Settings of one service: one source, one sink, one state directory.

    source, sink: libpq connection strings; without a sink the source database is the sink too.
    prefix: names of publication and slot begin with it; two services on one database need two.
    spark_rows: `backfill: auto` takes Spark from this many estimated source rows on.
    spark_master: "local[N]" or a cluster's master URL.
    cache_mb: page cache of the state. epoch_rows: most source rows that one epoch takes, whole
    transactions aside. sync_interval_s: how often the state is forced to disk and the source
    told that it may forget.
    """

    model_config = {"frozen": True}

    source: str
    sink: str = ""
    state: Path = Path(".tidemark/state")
    host: str = "127.0.0.1"
    port: int = Field(8000, ge=0, le=65535)
    prefix: str = Field("tidemark", pattern=r"^[a-z][a-z0-9_]{0,30}$")
    spark_rows: int = Field(1_000_000, ge=0)
    spark_master: str = "local[2]"
    cache_mb: int = Field(512, ge=16)
    epoch_rows: int = Field(20_000, ge=1)
    sync_interval_s: float = Field(1.0, gt=0)
    log_level: str = "info"

    @model_validator(mode="before")
    @classmethod
    def _sink_defaults_to_source(cls, values: dict) -> dict:
        values = dict(values)
        values["sink"] = values.get("sink") or values.get("source", "")
        return values

    @classmethod
    def load(cls, **options: object) -> Settings:
        """Options that are not None, then the environment, then the defaults."""
        values: dict[str, object] = {
            name: os.environ[PREFIX + name.upper()]
            for name in cls.model_fields
            if PREFIX + name.upper() in os.environ
        }
        values.update({k: v for k, v in options.items() if v is not None})
        return cls.model_validate(values)

    def to_environment(self) -> dict[str, str]:
        """The environment from which `load` gives these settings again, for child processes."""
        return {PREFIX + name.upper(): str(getattr(self, name)) for name in type(self).model_fields}
