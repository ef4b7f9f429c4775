"""What every declared source promises while the service is killed and the network fails.

An `Origin` is a real server with a writer that never rests, and views that name the change after
which they are (`StateReader`): a polled source shows states that it had, a stream each of its
messages. Whatever happens, the views follow again, and in the end equal the query over the rows of
the server; so does a view that is made then.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tests.harness import figures
from tests.harness.background_writer import BackgroundWriter
from tests.harness.postgres import Database
from tests.harness.proxy import Fault, Proxy
from tests.harness.service import RunningService
from tests.harness.state_reader import BETWEEN_LOOKS_S, Rows, StateReader
from tests.harness.tiers import is_fast
from tests.harness.verdicts import WrongStateError

SOURCE = "erp"
WITHIN_S = 120.0
SEVERAL = 5
CUSTOMERS = """
CREATE TABLE customers (id integer PRIMARY KEY, region text NOT NULL);
INSERT INTO customers SELECT n, 'r' || n % 3 FROM generate_series(1, 9) n
"""
SPENT = f"""SELECT c.region, count(*) AS n, sum(o.price) AS spent
FROM {SOURCE}.orders o JOIN customers c ON c.id = o.customer GROUP BY c.region"""
# Columns of the relation `orders`, without the one that names an order.
COLUMNS = [{"name": "customer", "type": "integer"}, {"name": "price", "type": "numeric(10,2)"}]
# A customer of an order that the join leaves out.
NOBODY = 10
_BETWEEN_CHANGES_S = (0, 0.01, 0.05) if is_fast() else (0, 0.005, 0.02)


class Disturbance(Protocol):
    """What stands between the service and the rows."""

    @property
    def port(self) -> int | None:
        """Where the service finds the server."""
        ...

    @property
    def met(self) -> int:
        """How often a fault had an effect."""
        ...

    def begin(self, pick: random.Random) -> None:
        """Begin a fault."""
        ...

    def heal(self) -> None:
        """End it."""
        ...

    def end_links(self) -> None:
        """Let both sides know of links that have ended in silence."""
        ...


@dataclass
class Origin:
    """A source of one type, with its server.

    options: of the source, given the port of its server or of a proxy before it. port: of the
    server, None if there is none. disturb: what makes faults where that is no proxy. tables: SQL in
    the database that the views join. is_discovered: the options lack what `discover` adds.
    """

    type: str
    options: Callable[[int | None], Mapping[str, Any]]
    writer: BackgroundWriter
    reader: Callable[[Database], StateReader]
    port: int | None = None
    views: Mapping[str, str] = field(default_factory=lambda: {"spent": SPENT})
    tables: str = CUSTOMERS
    settings: Mapping[str, str] = field(default_factory=dict)
    is_discovered: bool = False
    disturb: Disturbance | None = None
    require: Callable[[RunningService, Any], None] = lambda _service, _reader: None


@contextmanager
def running(
    origin: Origin, sink: Database, folder: Path, port: int | None = None
) -> Iterator[tuple[RunningService, StateReader]]:
    """A service whose views follow the source, while its rows change; in the end they are equal."""
    if origin.tables:
        sink.execute(origin.tables)
    with RunningService(sink.dsn, folder, **origin.settings) as service:
        declare(service, origin.type, origin.options(port or origin.port), origin.is_discovered)
        reader = origin.reader(sink)
        origin.writer.start()
        try:
            for name, query in origin.views.items():
                service.create(name, query, WITHIN_S)
            reader.settle(WITHIN_S, service.log_tail)
            yield service, reader
            last = origin.writer.stop()
            service.await_so(lambda: reader.shows(last), WITHIN_S)
            origin.require(service, reader)
            for name, query in origin.views.items():
                service.create(f"later_{name}", query, WITHIN_S)
                is_equal = lambda n=name: _rows(sink, f"later_{n}") == _rows(sink, n)  # noqa: E731
                service.await_so(is_equal, WITHIN_S)
        finally:
            origin.writer.cancel()
            reader.close()


def declare(
    service: RunningService,
    type: str,
    options: Mapping[str, Any],
    is_discovered: bool = False,
    name: str = SOURCE,
) -> None:
    """Declare the source; discover its columns first, as users do."""
    body = {"name": name, "type": type, "options": options}
    if is_discovered:
        found = service.call("POST", "/sources/discover", {"type": type, "options": options})
        assert found.status_code == 200, found.text
        body["options"] = found.json()["options"]
    answer = service.call("POST", "/sources", body)
    assert answer.status_code == 201, answer.text


def check_kills(origin: Origin, sink: Database, folder: Path, kills: int, seed: int) -> None:
    """Pipeline and service are killed in turn, at random moments."""
    pick, command = random.Random(seed), _command("TIDEMARK_TEST_KILLS", kills)
    with (
        figures.counted("kills", command, source=origin.type) as run,
        running(origin, sink, folder) as (service, reader),
    ):
        for number in range(kills):
            reader.look_for(pick.uniform(0.05, 0.6))
            if number % 2:
                service.kill()
                service.start()
            else:
                service.await_so(lambda: service.kill_child("pipeline"), WITHIN_S)
            reader.settle(WITHIN_S, service.log_tail)
            run.count, run.epochs = number + 1, reader.states


def check_faults(origin: Origin, sink: Database, folder: Path, faults: int, seed: int) -> None:
    """Connections are cut, reset, half-open, refused, late or slow, one fault after another."""
    pick, command = random.Random(seed), _command("TIDEMARK_TEST_FAULTS", faults)
    with (
        figures.counted("connection_faults", command, source=origin.type) as run,
        _disturbed(origin) as disturbance,
        running(origin, sink, folder, disturbance.port) as (service, reader),
    ):
        for number in range(faults):
            disturbance.begin(pick)
            reader.look_for(pick.choice((0.2, 1.0, 2.0)))
            disturbance.heal()
            # Half-open links stay so: they have to be noticed.
            reader.settle(WITHIN_S, service.log_tail)
            disturbance.end_links()
            run.count, run.epochs = number + 1, reader.states
        # One alone may begin after more bytes than there are.
        assert disturbance.met or faults < SEVERAL, "no fault was met"


def _command(variable: str, count: int) -> str:
    return f"{variable}={count} .venv/bin/python -m pytest tests/recovery/test_sources.py"


class _ProxyFaults:
    """Faults of a network."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy

    @property
    def port(self) -> int:
        """Of the proxy."""
        return self._proxy.port

    @property
    def met(self) -> int:
        """See Disturbance."""
        return self._proxy.faults_met

    def begin(self, pick: random.Random) -> None:
        """See Disturbance."""
        self._proxy.begin(Fault.draw(pick))

    def heal(self) -> None:
        """See Disturbance."""
        self._proxy.heal()

    def end_links(self) -> None:
        """See Disturbance."""
        self._proxy.terminate_orphan()


