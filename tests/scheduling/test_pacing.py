"""What each policy grants, checked against its published formula or against predicted time."""

from __future__ import annotations

import pytest

from paceline.kv_cache import KVCacheManager
from paceline.messages import AddRequest
from paceline.request import Request, RequestStatus
from paceline.sampling_params import SamplingParams
from paceline.scheduling.cost_fit import CostFit
from paceline.scheduling.cost_model import CostModel, StageCost, uniform
from paceline.scheduling.pacing import POLICIES, PacingPolicy, Surroundings, make_policy
from paceline.scheduling.pacing.paced import MOST_BATCHES, SMALLEST_CHUNK

COST = StageCost(fixed=0.01, token=1e-3, sequence=1e-4, decode_context=1e-6, prefill_context=1e-7)
_numbers = iter(range(1 << 30))


def request(num_tokens: int, scheduled: int = 0, *, running: bool = True) -> Request:
    made = Request(AddRequest("r", [0] * num_tokens, SamplingParams(max_tokens=999)), next(_numbers), 1 << 20)
    made.num_scheduled_tokens = scheduled
    if running:
        made.change_status(RequestStatus.RUNNING)
    return made


def decode(context: int) -> Request:
    return request(context, context - 1)


def policy(
    name: str,
    *,
    stages: int = 4,
    cost: CostModel | None = None,
    target_tpot: float | None = None,
    num_blocks: int = 10_000,
    budget: int = 2048,
    seats: int = 256,
) -> PacingPolicy:
    return make_policy(
        name,
        Surroundings(
            num_stages=stages,
            max_num_batched_tokens=budget,
            max_num_seqs=seats,
            target_tpot=target_tpot,
            kv_cache=KVCacheManager(num_blocks, 16, prefix_caching=False),
            fit=CostFit(cost or uniform(stages, COST), calibrated=True),
        ),
    )


def seconds_of_prefill(made: PacingPolicy, decodes: list[Request], pending: list[Request], context: int = 0) -> float:
    """How much prefill the next batch may take beside its decodes, as time."""
    grant = made.grant(decodes, decodes, pending)
    return COST.chunk(grant.chunk(pending[0], 1 << 20, context), context)


def test_greedy_grants_everything() -> None:
    decodes = [decode(100) for _ in range(50)]
    grant = policy("greedy").grant(decodes, decodes, [])
    assert grant.num_decodes > 50
    assert grant.chunk(request(5000), 5000, 0) == 5000


# ---------------------------------------------------------------- throttle


def test_throttle_spreads_decodes_by_number_and_the_rest_by_turns() -> None:
    made = policy("throttle")
    decodes = [decode(100) for _ in range(10)]
    granted = [made.grant(decodes, decodes, []).num_decodes for _ in range(8)]
    assert sum(granted[:4]) == sum(granted[4:]) == 10
    assert set(granted) == {2, 3}
    assert made.grant(decodes[:3], decodes[:3], []).num_decodes == 1


def prefill_tokens(made: PacingPolicy, pending: list[Request]) -> int:
    return made.grant([], [], pending).chunk(pending[0], 1 << 20, 0)


def test_throttle_spreads_waiting_prompts_over_eight_batches() -> None:
    several = [request(800, running=False), request(480, running=False)]
    assert prefill_tokens(policy("throttle"), several) == 1280 // 8
    assert prefill_tokens(policy("throttle"), [request(20, running=False)] * 2) == 32
    assert prefill_tokens(policy("throttle"), [request(800, running=False)]) == 2048  # alone


def test_throttle_holds_prefill_back_as_blocks_run_out() -> None:
    made = policy("throttle", num_blocks=100)
    several = [request(9000, running=False)] * 2
    made.surroundings.kv_cache.pool.take_new(60)  # 40 % are free
    assert prefill_tokens(made, several) == min(16 * (40 - 5), round(2048 * (0.4 - 0.05) / 0.95))
    made.surroundings.kv_cache.pool.take_new(36)
    assert prefill_tokens(made, several) == 0


def test_a_chunk_uses_up_what_throttle_grants() -> None:
    pending = [request(800, running=False), request(480, running=False)]
    grant = policy("throttle").grant([], [], pending)
    grant.took(pending[0], 100)
    assert grant.chunk(pending[1], 480, 0) == 60


# ---------------------------------------------------------------- paced


def test_paced_shares_decodes_by_time() -> None:
    """One long context is worth many short ones: batches differ in number, not in time."""
    decodes = [decode(40_000), *(decode(100) for _ in range(40))]
    made = policy("paced", stages=2)
    first = made.grant(decodes, decodes, []).num_decodes
    second = made.grant(decodes[first:], decodes, []).num_decodes
    times = [sum(COST.decode(len(r.token_ids)) for r in part) for part in (decodes[:first], decodes[first:])]
    assert first + second == 41
    assert abs(times[0] - times[1]) <= COST.decode(100)
    assert first < 10


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 63])
def test_the_grants_of_one_round_hold_every_decode(count: int) -> None:
    decodes = [decode(100) for _ in range(count)]
    made, left = policy("paced"), list(decodes)
    for _ in range(4):
        left = left[made.grant(left, decodes, []).num_decodes :]
    assert not left


