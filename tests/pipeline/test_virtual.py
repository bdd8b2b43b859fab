"""The virtual pipeline against times worked out by hand."""

from __future__ import annotations

import pytest

from paceline.messages import PLACEHOLDER, Plan, Slice
from paceline.pipeline.timing import PricedTiming
from paceline.pipeline.virtual import VirtualClock, VirtualPipeline
from paceline.scheduling.cost_model import CostModel, LinkCost, StageCost

COST = CostModel((StageCost(fixed=1.0, token=1.0), StageCost(fixed=2.0)), LinkCost(fixed=0.25))


def plan(batch: int, num_tokens: int, *, ahead: bool = False, released: list[int] | None = None) -> Plan:
    tokens = [PLACEHOLDER] if ahead else [7] * num_tokens
    return Plan(0, batch, [Slice(0, 0, 0, tokens, True, 0, [])], [], released or [])


def pipeline(mail: float | None = None, **options: bool) -> tuple[VirtualPipeline, VirtualClock]:
    clock = VirtualClock()
    return VirtualPipeline(PricedTiming(COST), clock, lambda: mail, **options), clock


def test_two_batches_follow_each_other_through_two_stages() -> None:
    virtual, clock = pipeline()
    virtual.submit(plan(0, 3))  # stage 0: 0.25 to 4.25, stage 1: 4.5 to 6.5
    virtual.submit(plan(1, 1))  # stage 0: 4.25 to 6.25, stage 1: 6.5 to 8.5
    assert virtual.collect() is None
    virtual.wait(None)
    assert clock.now == pytest.approx(6.75)
    first = virtual.collect()
    assert first is not None
    assert [(t.started, t.finished) for t in first.times] == [(0.25, 4.25), (4.5, 6.5)]
    assert virtual.collect() is None
    virtual.wait(None)
    second = virtual.collect()
    assert second is not None
    assert clock.now == pytest.approx(8.75)
    assert [(t.started, t.finished) for t in second.times] == [(4.25, 6.25), (6.5, 8.5)]
    assert [t.cpu_seconds for t in second.times] == [2.0, 2.0]
    assert second.tokens[0].request == 0


def test_waiting_ends_with_mail_or_the_timeout() -> None:
    virtual, clock = pipeline(mail=5.0)
    virtual.submit(plan(0, 3))
    virtual.wait(2.0)
    assert clock.now == 2.0
    virtual.wait(None)
    assert clock.now == 5.0
    assert virtual.collect() is None


def test_an_idle_pipeline_stays_where_it_is() -> None:
    virtual, clock = pipeline()
    virtual.wait(None)
    assert clock.now == 0.0
    virtual.close()


def test_a_looped_token_is_at_the_first_stage_a_link_after_the_last() -> None:
    virtual, _ = pipeline(loop_back=True)
    assert virtual.depth == 3
    virtual.submit(plan(0, 1))  # its token is there at 2.25 + 0.25 + 2 + 0.25
    virtual.submit(plan(1, 1, ahead=True))
    virtual.wait(None)
    assert virtual.collect() is not None
    virtual.wait(None)
    second = virtual.collect()
    assert second is not None
    assert second.times[0].started == pytest.approx(4.75)