@contextmanager
def _disturbed(origin: Origin) -> Iterator[Disturbance]:
    if origin.disturb is not None:
        yield origin.disturb
        return
    assert origin.port is not None
    with Proxy(origin.port) as proxy:
        yield _ProxyFaults(proxy)


def _rows(sink: Database, view: str) -> Counter[tuple[Any, ...]]:
    return Counter(sink.rows(f"SELECT * FROM {view}"))


# --- orders ------------------------------------------------------------------------------------

Order = tuple[int, int, int]  # id, customer, price
State = frozenset[tuple[str, int, int]]


class Orders(BackgroundWriter):
    """Writes orders to a server, one change after another, and knows what SPENT shows after each.

    write: makes one change visible at the server: (orders that come or replace others, ids that
    go). Where the server cannot do both at once, is_single: a change is one of either. is_added:
    orders only come, and none is changed.
    """

    def __init__(
        self,
        write: Callable[[Sequence[Order], Sequence[int]], None],
        seed: int,
        *,
        is_single: bool = False,
        is_added: bool = False,
    ) -> None:
        super().__init__(-1)
        self._apply = write
        self._pick = random.Random(seed)
        self._is_single, self._is_added = is_single, is_added
        self._orders: dict[int, Order] = {}
        self._sums: dict[str, tuple[int, int]] = {}
        self._numbers: dict[State, list[int]] = {}
        self._state: State = frozenset({("", 0, 0)})
        self._price = 0
        # Held while a change is made: who holds it stops the writer.
        self.lock = threading.Lock()
        self._note()
        for _ in range(30):
            self._change()

    def write(self) -> None:
        """See BackgroundWriter."""
        self.write_more()
        time.sleep(self._pick.choice(_BETWEEN_CHANGES_S))

    @property
    def count(self) -> int:
        """How many orders were written so far, if they only come."""
        return len(self._orders)

    def write_more(self) -> None:
        """Make one more change."""
        with self.lock:
            self._change()

    def numbers_of(self, state: State) -> Sequence[int]:
        """Return after which changes SPENT shows this."""
        return self._numbers.get(state, ())

    def _change(self) -> None:
        pick = self._pick
        is_removal = not self._is_added and len(self._orders) > 20 and pick.random() < 0.4
        gone = [pick.choice(list(self._orders))] if is_removal else []
        new: list[Order] = []
        if not (is_removal and self._is_single):
            self._price += 1
            id = len(self._orders) if self._is_added else pick.randrange(80)
            new = [(id, pick.randrange(1, NOBODY + 1), self._price)]
            gone = [one for one in gone if one != id]
        for id in (*gone, *(order[0] for order in new)):
            if id in self._orders:
                self._count(self._orders.pop(id), -1)
        for order in new:
            self._orders[order[0]] = order
            self._count(order, 1)
        # Known before it can be seen.
        self._note()
        self._apply(new, gone)

    def _count(self, order: Order, weight: int) -> None:
        _, customer, price = order
        if customer != NOBODY:
            n, spent = self._sums.get(region := f"r{customer % 3}", (0, 0))
            self._sums[region] = n + weight, spent + weight * price

    def _note(self) -> None:
        state = frozenset((region, *sums) for region, sums in self._sums.items() if sums[0])
        if state != self._state:
            self.number += 1
            self._state = state
            self._numbers.setdefault(state, []).append(self.number)


