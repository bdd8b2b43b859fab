"""Which layers each stage gets. No torch: the engine core decides."""

from __future__ import annotations

import math
from collections.abc import Sequence

from paceline.errors import ConfigError
from paceline.models.model_cost import ModelCost, expected_work, operation_count
from paceline.models.spec import ModelSpec, layer_tensors, stage_tensors

DEFAULT_PROMPT_SHARE = 0.67  # of computed tokens: two of a prompt for each one of an answer, as chats have them


def split_layers(
    spec: ModelSpec,
    num_stages: int,
    given: str = "auto",
    *,
    cost: ModelCost | None = None,
    prompt_share: float = DEFAULT_PROMPT_SHARE,
    weights: Sequence[float] | None = None,
    most: Sequence[int] | None = None,
) -> list[int]:
    """How many layers each stage has, first to last.

    Args:
        given: ``auto``, or the counts themselves, such as ``18,12``.
        cost: what layers and head take; not given: their operations are counted.
        prompt_share: part of the computed tokens that are prompt tokens, 0 to 1. Only sampled tokens pay the head, so no split
            balances the stages for every mix.
        weights: how fast each stage's worker is, relative to the others; not given: all the same.
        most: the most layers that each stage has memory for; not given: no limit.

    Raises:
        ConfigError: the counts do not fit the model or the number of stages, or the memory.
    """
    if not 1 <= num_stages <= spec.num_layers:
        raise ConfigError(
            "pipeline_parallel_size",
            num_stages,
            f"the model has {spec.num_layers} layers",
            f"Choose between 1 and {spec.num_layers}",
        )
    if given == "auto":
        return balanced(cost or operation_count(spec), spec.num_layers, num_stages, prompt_share, weights, most)
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
    for stage, (count, room) in enumerate(zip(counts, most or counts, strict=True)):
        if count > room:
            problem = f"stage {stage} has memory for {room} layers (--stage-memory)"
            raise ConfigError("layer_split", given, problem, "Give it fewer layers or more memory.")
    return counts


def balanced(
    cost: ModelCost,
    num_layers: int,
    num_stages: int,
    prompt_share: float = DEFAULT_PROMPT_SHARE,
    weights: Sequence[float] | None = None,
    most: Sequence[int] | None = None,
) -> list[int]:
    """The split whose slowest stage is fastest on the expected mix; at least one layer each.

    All layers cost the same, so it is enough to give one layer after the other to the stage that is fastest with it.

    Raises:
        ConfigError: the stages have memory for fewer layers.
    """
    work = expected_work(prompt_share)
    speed = [1.0] * num_stages if weights is None else list(weights)
    room = [num_layers] * num_stages if most is None else list(most)
    if min(room) < 1 or sum(min(stage, num_layers) for stage in room) < num_layers:
        problem = f"{', '.join(map(str, room))} layers fit into the stages, and the model has {num_layers}"
        raise ConfigError("stage_memory", "", problem, "Give more memory or more stages.")
    layer = cost.layer.time(work)
    bare = [cost.stage_cost(0, is_last=stage == num_stages - 1).time(work) for stage in range(num_stages)]
    counts = [1] * num_stages
    for _ in range(num_layers - num_stages):
        able = [stage for stage in range(num_stages) if counts[stage] < room[stage]]
        fastest = min(able, key=lambda stage: (bare[stage] + (counts[stage] + 1) * layer) / speed[stage])
        counts[fastest] += 1
    return counts


def imbalance(times: Sequence[float]) -> float:
    """The slowest stage's time against the mean: 1 is even."""
    return max(times) * len(times) / sum(times)


def layers_that_fit(spec: ModelSpec, memory: Sequence[int], bytes_per_weight: float) -> list[int]:
    """The most layers per stage whose weights, with the stage's share of the rest of the model, fit into its memory.

    Args:
        memory: bytes of each stage, first to last.

    Raises:
        ConfigError: a stage has no room for a single layer.
    """
    per_layer = _elements(layer_tensors(spec, 0)) * bytes_per_weight
    fitting = []
    for stage, available in enumerate(memory):
        first = 0 if stage == 0 else 1
        last = spec.num_layers if stage == len(memory) - 1 else spec.num_layers - 1
        ends = _elements(stage_tensors(spec, first, last)) * bytes_per_weight - per_layer * (last - first)
        fitting.append(int((available - ends) // per_layer))
        if fitting[-1] < 1:
            needed = math.ceil((ends + per_layer) / 2**20)
            problem = f"stage {stage} holds one layer at least, and its weights take {needed}M"
            raise ConfigError("stage_memory", ",".join(map(str, memory)), problem, "Give that much or more.")
    return fitting


def _elements(tensors: dict[str, tuple[int, ...]]) -> int:
    total = 0
    for shape in tensors.values():
        size = 1
        for length in shape:
            size *= length
        total += size
    return total
