"""Packages of the user that an answer can become a table of; each is imported where it is used."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

from dataflow.errors import TidemarkError

_INSTALL = {
    "pyarrow": "pip install 'tidemarkdb[arrow]'",
    "pandas": "pip install pandas",
    "polars": "pip install polars",
}


def package(name: str, user: str) -> ModuleType:
    """Return a module that `user`, such as "to_pandas()", needs. TidemarkError package.missing."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # What the package itself lacks is its own error.
        if error.name != name:
            raise
        raise TidemarkError(
            "package.missing",
            f"{user} needs {name}, which is not installed",
            detail=f'no module "{name}" for {sys.executable}',
            hint=f"install it where this script runs: {_INSTALL[name]}",
        ) from None
