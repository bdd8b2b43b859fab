"""Which layers each stage gets. No torch: the engine core decides."""

from __future__ import annotations

from paceline.errors import ConfigError
from paceline.models.spec import ModelSpec

SAMPLING_ELEMENTS = 4  # reading a logit to sample costs about as much as so many multiply-adds of the head
DECODE_SHARE = 0.8  # of the rows that cost time: a decode pays the head, most tokens of a prompt do not


def split_layers(spec: ModelSpec, num_stages: int, given: str = "auto") -> list[int]:
    """How many layers each stage has, first to last.

    Args:
        given: ``auto``, or the counts themselves, such as ``18,12``.

    Raises:
        ConfigError: the counts do not fit the model or the number of stages.
    """
    if not 1 <= num_stages <= spec.num_layers:
        raise ConfigError(
            "pipeline_parallel_size",
            num_stages,
            f"the model has {spec.num_layers} layers",
            f"Choose between 1 and {spec.num_layers}",
        )
    if given == "auto":
        return _balanced(spec, num_stages)
    try:
        counts = [int(count) for count in given.split(",")]
    except ValueError:
        raise ConfigError("layer_split", given, "not a list of whole numbers", "Write it like 18,12") from None
    if len(counts) != num_stages:
        fix = f"Give {num_stages} numbers, or set --pipeline-parallel-size {len(counts)}"
        raise ConfigError("layer_split", given, f"{len(counts)} stages, and the pipeline has {num_stages}", fix)
    if sum(counts) != spec.num_layers or min(counts) < 1:
        fix = f"Each must be at least 1, and they must add up to {spec.num_layers}"
        raise ConfigError("layer_split", given, f"the model has {spec.num_layers} layers", fix)
    return counts


def layer_cost(spec: ModelSpec) -> float:
    """Multiply-adds per token in one layer's matrices."""
    attention = spec.hidden_size * (2 * spec.q_size + 2 * spec.kv_size)
    return float(attention + 3 * spec.hidden_size * spec.intermediate_size)


def head_cost(spec: ModelSpec) -> float:
    """Multiply-adds per token for the head and sampling, weighted by how many tokens pay them."""
    return DECODE_SHARE * spec.vocab_size * (spec.hidden_size + SAMPLING_ELEMENTS)


def _balanced(spec: ModelSpec, num_stages: int) -> list[int]:
    """The split whose slowest stage is fastest; among equals, the one with the evenest stages.

    Every layer costs the same, so it is enough to give one layer after the other to the stage that is cheapest with it.
    """
    layer = layer_cost(spec)
    costs = [layer] * num_stages
    costs[0] += spec.hidden_size  # the embedding: one row read per token
    costs[-1] += head_cost(spec)
    counts = [1] * num_stages
    for _ in range(spec.num_layers - num_stages):
        cheapest = min(range(num_stages), key=costs.__getitem__)
        costs[cheapest] += layer
        counts[cheapest] += 1
    return counts
