"""How many tasks of ours a standalone cluster would run now, asked without starting Spark.

The master says it on its page as JSON. Invariant: an answer counts only if it names the master that
was asked for, so that what else may listen at that port decides nothing. Imports nothing of Spark.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException
from typing import Any

# The name of a service's application, unless the operator's settings have another.
APPLICATION = "tidemark"
_STANDALONE = "spark://"
# The page of a master, unless the setting below says otherwise.
_PAGE, _PAGE_PORT = "spark.master.ui.port", "8080"
_ASK_S = 2.0
_MOST_BYTES = 8 << 20
_UNITS = {"k": 2**-10, "m": 1, "g": 2**10, "t": 2**20}
_MEMORY = re.compile(r"\A(\d+)([kmgt])b?\Z")


def free_cores(master: str, settings: Mapping[str, str]) -> int | None:
    """Return how many executors of one core we would have; None if no master says so.

    Those of an application of our name count too: views share it. settings: Spark's own;
    spark.master.ui.port is of the master's page.
    """
    if not master.startswith(_STANDALONE):
        return None
    port = settings.get(_PAGE, _PAGE_PORT)
    if not port.isdigit() or not 0 < int(port) < 1 << 16:
        return None
    for server in master.removeprefix(_STANDALONE).split(","):
        state = _state(server.rpartition(":")[0], int(port), f"{_STANDALONE}{server}")
        if state is not None:
            name = settings.get("spark.app.name", APPLICATION)
            own = sum(app["cores"] for app in state["activeapps"] if app["name"] == name)
            return own + startable(state, _mebibytes(settings.get("spark.executor.memory", "1g")))
    return None


def startable(state: Mapping[str, Any], executor_mb: int) -> int:
    """Return how many executors of one core and so much memory the workers have room for.

    >>> worker = {"state": "ALIVE", "coresfree": 4, "memoryfree": 3000}
    >>> startable({"workers": [worker, {**worker, "state": "DEAD"}]}, 1024)
    2
    """
    alive = [one for one in state["workers"] if one["state"] == "ALIVE"]
    return sum(min(one["coresfree"], one["memoryfree"] // executor_mb) for one in alive)


def _state(host: str, port: int, url: str) -> Mapping[str, Any] | None:
    """Return what an active master says of its workers; None if it does not answer."""
    connection = HTTPConnection(host.strip("[]"), port, timeout=_ASK_S)
    try:
        connection.request("GET", "/json/")
        found = json.loads(connection.getresponse().read(_MOST_BYTES))
        is_active = found["url"] == url and found["status"] == "ALIVE"
        startable(found, 1)
        sum(app["cores"] for app in found["activeapps"] if app["name"])
    except (OSError, HTTPException, ValueError, LookupError, TypeError):
        return None
    finally:
        connection.close()
    return found if is_active else None


def _mebibytes(text: str) -> int:
    """Return a size of Spark's settings; that of the default if it is none.

    >>> _mebibytes("512m"), _mebibytes("2g"), _mebibytes("many")
    (512, 2048, 1024)
    """
    parts = _MEMORY.match(text.strip().lower())
    return max(1, int(int(parts[1]) * _UNITS[parts[2]])) if parts else 1024
