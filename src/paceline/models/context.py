"""How many positions a sequence may have. No torch here."""

from __future__ import annotations

from paceline.errors import ConfigError
from paceline.models.spec import ModelSpec


def longest_context(spec: ModelSpec) -> int:
    """The positions that the model's rotary embedding can tell apart.

    Configurations with linear, dynamic or YaRN scaling often state the length before it was stretched.
    """
    rope = spec.rope
    if rope.scaling in ("linear", "dynamic"):
        return max(spec.max_position, int(spec.max_position * rope.factor))
    if rope.scaling == "yarn":
        return max(spec.max_position, int(rope.original_max_position * rope.factor))
    return spec.max_position


def context_length(spec: ModelSpec, asked: int | None) -> int:
    """The longest sequence to serve: what was asked for, or what the model's configuration says.

    Raises:
        ConfigError: more is asked for than the model can tell apart.
    """
    if asked is None:
        return spec.max_position
    longest = longest_context(spec)
    if asked > longest:
        problem = f"the model's positions end at {longest}; beyond them it writes nonsense"
        raise ConfigError("max_model_len", asked, problem, f"Choose at most {longest}")
    return asked
