"""Which tests a run has, and how often they repeat: `make test` has the fast tier, `make test-all`
everything.

A test is outside the fast tier if it is marked `whole`, if it is a case that `CASES` does not list,
or if it asks a second version of PostgreSQL without the marker `versions`. Numbers of kills, seeds
and files come from `count`. Invariant: a test whose node is named on the command line always runs.
"""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import pytest

Case = TypeVar("Case")

VARIABLE = "TIDEMARK_TEST_FAST"
TESTS = Path(__file__).parent.parent

# Markers that say what a test needs, by the first folder of its path; `core` needs no server.
KINDS = {"unit": "core", "property": "core", "recovery": "fault", "simulation": "fault"}

# Of tests with many cases: those that the fast tier has, each as its id or a pattern of ids.
CASES = {
    "api/test_changes.py::test_a_view_that_ends_says_so": ("drop-*",),
    "api/test_client.py::test_every_call_says_what_rest_says": ("sync-*", "async-views*"),
    "api/test_client.py::test_rows_over_all_pages": ("async",),
    "api/test_client.py::test_sinks_are_made_and_dropped": ("sync",),
    "api/test_client_changes.py::test_a_silent_connection_is_given_up": ("sync",),
    "api/test_client_changes.py::test_rows_that_take_long_are_waited_for": ("async",),
    "api/test_verify_history.py::test_each_kind_of_damage_is_found": ("0", "1", "5", "8", "10"),
    "bench/test_rows.py::test_a_seed_gives_the_same_rows_again": ("orders", "retracted"),
    "bench/test_rows.py::test_each_change_fits_the_rows_before_it": ("w2r", "q*"),
    "bench/test_smoke.py::test_the_engine_is_right": ("w2r default", "q3 default"),
    "connectors/clickhouse/test_clickhouse_sink.py::test_a_takeover_that_fails_is_tried_again": (
        "rows",
    ),
    "connectors/clickhouse/test_clickhouse_sink.py::test_of_two_writers_the_later_continues": (
        "rows",
    ),
    "connectors/clickhouse/test_clickhouse_sink.py::test_removal_and_loss": ("changes",),
    "connectors/clickhouse/test_clickhouse_sink.py::test_tables_of_others_are_refused": ("rows",),
    "connectors/delta/test_delta_sink.py::test_a_bucket": ("changes",),
    "connectors/delta/test_delta_sink.py::test_kills": ("rows",),
    "connectors/files/test_large.py::test_a_long_file_needs_little_memory": (*("parquet-feed",),),
    "connectors/files/test_watch.py::test_random_changes_with_restarts_anywhere": ("0", "5"),
    "connectors/formats/test_hostile_records.py::test_any_samples_propose_columns": (
        *("avro", "json0", "text", "csv", "debezium-json"),
    ),
    "connectors/http/test_webhook_sink.py::test_lost_answers_and_busy_receivers": ("True",),
    "connectors/iceberg/test_iceberg_sink.py::test_every_epoch_is_the_view": ("True",),
    "connectors/kafka/test_client.py::test_a_wrong_password_is_refused": ("source-*",),
    "connectors/kafka/test_client.py::test_tls_and_sasl": ("SCRAM-SHA-256",),
    "connectors/kafka/test_embedded.py::test_the_secured_listener_asks_who_it_is": ("PLAIN",),
    "connectors/kafka/test_ranges.py::test_one_continues_where_the_other_ended": (
        "RangeSubscriptions",
    ),
    "connectors/kafka/test_ranges.py::test_ranges_are_what_a_feed_reads": ("7",),
    "connectors/kafka/test_snapshot.py::test_where_it_starts": ("latest-*", "start2-*", "start6-*"),
    "connectors/kafka/test_topic_owner.py::test_topics_that_were_deleted_are_not_gone_on_with": (
        *("rows gone", "markers anew"),
    ),
    "connectors/kafka/test_topic_sink.py::test_every_epoch_is_the_view": ("table1-*", "table2-*"),
    "connectors/kafka/test_topic_sink.py::test_every_epoch_is_the_view_in_avro": ("table0-*",),
    "connectors/mysql/test_sink.py::test_kills": ("rows-True", "changes-False"),
    "connectors/parquet/test_parquet_sink.py::test_every_epoch_is_the_view": (
        *("folder-True", "server-False"),
    ),
    "connectors/postgres/test_additional_sink.py::test_kills": ("rows-True", "changes-False"),
    "connectors/postgres/test_final_history.py::test_final_rows_of_past_epochs": (
        *("date-keyed", "timestamptz-multiset"),
    ),
    "connectors/postgres/test_history.py::test_the_past_at_random_epochs": ("*-40",),
    "connectors/postgres/test_positions.py::test_backpressure_keeps_the_connection": ("0",),
    "connectors/postgres/test_silence.py::test_a_half_open_session_is_noticed": ("directions0",),
    "connectors/postgres/test_sink.py::test_a_wrong_delta_stops_and_writes_nothing": ("*-0",),
    "connectors/postgres/test_sink.py::test_large_deltas_by_copy": ("*-0.05",),
    "connectors/postgres/test_sink_parts.py::test_an_epoch_in_parts_is_one_transaction": ("*-3",),
    "connectors/postgres/test_sink_tables.py::test_hostile_names_live_and_leave_nothing": (
        "*-_keyed",
    ),
    "connectors/postgres/test_table_facts.py::test_nothing_to_do_with_the_views": (
        *("*-ALTER TABLE t ADD COLUMN x int*", "*-ALTER TABLE t DROP COLUMN spare"),
        *("*-ALTER TABLE t RENAME COLUMN spare*", "*-ALTER TYPE mood ADD*", "*-TRUNCATE t"),
        *("*-CREATE TABLE p3 PARTITION OF p FOR VALUES FROM (20) TO (30)",),
    ),
    "connectors/postgres/test_table_facts.py::test_the_publication_is_altered": (
        *("*(publish = 'insert')", "*-ALTER PUBLICATION watched OWNER TO*"),
    ),
    "connectors/postgres/test_table_facts.py::test_views_cannot_continue": (
        *("*-DROP TABLE t", "*-ALTER PUBLICATION watched DROP TABLE t"),
        *("*-ALTER TABLE t DROP COLUMN a", "*-ALTER TABLE t ALTER COLUMN a TYPE bigint"),
        *("*-ALTER TYPE mood RENAME*", "*-ALTER TABLE t REPLICA IDENTITY NOTHING", "*-TRUNCATE p1"),
        *("*-ALTER TABLE p DETACH*", "*-CREATE TABLE child*"),
    ),
    "connectors/postgres/test_table_names.py::test_a_query_means_what_it_meant": (
        *("*-ALTER TABLE t RENAME TO moved", "*-ALTER TABLE wide RENAME *"),
    ),
    "connectors/postgres_source/test_ddl.py::test_what_stops_the_relation_by_name": (
        *("ALTER TABLE items DROP COLUMN price-down", "DROP TABLE items-running"),
    ),
    "connectors/postgres_source/test_feed.py::test_every_kind_of_change": (
        *("default", "full without a key"),
    ),
    "connectors/spark/batch/test_run.py::test_what_is_wrong_is_named": ("source.bad_option",),
    "connectors/spark/maintained/test_moves.py::test_a_view_moves_to_buckets_and_back": ("?",),
    "connectors/spark/maintained/test_moves.py::test_every_state_is_in_the_bucket_of_its_key": (
        "?",
    ),
    "connectors/spark/maintained/test_ranges.py::test_a_driver_that_stops_is_continued": (
        "spark.epoch.read",
    ),
    "connectors/spark/maintained/test_ranges.py::test_tasks_read_what_the_driver_reads": ("False",),
    "connectors/spark/test_backfill.py::test_tasks_give_the_same_view_and_state": (
        *("grouped join-2", "global-2", "full join-2", "distinct union-2", "scalar subquery-2"),
        *("not in-2", "recursion-2", "first of each-2", "running window-2", "failing rows-2"),
    ),
    "connectors/spark/test_backfill.py::test_tasks_keep_columns_that_other_views_read": (
        *("grouped join", "full join", "first of each", "plain scan"),
    ),
    "connectors/test_time_zones.py::test_every_change_of_a_zone": ("Australia/Lord_Howe",),
    "console/test_console.py::test_every_screen_is_accessible_and_narrow": ("light",),
    "console/test_first_visit.py::test_everything_is_there_on_a_phone": ("light",),
    "end_to_end/test_lateness.py::test_a_reloaded_table_has_no_late_rows": ("TRUNCATE*",),
    "end_to_end/test_serve.py::test_a_dsn_that_is_wrong": ("port",),
    "equality/test_buckets.py::test_views_in_buckets_equal_their_queries": ("hr", "shop"),
    "equality/test_errors.py::test_failing_rows_are_left_out": ("rocks",),
    "equality/test_expiry.py::test_no_later_threshold_is_less_than_the_bound": (
        "Australia/Lord_Howe",
    ),
    "equality/test_expiry.py::test_rows_change_after_they_have_expired": (
        *("FULL-America/New_York",),
    ),
    "equality/test_forms.py::test_every_query_is_maintained": (
        *("*applications", "*integer_limits"),
    ),
    "equality/test_generated.py::test_generated_queries_equal_postgres": ("0",),
    "equality/test_postgres.py::test_a_seed_names_a_history": ("shop", "bank"),
    "equality/test_postgres.py::test_every_query_runs_and_moves": ("*-shop", "*-odd"),
    "equality/test_queries.py::test_every_view_equals_its_query": (
        *("hr-rocks", "bank-rocks", "odd-memory"),
    ),
    "equality/test_service.py::test_stored_tables_equal_their_queries": ("shop",),
    "equality/test_shared.py::test_views_that_share_equal_their_queries": ("hr-rocks",),
    "equality/test_subquery_errors.py::test_rows_whose_subquery_gives_two_rows_are_left_out": (
        "rocks",
    ),
    "equality/test_time_windows.py::test_windows_equal_postgres": ("bins", "number"),
    "equality/test_time_zones.py::test_views_are_computed_in_their_zone": ("America/New_York",),
    "property/test_join_parts.py::test_parts_add_up": ("rocks-*",),
    "python/test_engine.py::test_a_view_follows_every_refresh": ("bag", "key"),
    "psql/test_query_role.py::test_init_as_a_role_that_may_make_roles": ("pg18",),
    "psql/test_query_role.py::test_where_init_may_not_it_says_what_to_run": ("pg15",),
    "recovery/test_checkpoint_keys.py::test_a_file_of_a_checkpoint_lies_in_its_folder": (
        "../../outside",
    ),
    "recovery/test_checkpoints.py::test_a_kill_leaves_no_half_copy": ("sent",),
    "recovery/test_older_states.py::test_a_step_that_is_killed_is_done_again": (
        "*-state.commit.before=kill",
        "1000-state.upgrade.value=kill@5",
    ),
    "recovery/test_reused_parts.py::test_parts_of_several_snapshots_make_the_newest": ("0-*",),
    "recovery/test_slots.py::test_each_is_reported_by_name_and_can_be_corrected": ("dropped",),
    "recovery/test_sources.py::test_faults": ("mysql",),
    "recovery/test_sources.py::test_kills": ("mongodb stream", "postgres"),
    "regressions/test_regressions.py::test_case_is_right_now": ("*-rocks",),
    "security/hostile/test_attacks.py::test_a_domain_s_condition_has_nobody_s_rights": (
        *("*-the domain", "*-an array of rows", "*-an argument", "*-json"),
    ),
    "security/hostile/test_attacks.py::test_what_an_owner_puts_on_a_views_table": (
        *("*-a row trigger", "*-a policy"),
    ),
    "security/hostile/test_tables.py::test_a_column_of_another_type": (
        *("*-text", "*-a domain of hers"),
    ),
    "security/test_authorization.py::test_every_procedure_as_every_caller": ("own",),
    "security/test_authorization.py::test_every_route_as_every_caller": ("own",),
    "security/test_cli_refusals.py::test_a_refusal_has_a_code_and_a_hint": (
        *("token create bob --direct, ", "serve --memory abc*"),
        *("validate binary*",),
    ),
    "security/test_stuck_connectors.py::test_a_method_of_a_sink_that_never_returns": (
        *("write", "remove"),
    ),
    "security/test_stuck_connectors.py::test_a_method_of_a_source_that_never_returns": (
        *("start_position", "open_snapshot", "read", "open_feed", "poll", "close"),
    ),
    "security/test_floods.py::test_a_byte_now_and_then_buys_no_time": ("GET *", "sent3-*"),
    "simulation/test_mutations.py::test_the_simulation_finds": (
        *("errors lost", "beyond the sink", "passed over and unshown"),
    ),
    "sql/test_aggregates.py::test_random_changes_and_a_restart": ("*-rocks",),
    "sql/test_estimate.py::test_every_part_of_a_plan_is_a_query_that_postgresql_takes": ("tpch",),
    "sql/test_sharing.py::test_nested_parts_are_visited_once": ("*-subquery", "*-union"),
    "unit/operators/test_ordered_rows.py::test_equal_to_a_sorted_list": ("0-rocks", "3-memory"),
    "unit/operators/test_recursive.py::test_memory": ("*-0", "*-1"),
    "unit/operators/test_table_function.py::test_functions_follow_their_rows": ("rocks-*",),
    "unit/operators/test_windows.py::test_long_partitions_as_when_all_is_computed_again": (
        "mixed",
    ),
    "unit/operators/test_windows.py::test_values_are_those_of_the_definition": (
        *("memory-*-up", "rocks-*-down"),
    ),
    "unit/service/test_forking.py::test_a_signal_is_not_lost_while_a_child_begins": ("0.001",),
    "unit/storage/test_bulk.py::test_what_was_ingested_is_brought_into_memory": ("16777216",),
    "unit/storage/test_merges.py::test_a_crash_after_any_commit_of_a_merge_keeps_every_row": ("0",),
    "unit/storage/test_recovery.py::test_killed_at_a_failpoint_it_is_the_last_commit": (
        *("merge.runs.step", "state.commit.before"),
    ),
    "unit/storage/test_recovery.py::test_killed_state_is_the_last_commit": ("0",),
    "unit/storage/test_state.py::test_arrangement_equals_dictionary": ("memory-*", "tiny-*"),
}

