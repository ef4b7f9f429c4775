"""Fixtures of the whole suite. PostgreSQL and Kafka are always real ones.

`postgres`: a shared server (TIDEMARK_TEST_PG=15 or 18 chooses the version, else the first there
is). `database`: an empty database of its own for the test. `every_postgres`, `every_database`:
the same, once for each version on this machine. `own_postgres`: a server that the test may
stop, crash and restart. `broker`: a Kafka broker that all workers share, topics of which each test
makes for itself; `own_broker`: one that the test may stop, kill and restart. Both are skipped,
with the reason, where the broker's jars are not there. `mariadb`: an empty database of the
worker's MariaDB; `own_mariadb`: a server that the test may stop. Both are skipped where its
programs are not there.
"""

from __future__ import annotations

import importlib
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Generator, Iterator

import pytest
from hypothesis import settings

from connectors import netguard
from connectors.kafka.embedded import EmbeddedKafka, missing
from connectors.postgres.embedded.server import EmbeddedPostgres
from connectors.postgres.session.foreign import OWN
from tests.harness import budgets, second_try, tiers, verdicts
from tests.harness import mariadb as mariadb_programs
from tests.harness.mariadb import MariaDb, MariaDbServer
from tests.harness.postgres import SERVER_SETTINGS, Database, new_database, versions_to_test
from tests.harness.shared_broker import shared_broker

# A deadline would measure the machine; print_blob prints what repeats a failure.
settings.register_profile("tidemark", deadline=None, print_blob=True)
settings.load_profile("tidemark")

# A test's Spark lives for seconds: what its JVM would compile once more never pays. Not
# JAVA_TOOL_OPTIONS, which each tool of Java tells of on its output.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

# Poll often what production polls every few minutes, so that no test has to wait.
BROKER_SETTINGS = {
    "log.cleaner.backoff.ms": 200,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 500,
}

# The order of folders, behind the longest files: those of long tests first.
FOLDERS = ("recovery", "end_to_end", "security", "equality", "api", "psql", "console")
FOLDERS += ("connectors", "sql")


