"""When requests are sent: all at once, or at a mean rate with gaps as regular or as bursty as one likes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class RampUp:
    """A rate that grows (or falls) from the first request to the last, in requests per second."""

    strategy: str  # linear: by equal differences; exponential: by equal factors
    start: float
    end: float

    def rates(self, num_requests: int) -> np.ndarray:
        """The rate at each request."""
        progress = np.linspace(0.0, 1.0, num_requests)
        if self.strategy == "linear":
            return self.start + (self.end - self.start) * progress
        return self.start * (self.end / self.start) ** progress


def arrival_times(num_requests: int, rate: float, burstiness: float, draw: np.random.Generator) -> list[float]:
    """Seconds after the start at which each request is sent, in order.

    The gaps are gamma-distributed with shape `burstiness` and mean 1 ÷ `rate`: 1 is a Poisson process, less is burstier,
    more is more regular. They are stretched so that the last request is sent after exactly `num_requests` ÷ `rate`
    seconds, so two runs of one rate offer the same load; given its last arrival, a Poisson process stays one.

    Args:
        rate: requests per second; infinite sends all at once.
        burstiness: shape of the gaps, above 0.
    """
    if num_requests == 0 or math.isinf(rate):
        return [0.0] * num_requests
    times = np.cumsum(draw.gamma(shape=burstiness, scale=1 / (rate * burstiness), size=num_requests))
    last = float(times[-1])
    if last == 0.0:  # with a tiny shape every gap may round to nothing
        return [num_requests / rate] * num_requests
    return [
        float(time) for time in times / last * (num_requests / rate)
    ]  # in this order: the sum may be the tiniest of numbers


def ramped_times(num_requests: int, ramp: RampUp, burstiness: float, draw: np.random.Generator) -> list[float]:
    """The same for a rate that changes: each gap is drawn for the rate at its request."""
    gaps = draw.gamma(shape=burstiness, scale=1 / (ramp.rates(num_requests) * burstiness))
    return [float(time) for time in np.cumsum(gaps)]
