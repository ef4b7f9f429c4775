"""The functions of an engine: register them, call them, and update their tables.

A function without dynamic_columns and dynamic_where is called when it is registered; its table
contains its last result. One with them is narrow: its table contains what its views need.
Invariant: a table changes by whole results, those of one `refresh` in one transaction. A call that
fails changes nothing. Thread-safe; locks of several functions are taken in name order.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from connectors.postgres.embedded.engine_query import StandIn
from connectors.postgres.embedded.function_tables import Filled, FunctionTable, FunctionTables
from connectors.postgres.session.session import Session
from connectors.python.conditions import Requirement
from connectors.python.function import COLUMNS, Function
from connectors.python.infer import Columns, declared_columns, found_columns
from connectors.python.rows import Batch
from connectors.python.spool import Spool, spool
from dataflow.errors import TidemarkError
from service.embedded.needs import ReadView, need_of, read_views
from storage import clock


@dataclass(frozen=True)
class Refreshed:
    """The effect of a refresh on a function's table. position: where it becomes visible."""

    rows: int
    inserted: int
    updated: int
    deleted: int
    position: str
    seconds: float

    @property
    def is_changed(self) -> bool:
        """Whether any row changed."""
        return bool(self.inserted or self.updated or self.deleted)


@dataclass(frozen=True)
class FunctionState:
    """The state of a function. columns: types by name. rows: of its last result, None before the
    first. refreshed_at: seconds since 1970. error: of the last refresh, None on success."""

    name: str
    columns: Mapping[str, str]
    key: tuple[str, ...]
    refresh_every_s: float | None
    rows: int | None
    refreshed_at: float | None
    error: TidemarkError | None


@dataclass
class Registered:
    """One function. required: what the table of a narrow one contains. requirements: those of views
    that are being created. digest, number: of the last result, and of the table version with it."""

    function: Function
    table: FunctionTable
    is_declared: bool
    refresh_every_s: float | None = None
    lock: threading.RLock = field(default_factory=threading.RLock)
    requirements: list[Requirement] = field(default_factory=list)
    required: Requirement | None = None
    digest: bytes = b""
    number: int = 0
    rows: int | None = None
    refreshed_at: float | None = None
    due_at: float = 0.0
    error: TidemarkError | None = None

    @property
    def is_narrow(self) -> bool:
        """Whether it receives the columns or conditions that its readers need."""
        return bool(self.function.takes)

    @property
    def is_spent(self) -> bool:
        """Whether it is an iterator whose rows have been read."""
        return self.function.is_once and self.rows is not None

    @property
    def state(self) -> FunctionState:
        """The public state."""
        return FunctionState(
            self.function.name,
            dict(self.table.columns),
            self.table.key,
            self.refresh_every_s,
            self.rows,
            self.refreshed_at,
            self.error,
        )