_meter = budgets.Meter()
# Where xdist's workers store the CPU time of their tests.
_SPENT = "tidemark_spent"
_all_spent: Counter[str] = Counter()
_OVER = pytest.StashKey[list[str]]()
_SECOND_TRY = pytest.StashKey[second_try.SecondTry]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--fast`: the tests of `make test`. `--second-try`: what failed runs once more."""
    tiers.add_option(parser)
    second_try.add_option(parser)


def pytest_configure(config: pytest.Config) -> None:
    """Before a test's module is imported, which may read how often it repeats."""
    tiers.configure(config)
    if config.getoption(second_try.OPTION) and not hasattr(config, "workerinput"):
        config.stash[_SECOND_TRY] = second_try.SecondTry(config)


def pytest_collection(session: pytest.Session) -> None:
    """Each worker imports the test modules from another one on: what one has compiled, the others
    only load."""
    worker = getattr(session.config, "workerinput", None)
    if worker is None or session.config.args != session.config.getini("testpaths"):
        return
    folder = tiers.TESTS
    paths = sorted(folder.glob("**/test_*.py"))
    begin = len(paths) * int(worker["workerid"].removeprefix("gw")) // worker["workercount"]
    for path in paths[begin:] + paths[:begin]:
        importlib.import_module(".".join(path.relative_to(folder.parent).with_suffix("").parts))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what the tier does not have; order the rest by files and folders."""
    tiers.select(config, items, versions_to_test())
    items.sort(key=_turn)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, object, object]:
    """Count what each folder of tests takes; not the last test, after which shared servers end."""
    if nextitem is None:
        return (yield)
    with _meter.measure(tiers.folder_of(item)):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note with the report of a failure whether that is final."""
    report = yield
    if report.failed and call.excinfo is not None:
        report.final = verdicts.kind_of(call.excinfo.value, tiers.folder_of(item))
    return report


# Last: xdist has ended its workers then.
@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker passes on its measurements; the controller gives failed tests their second try, and
    compares the measurements with the budgets."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output[_SPENT] = dict(_meter.spent)
        return
    if (again := session.config.stash.get(_SECOND_TRY, None)) is not None:
        again.judge(session)
    _all_spent.update(_meter.spent)
    if tiers.is_whole_run(session.config) and tiers.is_fast():
        session.config.stash[_OVER] = budgets.exceeded(
            _all_spent, budgets.read_budgets(), budgets.measure_speed()
        )
        if session.config.stash[_OVER] and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: object) -> None:
    """A worker has ended."""
    _all_spent.update(getattr(node, "workeroutput", {}).get(_SPENT, {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what was flaky, what each folder took, and which folders exceeded their budgets."""
    if (again := terminalreporter.config.stash.get(_SECOND_TRY, None)) is not None:
        again.summarize(terminalreporter)
    if not _all_spent:
        return
    terminalreporter.section("CPU seconds by folder")
    shown = (f"{name} {spent:.0f}" for name, spent in _all_spent.most_common())
    terminalreporter.line(", ".join(shown))
    for line in terminalreporter.config.stash.get(_OVER, []):
        terminalreporter.line(f"over budget: {line}", red=True)


def _turn(item: pytest.Item) -> tuple[int, int]:
    folder = tiers.folder_of(item)
    return tiers.turn(item), FOLDERS.index(folder) if folder in FOLDERS else len(FOLDERS)


@pytest.fixture(scope="session", autouse=True)
def folders_of_tests(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Connectors used in this process may read what tests write; a service has its own setting."""
    roots = (str(tmp_path_factory.getbasetemp()), tempfile.gettempdir())
    netguard.install(netguard.Guard(folders=roots, writable=roots))


@pytest.fixture(scope="module", autouse=True)
def _own_databases() -> Iterator[None]:
    """What a service in this process called its own is a foreign database in the next file."""
    yield
    OWN.install("", "", are_allowed=True)


@pytest.fixture(scope="session")
def servers() -> Iterator[Callable[[int], EmbeddedPostgres]]:
    """Servers by version, each started at its first use and kept until the end of the run."""
    running: dict[int, EmbeddedPostgres] = {}
    # A database is gone before it would have to be vacuumed.
    settings = {**SERVER_SETTINGS, "autovacuum": "off"}

    def start(version: int) -> EmbeddedPostgres:
        if version not in running:
            running[version] = EmbeddedPostgres(version, settings).start()
        return running[version]

    yield start
    for server in running.values():
        server.close()


@pytest.fixture(scope="session")
def postgres(servers: Callable[[int], EmbeddedPostgres]) -> EmbeddedPostgres:
    """The shared server; leave it running."""
    return servers(versions_to_test()[0])


@pytest.fixture
def database(postgres: EmbeddedPostgres) -> Iterator[Database]:
    """An empty database on the shared server."""
    with new_database(postgres) as made:
        yield made


@pytest.fixture(scope="session", params=versions_to_test(), ids=lambda v: f"pg{v}")
def every_postgres(
    request: pytest.FixtureRequest, servers: Callable[[int], EmbeddedPostgres]
) -> EmbeddedPostgres:
    """The shared server of each version in turn."""
    return servers(request.param)


@pytest.fixture
def every_database(every_postgres: EmbeddedPostgres) -> Iterator[Database]:
    """An empty database on each version in turn."""
    with new_database(every_postgres) as made:
        yield made


@pytest.fixture
def own_postgres() -> Iterator[EmbeddedPostgres]:
    """A server for this test alone."""
    with EmbeddedPostgres(versions_to_test()[0], SERVER_SETTINGS) as server:
        yield server


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    """The shared broker, with its secured listener; leave it running."""
    _skip_without_jars()
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" not in os.environ:
        with EmbeddedKafka(BROKER_SETTINGS, is_secured=True) as server:
            yield server
        return
    # The base of a worker is in that of the run.
    with shared_broker(base.parent / "broker", BROKER_SETTINGS) as server:
        yield server


@pytest.fixture
def own_broker() -> Iterator[EmbeddedKafka]:
    """A broker for this test alone."""
    _skip_without_jars()
    with EmbeddedKafka(BROKER_SETTINGS) as server:
        yield server


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[MariaDbServer]:
    """The worker's server; leave it and its variables as they are."""
    _skip_without_mariadb()
    with MariaDbServer() as server:
        yield server


@pytest.fixture
def mariadb(mariadb_server: MariaDbServer) -> Iterator[MariaDb]:
    """An empty database on the worker's server."""
    with mariadb_server.database() as made:
        yield made


@pytest.fixture
def own_mariadb() -> Iterator[MariaDbServer]:
    """A server for this test alone."""
    _skip_without_mariadb()
    with MariaDbServer() as server:
        yield server


def _skip_without_mariadb() -> None:
    reason = mariadb_programs.missing()
    if reason is not None:
        pytest.skip(reason)


def _skip_without_jars() -> None:
    reason = missing()
    if reason is not None:
        pytest.skip(reason)
