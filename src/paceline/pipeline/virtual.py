"""A pipeline without a model: stage times are drawn or computed, and time is a number.

The engine core, the scheduler and the pacing policies that run on it are those of the real engine; only the waiting is
not. What a run does depends on nothing but its inputs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from paceline.messages import BatchResult, Plan, SampledToken, StageTimes
from paceline.pipeline.timing import Timing
from paceline.scheduling.cost_model import work_of

TOKEN = 1  # every sampled token


class VirtualClock:
    """Seconds since the start; moves only when the pipeline waits."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class VirtualPipeline:
    """Implements :class:`paceline.pipeline.seam.Pipeline` over stages that only take time.

    Args:
        timing: how long each stage and each transfer takes.
        clock: moved forward by :meth:`wait`.
        next_mail: when mail for the core arrives next, in the clock's seconds; None: never.
        loop_back: the last stage hands each token to stage 0 by itself, so one more batch may be in flight.
        on_times: told of every batch and the times of its stages when it is handed over.
    """

    def __init__(
        self,
        timing: Timing,
        clock: VirtualClock,
        next_mail: Callable[[], float | None],
        *,
        loop_back: bool = False,
        on_times: Callable[[Plan, list[StageTimes]], None] | None = None,
    ) -> None:
        self.depth = timing.num_stages + loop_back
        self._timing = timing
        self._clock = clock
        self._next_mail = next_mail
        self._on_times = on_times
        self._free_at = [0.0] * timing.num_stages
        self._token_at: dict[int, float] = {}  # when stage 0 has the newest token of a request
        self._results: deque[tuple[float, BatchResult]] = deque()

    def submit(self, plan: Plan) -> None:
        work = work_of(plan.slices)
        times: list[StageTimes] = []
        takes = self._timing.times(work)
        plan_received = self._clock.now + takes.plan
        at = max([plan_received, *(self._token_at[s.request] for s in plan.slices if s.runs_ahead)])
        finished = at
        for stage, seconds in enumerate(takes.stages):
            if stage:
                at = finished + takes.link
            started = max(at, self._free_at[stage] + takes.turnaround)
            finished = self._free_at[stage] = started + seconds
            times.append(StageTimes(stage, plan_received, at, started, finished, seconds, finished))
        tokens = [SampledToken(s.request, s.generation, TOKEN) for s in plan.slices if s.samples]
        if self._on_times is not None:
            self._on_times(plan, times)
        for number in plan.released:
            self._token_at.pop(number, None)
        back_at = finished + takes.link
        self._token_at.update((s.request, back_at) for s in plan.slices if s.samples)
        # Results keep their order: one that is late holds up those behind it.
        told_at = max(finished + takes.result, self._results[-1][0] if self._results else 0.0)
        self._results.append((told_at, BatchResult(plan.epoch, plan.batch, tokens, times)))

    def collect(self) -> BatchResult | None:
        if self._results and self._results[0][0] <= self._clock.now:
            return self._results.popleft()[1]
        return None

    def wait(self, timeout: float | None) -> None:
        """Move the clock to the next moment at which something happens."""
        moments = [] if timeout is None else [self._clock.now + timeout]
        if self._results:
            moments.append(self._results[0][0])
        mail = self._next_mail()
        if mail is not None:
            moments.append(mail)
        if moments:
            self._clock.now = max(self._clock.now, min(moments))

    def close(self) -> None:
        pass