class Functions:
    """All functions of one engine; thread-safe."""

    def __init__(self, dsn: str) -> None:
        self._tables = FunctionTables(dsn)
        self._session = Session(dsn, application_name="tidemark engine")
        self._registered: dict[str, Registered] = {}
        self._lock = threading.Lock()

    def close(self) -> None:
        """Close the session."""
        self._session.close()

    def register(
        self,
        name: str,
        source: Any,
        columns: Mapping[str, str] | Sequence[str] | None,
        key: Sequence[str],
        refresh_every_s: float | None,
    ) -> FunctionState:
        """Create or take over a function's table, and fill it unless the function is narrow."""
        for title in (name, *key, *(columns or ())):
            _check_name(title)
        function = Function(name, source)
        if refresh_every_s is not None and (refresh_every_s <= 0 or function.is_once):
            raise TidemarkError(
                "function.bad_interval",
                f'function "{name}" cannot be refreshed every {refresh_every_s} seconds',
                detail="an iterator can be read only once" if function.is_once else "",
                hint="pass a function, and an interval above 0",
            )
        reading: Iterator[Batch] | None = None
        found: Columns
        if isinstance(columns, Mapping):
            found = declared_columns(name, columns)
        else:
            reading = function.read()
            found, reading = found_columns(name, reading, columns)
            for title, _ in found:
                _check_name(title)
        table = self._tables.shape(name, found, key)
        made = Registered(function, table, columns is not None, refresh_every_s)
        made.due_at = time.monotonic() + (refresh_every_s or 0)
        before = self._registered.get(name)
        if before is not None:
            made.requirements = before.requirements
        with self._locked([before] if before is not None else []):
            if made.is_narrow:
                self._tables.declare(table)
                if self._need(made, read_views(self._session)) is not None:
                    self._refresh([made])
            else:
                lines = self._read(made, None, reading)
                try:
                    self._fill([made], [lines], time.monotonic())
                finally:
                    lines.close()
            with self._lock:
                self._registered[name] = made
        return made.state

    def unregister(self, name: str) -> None:
        """Remove a function and drop its table. TidemarkError function.in_use."""
        found = self.of(name)
        with self._locked([found]):
            readers = [v for v in read_views(self._session) if name in v.requirements]
            if readers:
                raise TidemarkError(
                    "function.in_use",
                    f'function "{name}" is read by views',
                    detail=", ".join(f"{v.schema}.{v.name}" for v in readers),
                    hint="drop those views first",
                )
            self._tables.drop(name)
            with self._lock:
                self._registered.pop(name, None)

    def of(self, name: str) -> Registered:
        """Return a function by name. TidemarkError function.unknown."""
        found = self._registered.get(name)
        if found is None:
            raise TidemarkError(
                "function.unknown",
                f'function "{name}" does not exist',
                detail=f"registered: {', '.join(sorted(self._registered)) or 'none'}",
                hint="register it first",
            )
        return found

    def states(self) -> dict[str, FunctionState]:
        """Return the state of each function by name."""
        with self._lock:
            return {name: found.state for name, found in self._registered.items()}

    def all(self) -> list[Registered]:
        """Return all functions."""
        with self._lock:
            return list(self._registered.values())

    def refresh(self, names: Iterable[str]) -> dict[str, Refreshed]:
        """Call functions again and write all differences in one transaction.

        A narrow function without readers is not called. TidemarkError function.*
        """
        names = list(dict.fromkeys(names))
        while True:
            chosen = [self.of(name) for name in names]
            for one in chosen:
                if one.is_spent:
                    raise _spent(one.function.name)
            with self._locked(chosen):
                if self._are_registered(chosen):
                    return self._refresh(chosen)

    def refresh_for(self, names: Sequence[str], requirements: Mapping[str, Requirement]) -> None:
        """Refresh functions for one query; narrow ones also for what the query needs."""
        try:
            for name, required in requirements.items():
                self.of(name).requirements.append(required)
            self.refresh(names)
        finally:
            self.forget(requirements)

    def widen(self, requirements: Mapping[str, Requirement]) -> None:
        """Extend the tables of narrow functions by what a new view will need."""
        chosen = [self.of(n) for n in requirements if n in self._registered]
        narrow = [one for one in chosen if one.is_narrow]
        for one in narrow:
            required = requirements[one.function.name]
            if required not in one.requirements:
                one.requirements.append(required)
        with self._locked(narrow):
            if self._are_registered(narrow):
                self._refresh(narrow)
                return
        self.widen(requirements)

    def forget(self, requirements: Mapping[str, Requirement]) -> None:
        """Remove temporary requirements: the view is now in the catalog, or was not created."""
        for name, required in requirements.items():
            found = self._registered.get(name)
            if found is not None and required in found.requirements:
                found.requirements.remove(required)

    def grown(self) -> list[str]:
        """Return the narrow functions whose views need more than their tables contain."""
        narrow = [one for one in self.all() if one.is_narrow]
        views = read_views(self._session) if narrow else []
        names = []
        for one in narrow:
            need = self._need(one, views)
            if need is not None and not _holds(one.required, need):
                names.append(one.function.name)
        return names

    def views(self) -> list[ReadView]:
        """Return the views of the catalog."""
        return read_views(self._session)

    def stand_in(self, name: str, required: Requirement | None) -> StandIn:
        """Call a narrow function for one query; the caller closes the result's `lines`."""
        one = self.of(name)
        if required is not None:
            required = Requirement(_with_key(one, required.columns), required.conditions)
        return StandIn(one.table, self._read(one, required, None).file)

    def _are_registered(self, chosen: Iterable[Registered]) -> bool:
        """Return False if one was replaced while the caller waited for its lock."""
        return all(self._registered.get(one.function.name) is one for one in chosen)

    # --- readings ------------------------------------------------------------------------------

    def _refresh(self, chosen: Sequence[Registered]) -> dict[str, Refreshed]:
        views = read_views(self._session) if any(one.is_narrow for one in chosen) else []
        done: dict[str, Refreshed] = {}
        read: list[Registered] = []
        spools: list[Spool] = []
        began = time.monotonic()
        try:
            for one in chosen:
                need = self._need(one, views)
                if not one.is_narrow or need is not None:
                    spools.append(self._read(one, need))
                    read.append(one)
            done = self._fill(read, spools, began)
        except TidemarkError as error:
            for one in chosen:
                one.error = error
            raise
        finally:
            for lines in spools:
                lines.close()
        return done

    def _need(self, one: Registered, views: Sequence[ReadView]) -> Requirement | None:
        if not one.is_narrow:
            return None
        name = one.function.name
        requirements = [v.requirements[name] for v in views if name in v.requirements]
        need = need_of([*requirements, *one.requirements], [n for n, _ in one.table.columns])
        return need and Requirement(_with_key(one, need.columns), need.conditions)

    def _read(
        self, one: Registered, required: Requirement | None, reading: Iterator[Batch] | None = None
    ) -> Spool:
        narrowed = (
            required.columns if required is not None and COLUMNS in one.function.takes else None
        )
        made = spool(
            one.function.name,
            one.function.read(required) if reading is None else reading,
            one.table.columns,
            requested=narrowed,
            is_declared=one.is_declared,
        )
        made.required = required
        return made

    def _fill(
        self, read: Sequence[Registered], spools: Sequence[Spool], began: float
    ) -> dict[str, Refreshed]:
        """Write the results that differ from their tables."""
        numbers = self._tables.numbers()
        new = [
            (one, lines)
            for one, lines in zip(read, spools, strict=True)
            if one.digest != lines.digest or numbers.get(one.function.name) != one.number
        ]
        if new:
            filled, position = self._tables.fill([(one.table, s.file) for one, s in new])
        else:
            filled, position = [], self._tables.position()
        changes = {one.function.name: f for (one, _), f in zip(new, filled, strict=True)}
        numbers = self._tables.numbers() if new else numbers
        done = {}
        for one, lines in zip(read, spools, strict=True):
            name = one.function.name
            one.digest, one.number = lines.digest, numbers.get(name, 0)
            one.required, one.rows, one.error = lines.required, lines.n, None
            one.refreshed_at = clock.wall()
            change = changes.get(name, Filled(lines.n, 0, 0, 0))
            done[name] = Refreshed(
                lines.n,
                change.inserted,
                change.updated,
                change.deleted,
                position,
                time.monotonic() - began,
            )
        return done

    @contextmanager
    def _locked(self, chosen: Iterable[Registered]) -> Iterator[None]:
        """Lock functions, always in the same order."""
        with ExitStack() as locks:
            for one in sorted(chosen, key=lambda one: one.function.name):
                locks.enter_context(one.lock)
            yield


def _spent(name: str) -> TidemarkError:
    return TidemarkError(
        "function.spent",
        f'function "{name}" is an iterator that has already been read',
        hint="register a function that returns a new iterator, or a list",
    )


def _check_name(name: Any) -> None:
    is_text = isinstance(name, str)
    if not is_text or not 0 < len(name.encode(errors="replace")) < 64 or "\0" in name:
        raise TidemarkError(
            "function.bad_name",
            f"{name!r} is not a valid name",
            detail="names of functions and columns have 1 to 63 bytes of UTF-8, without NUL",
            hint="choose another name",
        )


def _with_key(one: Registered, columns: Sequence[str]) -> tuple[str, ...]:
    names = {*columns, *one.table.key}
    return tuple(n for n, _ in one.table.columns if n in names)


def _holds(required: Requirement | None, need: Requirement) -> bool:
    """Return True if rows for one requirement include those for another."""
    if required is None:
        return False
    return set(need.columns) <= set(required.columns) and set(required.conditions) <= set(
        need.conditions
    )
