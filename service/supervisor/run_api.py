"""The API process: `python -m service.supervisor.run_api`, settings from the environment.

Beside REST it takes up what is asked for in psql, and compares views on an interval.
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
from service.runtime.process_title import set_title
from service.runtime.security_limits import protect
from service.runtime.settings import Settings, parent_pid
from service.verify.verify_rounds import VerifyRounds

# Answers on their way have so long; then they are cut off, streams as well.
ANSWER_S = 2
# A connection that asks nothing more is closed.
KEEP_ALIVE_S = 5


class Server(uvicorn.Server):
    """uvicorn's, which tells when it listens."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen."""
        await super().startup(sockets=sockets)
        if self.started:
            readiness_pipe.tell()


def end_in_time(server: uvicorn.Server) -> None:
    """The first SIGTERM lets answers end, the second one ends all; so does waiting too long."""
    ends = server.handle_exit

    def on_signal(sig: int, frame: FrameType | None) -> None:
        if server.should_exit:
            signals.end_now(signals.SIGNALLED + sig)
        signals.end_later(lambda: log.warning("api.cut_short"))
        ends(sig, frame)

    server.handle_exit = on_signal


def main() -> int:
    """Serve REST, and what is asked for in psql, until SIGTERM."""
    signals.die_with_parent(parent_pid())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: signals.end_now(0))
    set_title("api")
    settings = Settings.load()
    configure(settings.log_level, "api", settings.log_format)
    protect(settings)
    settings.state.mkdir(parents=True, exist_ok=True)
    app = create_app(settings)
    request_worker = worker_of(settings, app.state)
    rounds = VerifyRounds(settings, app.state.verify, Control(settings.sink))
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
    # Subscriptions end by themselves then: otherwise nothing would end before their readers do.
    app.state.is_stopping = lambda: server.should_exit
    rounds.start()
    end_in_time(server)
    # The server ends at SIGTERM, and sends it on to whoever had it before: there is more to end.
    signal.signal(signal.SIGTERM, lambda *_: None)
    server.run()
    app.state.verify.close()
    rounds.close()
    request_worker.close()
    return 0


if __name__ == "__main__":
    # All is closed: taking the interpreter apart would take longer than all of that.
    signals.end_now(main())
