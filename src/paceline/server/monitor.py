"""`GET /monitor/stream`: what the pipeline does, live, for as many watchers as there may be.

One task follows the record while anybody watches, and makes each frame once. Every watcher has a short queue; one that
does not read fast enough loses frames, and is told how many. Neither a step of the engine nor another watcher waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator

import msgspec

from paceline.engine.trace_reader import TraceReader
from paceline.errors import EngineDeadError, RequestError
from paceline.trace import History
from paceline.trace.frames import BACKLOG_SECONDS, MAX_FRAMES, FrameMaker, hello

FRAME_SECONDS = 0.2
QUIET_SECONDS = 1.0  # a frame comes at least so often
QUEUE_FRAMES = 2 * MAX_FRAMES
MAX_WATCHERS = 32


class _Watcher:
    """Frames on their way to one client."""

    def __init__(self) -> None:
        self.dropped = 0
        self._frames: deque[bytes | None] = deque()
        self._there = asyncio.Event()

    def put(self, data: bytes | None) -> None:
        """Queue a frame; None ends the stream. The oldest frame is lost if there are too many."""
        if len(self._frames) >= QUEUE_FRAMES:
            self._frames.popleft()
            self.dropped += 1
        self._frames.append(data)
        self._there.set()

    def forget(self) -> None:
        """Drop what is queued, because the backlog that is about to be sent tells it."""
        self._frames.clear()

    async def next(self) -> bytes | None:
        while not self._frames:
            self._there.clear()
            await self._there.wait()
        return self._frames.popleft()


class Monitor:
    """Everybody who watches the pipeline of one engine."""

    def __init__(self) -> None:
        self._watchers: set[_Watcher] = set()
        self._follower: asyncio.Task[None] | None = None
        self._maker: FrameMaker | None = None
        self._seen, self._seen_at = -1, 0.0  # events of the record, and the time, at the latest frame
        self._closed = False

    async def watch(self, trace: TraceReader, model: str) -> AsyncGenerator[bytes, None]:
        """Server-sent events: `hello`, then frames, the first of them about the last minute.

        Args:
            model: its name.

        Raises:
            RequestError: 429, there are too many watchers.
            EngineDeadError: the engine is gone.
        """
        if len(self._watchers) >= MAX_WATCHERS:
            raise RequestError(f"{MAX_WATCHERS} clients watch already.", status=429, code="too_many_watchers")
        watcher = _Watcher()
        self._watchers.add(watcher)  # before anything is awaited, so that those who come at once are counted
        try:
            history = await trace.catch_up()
            self._push(history)  # so that what is in the backlog does not come a second time
            watcher.forget()
            backlog = [msgspec.json.encode(f) for f in FrameMaker(history, history.now - BACKLOG_SECONDS).frames()]
            if self._follower is None:
                self._follower = asyncio.create_task(self._follow(trace))
            yield b"event: hello\ndata: " + msgspec.json.encode(hello(history, model)) + b"\n\n"
            for data in backlog:
                yield _frame(data, 0)
            while not self._closed and (frame := await watcher.next()) is not None:
                yield _frame(frame, watcher.dropped)
        finally:
            self._watchers.discard(watcher)
            if not self._watchers and self._follower is not None:
                self._follower.cancel()
                self._follower = self._maker = None

    def close(self) -> None:
        """End every stream."""
        self._closed = True
        self._put(None)

    async def _follow(self, trace: TraceReader) -> None:
        """Make frames until cancelled or the engine is gone."""
        with contextlib.suppress(EngineDeadError):
            while True:
                await asyncio.sleep(FRAME_SECONDS)
                history = await trace.catch_up()
                if history.num_events != self._seen or history.now - self._seen_at >= QUIET_SECONDS:
                    self._push(history)
        self._put(None)

    def _push(self, history: History) -> None:
        """Give what is new to all watchers."""
        if self._maker is None or self._maker.history is not history:
            self._maker = FrameMaker(history)
        self._seen, self._seen_at = history.num_events, history.now
        for frame in self._maker.frames():
            self._put(msgspec.json.encode(frame))

    def _put(self, data: bytes | None) -> None:
        for watcher in self._watchers:
            watcher.put(data)


def _frame(data: bytes, dropped: int) -> bytes:
    """A frame as this watcher gets it: with the number of those that it lost."""
    return b"event: frame\ndata: " + data[:-1] + b',"dropped":%d}\n\n' % dropped
