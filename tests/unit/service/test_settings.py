"""Oracle: figures worked out by hand."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from service.runtime.memory_budget import BASE_MB, MEBIBYTE, MemoryBudget
from service.runtime.settings import Settings


@pytest.mark.parametrize(
    ("given", "mebibytes"),
    [("512", 512), (2048, 2048), ("2GB", 2048), ("1 gib", 1024), ("600MB", 600), ("4G", 4096)],
)
def test_memory_has_a_unit(given: object, mebibytes: int) -> None:
    settings = Settings.load(source="x", memory=given)
    assert settings.memory == mebibytes
    assert (
        Settings.model_validate(
            {k.removeprefix("TIDEMARK_").lower(): v for k, v in settings.to_environment().items()}
        )
        == settings
    )


@pytest.mark.parametrize("given", ["", "much", "-1", "1.5GB", "300", "1TB"])
def test_memory_that_is_none_is_refused(given: str) -> None:
    with pytest.raises(ValidationError):
        Settings.load(source="x", memory=given)


@pytest.mark.parametrize("memory", [384, 1024, 65_536])
def test_the_shares_come_to_less_than_the_whole(memory: int) -> None:
    budget = MemoryBudget.of(memory)
    # Decoding, adding up and writing hold what they work on more than once.
    working = 8 * budget.chunk + 2 * budget.epoch + budget.waiting
    kept = budget.cache + budget.runs + budget.ahead + 2 * budget.write_buffer
    arriving = budget.queue + budget.transaction
    assert working + kept + arriving <= (memory - BASE_MB) * MEBIBYTE
