"""Answers that take time: generated while the client listens, ended when it goes away."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from paceline.engine.choice import Delta
from paceline.errors import RequestError
from paceline.server.errors import as_request_error, deadline_passed, error_body, error_events, error_headers
from paceline.server.generation import Generation
from paceline.server.shapes import DONE, Shape
from paceline.server.state import ServerState

logger = logging.getLogger(__name__)

_COMMENT = b": keep-alive\n\n"
_STREAM_HEADERS = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}


class Sender:
    """Sends a response, from one task and its :func:`keep_alive`; remembers whether its status line is out."""

    def __init__(self, send: Send, headers: dict[str, str]) -> None:
        self.started = self.ended = False
        self.sent_at = time.monotonic()
        self._send = send
        self._headers = headers

    async def start(self, status: int, headers: dict[str, str]) -> None:
        """Send status and headers."""
        self.started = True
        pairs = [(name.encode("latin-1"), text.encode("latin-1")) for name, text in (headers | self._headers).items()]
        await self._send({"type": "http.response.start", "status": status, "headers": pairs})

    async def write(self, data: bytes, more: bool) -> None:
        """Send part of the body."""
        self.sent_at, self.ended = time.monotonic(), not more
        await self._send({"type": "http.response.body", "body": data, "more_body": more})

    async def whole(self, data: bytes) -> None:
        """Send a JSON body and end the response."""
        await self.start(200, {"content-type": "application/json", "content-length": str(len(data))})
        await self.write(data, more=False)

    async def error(self, error: RequestError) -> None:
        """Say what went wrong: as a response of its own, or inside the stream that has begun."""
        if self.started:
            await self.write(error_events(error), more=False)
            return
        data = error_body(error)
        await self.start(error.status, error_headers(error.status) | {"content-length": str(len(data))})
        await self.write(data, more=False)


@asynccontextmanager
async def keep_alive(sender: Sender, interval: float) -> AsyncIterator[asyncio.Lock]:
    """While the block runs, a comment goes out whenever nothing else did for `interval` seconds; 0: never.

    Proxies and clients end connections on which nothing moves, and a long prompt takes long. The first comment starts
    the stream. Whoever sends inside the block holds the lock.
    """
    lock = asyncio.Lock()

    async def tick() -> None:
        while not sender.ended:
            wait = sender.sent_at + interval - time.monotonic()
            if wait > 0:
                await asyncio.sleep(wait)
                continue
            async with lock:
                if not sender.started:
                    await sender.start(200, _STREAM_HEADERS)
                if not sender.ended:
                    await sender.write(_COMMENT, more=True)

    ticking = asyncio.create_task(tick()) if interval else None
    try:
        yield lock
    finally:
        if ticking is not None:
            try:
                async with lock:  # not in the middle of a comment
                    ticking.cancel()
            finally:
                ticking.cancel()


class Answer(Response):
    """Runs `work` until it is done or the client is gone; then `work` is cancelled, which aborts its requests."""

    def __init__(
        self,
        state: ServerState,
        request_id: str,
        label: str,
        work: Callable[[Sender], Awaitable[None]],
    ) -> None:
        super().__init__()
        self._state = state
        self._id = request_id
        self._label = f" (X-Request-Id {label})" if label else ""
        self._own_headers = {}
        if state.config.enable_request_id_headers:
            self._own_headers["x-request-id"] = label or request_id
        self._work = work

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sender = Sender(send, self._own_headers)
        work = asyncio.create_task(self._run(sender))
        gone = asyncio.create_task(_client_gone(receive))
        try:
            with self._state.serving(self._id, work):
                await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
                if not work.done():
                    logger.info("request %s%s aborted: the client disconnected", self._id, self._label)
                    work.cancel()
                await asyncio.wait({work})
        finally:
            work.cancel()
            gone.cancel()
            await asyncio.wait({work, gone})

    async def _run(self, sender: Sender) -> None:
        if self._state.config.enable_log_requests:
            logger.info("request %s%s arrived", self._id, self._label)
        try:
            await self._work(sender)
        except Exception as error:  # one request's failure ends that request only
            told = as_request_error(error)
            logger.info("request %s%s: %d %s", self._id, self._label, told.status, told.code)
            await sender.error(told)
        else:
            if self._state.config.enable_log_requests:
                logger.info("request %s%s ended", self._id, self._label)


async def _client_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def send_stream(sender: Sender, generation: Generation, shape: Shape, keep_alive_seconds: float) -> None:
    """Stream the answer: one write per engine output, the last one with usage and the end mark.

    The status line waits for the first output, so that whatever can be refused has a status of its own; or for the
    first comment that keeps the connection alive, long after refusals.
    """
    async with aclosing(generation.events()) as events, keep_alive(sender, keep_alive_seconds) as lock:
        async for choice, delta, done in events:
            data = shape.delta_event(choice, delta)
            if delta.finish_reason is not None:
                if not sender.started:
                    _refuse_abort(delta, generation)
                data += shape.finish_event(choice)
            if done:
                data += shape.usage_event(generation.choices) + DONE
            async with lock:
                if not sender.started:
                    await sender.start(200, _STREAM_HEADERS)
                if data:
                    await sender.write(data, more=not done)


async def send_whole(sender: Sender, generation: Generation, shape: Shape) -> None:
    """Send the answer as one JSON object when all of it is there."""
    deltas: list[list[Delta]] = [[] for _ in generation.choices]
    async with aclosing(generation.events()) as events:
        async for choice, delta, _ in events:
            deltas[choice.index].append(delta)
            _refuse_abort(delta, generation)
    await sender.whole(shape.body(generation.choices, deltas))


def _refuse_abort(delta: Delta, generation: Generation) -> None:
    """An answer that the server itself cut short, and of which the client has seen nothing, is an error."""
    if delta.finish_reason == "abort" and not generation.draining:
        raise RequestError("The request was aborted before the answer was complete.", status=499, code="aborted")
    if delta.finish_reason == "abort":
        raise RequestError("The server shut down before the answer was complete.", status=503, code="draining")
    if delta.finish_reason == "timeout":
        raise deadline_passed()
