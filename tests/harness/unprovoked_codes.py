"""The codes of docs/ERRORS.md that no test brings about, by the reason; and those that tests do.

A code is provoked if a test names it where it does not raise it itself. So each code is in exactly
one of both, and the list gets shorter as tests are added.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.harness.error_codes import ERRORS

UNPROVOKED: dict[str, tuple[str, ...]] = {
    "a bug in Tidemark: nothing outside brings it about": (
        *("backfill.page", "backfill.phase", "batch.row", "internal", "plan.aggregate"),
        *("plan.decorrelate", "plan.distinct", "plan.key", "plan.no_kernel", "plan.not_in"),
        *("plan.numeric_form", "plan.operator", "plan.outer", "plan.values", "plan.window"),
        *("sink.internal", "source.confirm", "source.notes", "source.order", "source.protocol"),
        *("source.range", "source.value", "sql.plan", "state.buckets"),
        *("state.outbox_gap", "state.table_missing", "view.illegal_transition"),
    ),
    "the machine, its clock or its disk would have to be like that": (
        *("backfill.died", "clock.skew", "files.too_few", "kafka.no_broker", "kernels.failed"),
        *(
            "process.not_started",
            "source.file_denied",
            "source.no_space",
            "state.format",
            "state.no_space",
        ),
        *("state.not_kept", "state.out_of_room"),
    ),
    "a server would have to be of another kind, or broken": (
        *("batch.no_iceberg", "kafka.start_failed", "kafka.topic_failed", "mongodb.login"),
        *("mongodb.event_too_large", "mongodb.unknown_event", "mysql.snapshot_mismatch"),
        *("mysql.unknown_column", "postgres.start_failed"),
        *("source.bucket_denied", "source.version", "spark.failed", "spark.local_state"),
        *("spark.lost", "spark.start_failed", "sql.failed"),
    ),
    "PgBouncer is not among the servers of the tests; its words are in test_session_starts.py": (
        *("sink.pooler",),
    ),
    "a race of some milliseconds, or load for minutes": (
        *("batch.other_run", "mysql.snapshot_behind", "rows.timeout", "stream.closed"),
        *("verify.busy", "verify.changed", "verify.sink_behind", "verify.stopped"),
        *("verify.too_much", "view.cancelled", "view.waiting"),
    ),
    "the service declares the clock again by itself": ("sql.no_clock",),
    "a name for many codes, each of which is PostgreSQL's": ("sql.<condition>",),
    "not brought about yet": (
        *("backfill.failed", "batch.table", "engine.has_views", "engine.not_started"),
        *("mysql.snapshot_altered", "mysql.snapshot_lock", "mysql.xa_transaction"),
        *("record.removal", "record.unavailable"),
        *("request.timeout", "rows.view_changed", "sink.empty", "sink.owner"),
        *("sink.role_missing", "sink.row_changed", "sink.schema", "sink.tls"),
        *("sink.topic_not_ours", "source.bad_type", "source.query_role", "source.retry_too_far"),
        *("spark.storage_missing", "spark.unsupported", "stream.no_retry"),
        *("subscription.too_many", "verify.query_fails", "verify.roles", "verify.time_zones"),
        *("verify.too_costly", "view.move_failed", "view.rows_in_parts"),
    ),
}
# A code in a text or in a regular expression.
_NAMED = re.compile(r"\b[a-z]+\\?\.[a-z_]+\b")
_NO_TESTS = {"error_codes.py", "unprovoked_codes.py", "test_documentation.py"}


def provoked(tests: Path) -> set[str]:
    """Return the codes that tests name, except those with which they make an error themselves."""
    found: set[str] = set()
    for path in tests.rglob("*.py"):
        if path.name not in _NO_TESTS:
            found |= _named(ast.parse(path.read_text()))
    for path in tests.rglob("*.sql"):
        found |= set(_NAMED.findall(path.read_text()))
    return found


def _named(tree: ast.Module) -> set[str]:
    own: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func).split(".")[-1]
            given = [k.value for k in node.keywords if k.arg == "code"]
            given += node.args[:1] if name in ERRORS else []
            own |= {id(part) for one in given for part in ast.walk(one)}
    return {
        code.replace("\\", "")
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in own
        for code in _NAMED.findall(node.value)
    }
