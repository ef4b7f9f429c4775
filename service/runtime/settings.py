"""What an operator of the service can set, by option or by environment variable (TIDEMARK_*).

Invariants: child processes get the same settings, through their environment. Only this module reads
the variables of settings.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field, PrivateAttr, field_validator, model_validator

from dataflow.work import WorkBudget
from service.runtime.memory_budget import LEAST_MB, MemoryBudget

PREFIX = "TIDEMARK_"
DEFAULT_GROUP = "default"
# Folder of the other groups' state, below the service's own.
GROUPS = "groups"
# Earlier names, accepted for one release: by the present name.
EARLIER_NAMES = {
    "changes_timeout_s": "changes_patience_s",
    "liveness_timeout_s": "silence_s",
    "sink_retention_mb": "sink_keep_mb",
    "verify_max_cost": "verify_most_cost",
}
_MEMORY = re.compile(r"(\d+)\s*(?:([mMgG])(?:i?[bB])?)?")


_PARENT = PREFIX + "PARENT"


def parent_pid() -> int | None:
    """Return the pid of the process that started this one."""
    return int(os.environ[_PARENT]) if _PARENT in os.environ else None


def _present_names(values: Mapping[str, object]) -> dict[str, object]:
    """Return values with earlier names replaced; a value under the present name wins."""
    found = dict(values)
    for name, earlier in EARLIER_NAMES.items():
        if earlier in found:
            found.setdefault(name, found.pop(earlier))
    return found


class Settings(BaseModel):
    """Settings of one service: one source, one sink, one state directory.

    source, sink: libpq connection strings; without a sink, the source database is the sink too.
    prefix: starts the names of publication and slot; two services on one database need two
    prefixes. publication: one that an administrator made, which is never changed; "" is one of the
    service's own.

    checkpoint_to: folder or s3:// URL to which the state is copied every checkpoint_every_s; ""
    disables it. checkpoint_keep: how many copies to retain. checkpoint_key: the key that signs
    them, or a reference to it; "" uses a file in the state directory.

    spark: the master that maintains views of `runtime: spark`, "local[N]" or a cluster's; "" is
    none. spark_storage: where their state is, a folder that all executors see, or an s3:// URL; ""
    is the service's own state, for a local master. spark_buckets: into how many parts it is cut at
    least. spark_bucket_mb: parts with more mebibytes on average are split. spark_state_mb:
    `runtime: auto` uses Spark from this estimated size on, in mebibytes.

    spark_rows: `backfill: auto` uses Spark from this many estimated source rows on; None decides
    by the estimated time. spark_master: "local[N]", a cluster's master URL, or a Spark Connect
    server (sc://host:port); "" is `backfill_master`'s choice. spark_exchange:
    s3:// URL for the files of executors that share no disk with the service; "" is the state's own
    disk. spark_conf: overrides of Spark's settings, as name=value separated by spaces.

    memory: mebibytes that the pipeline process may take, also written as "2GB" or "512 MB".
    cache_mb: how much of it is for pages of the state; None uses the default share. epoch_rows:
    maximum source rows of one epoch, except for a larger single transaction. sync_interval_s: how
    often the state is fsynced and the source may release WAL.

    view_budget_s, view_budget_rows: how much work one view may do in an epoch of up to 500
    changed rows, in seconds and in rows that an operator makes; 0 is unlimited.

    wal_budget_mb: how much WAL the source may retain for our slot; 0 is unlimited. Above
    wal_alarm_percent of it an alarm is raised. At the budget, wal_limit decides: "warn" keeps the
    slot, "release" drops it, and the views must then be created again. sink_budget_mb: how much of
    the state may wait for an additional sink. sink_retention_mb: how much data acknowledged by the
    sink is retained for a sink rewind. sink_lock_s: how long an epoch waits for a lock on a view's
    table; then the view is set aside.

    changes_retention_s: how long a subscriber may be disconnected. changes_budget_mb: maximum size
    of a view's retained changes. changes_readers: maximum number of subscribers.
    changes_timeout_s: how long a subscriber may read nothing while changes wait for it.

    Lists are separated by spaces. names: host names of the service besides localhost. allow_hosts,
    allow_folders, allow_modules: what sources and sinks of API users may reach, and Python modules
    that sources may import. function_variables: what functions of them get of the environment.
    sink_folders: where sinks may write. allow_own_database: whether they may be the service's own
    databases, or others of its server with the service's rights. secret_variables, secret_folders:
    what references in their options may name.

    statement_timeout_s: for ordinary statements. long_statement_timeout_s: for those over whole
    tables; 0 is unlimited. liveness_timeout_s: how long PostgreSQL may be silent before a
    connection counts as lost. header_timeout_s, body_timeout_s: time limits for the headers of an
    API request, and then for its body. connections: maximum number of API connections.
    connections_per_address: maximum number that wait for a request, of one address.

    query_workers: how many queries and analyses of queries the API runs at once.
    query_workers_per_token: how many of them for one token. query_queue: how many more of one
    token may wait, each for query_wait_s.

    verify_interval_s: how often each view is compared with PostgreSQL's answer; 0 is only on
    request. verify_timeout_s: for each of its statements. verify_max_cost: scheduled runs skip
    views whose query has a higher PostgreSQL cost estimate; 0 skips none.
    """

    model_config = {"frozen": True}

    source: str
    sink: str = ""
    state: Path = Path(".tidemark/state")
    host: str = "127.0.0.1"
    port: int = Field(8000, ge=0, le=65535)
    prefix: str = Field("tidemark", pattern=r"^[a-z][a-z0-9_]{0,30}$")
    publication: str = Field("", max_length=63)
    checkpoint_to: str = ""
    checkpoint_every_s: float = Field(300, gt=0)
    checkpoint_keep: int = Field(2, ge=1)
    checkpoint_key: str = Field("", repr=False)
    spark: str = ""
    spark_storage: str = ""
    spark_buckets: int = Field(8, ge=1, le=4_096)
    spark_bucket_mb: int = Field(1_024, ge=1)
    spark_state_mb: int = Field(50_000, ge=0)
    spark_rows: int | None = Field(None, ge=0)
    spark_master: str = ""
    spark_exchange: str = Field("", pattern=r"^(s3://.+)?$")
    spark_conf: str = Field("", pattern=r"^\s*(spark\.\S+=\S*\s*)*$")
    memory: int = Field(1024, ge=LEAST_MB)
    cache_mb: int | None = Field(None, ge=16)
    epoch_rows: int = Field(20_000, ge=1)
    sync_interval_s: float = Field(1.0, gt=0)
    view_budget_s: float = Field(0.5, ge=0)
    view_budget_rows: int = Field(1_000_000, ge=0)
    wal_budget_mb: int = Field(10_240, ge=0)
    wal_alarm_percent: int = Field(50, ge=1, le=100)
    wal_limit: Literal["warn", "release"] = "warn"
    sink_budget_mb: int = Field(4_096, ge=1)
    sink_retention_mb: int = Field(16, ge=1)
    sink_lock_s: float = Field(10.0, gt=0)
    changes_retention_s: int = Field(600, ge=1)
    changes_budget_mb: int = Field(1_024, ge=1)
    changes_readers: int = Field(1_000, ge=1)
    changes_timeout_s: int = Field(30, ge=1)
    verify_interval_s: float = Field(0, ge=0)
    verify_timeout_s: float = Field(300, gt=0)
    verify_max_cost: float = Field(10_000_000, ge=0)
    log_level: str = Field("info", pattern=r"(?i)^(debug|info|warning|error)$")
    log_format: Literal["json", "text"] = "json"
    tls_cert: str = ""
    tls_key: str = ""
    insecure: bool = False
    names: str = ""
    allow_hosts: str = ""
    allow_folders: str = ""
    allow_modules: str = ""
    function_variables: str = ""
    sink_folders: str = ""
    allow_own_database: bool = False
    secret_variables: str = "SECRET_*"
    secret_folders: str = "/run/secrets"
    statement_timeout_s: float = Field(60.0, ge=0)
    long_statement_timeout_s: float = Field(86400.0, ge=0)
    liveness_timeout_s: float = Field(60.0, ge=1)
    header_timeout_s: float = Field(10.0, gt=0)
    body_timeout_s: float = Field(60.0, gt=0)
    connections: int = Field(2_000, ge=10)
    connections_per_address: int = Field(500, ge=10)
    query_workers: int = Field(8, ge=2)
    query_workers_per_token: int = Field(4, ge=1)
    query_queue: int = Field(200, ge=0)
    query_wait_s: float = Field(60.0, gt=0)
    _group: str = PrivateAttr(DEFAULT_GROUP)
    _home: Path | None = PrivateAttr(None)

    @model_validator(mode="after")
    def _no_token_has_all_workers(self) -> Settings:
        if self.query_workers_per_token >= self.query_workers:
            raise ValueError("query_workers_per_token must be less than query_workers")
        return self

    @model_validator(mode="after")
    def _certificate_has_its_key(self) -> Settings:
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ValueError("set tls_cert and tls_key together")
        return self

    @field_validator("memory", mode="before")
    @classmethod
    def _memory_with_its_unit(cls, value: object) -> object:
        found = _MEMORY.fullmatch(str(value).strip())
        if found is None:
            raise ValueError('set a number of mebibytes, or one with its unit: "2GB", "512 MB"')
        return int(found[1]) * (1024 if found[2] in ("G", "g") else 1)

    @field_validator("cache_mb", "spark_rows", mode="before")
    @classmethod
    def _empty_is_the_default(cls, value: object) -> object:
        return None if value in ("", "None") else value

    @property
    def spark_settings(self) -> dict[str, str]:
        """Return Spark's settings by name."""
        return dict(pair.split("=", 1) for pair in self.spark_conf.split())

    @property
    def backfill_master(self) -> str:
        """Return the master of backfills; by default that of views on Spark, if it is a cluster
        whose executors have an exchange, else a local one.
        """
        is_shared = bool(self.spark and self.spark_exchange) and not self.spark.startswith("local")
        return self.spark_master or (self.spark if is_shared else "local[2]")

    @property
    def few_rows(self) -> int | None:
        """Return the least number of expired rows that is freed; None for the engine's own."""
        return None

    @property
    def budget(self) -> MemoryBudget:
        """Return the memory of each part of the pipeline."""
        return MemoryBudget.of(self.memory, self.cache_mb)

    @property
    def view_budget(self) -> WorkBudget:
        """Return what one view may do in an epoch."""
        return WorkBudget(self.view_budget_s or math.inf, self.view_budget_rows or math.inf)

    @model_validator(mode="before")
    @classmethod
    def _take_earlier_names(cls, values: dict) -> dict[str, object]:
        return _present_names(values)

    @model_validator(mode="before")
    @classmethod
    def _sink_defaults_to_source(cls, values: dict) -> dict:
        values = dict(values)
        values["sink"] = values.get("sink") or values.get("source", "")
        return values

    @classmethod
    def load(cls, **options: object) -> Settings:
        """Return the settings from options that are not None, then the environment, then the
        defaults.
        """
        values: dict[str, object] = {
            name: os.environ[PREFIX + name.upper()]
            for name in (*cls.model_fields, *EARLIER_NAMES.values())
            if PREFIX + name.upper() in os.environ
        }
        given = {k: v for k, v in options.items() if v is not None}
        return cls.model_validate(_present_names(values) | _present_names(given))

    def to_environment(self) -> dict[str, str]:
        """Return the environment from which `load` restores these settings, for child processes."""
        values = {name: getattr(self, name) for name in type(self).model_fields}
        return {PREFIX + k.upper(): "" if v is None else str(v) for k, v in values.items()}

    def child_environment(self) -> dict[str, str]:
        """Return the whole environment of a process that must end with this one."""
        return {**os.environ, **self.to_environment(), _PARENT: str(os.getpid())}

    def for_group(self, group: str) -> Settings:
        """Return the settings of one group's process, derived from those of the service."""
        if group == DEFAULT_GROUP:
            return self
        found = self.model_copy(update={"state": self.state / GROUPS / group})
        found._group, found._home = group, self.state
        return found

    def beside(self, group: str) -> Settings:
        """Return the settings of another group's process of the same service."""
        service = self
        if self.group != DEFAULT_GROUP:
            service = self.model_copy(update={"state": self.home})
            service._group, service._home = DEFAULT_GROUP, None
        return service.for_group(group)

    @property
    def group(self) -> str:
        """Return the group of views that this process runs."""
        return self._group

    @property
    def home(self) -> Path:
        """Return the service's own directory, which contains those of all groups."""
        return self.state if self._home is None else self._home

    @property
    def sink_key(self) -> str:
        """Return the key of the group's progress in the sink."""
        return self.prefix if self.group == DEFAULT_GROUP else f"{self.prefix}/{self.group}"
