"""A tiny server that speaks just enough of OpenAI's API, well or badly, in whatever pieces a test wants."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

# Of one request's body: the pieces of the stream as they go into the socket. None breaks the connection.
Script = Callable[[dict[str, Any]], list[bytes | None]]


def event(value: Any) -> bytes:
    return b"data: " + json.dumps(value, ensure_ascii=False).encode() + b"\n\n"


def text_event(text: str, finish_reason: str | None = None) -> bytes:
    return event({"choices": [{"index": 0, "text": text, "finish_reason": finish_reason}]})


def chat_event(delta: dict[str, Any], finish_reason: str | None = None) -> bytes:
    return event({"choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]})


DONE = b"data: [DONE]\n\n"


class OpenAIServer:
    """Attributes:
    bodies: every completion request.
    most_at_once: completion requests answered at the same time.
    status: of completion answers.
    """

    def __init__(
        self, script: Script, tokens: list[int] | None = None, metrics: Callable[[], str] | None = None
    ) -> None:
        self.script = script
        self.tokens = tokens
        self.metrics = metrics
        self.status = "200 OK"
        self.models: list[dict[str, Any]] = [{"id": "tiny", "max_model_len": 4096}]
        self.bodies: list[dict[str, Any]] = []
        self.keys: list[str] = []
        self.most_at_once = 0
        self._at_once = 0
        self.url = ""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[OpenAIServer]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server:
            yield self

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in head.splitlines()[1:])}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        self.keys.append(headers.get("authorization", ""))
        path = head.split()[1]
        if path.endswith("/completions"):
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
            await self._complete(writer, json.loads(body))
            self._at_once -= 1
        else:
            self._whole(writer, path)
        writer.close()

    def _whole(self, writer: asyncio.StreamWriter, path: str) -> None:
        answers = {"/v1/models": json.dumps({"data": self.models})}
        if self.tokens is not None:
            answers["/tokenize"] = json.dumps({"tokens": self.tokens})
        if self.metrics is not None:
            answers["/metrics"] = self.metrics()
        status = "200 OK" if path in answers else "404 Not Found"
        text = answers.get(path, "{}").encode()
        writer.write(f"HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {len(text)}\r\n\r\n".encode() + text)

    async def _complete(self, writer: asyncio.StreamWriter, body: dict[str, Any]) -> None:
        self.bodies.append(body)
        writer.write(f"HTTP/1.1 {self.status}\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n".encode())
        for piece in self.script(body):
            if piece is None:
                writer.transport.abort()
                return
            writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            await writer.drain()
            await asyncio.sleep(0)
        writer.write(b"0\r\n\r\n")
