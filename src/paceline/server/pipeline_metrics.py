"""Metrics of the pipeline, counted from the record: stages, links, idle time by cause, and how large batches are."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from paceline.server.metric_maker import MetricMaker
from paceline.trace import History
from paceline.trace.idle import CAUSES, IdleAccount
from paceline.trace.lives import BatchRecord
from paceline.trace.use import latest_use

WINDOW_SECONDS = 10.0  # that bubble and imbalance look back
PHASES = ("prefill", "decode", "mixed")


class PipelineMetrics:
    """Follows a history as it grows.

    Args:
        bytes_per_token: of the activations that one stage sends to the next.

    Attributes:
        bubble: part of the stages' time in the last seconds that they idled although there was work; None: no such time.
        imbalance: busiest stage ÷ mean in the last seconds; None if none worked.
    """

    def __init__(self, maker: MetricMaker, num_stages: int, bytes_per_token: int) -> None:
        stages = [str(stage) for stage in range(num_stages)]
        links = list(pairwise(stages))
        self.bubble: float | None = None
        self.imbalance: float | None = None
        self._bytes_per_token = bytes_per_token
        self._iteration = maker.histogram("vllm:iteration_tokens_total")
        self._tokens = maker.histogram("paceline:microbatch_tokens")
        self._steps = {
            (int(s), phase): maker.histogram("paceline:stage_step_seconds", s, phase)
            for s in stages
            for phase in PHASES
        }
        self._sends = [maker.histogram("paceline:link_send_seconds", *link) for link in links]
        self._bytes = [maker.counter("paceline:link_bytes", *link) for link in links]
        self._idle = {
            (int(s), why): maker.counter("paceline:stage_idle_seconds", s, why) for s in stages for why in CAUSES
        }
        self._ages = [maker.gauge("paceline:last_step_age_seconds", stage) for stage in stages]
        self._bubble = maker.gauge("paceline:bubble_ratio")
        self._imbalance = maker.gauge("paceline:stage_imbalance_ratio")
        self._account: IdleAccount | None = None
        self._counted: dict[tuple[int, str], float] = {}
        self._done = -1  # the latest batch that was counted

    def update(self, history: History) -> None:
        """Count what is new since the last call; the same history, or one that began anew."""
        for batch in reversed(list(_newly_done(history, self._done))):
            self._count(batch)
        if history.account is not None:
            self._count_idle(history.account)
            self._look_back(history)
        for stage, finished in enumerate(history.last_finished):
            if finished is not None:
                self._ages[stage].set(max(0.0, history.now - finished))

    def _count(self, batch: BatchRecord) -> None:
        self._done = batch.number
        self._iteration.observe(batch.num_tokens)
        self._tokens.observe(batch.num_tokens)
        for passage in batch.passages:
            self._steps[passage.stage, batch.kind].observe(passage.finished - passage.started)
        for before, after in pairwise(batch.passages):
            self._sends[before.stage].observe(max(0.0, after.input_received - before.sent))
            self._bytes[before.stage].inc(batch.num_tokens * self._bytes_per_token)

    def _count_idle(self, account: IdleAccount) -> None:
        if account is not self._account:  # it counts from its own beginning
            self._account, self._counted = account, {}
        for (stage, cause), counter in self._idle.items():
            seconds = account.idle[stage][cause]
            counter.inc(max(0.0, seconds - self._counted.get((stage, cause), 0.0)))
            self._counted[stage, cause] = seconds

    def _look_back(self, history: History) -> None:
        use = latest_use(history, WINDOW_SECONDS)
        self.bubble, self.imbalance = use.bubble, use.imbalance
        self._bubble.set(self.bubble or 0.0)
        self._imbalance.set(self.imbalance or 0.0)


def _newly_done(history: History, after: int) -> Iterator[BatchRecord]:
    """Batches that have come back since batch `after`, the latest first."""
    for batch in reversed(history.batches.values()):
        if batch.number <= after:
            break
        if batch.done is not None:
            yield batch
