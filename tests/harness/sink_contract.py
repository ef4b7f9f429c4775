"""What every additional sink promises, as steps over a real target that is read independently.

A test gives a `Target`: how to make a sink, and a reader of what is there. `Model` knows the rows
of the view after each epoch, as tuples of PostgreSQL's texts. Whatever happens, the target shows
the model's rows at the epoch that it claims; a target that may get an epoch twice removes repeated
ids in its reader.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.process
import os
import random
import secrets
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import pytest

from connectors.sink import SinkTable
from connectors.view_sink import ViewEpoch, ViewSink
from dataflow.delta import Column, Delta
from dataflow.errors import SinkError, TemporaryError, TidemarkError
from dataflow.schema import Field
from dataflow.types import (
    BOOL,
    DATE,
    FLOAT4,
    FLOAT8,
    INT2,
    INT4,
    INT8,
    INTERVAL,
    JSONB,
    NUMERIC,
    TEXT,
    TIME,
    TIMESTAMP,
    TIMESTAMPTZ,
    SqlType,
    fixed,
    sql_type,
)
from dataflow.values import from_text
from storage.failpoints import set_failpoints
from tests.harness.proxy import CUT, DELAY, DRIP, HALF_OPEN, REFUSE, RESET, Fault, Proxy

Row = tuple[str | None, ...]
POSITION = {"source": "0/1A"}
KILLED_AFTER_S = 0.4
HEALED_AFTER_S = 1.0
TIMEOUT_S = 300.0

_BYTEA = sql_type("bytea", 17)
_UUID = sql_type("uuid", 2950)
_TEXTS = sql_type("text[]", 1009)
_NUMBERS = sql_type("integer[]", 1007)
# Values of each type that any target can hold, as PostgreSQL prints them.
FINITE: tuple[tuple[str, SqlType, tuple[str | None, ...]], ...] = (
    ("flag", BOOL, ("t", "f", None)),
    ("small", INT2, ("-32768", "32767", "0")),
    ("big", INT8, ("-9223372036854775808", "9223372036854775807", "5", None)),
    ("amount", fixed(12, 2), ("0.00", "-0.05", "9999999999.99", None)),
    ("total", NUMERIC, ("12345678901234567890.123456789", "1.50", "1.5", "-0.000001", None)),
    ("x", FLOAT8, ("0.1", "-1e+300", "1e-300", "-0", "3", None)),
    ("y", FLOAT4, ("0.1", "-1e+30", "3", None)),
    ("name", TEXT, ("", "a", "A", "a ", "tab\tline\nback\\slash", "quote '\"`", "é🙂%s{}", None)),
    ("day", DATE, ("2024-02-29", "1000-01-01", "9999-12-31", None)),
    ("clock", TIME, ("00:00:00", "23:59:59.999999", None)),
    ("at", TIMESTAMP, ("2024-02-29 12:00:00", "1970-01-01 00:00:00.000001", None)),
    ("moment", TIMESTAMPTZ, ("2024-02-29 12:00:00+00", "2038-01-19 03:14:08.5+00", None)),
    ("span", INTERVAL, ("1 year 2 mons", "-00:00:01.5", None)),
    ("id2", _UUID, ("00112233-4455-6677-8899-aabbccddeeff", None)),
    ("raw", _BYTEA, ("\\x", "\\x00ff0a5c27", None)),
    ("doc", JSONB, ('{"a": [1, null, "x\\ny"]}', "null", "1.50", '"é"', None)),
    ("words", _TEXTS, ("{}", '{a,NULL,"b c","\\"",""}', None)),
    ("numbers", _NUMBERS, ("{1,2,NULL}", "{{1,2},{3,4}}", None)),
)
# And those that many targets lack.
_SPECIAL: dict[str, tuple[str | None, ...]] = {
    "amount": ("NaN",),
    "total": ("NaN", "Infinity", "-Infinity"),
    "x": ("NaN", "Infinity", "-Infinity"),
    "y": ("NaN", "Infinity", "-Infinity"),
    "day": ("infinity", "-infinity", "0044-03-15 BC"),
    "clock": ("24:00:00",),
    "at": ("infinity", "-infinity"),
    "moment": ("infinity", "-infinity"),
}
ALL = tuple((name, kind, (*pool, *_SPECIAL.get(name, ()))) for name, kind, pool in FINITE)


class Target(Protocol):
    """A place to write to, new for each test; the tables of one target have different names."""

    @property
    def failpoints(self) -> Sequence[str]:
        """The failpoints of a write: before its commit, and after it."""
        ...

    def sink(self, table: SinkTable, identity: str) -> ViewSink:
        """Return a new writer with the options under test."""
        ...

    def read(self, table: SinkTable) -> tuple[Counter[Row], int | None]:
        """Return the rows, as `Model` has them, and the epoch that is claimed, of one moment."""
        ...


class Model:
    """Random epochs of a view, and its rows after each.

    pools: (name, type, values) of the columns beside `id`, the key of a keyed view. begins: the
    number of the first epoch.
    """

    def __init__(
        self,
        pools: Sequence[tuple[str, SqlType, Sequence[str | None]]] = FINITE,
        *,
        is_keyed: bool = True,
        seed: int = 1,
        begins: int = 3,
    ) -> None:
        fields = [Field("id", INT4, False), *(Field(name, kind) for name, kind, _ in pools)]
        self.table = SinkTable("public", f"v{secrets.token_hex(4)}", tuple(fields), ())
        if is_keyed:
            self.table = SinkTable("public", self.table.name, tuple(fields), (0,))
        self._pools = [pool for _, _, pool in pools]
        self._random = random.Random(seed)
        self._rows: Counter[Row] = Counter()
        self._first = begins
        self.number = begins - 1
        self.after: dict[int, Counter[Row]] = {}

    def epoch(self, rows: int = 20, parts: int = 1) -> ViewEpoch:
        """Return the next epoch, in so many deltas; the first one has all rows of the view."""
        before = self._rows.copy()
        for _ in range(rows):
            self._change()
        changed = Counter(self._rows)
        changed.subtract(before)
        weights = {row: n for row, n in changed.items() if n}
        deltas = [
            delta_of(self.table, {r: n for r, n in weights.items() if int(r[0] or 0) % parts == k})
            for k in range(parts)
        ]
        return self._numbered([d for d in deltas if len(d)], len(weights))

    def nothing(self) -> ViewEpoch:
        """Return an epoch without rows."""
        return self._numbered([], 0)

    def epochs_after(self, epoch: int | None, upto: int) -> list[ViewEpoch]:
        """Return all epochs up to one that a target at `epoch` lacks; for a model of its own."""
        made = [self.epoch() for _ in range(upto - self.number)]
        return [e for e in made if epoch is None or e.number > epoch]

    def _numbered(self, deltas: list[Delta], rows: int) -> ViewEpoch:
        self.number += 1
        self.after[self.number] = +self._rows
        return ViewEpoch(self.number, POSITION, deltas, rows, self.number == self._first)

    def _change(self) -> None:
        pick = self._random
        values = [pick.choice(pool) for pool in self._pools]
        row = (str(pick.randrange(60)), *values)
        if self.table.key:
            for old in [r for r in self._rows if r[0] == row[0]]:
                del self._rows[old]
        elif self._rows and pick.random() < 0.5:
            row = pick.choice(list(self._rows))
        if pick.random() < 0.7:
            self._rows[row] += 1
        elif self._rows:
            self._rows[pick.choice(list(self._rows))] -= 1
            self._rows += Counter()


def delta_of(table: SinkTable, weights: dict[Row, int]) -> Delta:
    """Return rows of PostgreSQL's texts as a delta."""
    columns = [
        from_text(f.type, Column.of("s", [row[k] for row in weights]))
        for k, f in enumerate(table.fields)
    ]
    return Delta(columns, Column.of("i", weights.values()).values)


