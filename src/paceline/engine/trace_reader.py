"""Follows the record of a running engine: asks the core for what is new, and keeps what it tells as a history."""

from __future__ import annotations

import asyncio
from typing import Protocol

from paceline.messages import TraceChunk
from paceline.trace import History


class TraceSource(Protocol):
    """The part of :class:`paceline.engine.client.AsyncEngine` that has the record."""

    async def read_trace(self, begin: int) -> TraceChunk: ...


class TraceReader:
    """A history that can be brought up to date; costs nothing while nobody asks.

    Args:
        max_bytes: how much of the batches is kept, as the core keeps it.
    """

    def __init__(self, source: TraceSource, max_bytes: int) -> None:
        self.history = History(max_bytes)
        self._source = source
        self._max_bytes = max_bytes
        self._read = 0  # bytes of the record
        self._lock = asyncio.Lock()

    async def catch_up(self) -> History:
        """The history up to this moment. It is read in small pieces, so that neither side is held up.

        Raises:
            EngineDeadError: the engine is gone; what is known of it stays in `history`.
        """
        async with self._lock:
            while True:
                chunk = await self._source.read_trace(self._read)
                if chunk.begin != self._read:  # what came between is forgotten, so what came before helps no more
                    self.history = History(self._max_bytes)
                self.history.feed(chunk.lines)
                self._read = chunk.end
                if chunk.end == chunk.total:
                    self.history.settle(chunk.now)
                    return self.history
