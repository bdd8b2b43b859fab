"""The invariants S1 to S9 of the scheduling contract, over random scenarios on the real engine core."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings

from paceline.kv_cache.block_pool import BlockPool
from paceline.messages import LoopedToken
from paceline.request import Request
from paceline.scheduling import Reason
from paceline.scheduling.admission import PROTECTED_AFTER
from paceline.scheduling.batch_maker import BatchMaker
from tests.engine.fake_pipeline import TokenKey
from tests.engine.harness import Harness, Scenario, make_scenario, scenarios

SETTINGS = settings(max_examples=1000, deadline=None, suppress_health_check=list(HealthCheck))


@SETTINGS
@given(scenarios())
def test_invariants_hold(scenario: Scenario) -> None:
    Harness(scenario).run()


@SETTINGS
@given(scenarios(few_blocks=True))
def test_invariants_hold_when_blocks_are_few(scenario: Scenario) -> None:
    Harness(scenario).run()


@SETTINGS
@given(scenarios(faults=True))
def test_a_row_that_fails_harms_no_other(scenario: Scenario) -> None:
    Harness(scenario).run()


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(scenarios())
def test_outputs_do_not_depend_on_the_schedule(scenario: Scenario) -> None:
    """S8 once more, directly: stages, budget, caching, loop-back and pacing change nothing of what comes out."""
    arrivals = [dataclasses.replace(a, abort_at=None, stop_text_at=None, timeout=None) for a in scenario.arrivals]
    outputs = []
    for stages, budget, caching, loop_back, pacing in (
        (1, 64, False, False, "greedy"),
        (8, 3, True, False, "throttle"),
        (3, 16, True, True, "paced"),
        (1, 4, True, True, "paced"),
        (7, 24, False, True, "greedy"),
        (4, 64, False, False, "paced"),
    ):
        options = msgspec.structs.replace(
            scenario.options,
            stages=stages,
            loop_back=loop_back,
            max_num_batched_tokens=budget,
            enable_prefix_caching=caching,
            enable_chunked_prefill=True,
            pacing=pacing,
        )
        harness = Harness(Scenario(options, arrivals, scenario.interleaving)).run()
        outputs.append([seen.tokens for seen in harness.seen.values()])
    assert all(output == outputs[0] for output in outputs)


def _fails(*, few_blocks: bool | None = None, loop_back: bool | None = None, **harness: Any) -> str:
    """What the harness says about the first scenario that fails; a mutant may need a rare meeting of events."""
    for seed in range(5000):
        try:
            Harness(make_scenario(seed, few_blocks=few_blocks, loop_back=loop_back), **harness).run()
        except Exception as failure:
            return str(failure)
    pytest.fail("no scenario noticed")


def test_the_harness_catches_a_victim_inside_the_batch_being_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def latest(maker: BatchMaker) -> Request | None:
        return max(maker.scheduler.running, key=lambda r: r.order, default=None)

    monkeypatch.setattr(BatchMaker, "_victim", latest)
    _fails(few_blocks=True)


def test_the_harness_catches_blocks_freed_while_others_hold_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def release_for_all(pool: BlockPool, blocks: list[int]) -> None:
        for block in blocks:
            pool.references[block] = 0
            pool._free[block] = None

    monkeypatch.setattr(BlockPool, "release", release_for_all)
    _fails()


def test_the_harness_catches_a_dropped_row() -> None:
    _fails(drop_stale_rows=True)


def _by_row(row: int, token: LoopedToken) -> Hashable:
    """What was a security hole elsewhere: whoever has a row now gets the token of whoever had it before."""
    return row


def _by_request(row: int, token: LoopedToken) -> Hashable:
    return token.request


@pytest.mark.parametrize("key", [_by_row, _by_request])
def test_the_harness_catches_a_stale_token(key: TokenKey) -> None:
    assert "S8" in _fails(loop_back=True, token_key=key)


def test_what_the_properties_rely_on_really_happens() -> None:
    """Preemptions, prefix hits, protected requests and every reason occur in scenarios of the kind that is generated."""
    preemptions = hits = protected = ahead = early = waits = discarded = preempted_ahead = tombstones = 0
    reasons: set[Reason] = set()
    for seed in range(400):
        harness = Harness(make_scenario(seed, few_blocks=seed % 2 == 0, faults=seed % 8 == 1)).run()
        preemptions += harness.core.scheduler.num_preemptions
        hits += harness.num_hits
        protected += any(life >= PROTECTED_AFTER for _, _, life in harness.slices)
        reasons |= harness.reasons
        ahead += len(harness.ahead)
        early += len(harness.awaited)
        waits += harness.pipeline.num_waits
        discarded += sum(request.num_known_tokens <= position + 1 for request, position in harness.ahead)
        preempted_ahead += harness.num_preempted_ahead
        tombstones += harness.pipeline.num_tombstones
    assert preemptions > 100
    assert hits > 100
    assert protected > 0
    assert ahead > early > 100
    assert waits > 100
    assert discarded > 100
    assert preempted_ahead > 0
    assert tombstones > 0
    assert reasons == set(Reason) - {Reason.GRAMMAR_PENDING}
