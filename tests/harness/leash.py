"""The end of a process that a test has started, when that test's own process ends, however it does.

A watching shell holds the other end of a pipe, as connectors/child_server.py has it for servers.
The kernel's signal at a parent's death would not do: it comes at the end of the thread that has
started the child, and tests start services in threads.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

# $1 is the pid; $2 when it was started, since the pid may have been given to someone else.
_WATCH = """
read -r _
[ "$(sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | cut -d ' ' -f 20)" = "$2" ] && kill -KILL "$1"
"""


class Leash:
    """Of one process, which is killed with us unless it was let go."""

    def __init__(self, pid: int) -> None:
        stat = Path(f"/proc/{pid}/stat").read_text()
        # proc(5): when it was started is field 22; behind the name in parentheses comes the third.
        started = stat.rpartition(") ")[2].split()[19]
        read_end, self._end = os.pipe()
        try:
            self._watch = subprocess.Popen(
                ["/bin/sh", "-c", _WATCH, "tidemark-test-watch", str(pid), started],
                stdin=read_end,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C must not end the watch first
            )
        finally:
            os.close(read_end)

    def let_go(self) -> None:
        """The process has ended, or is somebody else's from now on."""
        self._watch.kill()
        self._watch.wait()
        os.close(self._end)
