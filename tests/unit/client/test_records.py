"""Oracle: the answer by today's names; an older service's names must give the same record."""

from __future__ import annotations

from service.client.answers import Estimate, Validation

ESTIMATE = {"source_rows": 1, "output_rows": 2, "state_bytes": 3, "backfill_s": 0.5}
ESTIMATE |= {"amplification": {}, "risks": []}
VALIDATION = {"kind": "multiset", "key": [], "fields": [], "warnings": [], "in_postgres": []}
VALIDATION |= {"estimated_source_rows": 1, "backfill": "local", "plan": ""}


def test_earlier_names_are_read() -> None:
    new = Estimate.of({**ESTIMATE, "engine": "local"})
    assert new == Estimate.of({**ESTIMATE, "road": "local"})
    assert new == Estimate.of({**ESTIMATE, "engine": "local", "road": "other"})
    assert new.engine == new.road == "local"

    found = Validation.of({**VALIDATION, "why_no_key": "no key of orders"})
    assert found == Validation.of({**VALIDATION, "why_bag": "no key of orders"})
    assert found.why_no_key == found.why_bag == "no key of orders"
