"""Oracle: the answers that the first attempt had, whatever the function would say later.

The evaluator here counts its calls and never answers twice alike, as a stable function whose
settings change between two attempts."""

from __future__ import annotations

from itertools import count

import numpy as np
import pytest

from connectors.spark.maintained.answers import AnswerRecorder
from connectors.spark.maintained.bucket_state import BucketState
from connectors.spark.maintained.driver import Batch, Driver
from connectors.spark.maintained.layout import Layout, MaintainedView
from connectors.spark.maintained.scheduler import InProcessScheduler
from connectors.spark.maintained.tasks import STATES
from dataflow.delta import Column, Delta
from dataflow.errors import InvariantError
from dataflow.expressions.evaluator import NoEvaluator, RowErrors
from dataflow.expressions.ir import ColumnRef, InPostgres
from dataflow.graph import needed_columns
from dataflow.plan.nodes import Remember, Scan
from dataflow.schema import Field, Relation, RelationName
from dataflow.sql.lower.lowering import lower
from dataflow.types import INT8
from storage.failpoints import set_failpoints
from tests.harness.buckets import MemoryStorage, TableSink, memory_folder

_NUMBERS = count(1000)
FIELDS = (Field("v", INT8),)
TABLE = Relation(RelationName("s", "public", "t"), 1, FIELDS, is_full=True)


class Fickle(NoEvaluator):
    """Another number for each row of each call; fails for -1."""

    def evaluate(self, sql, types, columns, n, result):
        values = columns[0].to_list()
        errors = RowErrors({i: ("22012", "division") for i, v in enumerate(values) if v == -1})
        found = [None if v == -1 else next(_NUMBERS) for v in values]
        return Column.of("i", found), errors


def remembering() -> MaintainedView:
    scan = Scan(TABLE, (0,), FIELDS)
    stable = InPostgres("later($1)", (ColumnRef(0, INT8),), INT8, is_stable=True)
    plan = Remember(scan, (stable,), (*FIELDS, Field("later", INT8)))
    nodes = lower(plan)
    return MaintainedView("answers", nodes, "v1", (TABLE,), needed_columns(nodes), Fickle)


def test_recorded_answers_are_found_by_their_arguments() -> None:
    recorder = AnswerRecorder(Fickle())
    asked = Column.of("i", [5, -1, None, 7])
    column, errors = recorder.evaluate("f($1)", [INT8], [asked], 4, INT8)
    more, _ = recorder.evaluate("f($1)", [INT8], [Column.of("i", [9])], 1, INT8)
    answers = recorder.recorded
    assert answers is not None
    recorder.replay(answers)
    order = np.array([3, 1, 0, 0, 2])
    again, failed = recorder.evaluate("f($1)", [INT8], [asked.take(order)], 5, INT8)
    first = column.to_list()
    assert again.to_list() == [first[3], None, first[0], first[0], first[2]]
    assert failed.by_row == {1: errors.by_row[1]}
    assert recorder.evaluate("f($1)", [INT8], [Column.of("i", [9])], 1, INT8)[0].to_list() == (
        more.to_list()
    )
    for sql, value in (("f($1)", 6), ("g($1)", 5)):
        with pytest.raises(InvariantError, match=r"spark\.answers"):
            recorder.evaluate(sql, [INT8], [Column.of("i", [value])], 1, INT8)


def test_a_row_has_one_answer_whichever_attempt_counts() -> None:
    view = remembering()
    storage, sink = MemoryStorage("answers"), TableSink()
    rows = Delta.of("i", [(n,) for n in (*range(8), -1)])
    with memory_folder() as folder:
        scheduler = InProcessScheduler(str(folder), 2)

        def driver() -> Driver:
            found = Driver(view, storage, scheduler, sink, buckets=4)
            found.start()
            return found

        # Every task has asked, and none has committed: the next attempts use the first answers.
        set_failpoints("spark.epoch.computed=error@1")
        with pytest.raises(OSError, match="failpoint"):
            driver().step(Batch({}, rows={TABLE.name: rows}))
        set_failpoints("")
        STATES.close(str(folder))
        other = InProcessScheduler(str(folder / "other"), 1)
        first = dict(storage.files.content)
        again = Driver(view, storage, other, sink, buckets=4)
        again.start()
        assert len(sink.rows) == 8
        assert sum(sink.errors.values()) == 1
        assert {n: c for n, c in storage.files.content.items() if n.startswith("answers/")} == {
            n: c for n, c in first.items() if n.startswith("answers/")
        }
        # A state that is made again from the log retracts what was shown.
        STATES.close()
        last = Driver(view, storage, InProcessScheduler(str(folder / "third")), sink, buckets=4)
        last.start()
        last.step(Batch({}, rows={TABLE.name: rows.negate()}))
        assert not sink.rows
        assert not sink.errors


def test_a_remembered_row_has_a_stage_of_its_own() -> None:
    layout = Layout(remembering(), 4)
    assert [len(level) for level in layout.levels] == [1, 1]
    (stage,) = layout.levels[1]
    assert layout.answering == {stage.number}
    assert all(width == 1 for _, width in layout.specs[stage.number])
    assert BucketState.__doc__
