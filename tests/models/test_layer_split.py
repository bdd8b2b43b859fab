"""Which layers a stage gets: the balance against an exhaustive search, and what is refused."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import ConfigError
from paceline.models.layer_split import head_cost, layer_cost, split_layers
from paceline.models.spec import ModelSpec, RopeSpec


def spec(num_layers: int = 30, vocab_size: int = 49152) -> ModelSpec:
    """The sizes of SmolLM2-135M."""
    rope = RopeSpec(theta=1e5, rotary_dim=64)
    return ModelSpec("llama", num_layers, 576, 1536, 9, 3, 64, vocab_size, 1e-5, rope, 8192, tie_embeddings=True)


def stage_costs(model: ModelSpec, counts: tuple[int, ...]) -> list[float]:
    costs = [count * layer_cost(model) for count in counts]
    costs[0] += model.hidden_size
    costs[-1] += head_cost(model)
    return costs


def test_smollm2_on_two_stages() -> None:
    """Measured: 18 layers take as long as 12 and the head."""
    assert split_layers(spec(), 2) == [18, 12]


def test_the_head_counts_as_about_eight_layers_of_smollm2_when_every_row_samples() -> None:
    assert spec().vocab_size * spec().hidden_size / layer_cost(spec()) == pytest.approx(8.0, abs=0.1)


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 300_000))
def test_no_other_split_has_a_faster_slowest_stage(num_layers: int, num_stages: int, vocab_size: int) -> None:
    num_stages = min(num_stages, num_layers)
    model = spec(num_layers, vocab_size)
    counts = split_layers(model, num_stages)
    assert sum(counts) == num_layers
    assert min(counts) >= 1
    bounds = combinations(range(1, num_layers), num_stages - 1)
    splits = [[b - a for a, b in zip((0, *cut), (*cut, num_layers), strict=True)] for cut in bounds]
    assert max(stage_costs(model, tuple(counts))) == min(max(stage_costs(model, tuple(s))) for s in splits)


def test_a_head_larger_than_all_layers_leaves_the_last_stage_one_layer() -> None:
    assert split_layers(spec(vocab_size=1_000_000), 3)[-1] == 1


def test_a_split_given_by_hand() -> None:
    assert split_layers(spec(), 3, "5, 5,20") == [5, 5, 20]


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