# The files that take longest, longest first: processes are handed one file after another, and none
# shall be left alone with a long one at the end.
LONGEST = (
    "recovery/test_sources.py",
    "property/test_buckets.py",
    "console/test_console.py",
    "end_to_end/test_spark.py",
    "test_tidy.py",
    "recovery/test_checkpoints.py",
    "simulation/test_mutations.py",
    "simulation/test_seeds.py",
    "api/test_rest.py",
    "end_to_end/test_life.py",
    "security/hostile/test_tables.py",
    "end_to_end/test_tour.py",
    "security/test_authorization.py",
    "api/test_client.py",
    "end_to_end/test_demo.py",
    "api/test_verify.py",
    "end_to_end/test_ddl_in_order.py",
    "security/hostile/test_attacks.py",
    "end_to_end/test_views.py",
    "recovery/test_kill.py",
    "recovery/test_kafka_connections.py",
    "connectors/test_expressions_postgres.py",
    "security/test_floods.py",
    "recovery/test_failpoints.py",
    "connectors/postgres/test_table_facts.py",
    "psql/test_init.py",
    "recovery/test_disk.py",
    "recovery/test_connections.py",
    "recovery/test_slots.py",
)


def is_fast() -> bool:
    """Whether this run is the fast tier."""
    return os.environ.get(VARIABLE) == "1"


