"""The API process: `python -m service.run_api`, settings from the environment."""

from __future__ import annotations

import signal
import sys

import uvicorn

from service import signals
from service.app import create_app
from service.log import configure
from service.settings import Settings


def main() -> int:
    """Serve REST until SIGTERM."""
    signals.die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    settings = Settings.load()
    configure(settings.log_level, "api")
    settings.state.mkdir(parents=True, exist_ok=True)
    server = uvicorn.Server(
        uvicorn.Config(
            create_app(settings),
            host=settings.host,
            port=settings.port,
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=5,
        )
    )
    server.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