class OrdersReader(StateReader):
    """Holds the view `spent` to the states that the orders have had, in their order.

    is_any: between changes the view may also show states that the orders never had: those of a
    server that tells of each order by itself.
    """

    queries = ("SELECT region, n::int, spent::int FROM spent",)

    def __init__(self, sink: Database, orders: Orders, *, is_any: bool = False) -> None:
        super().__init__(sink)
        self._orders = orders
        self._is_any = is_any
        self._shown: Sequence[int] = ()

    def number_of(self, answers: Sequence[Rows]) -> int | None:
        """See StateReader."""
        state = frozenset(answers[0])
        self._shown = self._orders.numbers_of(state)
        # Changes that undo each other lead to a state of before.
        number = next((one for one in self._shown if one >= self._last), None)
        if number is None and not self._is_any:
            what = f"spent is {sorted(state)}, as after {list(self._shown)}, after {self._last}"
            raise WrongStateError(what)
        return number

    def shows(self, number: int) -> bool:
        """See StateReader."""
        return self.check() is not None and number in self._shown

    def settle(self, within_s: float, log: Callable[[], str]) -> None:
        """Look until the view shows all that was written, while nothing more is."""
        deadline = time.monotonic() + within_s
        with self._orders.lock:
            while not self.shows(self._orders.number):
                assert time.monotonic() < deadline, f"{self._shown}, {self._orders.number}\n{log()}"
                time.sleep(BETWEEN_LOOKS_S)


def orders_origin(
    type: str,
    options: Callable[[int | None], Mapping[str, Any]],
    orders: Orders,
    *,
    is_any: bool = False,
    **more: Any,
) -> Origin:
    """An origin whose views are SPENT over a relation `orders`."""
    reader = lambda sink: OrdersReader(sink, orders, is_any=is_any)  # noqa: E731
    return Origin(type, options, orders, reader, **more)