def test_a_prompt_is_spread_evenly_over_several_batches() -> None:
    decodes, prompt = [decode(100) for _ in range(100)], request(2000, running=False)
    made = policy("paced")
    per_batch = seconds_of_prefill(made, decodes, [prompt])
    assert per_batch == pytest.approx(COST.chunk(2000, 0) / MOST_BATCHES, rel=0.1)
    prompt.num_scheduled_tokens = 1000  # half of it is through: the pace falls slowly
    prompt.change_status(RequestStatus.RUNNING)
    grant = made.grant(decodes, [*decodes, prompt], [])
    assert COST.chunk(grant.chunk(prompt, 1000, 1000), 1000) >= 0.85 * per_batch


def test_chunks_shrink_as_their_context_grows() -> None:
    decodes, prompt = [decode(100) for _ in range(100)], request(30_000, running=False)
    made = policy("paced")
    lengths = [made.grant(decodes, decodes, [prompt]).chunk(prompt, 1 << 20, c) for c in (0, 10_000, 100_000)]
    times = [COST.chunk(n, c) for n, c in zip(lengths, (0, 10_000, 100_000), strict=True)]
    assert lengths[0] > 1.5 * lengths[1] > 6 * lengths[2]
    assert max(times) < 1.1 * min(times)


def test_a_short_prompt_is_not_cut_when_nobody_runs() -> None:
    prompt = request(20, running=False)
    assert policy("paced").grant([], [], [prompt]).chunk(prompt, 20, 0) == 20


def test_a_lone_long_prompt_is_cut_so_that_every_stage_works_on_it() -> None:
    prompt = request(2000, running=False)
    length = policy("paced").grant([], [], [prompt]).chunk(prompt, 2000, 0)
    assert 200 <= length <= 1000
    assert policy("paced", stages=1).grant([], [], [prompt]).chunk(prompt, 1800, 0) == 1800


def test_the_first_prompt_always_gets_something_and_the_next_only_what_is_left() -> None:
    decodes = [decode(100) for _ in range(100)]
    pending = [request(100_000, running=False), request(100, running=False)]
    grant = policy("paced", target_tpot=0.001).grant(decodes, decodes, pending)
    first = grant.chunk(pending[0], 100_000, 90_000)
    assert first == SMALLEST_CHUNK
    pending[0].num_scheduled_tokens = 90_000
    grant.took(pending[0], first)
    assert grant.chunk(pending[1], 100, 0) == 0


def test_a_target_bounds_the_time_of_a_round() -> None:
    decodes, pending = [decode(100) for _ in range(80)], [request(100_000, running=False)]
    share = 20 * COST.decode(100)
    free = seconds_of_prefill(policy("paced"), decodes, pending)
    target = 4 * (COST.fixed + share + free / 3)
    held = seconds_of_prefill(policy("paced", target_tpot=target), decodes, pending)
    assert held == pytest.approx(free / 3, rel=0.15)


def test_prompts_that_cannot_be_admitted_do_not_make_batches_longer() -> None:
    decodes = [decode(100) for _ in range(100)]
    pending = [request(1000, running=False) for _ in range(20)]
    one = seconds_of_prefill(policy("paced"), decodes, pending[:1])
    assert seconds_of_prefill(policy("paced"), decodes, pending) > 2 * one
    assert seconds_of_prefill(policy("paced", seats=101), decodes, pending) == pytest.approx(one)
    assert seconds_of_prefill(policy("paced", num_blocks=70), decodes, pending) == pytest.approx(one)


def test_in_overload_batches_are_no_longer_than_the_fixed_part_needs() -> None:
    cheap = StageCost(fixed=0.001, token=1e-3)
    pending = [request(100_000, running=False)] * 9
    decodes = [decode(100) for _ in range(8)]
    grant = policy("paced", cost=uniform(4, cheap)).grant(decodes, decodes, pending)
    assert cheap.token * grant.chunk(pending[0], 1 << 20, 0) <= 0.3


def test_preemptions_raise_the_reserve_and_batches_lower_it() -> None:
    made = policy("paced")
    assert made.growth_reserve == 0
    made.preempted()
    made.preempted()
    raised = made.growth_reserve
    assert raised >= 30
    for _ in range(2000):
        made.grant([], [], [])
    assert made.growth_reserve < raised / 10


def test_every_policy_has_its_name() -> None:
    assert list(POLICIES) == ["greedy", "throttle", "paced"]
