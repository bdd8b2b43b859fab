"""Filters against a slow oracle, and choices against the exact distribution."""

import math

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from paceline.sampling.distribution import candidates, choose, is_greedy, largest
from paceline.sampling.random import uniform
from paceline.sampling_params import SamplingParams
from tests.sampling.oracle import allowed, ranked, softmax

# Few distinct values, so that ties are common; quarters are exact in float32.
# Logits differ by nothing or by enough to differ after float32 rounding too: the oracle computes exactly.
logit = st.one_of(
    st.integers(-40, 40).map(lambda n: n / 4), st.just(-math.inf), st.integers(-15000, 15000).map(lambda n: n / 256)
)
rows = st.lists(logit, min_size=1, max_size=700).filter(lambda row: max(row) > -math.inf)


@settings(max_examples=300, deadline=None)
@given(
    rows,
    st.sampled_from([0.05, 0.5, 1.0, 1.7, 50.0]),
    st.sampled_from([0, -1, 1, 2, 3, 17, 600, 10**6]),
    st.sampled_from([1.0, 0.999, 0.9, 0.5, 0.1, 1e-9]),
    st.sampled_from([0.0, 1e-4, 0.1, 0.6, 1.0]),
)
@example([0.0] * 600, 1.0, 17, 0.5, 0.0)
@example([-math.inf, 3.0], 1.0, 0, 0.9, 0.0)
def test_filters_keep_what_the_oracle_keeps(row, temperature, top_k, top_p, min_p):
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    expected, close = allowed(row, params)
    assume(not close)
    array = np.array(row, dtype=np.float32)
    ids, weights = candidates(array, params)
    ids = np.arange(len(row)) if ids is None else ids
    assert list(ids) == sorted(set(ids.tolist()))
    found = {int(i): float(w) for i, w in zip(ids, weights / weights.sum(dtype=np.float64), strict=True)}
    assert {i for i in found if found[i] > 1e-30} == {i for i in expected if expected[i] > 1e-30}
    for i, probability in expected.items():
        assert found.get(i, 0.0) == pytest.approx(probability, rel=3e-4, abs=1e-30)
    assert array.tolist() == np.array(row, dtype=np.float32).tolist()  # the logits are the caller's


@given(rows, st.integers(1, 720))
def test_largest_breaks_ties_by_the_lower_id(row, k):
    assert largest(np.array(row, dtype=np.float32), k).tolist() == sorted(ranked(row)[:k])


@pytest.mark.parametrize("size", [1, 255, 256, 257, 512, 49152])
@pytest.mark.parametrize("random", [0.0, 0.25, 0.5, 0.999999, 1 - 2**-53])
def test_choice_is_the_inverse_of_the_running_sum(size, random):
    weights = np.random.default_rng(size).random(size, dtype=np.float32) ** 8
    weights[:: max(2, size // 7)] = 0.0
    if size == 1:
        weights[0] = 0.3
    chosen = choose(weights, random)
    exact = np.cumsum(weights, dtype=np.float64)
    target = random * exact[-1]
    assert weights[chosen] > 0
    before = exact[chosen - 1] if chosen else 0.0
    assert before - 1e-5 * exact[-1] <= target <= exact[chosen] + 1e-5 * exact[-1]


@pytest.mark.parametrize("size", [3, 300, 3000])
@pytest.mark.parametrize("random", [0.0, 0.5, 1 - 2**-53])
def test_never_chooses_a_weight_of_zero(size, random):
    for only in {0, 1, size // 2, size - 1}:
        weights = np.zeros(size, dtype=np.float32)
        weights[only] = 1e-38
        assert choose(weights, random) == only


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(temperature=0.6),
        SamplingParams(temperature=1.5, top_k=40),
        SamplingParams(top_p=0.8),
        SamplingParams(temperature=2.0, min_p=0.05),
        SamplingParams(temperature=1.3, top_k=100, top_p=0.9, min_p=0.01),
    ],
    ids=str,
)
@pytest.mark.parametrize("vocabulary", [50, 1000])
def test_frequencies_follow_the_exact_distribution(params, vocabulary):
    """Chi-square over 40,000 draws at successive positions of one seed: fixed, so it passes for good or never."""
    draws = 40_000
    row = np.random.default_rng(vocabulary).normal(0, 2, vocabulary).astype(np.float32)
    expected, _ = allowed(row.tolist(), params)
    ids, weights = candidates(row, params)
    chosen = [choose(weights, uniform(1234, position)) for position in range(draws)]
    counts = np.bincount(chosen if ids is None else ids[chosen], minlength=vocabulary)
    assert set(np.flatnonzero(counts).tolist()) <= set(expected)
    observed, wanted, rest_observed, rest_wanted = [], [], 0.0, 0.0
    for token, probability in expected.items():
        if probability * draws >= 5:
            observed.append(counts[token])
            wanted.append(probability * draws)
        else:  # too rare for the approximation: counted together
            rest_observed += counts[token]
            rest_wanted += probability * draws
    if rest_wanted >= 5:
        observed.append(rest_observed)
        wanted.append(rest_wanted)
    chi2 = float(((np.array(observed) - wanted) ** 2 / wanted).sum())
    freedom = len(wanted) - 1
    # Wilson and Hilferty: the cube root of chi2/freedom is nearly normal.
    z = ((chi2 / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / math.sqrt(2 / (9 * freedom))
    assert abs(z) < 3, (chi2, freedom)


@pytest.mark.parametrize("temperature", [1e-5, 1e-4, 0.01, 100.0])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4, 1e37])
def test_extreme_temperatures_give_finite_weights(temperature, scale):
    row = (np.random.default_rng(0).normal(0, 1, 500) * scale).astype(np.float32)
    with np.errstate(over="ignore"):
        _, weights = candidates(row, SamplingParams(temperature=temperature))
    assert np.isfinite(weights).all()
    assert weights.max() == 1.0
    assert weights.argmax() == row.argmax()


@pytest.mark.parametrize(
    ("params", "greedy"),
    [
        (SamplingParams(temperature=0), True),
        (SamplingParams(temperature=5e-324), True),
        (SamplingParams(temperature=1e-6), True),
        (SamplingParams(top_k=1), True),
        (SamplingParams(temperature=1e-5), False),
        (SamplingParams(), False),
    ],
    ids=str,
)
def test_what_counts_as_greedy(params, greedy):
    assert is_greedy(params) is greedy


def test_the_oracle_agrees_with_a_hand_calculation():
    row = [math.log(5), math.log(3), math.log(1), math.log(1)]
    assert softmax(row) == pytest.approx([0.5, 0.3, 0.1, 0.1])
    assert allowed(row, SamplingParams(top_p=0.75))[0] == pytest.approx({0: 5 / 8, 1: 3 / 8})
    assert allowed(row, SamplingParams(top_k=3))[0] == pytest.approx({0: 5 / 9, 1: 3 / 9, 2: 1 / 9})
    assert allowed(row, SamplingParams(min_p=0.5))[0] == pytest.approx({0: 5 / 8, 1: 3 / 8})
