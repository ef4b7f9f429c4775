"""Oracle: the table of docs/ESTIMATE.md, and what must never turn the choice around."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.backfill.engine_choice import (
    LOCAL,
    SPARK,
    Machine,
    SparkTarget,
    Work,
    choose,
    configured_cores,
    local_bytes,
    usable_cores,
    work_of,
)

GB = 1e9
ROOMY = Machine(cores=8, memory_bytes=1e15, disk_bytes=1e15)
HERE = SparkTarget("local[2]", 2)
CLUSTER = SparkTarget("spark://host:7077", 16)


def work(rows: float) -> Work:
    """A join with an aggregate: each row is stepped three times, and stored once."""
    return Work(rows, 3 * rows, 60 * rows)


@pytest.mark.parametrize(
    ("rows", "machine_cores", "spark", "engine"),
    [
        # Two cores: one is the service's and the source's.
        (1e5, 2, HERE, LOCAL),
        (5e6, 2, HERE, LOCAL),
        (1e9, 2, HERE, LOCAL),
        (5e6, 2, replace(HERE, is_running=True), LOCAL),
        # Eight cores: from some ten million rows on, from two million if the session runs.
        (1e6, 8, SparkTarget("local[8]", 8), LOCAL),
        (5e6, 8, SparkTarget("local[8]", 8), LOCAL),
        (5e7, 8, SparkTarget("local[8]", 8), SPARK),
        (1e6, 8, SparkTarget("local[8]", 8, is_running=True), LOCAL),
        (1e7, 8, SparkTarget("local[8]", 8, is_running=True), SPARK),
        # A cluster: where it ends sooner.
        (1e3, 2, CLUSTER, LOCAL),
        (1e6, 2, CLUSTER, LOCAL),
        (1e7, 2, CLUSTER, LOCAL),
        (3e7, 2, CLUSTER, SPARK),
        (1e9, 2, CLUSTER, SPARK),
        (1e3, 2, replace(CLUSTER, is_running=True), LOCAL),
        (1e6, 2, replace(CLUSTER, is_running=True), LOCAL),
        (5e6, 2, replace(CLUSTER, is_running=True), SPARK),
        # One core is never faster than this machine.
        (1e9, 2, replace(CLUSTER, cores=1, is_running=True), LOCAL),
        # A cluster that does not say how large it is counts as one of two cores.
        (1e7, 2, SparkTarget("sc://host:15002"), LOCAL),
        (1e9, 2, SparkTarget("sc://host:15002"), SPARK),
        # Without Java.
        (1e9, 8, replace(CLUSTER, missing="no Java"), LOCAL),
    ],
)
def test_the_table(rows: float, machine_cores: int, spark: SparkTarget, engine: str) -> None:
    found = choose(work(rows), replace(ROOMY, cores=machine_cores), spark)
    assert found.engine == engine, found.reason
    assert found.expected_s == found.seconds[engine]
    assert (SPARK in found.seconds) == (not spark.missing)
    if not spark.missing:
        for name, seconds in found.seconds.items():
            assert f"{name} about {seconds:,.1f} s" in found.reason


def test_what_does_not_fit_into_memory_goes_to_spark() -> None:
    large = work(3e8)
    # One core for Spark's tasks: by the time alone it would be built locally.
    roomy = replace(ROOMY, cores=2)
    small = replace(roomy, memory_bytes=8 * GB)
    assert choose(large, roomy, HERE).engine == LOCAL
    found = choose(large, small, HERE)
    assert found.engine == SPARK
    assert f"{local_bytes(large) / GB:,.1f} GB of memory, 8.0 GB are free" in found.reason
    # Without Spark there is no choice, and the reason tells what is to come.
    alone = choose(large, small, replace(HERE, missing="no Java"))
    assert alone.engine == LOCAL and "no Java" in alone.reason and "8.0 GB are free" in alone.reason


def test_the_reason_names_a_full_disk() -> None:
    short = replace(ROOMY, disk_bytes=2 * GB)
    assert "2.0 GB are free" in choose(work(5e7), short, HERE).reason
    assert "are free" not in choose(work(1e6), short, HERE).reason
    # Parts that are in an object storage need no disk here.
    between = replace(ROOMY, disk_bytes=4 * GB)
    assert "are free" in choose(work(5e7), between, CLUSTER).reason
    assert "are free" not in choose(work(5e7), between, replace(CLUSTER, has_exchange=True)).reason


def test_earlier_builds_count() -> None:
    """Where Spark was slow ten times, it is not chosen."""
    running = replace(CLUSTER, is_running=True)
    assert choose(work(1e7), ROOMY, running).engine == SPARK
    assert choose(work(1e7), ROOMY, running, {LOCAL: 1.0, SPARK: 0.1}).engine == LOCAL


ROWS = st.floats(0, 1e10)
MACHINES = st.builds(
    Machine, st.integers(1, 128), st.floats(1e8, 1e13), st.floats(1e8, 1e14), st.floats(0.2, 5)
)
TARGETS = st.builds(
    SparkTarget,
    st.sampled_from(["local[2]", "local[8]", "spark://host:7077", "yarn"]),
    st.integers(0, 512),
    st.booleans(),
    st.just(""),
    st.booleans(),
)
WORKS = st.builds(Work, ROWS, ROWS, st.floats(0, 1e13))


@given(WORKS, st.floats(1, 1000), MACHINES, TARGETS)
def test_more_work_takes_longer_and_never_leaves_spark(
    small: Work, factor: float, machine: Machine, spark: SparkTarget
) -> None:
    large = Work(*(factor * part for part in small))
    before, after = choose(small, machine, spark), choose(large, machine, spark)
    for engine in (LOCAL, SPARK):
        # A snapshot that is cut into more parts may be read by more tasks.
        assert after.seconds[engine] >= before.seconds[engine] * 0.999 or engine == SPARK
    if small.parts >= usable_cores(machine, spark):
        assert after.seconds[SPARK] >= before.seconds[SPARK] * 0.999
    if before.engine == SPARK:
        assert after.engine == SPARK, (before, after)


@given(WORKS, MACHINES, TARGETS, st.floats(0.1, 10), st.floats(0.1, 10))
def test_spark_is_never_chosen_where_it_is_slower(
    found: Work, machine: Machine, spark: SparkTarget, local_speed: float, spark_speed: float
) -> None:
    choice = choose(found, machine, spark, {LOCAL: local_speed, SPARK: spark_speed})
    if choice.engine == SPARK and local_bytes(found) <= machine.memory_bytes:
        assert choice.seconds[SPARK] < choice.seconds[LOCAL]


@given(WORKS, MACHINES, TARGETS, st.integers(1, 100))
def test_more_of_spark_never_speaks_against_it(
    found: Work, machine: Machine, spark: SparkTarget, more: int
) -> None:
    if choose(found, machine, spark).engine == SPARK:
        assert choose(found, machine, replace(spark, is_running=True)).engine == SPARK
        if spark.cores:
            assert choose(found, machine, replace(spark, cores=spark.cores + more)).engine == SPARK
        less = replace(machine, memory_bytes=machine.memory_bytes / 2)
        assert choose(found, less, spark).engine == SPARK


@pytest.mark.parametrize(
    ("master", "settings", "cores"),
    [
        ("local", {}, 1),
        ("local[3]", {}, 3),
        ("local[3,4]", {}, 3),
        ("local[*]", {}, 6),
        ("spark://host:7077", {}, 0),
        ("spark://host:7077", {"spark.cores.max": "8"}, 8),
        ("yarn", {"spark.executor.instances": "4"}, 4),
        ("yarn", {"spark.executor.instances": "4", "spark.executor.cores": "3"}, 12),
        ("yarn", {"spark.executor.instances": "some"}, 0),
        ("sc://host:15002", {}, 0),
    ],
)
def test_the_cores_that_settings_promise(master: str, settings: dict, cores: int) -> None:
    assert configured_cores(master, settings, 6) == cores


def test_a_build_takes_the_estimate_of_the_catalog_and_newer_sizes() -> None:
    assert work_of([], None) == Work(0, 0)
    facts = {"source_rows": 10, "stepped_rows": 50, "state_bytes": 700}
    assert work_of([], facts) == Work(10, 50, 700)
    # Written by a version that did not know them.
    assert work_of([], {"source_rows": 10}) == Work(10, 20)
