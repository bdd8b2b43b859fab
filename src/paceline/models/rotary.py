"""Tables of cosines and sines for rotary position embedding, with the ways of stretching it to longer contexts.

Sources: RoFormer (arXiv 2104.09864); "linear" is position interpolation (arXiv 2306.15595); "dynamic" NTK-aware,
here fixed for the model's whole length; "llama3" as published with Llama 3.1; YaRN (arXiv 2309.00071).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from paceline.models.spec import RopeSpec


def cos_sin_tables(rope: RopeSpec, length: int, max_position: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines for positions 0 to length - 1: two float32 tensors [length, rotary_dim / 2].

    `max_position` is the length the model was trained for; "dynamic" stretches when `length` is beyond it.
    """
    angles = torch.outer(torch.arange(length, dtype=torch.float32), _frequencies(rope, length, max_position))
    return angles.cos() * rope.attention_factor, angles.sin() * rope.attention_factor


def _frequencies(rope: RopeSpec, length: int, max_position: int) -> Tensor:
    dims = torch.arange(0, rope.rotary_dim, 2, dtype=torch.int64).float() / rope.rotary_dim
    plain: Tensor = 1.0 / (rope.theta**dims)
    if rope.scaling == "linear":
        return plain / rope.factor
    if rope.scaling == "factors":
        return plain / torch.tensor(rope.factors)
    if rope.scaling == "dynamic" and length > max_position:
        stretch = rope.factor * length / max_position - (rope.factor - 1)
        theta = rope.theta * stretch ** (rope.rotary_dim / (rope.rotary_dim - 2))
        stretched: Tensor = 1.0 / (theta**dims)
        return stretched
    if rope.scaling == "llama3":
        return _llama3(rope, plain)
    if rope.scaling == "yarn":
        return _yarn(rope, plain)
    return plain


def _llama3(rope: RopeSpec, plain: Tensor) -> Tensor:
    """Long waves are stretched by the factor, short ones not, and those between in proportion."""
    wave_lengths = 2 * math.pi / plain
    low, high = rope.low_freq_factor, rope.high_freq_factor
    smooth = (rope.original_max_position / wave_lengths - low) / (high - low)
    between = (1 - smooth) * plain / rope.factor + smooth * plain
    stretched = torch.where(wave_lengths > rope.original_max_position / low, plain / rope.factor, between)
    return torch.where(wave_lengths < rope.original_max_position / high, plain, stretched)


def _yarn(rope: RopeSpec, plain: Tensor) -> Tensor:
    """A ramp over the dimensions between `beta_fast` and `beta_slow` turns in the original context."""

    def dimension(turns: float) -> float:
        return (
            rope.rotary_dim * math.log(rope.original_max_position / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))
        )

    low, high = dimension(rope.beta_fast), dimension(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.rotary_dim - 1)
    ramp = (torch.arange(rope.rotary_dim // 2, dtype=torch.float32) - low) / (max(high - low, 0.001))
    keep = 1 - ramp.clamp(0, 1)
    return plain / rope.factor * (1 - keep) + plain * keep
