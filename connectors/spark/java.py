"""What Spark's driver needs here: its package and Java; without importing Spark."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from connectors.extras import require_package
from connectors.spark.master import is_connect
from dataflow.errors import TidemarkError

JAVA_VERSION = 17
_HINT = "apt-get install openjdk-17-jre-headless, or set JAVA_HOME; or options.backfill=local"


def check_spark(master: str, user: str) -> None:
    """Check that sessions with a master can start here. user: what needs them, such as "a demo".

    TidemarkError package.missing, spark.no_java.
    """
    require_package("pyspark", user)
    if not is_connect(master):
        check_java()


def check_java() -> None:
    """Check that there is a Java that Spark can use. TidemarkError spark.no_java."""
    java_home = os.environ.get("JAVA_HOME")
    program = str(Path(java_home) / "bin" / "java") if java_home else shutil.which("java")
    found = "none"
    if program and Path(program).exists():
        answer = subprocess.run([program, "-version"], capture_output=True, text=True, check=False)
        match = re.search(r'version "(\d+)', answer.stderr)
        if match and int(match.group(1)) >= JAVA_VERSION:
            return
        found = f"{program}: {answer.stderr.strip().splitlines()[:1]}"
    raise TidemarkError(
        "spark.no_java",
        f'"java" of version {JAVA_VERSION} or newer is not installed',
        detail=f"found: {found}",
        hint=_HINT,
    )
