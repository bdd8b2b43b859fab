"""Arrival processes against what their distributions promise."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from paceline.bench.arrivals import RampUp, arrival_times, ramped_times


def times_of(count: int, rate: float, burstiness: float = 1.0, seed: int = 0) -> np.ndarray:
    return np.array(arrival_times(count, rate, burstiness, np.random.default_rng(seed)))


def test_an_infinite_rate_sends_everything_at_once() -> None:
    assert times_of(5, math.inf).tolist() == [0.0] * 5
    assert times_of(0, 3.0).tolist() == []


@given(
    st.integers(1, 200), st.floats(1e-3, 1e4), st.floats(1e-3, 1e3), st.integers(0, 2**32)
)  # 1e-3: nearly all gaps round to nothing
@example(1, 1.0, 0.001, 2482484)  # a single gap, so small that its inverse is no number
def test_the_rate_is_met_exactly_and_nobody_overtakes(count: int, rate: float, burstiness: float, seed: int) -> None:
    times = times_of(count, rate, burstiness, seed)
    assert len(times) == count
    assert times[-1] == pytest.approx(count / rate)
    assert (np.diff(times) >= 0).all()
    assert (times >= 0).all()


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gaps_vary_as_a_gamma_distribution_of_this_shape(burstiness: float) -> None:
    gaps = np.diff(times_of(50_000, 7.0, burstiness), prepend=0.0)
    assert gaps.mean() == pytest.approx(1 / 7.0)
    assert gaps.var() / gaps.mean() ** 2 == pytest.approx(1 / burstiness, rel=0.05)


def test_burstiness_1_is_a_poisson_process() -> None:
    times = times_of(50_000, 10.0)
    per_second = np.bincount(times.astype(int))[:-1]
    assert per_second.var() / per_second.mean() == pytest.approx(1.0, rel=0.05)
    gaps = np.diff(times)
    for moment in (0.02, 0.1, 0.3):  # exponential gaps have no memory
        assert (gaps > moment).mean() == pytest.approx(math.exp(-10 * moment), abs=0.01)


def test_the_seed_alone_decides() -> None:
    assert times_of(50, 3.0, 0.5, seed=1).tolist() == times_of(50, 3.0, 0.5, seed=1).tolist()
    assert times_of(50, 3.0, 0.5, seed=1).tolist() != times_of(50, 3.0, 0.5, seed=2).tolist()


@pytest.mark.parametrize(("strategy", "middle"), [("linear", 55.0), ("exponential", math.sqrt(1000.0))])
def test_a_ramp_goes_from_one_rate_to_the_other(strategy: str, middle: float) -> None:
    rates = RampUp(strategy, 10.0, 100.0).rates(101)
    assert (rates[0], rates[50], rates[100]) == pytest.approx((10.0, middle, 100.0))
    assert (np.diff(rates) > 0).all()
    ramp = RampUp(strategy, 10.0, 100.0)
    gaps = np.diff(ramped_times(50_000, ramp, 4.0, np.random.default_rng(1)), prepend=0.0)
    for some in (slice(2000), slice(20_000, 22_000), slice(48_000, None)):
        assert gaps[some].mean() == pytest.approx((1 / ramp.rates(50_000)[some]).mean(), rel=0.05)


def test_a_ramp_of_one_request() -> None:
    assert RampUp("exponential", 3.0, 30.0).rates(1) == pytest.approx([3.0])
