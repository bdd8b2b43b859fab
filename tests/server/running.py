"""A fake site behind a real socket."""

from __future__ import annotations

import socket
import threading

import uvicorn

from paceline.server.http_protocol import BoundedHttp
from tests.server.fakes import Site


class Running:
    """An HTTP server in a thread; `url` is its address."""

    def __init__(self, site: Site) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.site = site
        self.port = self._socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._server = uvicorn.Server(uvicorn.Config(site.app, lifespan="off", log_level="error", http=BoundedHttp))
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],))
        self._thread.start()  # connections wait in the socket's queue until the server takes them

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join()
