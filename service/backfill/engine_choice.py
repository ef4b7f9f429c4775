"""Which engine builds a view: the one that is estimated to end sooner.

A model of the seconds, memory and disk that a backfill would take with either engine; the only
owner of its constants. Spark is chosen only where it ends sooner, or where this machine has not
enough memory. Invariant: a larger backfill never returns to the local engine, on the same
machine with the same Spark. Pure: whoever calls it measures the machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dataflow.schema import Relation

AUTO, LOCAL, SPARK = "auto", "local", "spark"
LOCAL_PARTS = 8
ROWS_A_PART = 250_000

# Seconds of one core of the machine of bench/RESULTS.md: bench/estimate.json.
LOCAL_START_S = 1.43
READ_US, STEP_US = 0.30, 0.34
# Spark's seconds for one of the local engine's rows, on one core (bench/backfill.json: 3.5 s of CPU
# against 2.3 for 1.2 million rows, 12.7 against 11.6 for 6 million); and of the start of a session
# with its first job, which took 18.2 s beside a service and 9.8 alone.
SPARK_WORK = 1.4
SPARK_SESSION_S = 13.0
# A job without rows. Not less than the local start: else a small backfill could go to a cluster
# and a larger one stay here.
SPARK_JOB_S = 3.0
# Memory of the local engine's process: for each byte of state on disk, and for each row that it
# reads. Assumed, on the safe side: rows exist as chunks, joined, and in the state.
BASE_BYTES = 250e6
STATE_FACTOR = 4.0
ROW_BYTES = 100
# A cluster that does not tell its cores beforehand: as few as one has at least, since a wrong
# guess must not make a build slower.
ASSUMED_CORES = 2
# Rows stepped for each row read, if nothing else is known.
STEPS = 2.0


class Work(NamedTuple):
    """What a backfill reads, passes between operators (rows), and leaves on disk (bytes)."""

    read: float
    stepped: float
    state_bytes: float = 0.0

    def local_s(self) -> float:
        """Return the seconds of the local engine on the machine of the constants."""
        return LOCAL_START_S + self.rows_s()

    def rows_s(self) -> float:
        """Return the seconds of one core for the rows alone, by the local engine."""
        return (self.read * READ_US + self.stepped * STEP_US) / 1e6

    @property
    def parts(self) -> int:
        """Return into how many parts the snapshot is cut, each of which one task reads."""
        return parts_of(self.read)


@dataclass(frozen=True)
class Machine:
    """What the service's machine has for a backfill. speed: relative to that of the constants."""

    cores: int
    memory_bytes: float
    disk_bytes: float
    speed: float = 1.0


@dataclass(frozen=True)
class SparkTarget:
    """Where Spark's tasks would run.

    cores: of the local master or the cluster, 0 if unknown. is_running: its session has started.
    missing: why it cannot be used here, "" if it can. has_exchange: parts and files are in an
    object storage until the state takes them. keeps_state: Spark maintains the view, so its state
    never comes to this machine.
    """

    master: str
    cores: int = 0
    is_running: bool = False
    missing: str = ""
    has_exchange: bool = False
    keeps_state: bool = False

    @property
    def is_cluster(self) -> bool:
        """Return whether the tasks run on other machines."""
        return not self.master.startswith("local")


@dataclass(frozen=True)
class EngineChoice:
    """The engine of a backfill. seconds: estimated for each engine that could be used.

    lacking: what the machine has too little of.
    """

    engine: str
    reason: str = ""
    seconds: Mapping[str, float] = field(default_factory=dict)
    lacking: str = ""

    @property
    def expected_s(self) -> float | None:
        """Return the estimated seconds of the chosen engine; None if unknown."""
        return self.seconds.get(self.engine)


def choose(
    work: Work, machine: Machine, spark: SparkTarget, speeds: Mapping[str, float] | None = None
) -> EngineChoice:
    """Return the engine for `backfill: auto`, with figures of both.

    speeds: by engine, relative to the machine of the constants, instead of the machine's.
    """
    speeds = speeds or {}
    cores = usable_cores(machine, spark)
    seconds = {
        LOCAL: work.local_s() / speeds.get(LOCAL, machine.speed),
        SPARK: spark_s(work, cores, is_running=spark.is_running) / speeds.get(SPARK, machine.speed),
    }
    lacking = _lacking(work, machine, spark)
    if spark.missing:
        del seconds[SPARK]
        return EngineChoice(
            LOCAL, _joined(f"Spark cannot be used: {spark.missing}", lacking), seconds, lacking
        )
    figures = _figures(seconds, cores, spark)
    if local_bytes(work) > machine.memory_bytes:
        return EngineChoice(SPARK, _joined(figures, lacking), seconds, lacking)
    engine = SPARK if seconds[SPARK] < seconds[LOCAL] else LOCAL
    return EngineChoice(engine, _joined(figures, lacking), seconds, lacking)


