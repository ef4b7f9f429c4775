"""State: weighted rows in columns, arrangements that index them by key, and their store.

Imports no other package of ours. Callers only use `delta.Delta`, `store.Store` and
`store.Arrangement`; only this package knows whether RocksDB or dictionaries hold the rows. Terms: a
run is a sorted, immutable sequence of pages; a page image holds rows in memory and on disk alike; a
hit is the address of a row in a page. Start reading at `store.py`.
"""

from importlib import import_module

# Of the distribution tidemarkdb-native whose functions this code calls.
_KERNELS = "0.1.0"


def _check_kernels() -> None:
    """Refuse kernels of another version, whose functions take or return something else.

    ImportError names both versions, and the command that installs what is needed.
    """
    try:
        found = import_module("tidemark_native").VERSION
    except ModuleNotFoundError as error:
        if error.name != "tidemark_native":
            raise
        found = "none"
    if found != _KERNELS:
        raise ImportError(
            f"this version of Tidemark needs tidemarkdb-native {_KERNELS}, and {found} is"
            f" installed: run pip install tidemarkdb-native=={_KERNELS} (in a checkout: make setup)"
        )


_check_kernels()