def new_identity() -> str:
    """As the service names a sink."""
    return secrets.token_hex(16)


def require(target: Target, model: Model, number: int | None = None) -> int:
    """The target shows the model's rows at the epoch that it claims, or at this one."""
    rows, epoch = target.read(model.table)
    assert epoch is not None, "it claims no epoch"
    assert number is None or epoch == number, f"it is at epoch {epoch}, not {number}"
    expected = model.after[epoch]
    if rows != expected:
        # pytest would compare thousands of rows letter by letter.
        shown = [list(d.items())[:3] for d in (rows - expected, expected - rows)]
        raise AssertionError(f"epoch {epoch}: too much {shown[0]}, missing {shown[1]}")
    return epoch


def write_all(sink: ViewSink, epochs: Sequence[ViewEpoch], known: int | None = None) -> None:
    """Write epochs as a sink's worker does: after a failure, `open` says which are there."""
    left, deadline, is_open = list(epochs), time.monotonic() + TIMEOUT_S, True
    while left:
        try:
            if not is_open:
                found = sink.open(known)
                left, is_open = [e for e in left if found is None or e.number > found], True
                continue
            sink.write(left[:1])
            known = left.pop(0).number
        except TemporaryError as error:
            assert time.monotonic() < deadline, error
            is_open = False
            sink.close()
            time.sleep(0.02)


