"""The fit finds known prices again, through noise, outliers and drift; its solver agrees with an exhaustive one."""

from __future__ import annotations

import random
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.scheduling.cost_fit import STEPS_PER_FIT, CostFit, non_negative_least_squares
from paceline.scheduling.cost_model import CostModel, StageCost, Work, uniform

TRUE = CostModel(
    (
        StageCost(fixed=0.0105, token=4.4e-5, sequence=6e-6, decode_context=6e-8, prefill_context=4e-9),
        StageCost(fixed=0.004, token=8e-5, sequence=1e-6, decode_context=6e-8, prefill_context=4e-9, sample=2e-5),
    )
)
PROPORTIONS = uniform(2, StageCost(3.0, 1.0, 0.1, 1e-3, 1e-3, 0.1))


def draw_work(draw: random.Random) -> Work:
    decodes, context = draw.randint(1, 60), draw.uniform(50, 4000)
    if draw.random() < 0.6:
        return Work(1, decodes, decodes, decodes * context, 0, decodes)
    tokens, before = draw.randint(16, 500), draw.uniform(0, 4000)
    pairs = tokens * (before + tokens / 2)
    if draw.random() < 0.3:
        return Work(1, tokens, 1, 0, pairs, 1)
    return Work(1, decodes + tokens, decodes + 1, decodes * context, pairs, decodes)


def feed(fit: CostFit, model: CostModel, steps: int, *, noise: float, outliers: float = 0.0, seed: int = 1) -> None:
    draw = random.Random(seed)
    for _ in range(steps):
        work = draw_work(draw)
        slow = 6.0 if draw.random() < outliers else 1.0
        fit.add(work, [slow * draw.gauss(1.0, noise) * stage.time(work) for stage in model.stages])


@pytest.mark.parametrize(("noise", "outliers", "worst"), [(0.0, 0.0, 0.01), (0.05, 0.0, 0.06), (0.05, 0.05, 0.08)])
def test_known_prices_are_found_from_proportions_that_are_wrong(noise: float, outliers: float, worst: float) -> None:
    fit = CostFit(PROPORTIONS, calibrated=False)
    feed(fit, TRUE, 1500, noise=noise, outliers=outliers)
    draw = random.Random(9)
    for work in [draw_work(draw) for _ in range(200)]:
        for fitted, true in zip(fit.model.stages, TRUE.stages, strict=True):
            assert fitted.time(work) == pytest.approx(true.time(work), rel=worst)
    assert set(fit.errors()) == {"prefill", "decode", "mixed"}
    assert all(error < worst for error in fit.errors().values())


def test_the_scale_is_right_after_the_first_steps() -> None:
    fit = CostFit(PROPORTIONS, calibrated=False)
    feed(fit, TRUE, STEPS_PER_FIT // 4, noise=0.0)
    assert fit.calibrated
    work = Work(1, 30, 30, 30 * 1000, 0, 30)
    assert fit.model.time(0, work) == pytest.approx(TRUE.time(0, work), rel=0.3)


def test_the_fit_follows_a_machine_that_gets_slower() -> None:
    fit = CostFit(TRUE, calibrated=True)
    feed(fit, TRUE, 500, noise=0.02)
    slower = CostModel(tuple(stage.scaled(1.5) for stage in TRUE.stages))
    feed(fit, slower, 8000, noise=0.02)
    work = Work(1, 200, 20, 19 * 500, 180 * 90, 19)
    assert fit.model.time(1, work) == pytest.approx(slower.time(1, work), rel=0.1)


def test_between_fits_the_model_is_the_same_object() -> None:
    fit = CostFit(TRUE, calibrated=True)
    feed(fit, TRUE, STEPS_PER_FIT - 1, noise=0.1)
    assert fit.model is TRUE
    feed(fit, TRUE, 1, noise=0.1)
    assert fit.model is not TRUE
    assert fit.num_steps == STEPS_PER_FIT


def test_decodes_alone_leave_the_price_of_prompts_where_it_was() -> None:
    fit = CostFit(TRUE, calibrated=True)
    draw = random.Random(3)
    for _ in range(600):
        decodes = draw.randint(1, 60)
        work = Work(1, decodes, decodes, decodes * draw.uniform(50, 4000), 0, decodes)
        fit.add(work, [stage.time(work) for stage in TRUE.stages])
    chunk = Work(1, 256, 1, 0, 256 * 128, 0)
    assert fit.model.time(0, chunk) == pytest.approx(TRUE.time(0, chunk), rel=0.15)


@given(st.lists(st.sampled_from([0.0, 1e-12, 1e-3, 1.0, 1e9]), min_size=64, max_size=64))
def test_any_times_leave_a_model_that_can_be_used(seconds: list[float]) -> None:
    for calibrated in (True, False):
        fit = CostFit(TRUE, calibrated=calibrated)
        draw = random.Random(5)
        for i in range(len(seconds) // 2):
            fit.add(draw_work(draw), seconds[2 * i : 2 * i + 2])
        assert all(0.0 <= stage.time(draw_work(draw)) < float("inf") for stage in fit.model.stages)


def exhaustive(gram: np.ndarray, moment: np.ndarray) -> float:
    """The least value over all sets of positive coordinates."""
    best = 0.0
    for size in range(1, len(moment) + 1):
        for chosen in combinations(range(len(moment)), size):
            index = np.ix_(chosen, chosen)
            x = np.linalg.solve(gram[index], moment[list(chosen)])
            if (x >= 0.0).all():
                best = min(best, float(x @ gram[index] @ x - 2 * moment[list(chosen)] @ x))
    return best


@given(st.integers(0, 2**32), st.integers(1, 6))
def test_the_solver_finds_the_least_value(seed: int, terms: int) -> None:
    draw = np.random.default_rng(seed)
    rows = draw.normal(size=(12, terms)) + draw.normal(size=(12, 1))
    gram = rows.T @ rows + 1e-6 * np.eye(terms)
    moment = rows.T @ draw.normal(size=12)
    x = non_negative_least_squares(gram, moment)
    assert (x >= 0.0).all()
    assert x @ gram @ x - 2 * moment @ x == pytest.approx(exhaustive(gram, moment), rel=1e-6, abs=1e-9)
