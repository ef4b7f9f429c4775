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
def extra_required(user: str) -> Iterator[None]:
    """Import inside what `user`, such as 'source type "kafka"', needs.

    TidemarkError package.missing names the extra of a package that is not installed.
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
        raise TidemarkError(
            "package.missing",
            f"{user} needs a package that is not installed",
            detail=f'no module "{module}"',
            hint=f"install it where the service runs: pip install 'tidemarkdb[{found[0]}]'",
        ) from None


def require_package(module: str, user: str) -> None:
    """Refuse what needs a package that is not installed, without importing it. TidemarkError
    package.missing.
    """
    with extra_required(user):
        if importlib.util.find_spec(module) is None:
            raise ModuleNotFoundError(f"no module {module}", name=module)
