"""Which layers a stage gets: the balance against an exhaustive search, and what is refused."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.config import EngineConfig
from paceline.errors import ConfigError
from paceline.models.layer_split import DEFAULT_PROMPT_SHARE, balanced, imbalance, layers_that_fit, split_layers
from paceline.models.model_cost import ModelCost, expected_work, operation_count
from paceline.models.spec import ModelSpec, RopeSpec
from paceline.scheduling.cost_model import StageCost


def spec(num_layers: int = 30, vocab_size: int = 49152) -> ModelSpec:
    """The sizes of SmolLM2-135M."""
    rope = RopeSpec(theta=1e5, rotary_dim=64)
    return ModelSpec("llama", num_layers, 576, 1536, 9, 3, 64, vocab_size, 1e-5, rope, 8192, tie_embeddings=True)


def stage_times(cost: ModelCost, counts: Sequence[int], prompt_share: float, weights: Sequence[float]) -> list[float]:
    work = expected_work(prompt_share)
    return [stage.time(work) for stage in cost.pipeline(counts, weights).stages]


def splits(num_layers: int, num_stages: int) -> list[list[int]]:
    """Every way to give each stage at least one layer."""
    bounds = combinations(range(1, num_layers), num_stages - 1)
    return [[b - a for a, b in pairwise((0, *cut, num_layers))] for cut in bounds]


def test_smollm2_on_two_stages() -> None:
    """Layers and head take turns in being the larger part: a chat's mix lies between decode and prefill."""
    assert split_layers(spec(), 2, prompt_share=0.0) == [18, 12]
    assert split_layers(spec(), 2) == [16, 14]
    assert split_layers(spec(), 2, prompt_share=0.5) == [17, 13]
    assert split_layers(spec(), 2, prompt_share=0.3) == [18, 12]
    assert split_layers(spec(), 2, prompt_share=1.0) == [15, 15]


@pytest.mark.parametrize("stages", [2, 3])
def test_smollm2_is_even_on_the_default_mix(stages: int) -> None:
    assert EngineConfig().expected_prompt_share == DEFAULT_PROMPT_SHARE
    cost = operation_count(spec())
    one = [1.0] * stages
    assert imbalance(one) == 1.0
    assert imbalance(stage_times(cost, split_layers(spec(), stages), DEFAULT_PROMPT_SHARE, one)) <= 1.05
    assert imbalance(stage_times(cost, [30 // stages] * stages, DEFAULT_PROMPT_SHARE, one)) > 1.05


@given(
    st.integers(1, 9),
    st.integers(1, 4),
    st.integers(1, 300_000),
    st.floats(0, 1),
    st.lists(st.floats(0.2, 5), min_size=4, max_size=4),
)
def test_no_other_split_has_a_faster_slowest_stage(
    num_layers: int, num_stages: int, vocab_size: int, share: float, weights: list[float]
) -> None:
    num_stages = min(num_stages, num_layers)
    model, speeds = spec(num_layers, vocab_size), weights[:num_stages]
    cost = operation_count(model)
    counts = split_layers(model, num_stages, prompt_share=share, weights=speeds)
    assert sum(counts) == num_layers
    assert min(counts) >= 1
    best = min(max(stage_times(cost, other, share, speeds)) for other in splits(num_layers, num_stages))
    assert max(stage_times(cost, counts, share, speeds)) == pytest.approx(best)


def test_a_faster_worker_gets_more_layers() -> None:
    assert split_layers(spec(), 2, prompt_share=1.0, weights=[2, 1]) == [20, 10]


def test_a_measured_cost_replaces_the_count() -> None:
    free_head = ModelCost(layer=StageCost(fixed=1.0, token=0.5), head=StageCost())
    assert split_layers(spec(), 2, cost=free_head) == [15, 15]


def test_memory_limits_what_a_stage_gets() -> None:
    model = spec()
    per_layer = 3_540_000 * 4
    head = model.vocab_size * model.hidden_size * 4
    fitting = layers_that_fit(model, [head + 16 * per_layer, head + 40 * per_layer], 4)
    assert fitting[0] in (15, 16)
    assert fitting[1] >= 39
    assert split_layers(model, 2, prompt_share=0.0, most=fitting) == [fitting[0], 30 - fitting[0]]
    assert split_layers(model, 3, most=[30, 2, 30])[1] == 2


@pytest.mark.parametrize("most", [[10, 10], [40, 0]])
def test_too_little_memory_is_refused(most: list[int]) -> None:
    with pytest.raises(ConfigError, match="the model has 30") as caught:
        balanced(operation_count(spec()), 30, 2, most=most)
    assert caught.value.option == "stage_memory"


def test_memory_for_less_than_a_layer_is_refused_with_what_is_needed() -> None:
    model = spec()
    for stage in range(3):
        memory = [2**40] * 3
        memory[stage] = 1024
        with pytest.raises(
            ConfigError, match=rf"--stage-memory [\d,]+: stage {stage} holds one layer at least"
        ) as caught:
            layers_that_fit(model, memory, 4)
        (needed,) = re.findall(r"take (\d+)M", str(caught.value))
        memory[stage] = int(needed) * 2**20
        assert layers_that_fit(model, memory, 4)[stage] == 1


def test_a_head_larger_than_all_layers_leaves_the_last_stage_one_layer() -> None:
    assert split_layers(spec(vocab_size=1_000_000), 3)[-1] == 1


def test_a_split_given_by_hand() -> None:
    assert split_layers(spec(), 3, "5, 5,20") == [5, 5, 20]
    assert split_layers(spec(), 2, "18,12", most=[18, 12]) == [18, 12]
    with pytest.raises(ConfigError, match="--layer-split 18,12: stage 1 has memory for 11 layers"):
        split_layers(spec(), 2, "18,12", most=[18, 11])


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("18", "1 stages, and the pipeline has 2"),
        ("10,10,10", "--pipeline-parallel-size 3"),
        ("18,13", "add up to 30"),
        ("30,0", "at least 1"),
        ("31,-1", "at least 1"),
        ("half,half", "not a list of whole numbers"),
        ("18,", "not a list of whole numbers"),
        ("", "not a list of whole numbers"),
    ],
)
def test_a_split_that_does_not_fit(given: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as caught:
        split_layers(spec(), 2, given)
    assert caught.value.option == "layer_split"


@pytest.mark.parametrize("num_stages", [0, -1, 31])
def test_stages_without_layers(num_stages: int) -> None:
    with pytest.raises(ConfigError, match="--pipeline-parallel-size"):
        split_layers(spec(), num_stages)
