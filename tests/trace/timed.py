"""The random scenarios of the scheduler's tests on a pipeline that takes (virtual) time, and the record of it."""

from __future__ import annotations

import random
from typing import Any

import msgspec

from paceline.messages import BatchResult, Plan, StageTimes
from paceline.scheduling import Batch
from paceline.trace import History
from tests.engine.fake_pipeline import FakePipeline
from tests.engine.harness import Harness, Scenario


class TimedPipeline:
    """Gives every batch of the fake pipeline times: stages are first-in first-out, and everything takes a while.

    The stages' clocks are ahead of the core's by `ahead`.
    """

    def __init__(self, inner: FakePipeline, harness: TimedHarness, rng: random.Random, ahead: list[float]) -> None:
        self.depth = inner.depth
        self.ahead = ahead
        self._inner = inner
        self._harness = harness
        self._rng = rng
        self._plans: dict[int, tuple[Plan, float]] = {}
        self._free = [0.0] * len(inner.stages)
        self._tokens_at = 0.0

    def _some(self, most: float) -> float:
        return self._rng.choice([0.0, self._rng.uniform(0, most)])

    def submit(self, plan: Plan) -> None:
        self._plans[plan.batch] = plan, self._harness.now
        self._harness.now += self._some(0.01)
        self._inner.submit(plan)

    def collect(self) -> BatchResult | None:
        result = self._inner.collect()
        if result is None:
            return None
        times = self._times(*self._plans.pop(result.batch))
        self._harness.now = max(self._harness.now, times[-1].sent - self.ahead[-1]) + self._some(0.02)
        return msgspec.structs.replace(result, times=times)

    def _times(self, plan: Plan, made: float) -> list[StageTimes]:
        times = []
        came = 0.0
        for stage in range(len(self._free)):
            received = made + self._some(0.02)
            if stage == 0:
                came = max(received, self._tokens_at) if any(s.runs_ahead for s in plan.slices) else received
            started = max(received, came, self._free[stage]) + self._some(0.001)
            finished = started + self._rng.uniform(0.001, 0.3)
            sent = finished + self._some(0.001)
            self._free[stage] = finished
            moments = (moment + self.ahead[stage] for moment in (received, came, started, finished))
            times.append(StageTimes(stage, *moments, 0.0, sent + self.ahead[stage]))
            came = sent + self._some(0.02)
        self._tokens_at = came
        return times

    def wait(self, timeout: float | None) -> None:
        self._inner.wait(timeout)

    def close(self) -> None:
        pass


class TimedHarness(Harness):
    """Runs a scenario, checks its invariants, and keeps what was true right after each batch was made."""

    def __init__(self, scenario: Scenario, *, clocks_differ: bool = False, **options: Any) -> None:
        super().__init__(scenario, **options)
        rng = random.Random(scenario.interleaving)
        stages = scenario.options.stages
        self.clocks_ahead = [rng.uniform(-1e6, 1e6) if clocks_differ else 0.0 for _ in range(stages)]
        self.core.pipeline = TimedPipeline(self.pipeline, self, rng, self.clocks_ahead)  # type: ignore[assignment]
        self.seen_batches: list[dict[str, Any]] = []
        self.seen_lengths: list[list[int]] = []  # negative where no token is sampled
        self.core.recorder._facts = msgspec.structs.replace(
            self.core.recorder._facts, stages=stages, depth=scenario.options.depth
        )
        self.core.recorder.clocks([(ahead, 1e-6) for ahead in self.clocks_ahead])

    def _on_batch(self, batch: Batch) -> None:
        super()._on_batch(batch)
        self.seen_lengths.append([s.num_tokens if s.samples else -s.num_tokens for s in batch.plan.slices])
        pairs = zip(batch.requests, batch.plan.slices, strict=True)
        self.seen_batches.append(
            {
                "batch": batch.number,
                "slices": {request.request_id: (slice_.start, slice_.end) for request, slice_ in pairs},
                "status": {request_id: request.status.name for request_id, request in self.core.requests.items()},
                "why_not": {request.request_id: reason.name for request, reason in batch.why_not.items()},
            }
        )

    def history(self, chunk_bytes: int = 2**20) -> History:
        """What a reader of the record knows at the end."""
        history, read = History(), 0
        log = self.core.recorder._log
        while read < log.total:
            chunk = log.read(read, chunk_bytes)
            assert chunk.begin == read
            history.feed(chunk.lines)
            read = chunk.end
        history.settle(self.now)
        return history
