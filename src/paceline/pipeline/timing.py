"""How long things take in a virtual pipeline: what the cost model says, or that with the spread of a real run."""

from __future__ import annotations

import random
from typing import Protocol

from paceline.scheduling.cost_model import CostModel, Work

SHORTEST = 0.1  # of a stage's predicted time, however the spread is drawn


class Timing(Protocol):
    """Seconds for a batch with this work, drawn anew each time where they vary."""

    num_stages: int

    def plan(self, work: Work) -> float:
        """From when the core can make the batch until stage 0 has its plan."""

    def stage(self, stage: int, work: Work) -> float:
        """Of the stage's computing."""

    def link(self, work: Work) -> float:
        """From the end of one stage until the next has the batch, or, after the last, stage 0 its tokens."""

    def result(self, work: Work) -> float:
        """From the end of the last stage until the core has the result."""


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

    def stage(self, stage: int, work: Work) -> float:
        seconds = self._cost.time(stage, work)
        return seconds * max(SHORTEST, self._draw.gauss(1.0, self._jitter)) if self._jitter else seconds

    def link(self, work: Work) -> float:
        return self._cost.link.time(work.token)

    plan = result = link
