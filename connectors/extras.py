"""Packages that only one connector or format needs, by the extra of Tidemark that installs them.

They are imported where they are first needed, so that everything else works without them.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager

from dataflow.errors import TidemarkError

# The first parts of the names of modules. pyproject.toml has the packages of each extra.
EXTRAS = {
    "pyarrow": "arrow",
    "pandas": "spark",
    "py4j": "spark",
    "pyspark": "spark",
    "confluent_kafka": "kafka",
    "deltalake": "lake",
    "pyiceberg": "lake",
    "sqlalchemy": "lake",
    "fastavro": "avro",
    "google.protobuf": "protobuf",
    "grpc_tools": "protobuf",
    "obstore": "s3",
    "pymysql": "mysql",
    "pymysqlreplication": "mysql",
    "bson": "mongodb",
    "pymongo": "mongodb",
}


@contextmanager
def extra_required(user: str, extra: str = "") -> Iterator[None]:
    """Import inside what `user`, such as 'source type "kafka"', needs.

    extra: that has all of it; by default that of the package which is missing. TidemarkError
    package.missing names it.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        module = error.name or ""
        found = [extra for name, extra in EXTRAS.items() if f"{module}.".startswith(f"{name}.")]
        if module == "google":
            # No package of that name is there at all.
            found = [EXTRAS["google.protobuf"]]
        if not found:
            raise
        named = extra or found[0]
        raise TidemarkError(
            "package.missing",
            f"{user} needs a package that is not installed",
            detail=f'no module "{module}"',
            hint=f"install it where the service runs: pip install 'tidemarkdb[{named}]'",
        ) from None


def has_package(module: str) -> bool:
    """Return whether a package is installed, without importing it."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        # Of a package in one that is not there.
        return False


def require_package(module: str, user: str) -> None:
    """Refuse what needs a package that is not installed, without importing it. TidemarkError
    package.missing.
    """
    with extra_required(user):
        if not has_package(module):
            raise ModuleNotFoundError(f"no module {module}", name=module)
