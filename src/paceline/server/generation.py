"""All choices of one request, generated side by side and merged in the order in which tokens arrive."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import NamedTuple

from paceline.engine.choice import Choice, Delta
from paceline.sampling_params import LIMITS
from paceline.server.errors import deadline_passed
from paceline.server.state import Phase, ServerState

SHORTEST_TIMEOUT = LIMITS["timeout"].low

Event = tuple[Choice, Delta, bool]  # the last says whether every choice has ended now


class Origin(NamedTuple):
    """What is said of a request besides what it asks for."""

    priority: int = 0
    cache_salt: str = ""
    label: str = ""  # the client's own name for it
    owner: str = ""  # stands for its API key


class Generation:
    """Runs the choices of one request. Closing :meth:`events` early aborts what is left in the engine.

    Args:
        deadline: when every choice has ended at the latest, in seconds of the performance counter.
    """

    def __init__(
        self,
        state: ServerState,
        choices: list[Choice],
        origin: Origin,
        deadline: float | None = None,
    ) -> None:
        self.choices = choices
        self._state = state
        self._engine = state.require_ready().engine
        self._origin = origin
        self.arrival = time.perf_counter()
        self.timers: dict[int, Timer] = {}
        self._deadline = deadline

    @property
    def draining(self) -> bool:
        """Whether the server ends what is left."""
        return self._state.phase is Phase.DRAINING

    def events(self) -> AsyncGenerator[Event, None]:
        """New text and tokens, until every choice has ended.

        Raises:
            RequestError: refused (then before the first event) or failed.
            EngineDeadError: the engine is gone.
        """
        if len(self.choices) == 1:
            return self._one(self.choices[0])
        return self._merged()

    async def _one(self, choice: Choice) -> AsyncGenerator[Event, None]:
        metrics, timer = self._state.metrics, Timer(self.arrival)
        self.timers[choice.index] = timer
        outputs = self._engine.generate(
            choice.request_id,
            choice.prompt_token_ids,
            choice.sampling,
            priority=self._origin.priority,
            cache_salt=self._origin.cache_salt,
            timeout=self._time_left(),
            label=self._origin.label,
            owner=self._origin.owner,
        )
        self._state.engine_ids[choice.request_id] = self._origin.owner
        try:
            async with aclosing(outputs):
                async for output in outputs:
                    delta = choice.push(output)
                    if delta.token_ids:
                        if not timer.first:
                            metrics.on_prompt(len(choice.prompt_token_ids), choice.num_cached_tokens)
                        metrics.on_tokens(len(delta.token_ids), *timer.lap())
                    if choice.finish_reason is not None:
                        if not output.status:  # a stop string: the engine does not know yet
                            self._engine.finish(choice.request_id, choice.num_output_tokens)
                        metrics.on_finished(choice, self.arrival, timer.first, timer.last)
                        yield choice, delta, True
                        return
                    yield choice, delta, False
        finally:
            self._state.engine_ids.pop(choice.request_id, None)
            if choice.finish_reason is None:
                metrics.on_unfinished()

    def _time_left(self) -> float | None:
        if self._deadline is None:
            return None
        left = self._deadline - time.perf_counter()
        if left < SHORTEST_TIMEOUT:
            raise deadline_passed()
        return left

    async def _merged(self) -> AsyncGenerator[Event, None]:
        queue: asyncio.Queue[Event | Exception] = asyncio.Queue()

        async def pump(choice: Choice) -> None:
            try:
                async with aclosing(self._one(choice)) as events:
                    async for event in events:
                        queue.put_nowait(event)
            except Exception as error:  # the reader raises it
                queue.put_nowait(error)

        # All pumps start before any token can arrive, so that a full queue is known before the first event.
        pumps = [asyncio.create_task(pump(choice)) for choice in self.choices]
        try:
            open_choices = len(self.choices)
            while open_choices:
                item = await queue.get()
                if isinstance(item, Exception):
                    raise item
                choice, delta, ended = item
                open_choices -= ended
                yield choice, delta, not open_choices
        finally:
            for task in pumps:
                task.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)


class Timer:
    """Times of one choice's outputs, seconds of the performance counter."""

    __slots__ = ("arrival", "first", "last")

    def __init__(self, arrival: float) -> None:
        self.arrival = arrival
        self.first = self.last = 0.0

    def lap(self) -> tuple[bool, float]:
        """Whether this is the first output, and the seconds since the one before (or the arrival)."""
        now = time.perf_counter()
        if not self.first:
            self.first = self.last = now
            return True, now - self.arrival
        gap, self.last = now - self.last, now
        return False, gap
