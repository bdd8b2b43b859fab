"""Where a stage's idle time went: every moment between two batches of a stage gets exactly one cause.

A stage that has finished one batch waits for the next one, *b*. What *b* was doing at a moment is why the stage idled at
that moment, so walking along the life of *b* gives the causes, in this order:

1. *b* was not made yet. Then what the engine core knew decides: all its room was in flight, or it found nothing to
   schedule and recorded why (`tokens_in_flight`, `blocks`, `pace`, `no_work`), or something had come and the core was
   about to act on it (`core`, also while a finished result was on its way to the core).
2. *b* was made and had not reached stage 0: `core`. It was there and waited for tokens of its own (loop-back):
   `tokens_in_flight`.
3. An earlier stage computed *b*: `starved`.
4. *b* travelled from one stage to the next: `link`, or `core` where the plan came later than the activations.

Nothing overlaps and nothing is left out, so causes and busy time add up to the wall time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import pairwise, takewhile
from typing import NamedTuple

import msgspec

from paceline.trace.events import BLOCKS, NO_WORK, PACE, TOKENS_IN_FLIGHT

STARVED, CORE, LINK, STARTUP, UNATTRIBUTED = "starved", "core", "link", "startup", "unattributed"
CAUSES = (NO_WORK, STARVED, PACE, CORE, LINK, TOKENS_IN_FLIGHT, BLOCKS, STARTUP, UNATTRIBUTED)

_WAITS_FOR_A_RESULT = (TOKENS_IN_FLIGHT, BLOCKS, PACE)


class Passage(msgspec.Struct, frozen=True, gc=False):
    """One batch at one stage: seconds of the core's clock, or since some moment on it."""

    stage: int
    plan_received: float
    input_received: float
    started: float
    finished: float
    sent: float

    def since(self, zero: float) -> Passage:
        """The same in seconds since `zero`."""
        return Passage(
            self.stage,
            self.plan_received - zero,
            self.input_received - zero,
            self.started - zero,
            self.finished - zero,
            self.sent - zero,
        )


class Idle(NamedTuple):
    stage: int
    start: float
    end: float
    cause: str


class IdleAccount:
    """Attributes the idle time of every stage as batches come back, and keeps the sums.

    Args:
        stages: how many.
        since: from when on they are accounted for.
        cause: why they idle then.

    Attributes:
        until: per stage, up to when they are.
        busy: per stage, seconds in which it computed.
        idle: per stage, seconds by cause. busy + the sum of idle = until - since.
    """

    def __init__(self, stages: int, since: float, cause: str = UNATTRIBUTED) -> None:
        self.since = since
        self.until = [since] * stages
        self.busy = [0.0] * stages
        self.idle: list[dict[str, float]] = [dict.fromkeys(CAUSES, 0.0) for _ in range(stages)]
        self._states: deque[tuple[float, str]] = deque([(since, cause)])  # what the core knew from then on
        self._returns: deque[tuple[float, float]] = deque()  # a result was on its way to the core

    def core_state(self, at: float, cause: str) -> None:
        """From `at` on, no further batch is made because of `cause`.

        What is recorded while a result is applied comes before the result's own event, which began earlier: it counts.
        """
        while len(self._states) > 1 and self._states[-1][0] > at:
            self._states.pop()
        if cause != self._states[-1][1]:
            self._states.append((at, cause))

    def returned(self, finished: float, taken: float) -> None:
        """The last stage finished a batch, and the core took its result up."""
        self._returns.append((finished, taken))

    def passed(self, made: float | None, passages: Sequence[Passage]) -> Iterator[Idle]:
        """A batch has come back; gives the idle intervals that it ends, oldest first at each stage.

        Args:
            made: when it was made; None if that is not on record.
            passages: first stage to last.
        """
        for passage in passages:
            started = max(passage.started, self.until[passage.stage])
            yield from self._settle(passage.stage, started, self._moments(made, passages, passage.stage))
            finished = max(passage.finished, started)
            self.busy[passage.stage] += finished - started
            self.until[passage.stage] = finished
        self._forget()

    def nothing_in_flight(self, now: float) -> Iterator[Idle]:
        """No batch exists, so every stage's time up to now can be accounted for."""
        for stage in range(len(self.until)):
            yield from self._settle(stage, now, self._known_by_core(self.until[stage], now))
        self._forget()

    def _settle(self, stage: int, end: float, moments: Iterator[tuple[float, str]]) -> Iterator[Idle]:
        """Cut the time from where the stage's account stands up to `end` at the given moments."""
        at = self.until[stage]
        for moment, cause in moments:
            moment = min(moment, end)
            if moment > at:
                self.idle[stage][cause] += moment - at
                yield Idle(stage, at, moment, cause)
                at = moment
        if end > at:
            self.idle[stage][UNATTRIBUTED] += end - at
            yield Idle(stage, at, end, UNATTRIBUTED)
        self.until[stage] = max(end, self.until[stage])

    def _moments(self, made: float | None, passages: Sequence[Passage], stage: int) -> Iterator[tuple[float, str]]:
        """What the batch was doing before it started at `stage`: (until when, cause), in order."""
        if made is None:
            return
        yield from self._known_by_core(self.until[stage], made)
        first = passages[0]
        yield first.plan_received, CORE
        yield first.input_received, TOKENS_IN_FLIGHT
        yield first.started, CORE
        for before, after in pairwise(passages[: stage + 1]):
            yield max(before.sent, before.finished), STARVED
            yield after.input_received, LINK
            yield after.plan_received, CORE
            yield after.started, LINK

    def _known_by_core(self, start: float, end: float) -> Iterator[tuple[float, str]]:
        until = end
        stretches = []  # (until, cause) of what was known, the latest first
        for at, cause in reversed(self._states):
            if at < end:
                stretches.append((until, cause))
                until = at
                if at <= start:
                    break
        returns = list(reversed([*takewhile(lambda pair: pair[1] > start, reversed(self._returns))]))
        for until, cause in reversed(stretches):
            if cause in _WAITS_FOR_A_RESULT:
                for finished, taken in returns:
                    if finished < until:
                        yield finished, cause
                        yield min(taken, until), CORE
            yield until, cause

    def _forget(self) -> None:
        """Drop what no stage's account can need any more."""
        settled = min(self.until)
        while len(self._states) > 1 and self._states[1][0] <= settled:
            self._states.popleft()
        while self._returns and self._returns[0][1] <= settled:
            self._returns.popleft()
