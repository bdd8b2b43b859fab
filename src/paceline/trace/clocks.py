"""How far another clock is ahead of ours, from bounds that messages give.

A message that was sent at *a* by our clock and received at *b* by the other one took no negative time, so the other
clock is at most *b − a* ahead; one that goes the other way bounds it from below. Every pair of messages narrows the
interval, and between two of them it widens by as much as the clocks may drift apart.
"""

from __future__ import annotations

import math

SAME_KERNEL_DRIFT = 0.0  # all processes of one machine read one oscillator; only the zero may differ (time namespaces)
OTHER_HOST_DRIFT = 100e-6  # seconds per second: two ordinary quartz crystals


class ClockBounds:
    """The interval in which another clock's offset lies.

    Args:
        drift: by how many seconds per second the two clocks may drift apart.
    """

    def __init__(self, drift: float = SAME_KERNEL_DRIFT) -> None:
        self._drift = drift
        self._low, self._high = -math.inf, math.inf
        self._at = 0.0

    def exchange(self, sent: float, other: float, received: float) -> None:
        """A message left at `sent`, was answered at `other` on the other clock, and the answer came at `received`."""
        widening = self._drift * max(0.0, received - self._at)
        self._at = received
        meanwhile = self._drift * (received - sent)
        low, high = other - received - meanwhile, other - sent + meanwhile
        self._low, self._high = max(low, self._low - widening), min(high, self._high + widening)
        if self._low > self._high:  # a clock was set: only the newest exchange counts
            self._low, self._high = low, high

    @property
    def offset(self) -> float:
        """Seconds by which the other clock is ahead; 0 before anything was measured."""
        return (self._low + self._high) / 2 if math.isfinite(self._high) else 0.0

    @property
    def uncertainty(self) -> float:
        """The offset is right up to so many seconds; infinite before anything was measured."""
        return (self._high - self._low) / 2
