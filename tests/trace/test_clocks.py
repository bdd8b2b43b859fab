"""The true offset of another clock always lies within what is said of it."""

from __future__ import annotations

import math
import random

from hypothesis import given
from hypothesis import strategies as st

from paceline.trace.clocks import OTHER_HOST_DRIFT, ClockBounds


@given(st.floats(-1e5, 1e5), st.floats(-OTHER_HOST_DRIFT, OTHER_HOST_DRIFT), st.integers(0, 2**32))
def test_the_true_offset_is_within_the_bounds_whatever_the_delays(ahead: float, drift: float, seed: int) -> None:
    bounds, rng = ClockBounds(OTHER_HOST_DRIFT), random.Random(seed)
    now = 0.0
    for _ in range(50):
        now += rng.choice([0.0, rng.uniform(0, 100)])
        sent = now
        now += rng.choice([1e-5, rng.uniform(0, 3)])
        other = now + ahead + drift * now
        now += rng.choice([1e-5, rng.uniform(0, 3)])
        bounds.exchange(sent, other, now)
        true = ahead + drift * now
        assert abs(true - bounds.offset) <= bounds.uncertainty + 1e-6


def test_a_quick_answer_narrows_the_bounds_and_a_slow_one_does_not_widen_them() -> None:
    bounds = ClockBounds()
    assert bounds.uncertainty == math.inf
    bounds.exchange(0.0, 105.0, 10.0)
    assert (bounds.offset, bounds.uncertainty) == (100.0, 5.0)
    bounds.exchange(10.0, 110.5, 11.0)
    assert (bounds.offset, bounds.uncertainty) == (100.0, 0.5)
    bounds.exchange(20.0, 123.0, 30.0)
    assert bounds.uncertainty == 0.5


def test_a_clock_that_was_set_is_measured_anew() -> None:
    bounds = ClockBounds()
    bounds.exchange(0.0, 100.0, 0.01)
    bounds.exchange(1.0, 501.0, 1.01)
    assert abs(bounds.offset - 500.0) <= 0.01