def spark_s(work: Work, cores: int, *, is_running: bool) -> float:
    """Return the seconds of Spark on so many cores as fast as that of the constants."""
    start_s = SPARK_JOB_S + (0.0 if is_running else SPARK_SESSION_S)
    reading = min(cores, work.parts)
    rows_us = work.read * READ_US / reading + work.stepped * STEP_US / cores
    return start_s + SPARK_WORK * rows_us / 1e6


def usable_cores(machine: Machine, spark: SparkTarget) -> int:
    """Return how many tasks run at once.

    Those of a local master share the machine with the service, the JVM and often the source: one
    core is theirs.
    """
    if spark.is_cluster:
        return spark.cores or ASSUMED_CORES
    return max(1, min(spark.cores or 1, machine.cores - 1))


def local_bytes(work: Work) -> float:
    """Return the memory of the local engine's process at its peak."""
    return BASE_BYTES + STATE_FACTOR * work.state_bytes + ROW_BYTES * work.read


def disk_bytes(work: Work, *, has_exchange: bool = False) -> float:
    """Return what a backfill writes to the state's disk: the parts that it has read, and the
    state.
    """
    return work.state_bytes + (0.0 if has_exchange else ROW_BYTES / 2 * work.read)


def parts_of(rows: float) -> int:
    """Return into how many parts a snapshot of so many rows is cut."""
    return max(LOCAL_PARTS, -(-int(rows) // ROWS_A_PART))


def work_of(relations: Iterable[Relation], estimate: Mapping[str, Any] | None) -> Work:
    """Return the work of a view's build. estimate: that of its creation, as the catalog has it."""
    found = estimate or {}
    read = float(max(found.get("source_rows", 0), sum(max(0, r.row_estimate) for r in relations)))
    stepped = float(max(found.get("stepped_rows") or 0, STEPS * read))
    return Work(read, stepped, float(found.get("state_bytes", 0)))


def configured_cores(master: str, settings: Mapping[str, str], here: int) -> int:
    """Return the cores that a master and Spark's settings promise, 0 if they do not say.

    here: the cores of this machine, for local[*].

    >>> configured_cores("local[3]", {}, 2), configured_cores("local[*]", {}, 2)
    (3, 2)
    >>> configured_cores("yarn", {"spark.executor.instances": "4", "spark.executor.cores": "2"}, 2)
    8
    """
    if master.startswith("local"):
        promised = master.removeprefix("local").strip("[]").split(",")[0]
        return here if promised == "*" else _number(promised) or 1
    each = _number(settings.get("spark.executor.cores", "")) or 1
    executors = _number(settings.get("spark.executor.instances", ""))
    return _number(settings.get("spark.cores.max", "")) or each * executors


def _number(text: str) -> int:
    return int(text) if text.isdigit() else 0


def _lacking(work: Work, machine: Machine, spark: SparkTarget) -> str:
    """Return what the machine has too little of; "" if nothing is short."""
    found = []
    memory = local_bytes(work)
    if memory > machine.memory_bytes:
        found.append(
            f"the local engine needs about {_bytes(memory)} of memory, "
            f"{_bytes(machine.memory_bytes)} are free"
        )
    is_elsewhere = spark.has_exchange and not spark.missing
    disk = disk_bytes(work, has_exchange=is_elsewhere)
    if is_elsewhere and spark.keeps_state:
        disk -= work.state_bytes
    if disk > machine.disk_bytes:
        found.append(
            f"the build writes about {_bytes(disk)}, {_bytes(machine.disk_bytes)} are free"
        )
    return "; ".join(found)


def _figures(seconds: Mapping[str, float], cores: int, spark: SparkTarget) -> str:
    where = f"{cores} core{'s' if cores > 1 else ''} of {spark.master.split('//')[0].rstrip(':')}"
    if spark.is_cluster and not spark.cores:
        where += ", assumed"
    start = "its session runs" if spark.is_running else "with the start of its session"
    return (
        f"local about {seconds[LOCAL]:,.1f} s, spark about {seconds[SPARK]:,.1f} s "
        f"({where}, {start})"
    )


def _joined(*parts: str) -> str:
    return "; ".join(filter(None, parts))


def _bytes(size: float) -> str:
    return f"{size / 1e9:,.1f} GB"
