"""One Spark session for the tests of a module: its JVM costs seconds.

Not one for the folder: Spark has one session a process, and some modules bring their clusters.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from connectors.spark.session import LazySession


@pytest.fixture(scope="module")
def session() -> Iterator[LazySession]:
    """Two cores in this process's own JVM."""
    lazy = LazySession("local[2]")
    yield lazy
    lazy.stop()
