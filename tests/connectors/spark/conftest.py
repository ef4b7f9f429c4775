"""One Spark session for all tests of this folder: its JVM costs seconds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from connectors.spark.session import LazySession


@pytest.fixture(scope="session")
def session() -> Iterator[LazySession]:
    """Two cores in this process's own JVM."""
    lazy = LazySession("local[2]")
    yield lazy
    lazy.stop()