# --- the promises ----------------------------------------------------------------------------


def check_life(target: Target, model: Model) -> None:
    """First rows, epochs one by one and many in one write, progress alone, a new writer."""
    identity = new_identity()
    sink = target.sink(model.table, identity)
    assert sink.open(None) is None
    sink.write([model.epoch(40, parts=3)])
    require(target, model, model.number)
    for _ in range(5):
        sink.write([model.epoch()])
        require(target, model, model.number)
    sink.write([model.epoch(parts=2) for _ in range(10)])
    require(target, model, model.number)
    sink.write([model.nothing()])
    require(target, model, model.number)
    sink.close()
    again = target.sink(model.table, identity)
    assert again.open(model.number) == model.number
    again.write([model.epoch()])
    require(target, model, model.number)
    again.close()


def check_changes_only(target: Target, model: Model) -> None:
    """With `initial: changes` the first epoch has no rows, and the target those that follow."""
    sink = target.sink(model.table, new_identity())
    assert sink.open(None) is None
    sink.write([model.nothing()])
    require(target, model, model.number)
    sink.write([model.epoch(), model.epoch()])
    require(target, model, model.number)
    sink.close()


def check_large_epoch(target: Target, model: Model, rows: int = 5_000) -> None:
    """An epoch of many rows in parts; only at its end is any of it visible."""
    sink = target.sink(model.table, new_identity())
    sink.open(None)
    sink.write([model.epoch()])
    weights = {
        (str(1_000 + k), *(None for _ in model.table.fields[1:])): 1 for k in range(2 * rows)
    }
    halves = [dict(list(weights.items())[:rows]), dict(list(weights.items())[rows:])]
    first, before = model.number + 1, require(target, model)
    seen: list[int] = []

    def parts() -> Iterator[Delta]:
        for half in halves:
            yield delta_of(model.table, half)
            seen.append(target.read(model.table)[1] or 0)

    model.after[first] = model.after[before] + Counter(weights)
    model.number = first
    sink.write([ViewEpoch(first, POSITION, _Repeatable(parts), 2 * rows)])
    assert set(seen) == {before}, "a part was visible before the whole epoch"
    require(target, model, first)
    sink.close()


def check_torn_write(target: Target, model: Model) -> None:
    """A write that fails in the middle leaves nothing; a second writer continues."""
    identity = new_identity()
    first = target.sink(model.table, identity)
    first.open(None)
    first.write([model.epoch()])
    torn = model.epoch()

    def parts() -> Iterator[Delta]:
        yield from torn.deltas
        raise TemporaryError("test.cut", "cut")

    with pytest.raises(TemporaryError):
        first.write([ViewEpoch(torn.number, POSITION, _Repeatable(parts), torn.rows)])
    assert require(target, model) == torn.number - 1
    # It is never closed, as after kill -9.
    second = target.sink(model.table, identity)
    assert second.open(torn.number - 1) == torn.number - 1
    second.write([torn, model.epoch()])
    require(target, model, model.number)
    second.close()
    first.close()


