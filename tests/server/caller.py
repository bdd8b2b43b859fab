"""A client without a socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from tests.server.fakes import Site


class Caller:
    """Calls the application as a server would, with a connection that can be cut.

    Attributes:
        sent: what the application has sent so far.
        on_send: told of each message.
    """

    def __init__(self, site: Site, path: str, body: dict[str, Any]) -> None:
        self.sent: list[dict[str, Any]] = []
        self.on_send: Callable[[dict[str, Any]], None] = lambda message: None
        self._body = json.dumps(body).encode()
        self._gone = asyncio.Event()
        self._received = False
        headers = [(b"host", b"localhost"), (b"content-type", b"application/json"), (b"x-request-id", b"label-7")]
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": headers,
            "scheme": "http",
            "server": ("localhost", 80),
            "client": ("localhost", 1),
        }
        self.task = asyncio.ensure_future(site.app(scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        if not self._received:
            self._received = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        self.sent.append(message)
        self.on_send(message)

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)

    def hang_up(self) -> None:
        self._gone.set()
