"""Oracle: as of tests/simulation; seeds that have found a fault of the product, replayed.

A seed with the parts that it had is a run of the simulation as it was when the fault was found, for
as long as none of these parts draws otherwise. What it found is also broken again in
tests/simulation/test_mutations.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.simulation.run import run

# What each has found, by seed and parts.
SEEDS = {
    (6,): "a second crash before the state had caught up with the sink forgot that it was behind",
    (26,): "a view was replaced while it was being paused, and stayed between the two",
    (79,): "a spool that a crash had filled with zeros was taken for batches",
    (94,): "the sink's progress was forgotten before the state that needs none was on disk",
    (109,): "a view was paused while one that reads it was being built",
    (114,): "what was being dropped was called live again; a rename waited for nothing",
    (303,): "that a view is live was told late, after its pause",
    (33, "refusals"): "a view was to join over one whose table was altered: the pipeline ended",
    (76, "refusals"): "a refused view took the rows with it that its new version had staged",
    (5631, "feeds"): "a topic was read past what a build that was left over had of it",
    (318, "refusals", "subscribers"): "readers were told what the sink had refused",
    (1, "errors", "feeds"): "a topic first read beyond the sink's place kept that muted for ever",
    (10228, "errors", "feeds"): "the same, when the machine had crashed once more in between",
    (21651,): "a version was staged over the rows of the one before, which were on their way",
    (6, "feeds"): "a relation that the sink knew nothing of kept it muted for ever",
    (22372, "refusals", "feeds"): "a topic that nothing read any more was told from an older place",
    (22442, "feeds"): "parts without their changes were taken for whole by a build's second try",
    (500209, "feeds", "failovers"): "of a sink set back twice a view was live that nobody followed",
    (500156, "feeds", "failovers"): "a sink set back was given a pause that it was not asked for",
    (500136, "failovers"): "a sink set back over the last view's end had an epoch of that number",
    (500121, "subscribers", "failovers"): "what a reader had last was no token after a failover",
    (500053, "refusals", "errors", "failovers"): "what nobody read was unpublished, not forgotten",
    (500174, "refusals", "errors", "failovers"): "a view without a table was compared for ever",
    (800154, "refusals", "errors", "failovers"): "built under its old name while it had a new one",
    (301040, "failovers"): "a sink that had been set back kept builds waiting once all were paused",
    (900573,): "the last view took the slot with it, and a machine's crash brought the view back",
    (1001591,): "a version took over that was given up, after half a look at the catalog",
    (1006871, "feeds"): "a build that began again did not know from where its spool tells a topic",
    (1007447, "feeds", "subscribers"): "the same",
    (1009651, "refusals", "errors"): "what was asked for once more was taken for what was refused",
    (2000441,): "that a version is live was told after the pause that followed it",
    (3002571, "feeds"): "a build whose beginning failed left from where its spool told a topic",
    (4004597,): "a view was paused while one that reads it was being resumed: that waited for ever",
    (5002669, "errors", "rocks"): "a version was built under the name that a view had before",
    (5003369, "feeds"): "a state that a crash took back went on with a build that began after it",
    (6003171, "failovers"): "a sink that was set back was asked for a version by a number it had",
    (8030062, "feeds"): "the database was read again from before what the sink showed of it",
    (44, "sinks"): "a view took another version while a sink was being added: the topic had both",
    (53, "sinks"): "a view got another name while a sink was being added, which was told nothing",
    (3005, "failovers", "sinks"): "a standby of the sink lacked nothing but what was said of views",
    (3132, "failovers", "sinks"): "the same, and nothing was written that could have shown it",
    (3085, "refusals", "failovers", "sinks"): "a view failed because it had sinks, not they",
    (3180, "refusals", "failovers", "sinks"): "a sink was told as failed while it was being erased",
    (88, "subscribers", "failovers", "sinks"): "readers were told epochs that the sink never had",
    (8045224, "refusals", "sinks"): "that a sink was away was told, the answer lost, and stood",
    (8139405, "failovers"): "a sink never came back: what reads a view being paused was refused",
    (8112706, "feeds", "sinks"): "a version came before it was known that there were sinks",
    (8107089,): "a view was planned over columns that the one it reads had before a version",
    (8005115, "failovers"): "a view was paused that a sink set back knew as asked for alone",
    (22005, "subscribers"): "a log was begun anew: a reader of the old one was told nothing more",
    (26, "ddl"): "a view moved on over a change of its table that was committed just then",
    (229, "ddl"): "rows of a table that nobody read any more refused the whole source",
    (268, "ddl"): "a view was called live that had failed already, and the others moved on",
    (5076, "ddl"): "the first view's stream never learned of names that came after it",
    (2206, "subscribers", "sinks", "ddl"): "a view was shown with the types of before its backfill",
    (20436, "ddl"): "a view to be built anew was called live by the epoch that it had joined in",
    (21289, "ddl"): "a view was called live by its first epoch, and the others moved on without it",
    (20545, "ddl"): "a view to be built anew was called live by the outbox after a restart",
    (1700, "errors", "feeds", "failovers", "sinks", "ddl"): "a sink was erased that nobody knew of",
    (700215, "ddl"): "a view failed for good: its table was renamed while its query was planned",
    (1162, "ddl"): "work was shared with who knew the key by another name, rows were not",
    (53835, "ddl"): "a view was built anew for the replica identity that another one knew",
    (5142, "refusals", "failovers", "ddl"): "a sink set back knew a view by names from before it",
    (
        6080,
        "refusals",
        "failovers",
        "ddl",
        "clock",
    ): "a comparison of a repair went on as a rebuild",
    (910102, "ddl"): "a build went on after a rename, and knew its changes by the names of before",
    (920308, "rocks", "ddl"): "a failure was written, its answer lost, and could not be repeated",
    (2, "lateness"): "rows that a transaction deleted and inserted again were taken for late ones",
    (1070, "lateness"): "a view failed in an epoch that was shown before the catalog knew of it",
    (730475, "ddl"): "a live view failed for what the version that was built beside it read",
    (232, "zones"): "a clock that was set back waited for the time at which it was set back",
    (395, "errors", "clock"): "a clock looked where it last had for a dataflow that was another",
    (4026, "history"): "the past of a view could not be read once all views were paused",
    (4082, "history"): "the same, of a view that was paused last",
    (6014, "refusals", "lateness"): "a view was renamed between its refusal and its failure",
    (
        4046,
        "failovers",
        "zones",
    ): "a pause came before the rebuild of a lost table",
    (
        7310027,
        "refusals",
        "failovers",
    ): "a version that the sink had refused was taken for one on its way after a restart",
    (
        7601795,
        "refusals",
        "failovers",
    ): "a restart forgot that the sink did not show yet where the log ended",
}


# Those that the fast tier replays too: what was found last.
NEWEST = 20


def _cases() -> Iterator[Any]:
    for number, (seed, *parts) in enumerate(SEEDS):
        is_new = number >= len(SEEDS) - NEWEST
        yield pytest.param(seed, parts, marks=() if is_new else pytest.mark.whole)


@pytest.mark.parametrize(("seed", "parts"), [*_cases()], ids=lambda given: str(given))
def test_seed_is_right_now(seed: int, parts: list[str]) -> None:
    outcome = run(seed, parts=parts)
    assert outcome.failure is None, "\n".join([*outcome.trace, repr(outcome.failure)])
