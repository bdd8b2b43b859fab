"""Prices against work counted by hand, and the longest chunk against the chunk's own time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.messages import Slice
from paceline.scheduling.cost_model import CostModel, LinkCost, StageCost, Work, uniform, work_of

COST = StageCost(fixed=8.0, token=4.0, sequence=2.0, decode_context=0.5, prefill_context=0.25, sample=1.0)


def slice_of(start: int, num_tokens: int, *, samples: bool) -> Slice:
    return Slice(0, 0, start, [7] * num_tokens, samples, 0, [])


def test_the_work_of_a_mixed_batch() -> None:
    slices = [slice_of(100, 1, samples=True), slice_of(9, 1, samples=True), slice_of(10, 4, samples=False)]
    assert work_of(slices) == Work(1, 6, 3, 109, 4 * (10 + 2), 2)


def test_the_time_of_a_batch_is_the_sum_of_its_prices() -> None:
    work = Work(1, 6, 3, 109, 48, 2)
    assert COST.time(work) == 8 + 4 * 6 + 2 * 3 + 0.5 * 109 + 0.25 * 48 + 2
    assert COST.decode(10) == COST.time(Work(1, 1, 1, 10, 0, 1)) - COST.fixed
    assert COST.chunk(4, 10) == COST.time(Work(1, 4, 0, 0, 48, 0)) - COST.fixed


@pytest.mark.parametrize(
    ("slices", "kind"),
    [
        ([slice_of(5, 1, samples=True)] * 2, "decode"),
        ([slice_of(0, 5, samples=True)], "prefill"),
        ([slice_of(0, 5, samples=False), slice_of(5, 1, samples=True)], "mixed"),
    ],
)
def test_the_kind_of_a_batch(slices: list[Slice], kind: str) -> None:
    assert work_of(slices).kind == kind


@given(st.floats(0, 1e3), st.floats(0, 1e5), st.floats(1e-9, 1e3), st.sampled_from([0.0, 1e-12, 1e-3, 1.0]))
def test_the_longest_chunk_takes_the_time_that_is_there(
    seconds: float, context: float, token: float, pair: float
) -> None:
    cost = StageCost(token=token, prefill_context=pair)
    longest = cost.longest_chunk(seconds, context)
    assert cost.chunk(longest, context) == pytest.approx(seconds, rel=1e-6, abs=1e-12)


def test_a_chunk_without_a_price_is_endless() -> None:
    assert StageCost(fixed=1.0).longest_chunk(1.0, 10) == float("inf")
    assert StageCost(fixed=1.0).longest_chunk(0.0, 10) == 0.0


def test_the_slowest_stage_depends_on_the_work() -> None:
    layers, head = StageCost(fixed=1.0, token=1.0), StageCost(fixed=1.0, token=0.5, sample=2.0)
    model = CostModel((layers, head))
    assert model.slowest(Work(1, 64, 1)) is layers
    assert model.slowest(Work(1, 64, 64, 0, 0, 64)) is head
    assert model.time(1, Work(1, 2, 2, 0, 0, 2)) == 6.0


def test_what_cannot_be_a_price_is_refused() -> None:
    for price in (-1.0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="token"):
            StageCost(token=price)
    with pytest.raises(ValueError, match="at least one stage"):
        CostModel(())


def test_a_link_and_equal_stages() -> None:
    assert LinkCost(fixed=2.0, token=0.5).time(4) == 4.0
    assert uniform(3, COST).stages == (COST, COST, COST)
    assert COST.scaled(2.0).time(Work(1, 6, 3)) == 2 * COST.time(Work(1, 6, 3))
