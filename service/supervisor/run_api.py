"""The API process: `python -m service.supervisor.run_api`; settings come from the environment.

Besides REST, it executes requests from psql and verifies views on an interval.
It ends on SIGTERM: responses in progress have ANSWER_S, then they and all streams are cut off.
"""

from __future__ import annotations

import signal
import socket
from types import FrameType

import uvicorn

from connectors.postgres.catalog.catalog import Control
from service.api import tls
from service.api.app import create_app
from service.api.connections import limited
from service.psql.request_worker import worker_of
from service.runtime import readiness_pipe, signals
from service.runtime.log import configure, log
from service.runtime.security_limits import protect
from service.runtime.settings import Settings, parent_pid
from service.verify.verify_rounds import VerifyRounds
from storage.parent_process import die_with_parent
from storage.process_title import set_title

# Time for responses in progress at the end; then they are cut off, and streams too.
ANSWER_S = 2
# An idle connection is closed after this time.
KEEP_ALIVE_S = 5


class Server(uvicorn.Server):
    """uvicorn's server; it reports through the readiness pipe when it listens."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen, and report it."""
        await super().startup(sockets=sockets)
        if self.started:
            readiness_pipe.report()


def end_in_time(server: uvicorn.Server) -> None:
    """Let responses complete at the first SIGTERM; exit at the second, or after a timeout.

    SIGINT is left to the supervisor, which Ctrl-C reaches too: uvicorn would end in haste at one
    that comes after its SIGTERM.
    """
    ends = server.handle_exit

    def on_signal(sig: int, frame: FrameType | None) -> None:
        if sig == signal.SIGINT:
            return
        if server.should_exit:
            signals.end_now(signals.SIGNALLED + sig)
        signals.end_later(lambda: log.warning("api.cut_short"))
        ends(sig, frame)

    server.handle_exit = on_signal


def main() -> int:
    """Serve REST and psql until SIGTERM."""
    die_with_parent(parent_pid())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: signals.end_now(0))
    set_title("api")
    settings = Settings.load()
    configure(settings.log_level, "api", settings.log_format)
    protect(settings)
    settings.state.mkdir(parents=True, exist_ok=True)
    app = create_app(settings)
    request_worker = worker_of(settings, app.state)
    rounds = VerifyRounds(settings, app.state.verify, Control(settings.sink, settings.prefix))
    config = uvicorn.Config(
        app,
        http=limited(settings),
        timeout_keep_alive=KEEP_ALIVE_S,
        host=settings.host,
        port=settings.port,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=ANSWER_S,
        **tls.arguments(settings),
    )
    tls.watch(config, settings)
    server = Server(config)
    request_worker.start()
    app.state.standings.begin()
    # Subscriptions must end by themselves: the server would wait for their readers.
    app.state.is_stopping = lambda: server.should_exit
    rounds.start()
    end_in_time(server)
    # uvicorn re-raises SIGTERM for the earlier handler when it ends; there is more to close here.
    signal.signal(signal.SIGTERM, lambda *_: None)
    server.run()
    app.state.verify.close()
    rounds.close()
    request_worker.close()
    return 0


if __name__ == "__main__":
    # Everything is closed; skip the interpreter's shutdown, which is slow.
    signals.end_now(main())
