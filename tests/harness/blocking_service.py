"""The service with the connectors of `blocking_connector`."""

from __future__ import annotations

import subprocess
import sys
from typing import BinaryIO

from tests.harness.service import RunningService


class BlockingService(RunningService):
    """The service with the connectors of `blocking_connector`."""

    def _started(self, log: BinaryIO) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.harness.blocking_connector", "serve"]
        return subprocess.Popen(
            command, env=self.environment, stderr=log, stdin=subprocess.DEVNULL, umask=0o022
        )
