"""What an operator of the service can set, by option or by environment (TIDEMARK_*).

Invariant: child processes get the same settings, through the environment that they are made of;
nothing but this module reads it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field, PrivateAttr, field_validator, model_validator

from service.runtime.memory_budget import LEAST_MB, MemoryBudget

PREFIX = "TIDEMARK_"
DEFAULT_GROUP = "default"
# Where the state of the other groups lies, below the service's own.
GROUPS = "groups"
_MEMORY = re.compile(r"(\d+)\s*(?:([mMgG])(?:i?[bB])?)?")


_PARENT = PREFIX + "PARENT"


def parent_pid() -> int | None:
    """The pid of the process that has started this one."""
    return int(os.environ[_PARENT]) if _PARENT in os.environ else None


class Settings(BaseModel):
    """Settings of one service: one source, one sink, one state directory.

    source, sink: libpq connection strings; without a sink the source database is the sink too.
    prefix: names of publication and slot begin with it; two services on one database need two.
    checkpoint_to: a folder or s3:// URL to which the state is copied every checkpoint_every_s, ""
    for none; checkpoint_keep copies stay. checkpoint_key: what vouches for them, or a reference to
    it; "": a file in the state's directory.
    spark_rows: `backfill: auto` takes Spark from this many estimated source rows on.
    spark_master: "local[N]", a cluster's master URL, or a Spark Connect server's (sc://host:port).
    spark_exchange: where executors leave their files that share no disk with the service, an
    s3:// URL; "" is the state's own disk. spark_conf: Spark's settings over ours, as name=value
    with spaces between.
    memory: mebibytes that the pipeline process may take, also given as "2GB" or "512 MB"; cache_mb:
    how much of it for pages of the state, by default a share. epoch_rows: most source rows that
    one epoch takes, whole transactions aside. sync_interval_s: how often the state is forced to
    disk and the source told that it may forget. wal_budget_mb: how much WAL the source may keep
    for our slot, 0: any; from wal_alarm_percent of it on that is an alarm, and at the budget the
    slot stays ("warn") or is dropped ("release"), with which the views have to be created again.
    sink_budget_mb: how much of the state may wait for a sink beside the views' tables.
    sink_keep_mb: how much of what the sink has acknowledged is kept, should it be set back.
    changes_retention_s: how long subscribers may be away, changes_budget_mb: and at most how much
    of a view's changes is kept for them; changes_readers: how many there may be;
    changes_patience_s: how long one may take nothing of what there is for it.
    Lists have spaces between. names: by which clients call the service beside localhost;
    allow_hosts, allow_folders: what sources and sinks of the API's users may reach;
    secret_variables, secret_folders: what references in their options may name.
    statement_timeout_s: of ordinary statements, long_statement_timeout_s: of those over whole
    tables; 0 for any time. silence_s: how long PostgreSQL may give no sign of life before a
    connection to it counts as lost.
    header_timeout_s, body_timeout_s: in which time the headers of a request to the API, and then
    its body, have to be whole; connections: how many there may be.
    query_workers: how many queries and analyses of queries the API runs at once,
    query_workers_per_token: and how many of them for one token.
    verify_interval_s: each view is compared with PostgreSQL's answer this often, 0: only when asked
    for; verify_timeout_s: for each statement of that; verify_most_cost: on the interval, views
    whose query PostgreSQL thinks more costly are left out, 0: none.
    """

    model_config = {"frozen": True}

    source: str
    sink: str = ""
    state: Path = Path(".tidemark/state")
    host: str = "127.0.0.1"
    port: int = Field(8000, ge=0, le=65535)
    prefix: str = Field("tidemark", pattern=r"^[a-z][a-z0-9_]{0,30}$")
    checkpoint_to: str = ""
    checkpoint_every_s: float = Field(300, gt=0)
    checkpoint_keep: int = Field(2, ge=1)
    checkpoint_key: str = Field("", repr=False)
    spark_rows: int = Field(1_000_000, ge=0)
    spark_master: str = "local[2]"
    spark_exchange: str = Field("", pattern=r"^(s3://.+)?$")
    spark_conf: str = Field("", pattern=r"^\s*(spark\.\S+=\S*\s*)*$")
    memory: int = Field(1024, ge=LEAST_MB)
    cache_mb: int | None = Field(None, ge=16)
    epoch_rows: int = Field(20_000, ge=1)
    sync_interval_s: float = Field(1.0, gt=0)
    wal_budget_mb: int = Field(10_240, ge=0)
    wal_alarm_percent: int = Field(50, ge=1, le=100)
    wal_limit: Literal["warn", "release"] = "warn"
    sink_budget_mb: int = Field(4_096, ge=1)
    sink_keep_mb: int = Field(16, ge=1)
    changes_retention_s: int = Field(600, ge=1)
    changes_budget_mb: int = Field(1_024, ge=1)
    changes_readers: int = Field(1_000, ge=1)
    changes_patience_s: int = Field(30, ge=1)
    verify_interval_s: float = Field(0, ge=0)
    verify_timeout_s: float = Field(300, gt=0)
    verify_most_cost: float = Field(10_000_000, ge=0)
    log_level: str = Field("info", pattern=r"(?i)^(debug|info|warning|error)$")
    log_format: Literal["json", "text"] = "json"
    tls_cert: str = ""
    tls_key: str = ""
    insecure: bool = False
    names: str = ""
    allow_hosts: str = ""
    allow_folders: str = ""
    secret_variables: str = "SECRET_*"
    secret_folders: str = "/run/secrets"
    statement_timeout_s: float = Field(60.0, ge=0)
    long_statement_timeout_s: float = Field(86400.0, ge=0)
    silence_s: float = Field(60.0, ge=1)
    header_timeout_s: float = Field(10.0, gt=0)
    body_timeout_s: float = Field(60.0, gt=0)
    connections: int = Field(2_000, ge=10)
    query_workers: int = Field(8, ge=2)
    query_workers_per_token: int = Field(4, ge=1)
    _group: str = PrivateAttr(DEFAULT_GROUP)

    @model_validator(mode="after")
    def _no_token_has_all_workers(self) -> Settings:
        if self.query_workers_per_token >= self.query_workers:
            raise ValueError("query_workers_per_token is less than query_workers")
        return self

    @model_validator(mode="after")
    def _certificate_has_its_key(self) -> Settings:
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ValueError("tls_cert and tls_key go together")
        return self

    @field_validator("memory", mode="before")
    @classmethod
    def _memory_with_its_unit(cls, value: object) -> object:
        found = _MEMORY.fullmatch(str(value).strip())
        if found is None:
            raise ValueError('give mebibytes, or a number with its unit: "2GB", "512 MB"')
        return int(found[1]) * (1024 if found[2] in ("G", "g") else 1)

    @field_validator("cache_mb", mode="before")
    @classmethod
    def _empty_is_the_default(cls, value: object) -> object:
        return None if value in ("", "None") else value

    @property
    def spark_settings(self) -> dict[str, str]:
        """Spark's settings by name."""
        return dict(pair.split("=", 1) for pair in self.spark_conf.split())

    @property
    def budget(self) -> MemoryBudget:
        """What each part of the pipeline may keep in memory."""
        return MemoryBudget.of(self.memory, self.cache_mb)

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
        values = {name: getattr(self, name) for name in type(self).model_fields}
        return {PREFIX + k.upper(): "" if v is None else str(v) for k, v in values.items()}

    def child_environment(self) -> dict[str, str]:
        """The whole environment of a process that is to end with this one."""
        return {**os.environ, **self.to_environment(), _PARENT: str(os.getpid())}

    def for_group(self, group: str) -> Settings:
        """The settings of one group's process, from those of the service."""
        if group == DEFAULT_GROUP:
            return self
        found = self.model_copy(update={"state": self.state / GROUPS / group})
        found._group = group
        return found

    @property
    def group(self) -> str:
        """Which group of views this process is for."""
        return self._group

    @property
    def home(self) -> Path:
        """The service's own directory, in which those of all groups lie."""
        return self.state if self.group == DEFAULT_GROUP else self.state.parents[1]

    @property
    def sink_key(self) -> str:
        """The name of the group's progress in the sink."""
        return self.prefix if self.group == DEFAULT_GROUP else f"{self.prefix}/{self.group}"
