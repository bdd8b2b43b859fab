"""When requests must have ended."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from paceline.request import Request


class Deadlines:
    """Those of live requests, soonest first; moments are in seconds of the core's clock."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Request]] = []

    def __bool__(self) -> bool:
        return bool(self._heap)

    def add(self, request: Request) -> None:
        """Watch a request, if it has a deadline."""
        if request.deadline is not None:
            heapq.heappush(self._heap, (request.deadline, request.number, request))

    def passed(self, now: float) -> Iterator[Request]:
        """Requests that have not ended in time. Those that did are forgotten."""
        while self._heap and (self._heap[0][0] <= now or self._heap[0][2].is_finished):
            request = heapq.heappop(self._heap)[2]
            if not request.is_finished:
                yield request

    def seconds_left(self, now: float) -> float:
        """Until the next one; there is one."""
        return max(0.0, self._heap[0][0] - now)
