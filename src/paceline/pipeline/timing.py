"""How long things take in a virtual pipeline: what the cost model says, or, elsewhere, what they took in a real run."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from paceline.scheduling.cost_model import CostModel, Work

SHORTEST = 0.1  # of a stage's predicted time, however the spread is drawn


class BatchTimes(NamedTuple):
    """Of one batch, in seconds.

    Attributes:
        plan: from when the core can make it until stage 0 has its plan.
        stages: each stage's computing.
        turnaround: from the end of one batch on a stage until this one can start there, if it has come before that.
        link: from the end of one stage until the next has it, or, after the last, stage 0 its tokens.
        result: from the end of the last stage until the core has the result.
    """

    plan: float
    stages: Sequence[float]
    turnaround: float
    link: float
    result: float


class Timing(Protocol):
    """What batches take, drawn anew for each where it varies."""

    num_stages: int

    def times(self, work: Work) -> BatchTimes:
        """Of a batch with this work."""


class PricedTiming:
    """Exactly what a cost model says; every transfer takes its price of a link.

    Args:
        jitter: standard deviation of stage times, relative.
    """

    def __init__(self, cost: CostModel, jitter: float = 0.0, seed: int = 0) -> None:
        self.num_stages = len(cost.stages)
        self._cost = cost
        self._jitter = jitter
        self._draw = random.Random(seed)

    def times(self, work: Work) -> BatchTimes:
        link = self._cost.link.time(work.token)
        stages = [stage.time(work) for stage in self._cost.stages]
        if self._jitter:
            stages = [seconds * max(SHORTEST, self._draw.gauss(1.0, self._jitter)) for seconds in stages]
        return BatchTimes(link, stages, 0.0, link, link)