def check_unknown_outcome(target: Target, model: Model) -> None:
    """A write that fails around its commit is not repeated if it was committed."""
    sink = target.sink(model.table, new_identity())
    sink.open(None)
    write_all(sink, [model.epoch()])
    for name in target.failpoints:
        for _ in range(2):
            epoch = model.epoch()
            set_failpoints(f"{name}=error@1")
            try:
                with pytest.raises(TemporaryError):
                    sink.write([epoch])
            finally:
                set_failpoints("")
            assert require(target, model) in (epoch.number - 1, epoch.number)
            sink.close()
            if sink.open(epoch.number - 1) != epoch.number:
                sink.write([epoch])
            require(target, model, epoch.number)
    sink.close()


def check_fencing(target: Target, model: Model) -> None:
    """Of two writers of one sink, the one that opened last continues; the other one ends."""
    identity = new_identity()
    zombie = target.sink(model.table, identity)
    zombie.open(None)
    zombie.write([model.epoch()])
    heir = target.sink(model.table, identity)
    assert heir.open(model.number) == model.number
    late = model.epoch()
    with pytest.raises((SinkError, TemporaryError)):
        zombie.write([late])
    zombie.close()
    with pytest.raises(SinkError) as raised:
        zombie.open(late.number - 1)
    assert raised.value.code == "sink.fenced"
    require(target, model, late.number - 1)
    heir.write([late, model.epoch()])
    require(target, model, model.number)
    heir.close()
    zombie.close()


def check_removal(target: Target, model: Model, is_gone: Callable[[], bool]) -> None:
    """`remove` deletes everything, also twice; it needs no columns of the view."""
    identity = new_identity()
    sink = target.sink(model.table, identity)
    sink.open(None)
    sink.write([model.epoch()])
    sink.close()
    assert not is_gone()
    bare = SinkTable(model.table.schema, model.table.name, (), (0,))
    for _ in range(2):
        remover = target.sink(bare, identity)
        remover.remove()
        remover.close()
        assert is_gone()


def check_detachment(
    target: Target, model: Model, read: Callable[[], object], is_left: Callable[[], bool]
) -> None:
    """`detach` removes what only the service needs, also twice; readers read what they did.

    read: what a reader without the service sees. is_left: nothing of the service is there.
    """
    identity = new_identity()
    sink = target.sink(model.table, identity)
    sink.open(None)
    for _ in range(3):
        sink.write([model.epoch()])
    sink.close()
    before = read()
    assert not is_left()
    for _ in range(2):
        leaver = target.sink(model.table, identity)
        leaver.detach()
        leaver.close()
        assert is_left()
        assert read() == before
    assert leaver.detachment().kept


def check_others_are_refused(target: Target, model: Model, check: Callable[[], object]) -> None:
    """Tables or files of another sink are neither written to nor removed.

    check: the connector's check of a new sink on them.
    """
    sink = target.sink(model.table, new_identity())
    sink.open(None)
    for call, code in (
        (check, "sink.not_empty"),
        (lambda: target.sink(model.table, new_identity()).open(None), "sink.not_empty"),
        (lambda: target.sink(model.table, new_identity()).remove(), "sink.not_ours"),
    ):
        with pytest.raises(SinkError) as raised:
            call()
        assert raised.value.code == code
    sink.close()


def require_refused(make: Callable[[Any], object], options: Any, why: str) -> None:
    """Options are refused, and the error says why. make: makes the sink."""
    with pytest.raises(SinkError) as raised:
        make(options)
    assert raised.value.code == "sink.bad_option" and why in str(raised.value)


def require_reference(make: Callable[[Any], object], options: dict[str, Any], name: str) -> None:
    """A secret that stands in an option is refused, and not repeated."""
    with pytest.raises(TidemarkError, match=r"secret\.plain") as raised:
        make({**options, name: "hunter2"})
    assert "hunter2" not in str(raised.value)


