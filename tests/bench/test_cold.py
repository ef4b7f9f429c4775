"""Oracle: both designs find the same number of rows for the same keys; runs keep their budget."""

from __future__ import annotations

import pytest

from bench.cold import BATCHES, Shape, measure_entries, measure_runs


@pytest.mark.whole
def test_runs_and_entries_find_the_same_rows(tmp_path):
    shape = Shape(rows=12_000, batch_rows=1_000, keys=2_400)
    written, probed = measure_runs(shape, str(tmp_path))
    entries = measure_entries(shape, 1 << 20, str(tmp_path))
    wanted = [(probe.keys, probe.rows) for probe in written.probes]
    assert [keys for keys, _ in wanted] == [keys for keys, _ in BATCHES]
    assert all(4 * keys < rows < 6 * keys for keys, rows in wanted[1:])
    for result in entries:
        assert [(probe.keys, probe.rows) for probe in result.probes] == wanted
    assert sum(probed.runs) > sum(written.runs) >= 12_000
    assert probed.probes[-1].reads > 0
