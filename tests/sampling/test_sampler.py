"""The sampler as the last stage uses it."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.sampling import sampler
from paceline.sampling.sampler import SampleRow, sample
from paceline.sampling_params import SamplingParams
from tests.sampling.oracle import ranked, softmax

GREEDY = SamplingParams(temperature=0.0)
VOCABULARY = 1200


def rows_of(params, n=1, position=10, prompt=10, eos=()):
    return [SampleRow(i, 7, position, prompt, params, eos) for i in range(n)]


def random_logits(n, vocabulary=VOCABULARY, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).normal(0, 3, (n, vocabulary)).astype(np.float32))


def test_greedy_takes_the_lowest_of_the_best():
    logits = torch.tensor([[1.0, 3.0, 3.0, 0.0], [-math.inf, -2.0, -math.inf, -2.0]])
    tokens = sample(logits, rows_of(GREEDY, 2))
    assert [(t.request, t.generation, t.token_id, t.logprobs, t.error) for t in tokens] == [
        (0, 7, 1, None, ""),
        (1, 7, 1, None, ""),
    ]


def test_no_rows():
    assert sample(torch.empty(0, 5), []) == []


any_params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 1e-6, 0.3, 1.0, 2.0]),
    top_k=st.sampled_from([0, 1, 5, 400]),
    top_p=st.sampled_from([1.0, 0.9, 0.3]),
    min_p=st.sampled_from([0.0, 0.1]),
    seed=st.integers(-(2**63), 2**63 - 1),
    min_tokens=st.sampled_from([0, 5]),
    logprobs=st.sampled_from([None, 0, 3]),
)


@settings(max_examples=60, deadline=None)
@given(st.data(), st.lists(any_params, min_size=1, max_size=9))
def test_neighbours_order_and_batch_size_change_no_bit(data, params):
    """Each row alone gives what it gives among others, in any order, on one thread or two."""
    logits = random_logits(len(params), seed=len(params))
    rows = [SampleRow(i, i % 3, 12 + i, 10, p, (3, 900)) for i, p in enumerate(params)]
    if data.draw(st.booleans(), "one row is damaged"):
        logits[data.draw(st.integers(0, len(params) - 1)), 5] = math.nan
    alone = [sample(logits[i : i + 1].clone(), [row])[0] for i, row in enumerate(rows)]
    order = data.draw(st.permutations(range(len(rows))))
    threads = torch.get_num_threads()
    torch.set_num_threads(data.draw(st.sampled_from([1, 2])))
    try:
        together = sample(logits[list(order)], [rows[i] for i in order])
    finally:
        torch.set_num_threads(threads)
    assert together == [alone[i] for i in order]


def test_same_seed_and_position_repeat_and_others_differ():
    logits = torch.zeros(1, 10_000)

    def token(seed, position):
        return sample(logits, rows_of(SamplingParams(seed=seed), position=position))[0].token_id

    assert token(3, 10) == token(3, 10)
    assert len({token(3, position) for position in range(10, 40)}) > 25
    assert len({token(seed, 10) for seed in range(30)}) > 25


def test_request_number_and_generation_do_not_matter():
    """After a preemption the same request is sampled under another generation, perhaps another number."""
    logits, params = random_logits(1), SamplingParams(seed=11)
    chosen = {sample(logits, [SampleRow(r, g, 30, 10, params)])[0].token_id for r in range(3) for g in range(3)}
    assert len(chosen) == 1


def test_logits_are_not_changed():
    logits = random_logits(4)
    before = logits.clone()
    params = SamplingParams(temperature=0.7, top_p=0.9, seed=1, min_tokens=9, stop_token_ids=(1, 2), logprobs=5)
    sample(logits, rows_of(params, 4, eos=(4,)))
    assert torch.equal(logits, before)


# ---------------------------------------------------------------- damaged rows


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("column", [0, 600, VOCABULARY - 1])
@pytest.mark.parametrize(
    "params", [GREEDY, SamplingParams(seed=1), SamplingParams(seed=1, top_k=5, logprobs=3)], ids=str
)
def test_one_damaged_row_fails_alone(bad, column, params):
    logits = random_logits(3)
    healthy = sample(logits, rows_of(params, 3))
    logits[1, column] = bad
    tokens = sample(logits, rows_of(params, 3))
    assert tokens[0] == healthy[0]
    assert tokens[2] == healthy[2]
    assert (tokens[1].token_id, tokens[1].logprobs) == (-1, None)
    assert str(bad) in tokens[1].error
    assert "position 10" in tokens[1].error


def test_nan_is_found_beside_infinities():
    logits = torch.tensor([[math.inf, math.nan, 1.0], [-math.inf, math.nan, -math.inf], [1.0, math.inf, 0.0]])
    assert [t.token_id for t in sample(logits, rows_of(GREEDY, 3))] == [-1, -1, -1]


def test_a_row_that_allows_nothing_fails():
    (token,) = sample(torch.full((1, 8), -math.inf), rows_of(GREEDY))
    assert token.token_id == -1
    assert "allow no token" in token.error


@pytest.mark.parametrize(
    "params", [SamplingParams(seed=5), SamplingParams(seed=5, top_k=4), SamplingParams(seed=5, top_p=0.5)]
)
def test_minus_infinity_forbids_single_tokens(params):
    logits = torch.zeros(1, 6)
    logits[0, [0, 1, 3]] = -math.inf
    chosen = {sample(logits, rows_of(params, position=p))[0].token_id for p in range(10, 110)}
    assert chosen <= {2, 4, 5}
    assert len(chosen) > 1


def test_a_failure_in_choosing_costs_only_its_row():
    tokens = sample(random_logits(2), [rows_of(SamplingParams(seed=None))[0], rows_of(GREEDY)[0]])
    assert tokens[0].token_id == -1
    assert tokens[0].error == "sampling failed: ValueError"
    assert tokens[1].token_id >= 0


# ---------------------------------------------------------------- min_tokens


@pytest.mark.parametrize("params", [GREEDY, SamplingParams(seed=1, temperature=0.01)], ids=["greedy", "random"])
def test_min_tokens_forbids_every_end_until_so_many_exist(params):
    logits = torch.zeros(1, 10)
    logits[0, :4] = torch.tensor([9.0, 8.0, 7.0, 6.0])
    params = SamplingParams(temperature=params.temperature, seed=1, min_tokens=3, stop_token_ids=(1,))
    first = [sample(logits, rows_of(params, position=p, eos=(0, 2)))[0].token_id for p in range(10, 15)]
    assert first == [3, 3, 3, 0, 0]  # outputs 0, 1, 2 may not end it; the fourth may


def test_ignored_ends_are_not_forbidden():
    params = SamplingParams(temperature=0.0, min_tokens=3, stop_token_ids=(1,), ignore_eos=True)
    assert sample(torch.tensor([[9.0, 10.0, 0.0]]), rows_of(params, eos=(0,)))[0].token_id == 0


def test_min_tokens_that_leave_nothing_fail_the_row():
    params = SamplingParams(temperature=0.0, min_tokens=3, stop_token_ids=(1,))
    (token,) = sample(torch.tensor([[-math.inf, 4.0, -math.inf]]), rows_of(params))
    assert token.token_id == -1
    assert "min_tokens" in token.error


# ---------------------------------------------------------------- log probabilities


@given(
    st.lists(
        st.one_of(st.integers(-30, 30).map(float), st.just(-math.inf), st.floats(-90, 90, width=32)),
        min_size=1,
        max_size=90,
    ).filter(lambda row: max(row) > -math.inf),
    st.integers(0, 20),
    st.integers(0, 2**63 - 1),
)
def test_logprobs_are_those_of_the_raw_distribution(row, wanted, seed):
    params = SamplingParams(temperature=1.9, top_k=8, seed=seed, logprobs=wanted)
    (token,) = sample(torch.tensor([row], dtype=torch.float32), rows_of(params))
    exact = [max(math.log(p), -9999.0) if p else -9999.0 for p in softmax(row)]
    order = ranked(row)
    got = token.logprobs
    assert got is not None
    assert got.top_ids == order[:wanted]
    assert got.rank == order.index(token.token_id) + 1
    for value, index in [(got.token, token.token_id), *zip(got.top, got.top_ids, strict=True)]:
        assert math.isfinite(value)
        if exact[index] > -700:  # beyond, the oracle's own probability underflows
            assert value == pytest.approx(exact[index], abs=2e-5)


def test_logprobs_ignore_min_tokens():
    params = SamplingParams(temperature=0.0, min_tokens=1, logprobs=2)
    (token,) = sample(torch.tensor([[2.0, 1.0, 0.0]]), rows_of(params, eos=(0,)))
    assert token.logprobs is not None
    assert (token.token_id, token.logprobs.rank, token.logprobs.top_ids) == (1, 2, [0, 1])


def test_impossible_alternatives_have_the_floor():
    params = SamplingParams(temperature=0.0, logprobs=3)
    (token,) = sample(torch.tensor([[-math.inf, 1.0, -math.inf]]), rows_of(params))
    assert token.logprobs is not None
    assert token.logprobs.top_ids == [1, 0, 2]
    assert token.logprobs.top == [0.0, -9999.0, -9999.0]


# ---------------------------------------------------------------- other devices


def test_the_path_of_other_devices_gives_the_same(monkeypatch):
    """Off the CPU torch finds the best of each row; here it does so on CPU tensors that claim another device."""
    params = [GREEDY, SamplingParams(seed=4), SamplingParams(seed=4, top_k=9, logprobs=2), GREEDY]
    logits = random_logits(4)
    logits[0, [77, 78]] = 50.0
    logits[3, 9] = math.nan
    rows = [SampleRow(i, 0, 11, 10, p) for i, p in enumerate(params)]
    expected = sample(logits, rows)
    monkeypatch.setattr(sampler, "HOST", "elsewhere")
    assert sample(logits, rows) == expected