def check_loss(target: Target, model: Model, lose: Callable[[], object]) -> None:
    """What others have deleted is not begun again in silence: sink.lost, or no progress."""
    identity = new_identity()
    sink = target.sink(model.table, identity)
    sink.open(None)
    sink.write([model.epoch()])
    lose()
    with pytest.raises((SinkError, TemporaryError)):
        sink.write([model.epoch()])
    sink.close()
    try:
        # The worker fails with sink.lost if a sink that has begun has no progress.
        assert sink.open(model.number - 1) is None
    except SinkError as error:
        assert error.code == "sink.lost"
    sink.close()


# --- kills and faults ------------------------------------------------------------------------


def check_kills(
    target: Target, make_model: Callable[[], Model], kills: int, seed: int, *, lag: int = 0
) -> int:
    """A process that writes epochs is killed at random moments; return the newest epoch.

    make_model: always the same model, whose epochs a new process makes again. lag: by how many
    epochs the state, whose progress is passed to `open`, may be behind the target.
    """
    pick, identity, epoch = random.Random(seed), new_identity(), None
    context = multiprocessing.get_context("fork")
    name = make_model().table.name

    def model_of() -> Model:
        made = make_model()
        made.table = SinkTable("public", name, made.table.fields, made.table.key)
        return made

    for number in range(kills + 1):
        is_last = number == kills
        upto = (epoch or 2) + (3 if is_last else 1_000_000)
        known = None if epoch is None else max(epoch - pick.randint(0, lag), model_of().number + 1)
        # A daemon, so that it ends with a check that fails.
        args = target, model_of, identity, upto, known
        child = context.Process(target=_write_until, args=args, daemon=True)
        child.start()
        if is_last:
            child.join(TIMEOUT_S)
            assert child.exitcode == 0
        else:
            _await_begun(child, lambda: target.read(model_of().table)[1] is not None)
            child.join(pick.uniform(0, KILLED_AFTER_S))
            assert child.is_alive(), "it ended by itself"
            os.kill(child.pid or 0, signal.SIGKILL)
            child.join()
        model = model_of()
        found = target.read(model.table)[1]
        assert found is not None and (epoch is None or found >= epoch), f"{epoch} became {found}"
        model.epochs_after(None, found)
        epoch = require(target, model, found)
    return epoch or 0


def _await_begun(child: multiprocessing.process.BaseProcess, has_begun: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not has_begun():
        assert child.is_alive() and time.monotonic() < deadline, "it did not begin"
        time.sleep(0.02)


def _write_until(
    target: Target, model_of: Callable[[], Model], identity: str, upto: int, known: int | None
) -> None:
    """In a process of its own: write all epochs that the target lacks, one write after another."""
    model = model_of()
    sink = target.sink(model.table, identity)
    found = sink.open(known)
    model.epochs_after(None, found or 0)
    while model.number < upto:
        sink.write([model.epoch()])
    sink.close()


def check_faults(target: Target, model: Model, proxy: Proxy, faults: int, seed: int) -> None:
    """The sink, which is behind the proxy, gets every epoch once, whatever the network does."""
    pick, identity = random.Random(seed), new_identity()
    sink = target.sink(model.table, identity)
    assert sink.open(None) is None
    sink.write([model.epoch()])
    for _ in range(faults):
        kinds = (CUT, RESET, HALF_OPEN, DELAY, DRIP, REFUSE)
        proxy.begin(Fault.draw(pick, kinds))
        healer = threading.Timer(pick.uniform(0.05, HEALED_AFTER_S), _heal, (proxy,))
        healer.start()
        try:
            write_all(sink, [model.epoch() for _ in range(3)], model.number - 3)
        finally:
            healer.join()
        require(target, model, model.number)
    assert proxy.faults_met, "no fault was met"
    sink.close()


def _heal(proxy: Proxy) -> None:
    proxy.heal()
    proxy.terminate_orphan()


class _Repeatable:
    """Deltas that can be iterated repeatedly, as those of an epoch."""

    def __init__(self, make: Callable[[], Iterator[Delta]]) -> None:
        self._make = make

    def __iter__(self) -> Iterator[Delta]:
        return self._make()