def count(variable: str, fast: int, every: int) -> int:
    """How often: what the environment says, else the number of the tier."""
    given = os.environ.get(variable)
    return int(given) if given else fast if is_fast() else every


def some(cases: Mapping[str, Case], fast: int) -> dict[str, Case]:
    """All of them; in the fast tier at most so many, from all parts of the list."""
    step = -(-len(cases) // fast) if is_fast() else 1
    return dict(list(cases.items())[::step])


def add_option(parser: pytest.Parser) -> None:
    """`--fast`."""
    parser.addoption("--fast", action="store_true", help="the fast tier alone, as `make test`")


def configure(config: pytest.Config) -> None:
    """Tell the modules of the tests, which read their numbers when they are imported."""
    if config.getoption("--fast"):
        os.environ[VARIABLE] = "1"


def folder_of(item: pytest.Item) -> str:
    """Return the first folder of a test's path; "." for a file beside the folders."""
    parts = item.path.relative_to(TESTS).parts
    return parts[0] if len(parts) > 1 else "."


def is_whole_run(config: pytest.Config) -> bool:
    """Whether all folders are asked for, and nothing picks among their tests."""
    picked = (config.getoption(name, None) for name in ("keyword", "markexpr", "lf", "maxfail"))
    return config.args == config.getini("testpaths") and not any(picked)


def select(config: pytest.Config, items: list[pytest.Item], versions: Sequence[int]) -> None:
    """Mark the tests by kind, and leave out of the fast tier what does not belong to it.

    UsageError where `CASES` or `LONGEST` lists what a run of all folders does not have.
    """
    for item in items:
        item.add_marker(KINDS.get(folder_of(item), "server"))
    if not is_fast() or any("::" in argument for argument in config.args):
        return
    if is_whole_run(config):
        _require_listed(items)
    left_out = [item for item in items if _is_left_out(item, versions)]
    if left_out:
        gone = set(left_out)
        items[:] = [item for item in items if item not in gone]
        config.hook.pytest_deselected(items=left_out)


def _case_of(item: pytest.Item) -> tuple[str, str]:
    """Return (file::test, id of its parameters), as in `CASES`; no id for one without
    parameters."""
    callspec = getattr(item, "callspec", None)
    test = f"{item.path.relative_to(TESTS)}::{getattr(item, 'originalname', item.name)}"
    return test, "" if callspec is None else callspec.id


def _is_listed(test: str, case: str) -> bool:
    """Whether `CASES` has this one, where it has the test."""
    return any(fnmatch.fnmatchcase(case, pattern) for pattern in CASES[test])


def turn(item: pytest.Item) -> int:
    """Where its file stands among the others: first what failed once, then the longest ones."""
    if folder_of(item) == "regressions":
        return -1
    file = str(item.path.relative_to(TESTS))
    return LONGEST.index(file) if file in LONGEST else len(LONGEST)


def _require_listed(items: Sequence[pytest.Item]) -> None:
    found: dict[str, list[str]] = {}
    for test, case in map(_case_of, items):
        found.setdefault(test, []).append(case)
    listed = [(test, pattern) for test, cases in CASES.items() for pattern in cases]
    missing = [(test, one) for test, one in listed if not fnmatch.filter(found.get(test, []), one)]
    missing += [(file, "") for file in LONGEST if not (TESTS / file).is_file()]
    if missing:
        raise pytest.UsageError(
            f"CASES or LONGEST of tests/harness/tiers.py lists what is not there: {missing}"
        )


def _is_left_out(item: pytest.Item, versions: Sequence[int]) -> bool:
    if item.get_closest_marker("whole"):
        return True
    test, case = _case_of(item)
    if test in CASES and not _is_listed(test, case):
        return True
    callspec = getattr(item, "callspec", None)
    version = None if callspec is None else callspec.params.get("every_postgres")
    if version in (None, versions[0]):
        return False
    return item.get_closest_marker("versions") is None
