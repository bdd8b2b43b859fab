"""What the engine knows of its stages' speed before the first batch: a saved profile, or a count of operations."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from paceline.config import EngineConfig
from paceline.host import share_cores, usable_cores
from paceline.models.layer_split import layers_that_fit, split_layers
from paceline.models.model_cost import ModelCost, operation_count
from paceline.models.spec import ModelSpec
from paceline.pipeline.build import resolved_dtype
from paceline.pipeline.profile_store import CostProfile, conditions, saved_profile
from paceline.scheduling.cost_model import CostModel


class KnownCosts:
    """The cost of a model's parts under the engine's options.

    Attributes:
        model: prices of layers and head.
        profile: the measured ones, if there are any; without them prices are only proportions.
    """

    def __init__(self, engine: EngineConfig, spec: ModelSpec, model_path: Path) -> None:
        self.profile: CostProfile | None = saved_profile(profile_conditions(engine, model_path))
        self.model: ModelCost = operation_count(spec) if self.profile is None else self.profile.cost
        self._engine = engine
        self._spec = spec

    def split(self) -> list[int]:
        """The layers per stage that the options ask for, or the balanced ones.

        Raises:
            ConfigError: the options do not fit the model.
        """
        engine, spec = self._engine, self._spec
        memory = engine.numbers_per_stage("stage_memory")
        bytes_per_weight = 4 if resolved_dtype(engine) == "float32" else 2
        return split_layers(
            spec,
            engine.pipeline_parallel_size,
            engine.layer_split,
            cost=self.model,
            prompt_share=engine.expected_prompt_share,
            weights=engine.numbers_per_stage("stage_weights"),
            most=None if memory is None else layers_that_fit(spec, [int(b) for b in memory], bytes_per_weight),
        )

    def stages(self, split: Sequence[int]) -> CostModel:
        """The cost of stages with these layers."""
        weights = self._engine.numbers_per_stage("stage_weights")
        if self.profile is not None and list(split) == self.profile.layer_split and weights is None:
            return CostModel(tuple(self.profile.stages), self.model.link)
        return self.model.pipeline(split, weights)


def profile_conditions(engine: EngineConfig, model_path: Path) -> dict[str, str]:
    """What a profile for these options would be filed under."""
    shares = share_cores(usable_cores(), engine.pipeline_parallel_size, engine.threads_per_stage, engine.pin_threads)
    return conditions(engine, model_path.name, shares[0].threads)
