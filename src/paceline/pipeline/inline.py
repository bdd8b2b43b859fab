"""All stages in one process, one after another: the simplest pipeline, and the yardstick for the others."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from torch import Tensor

from paceline.messages import BatchResult, Plan, SampledToken, StageTimes
from paceline.pipeline.loop_back import looped_tokens
from paceline.pipeline.stage import StageRunner


class InlinePipeline:
    """Implements :class:`paceline.pipeline.seam.Pipeline` over stage runners of this process.

    The depth is that of as many processes, so that scheduling is the same; the oldest plan is computed when the core
    waits.

    Args:
        stages: first to last.
        wait_for_mail: blocks until mail for the core arrives, or the timeout (seconds, None: for ever) has passed.
        loop_back: hand sampled tokens to the first stage.
    """

    def __init__(
        self, stages: list[StageRunner], wait_for_mail: Callable[[float | None], None], *, loop_back: bool = False
    ) -> None:
        self.depth = len(stages) + loop_back
        self._loop_back = loop_back
        self._stages = stages
        self._wait_for_mail = wait_for_mail
        self._plans: deque[tuple[Plan, float]] = deque()
        self._ready: deque[BatchResult] = deque()

    def submit(self, plan: Plan) -> None:
        self._plans.append((plan, time.monotonic()))

    def collect(self) -> BatchResult | None:
        return self._ready.popleft() if self._ready else None

    def wait(self, timeout: float | None) -> None:
        if self._ready:
            return
        if self._plans:
            self._ready.append(self._compute(*self._plans.popleft()))
        else:
            self._wait_for_mail(timeout)

    def close(self) -> None:
        self._plans.clear()
        for number, stage in enumerate(self._stages):
            stage.show_profile(number)

    def _compute(self, plan: Plan, received: float) -> BatchResult:
        out: Tensor | list[SampledToken] | None = None
        times = []
        for number, stage in enumerate(self._stages):
            started, cpu = time.monotonic(), time.process_time()
            out = stage.execute(plan, out if isinstance(out, Tensor) else None)
            finished = time.monotonic()
            cpu = time.process_time() - cpu
            came = received if number == 0 else started
            times.append(StageTimes(number, received, came, started, finished, cpu, finished))
        assert isinstance(out, list)
        if self._loop_back:
            self._stages[0].take_looped(looped_tokens(plan, out))
        return BatchResult(plan.epoch, plan.batch, out, times)
