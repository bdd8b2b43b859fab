"""Tables for rotary embedding against those of transformers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from paceline.models.architectures import spec_from_hf_config
from paceline.models.rotary import cos_sin_tables
from paceline.models.spec import RopeSpec
from tests.weights.files import HF_CONFIG

KINDS: dict[str, dict[str, Any]] = {
    "default": {},
    "linear": {"factor": 4.0},
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 1024,
    },
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 512},
    "yarn-details": {
        "rope_type": "yarn",
        "factor": 40.0,
        "original_max_position_embeddings": 512,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
        "mscale": 1.0,
        "mscale_all_dim": 0.8,
        "truncate": False,
    },
    "yarn-attention": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 512,
        "attention_factor": 0.9,
    },
    "dynamic": {"factor": 4.0},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("head_dim", [8, 64])
def test_tables_are_those_of_transformers(kind: str, head_dim: int) -> None:
    parameters = {"rope_type": kind, "rope_theta": 500000.0} | KINDS[kind]
    changes = {"rope_parameters": parameters, "head_dim": head_dim, "max_position_embeddings": 2048}
    theirs = LlamaRotaryEmbedding(LlamaConfig(**(HF_CONFIG | changes)))
    expected_cos, expected_sin = theirs(torch.ones(1), torch.arange(2048)[None])
    spec = spec_from_hf_config(HF_CONFIG | changes)
    cos, sin = cos_sin_tables(spec.rope, 2048, spec.max_position)
    for table, expected in ((cos, expected_cos), (sin, expected_sin)):
        assert table.dtype is torch.float32
        # transformers repeats each angle for both halves of a head
        torch.testing.assert_close(table, expected[0, :, : head_dim // 2], rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(table, expected[0, :, head_dim // 2 :], rtol=1e-6, atol=1e-6)


def test_dynamic_scaling_beyond_the_trained_length_is_that_of_the_whole_table() -> None:
    """transformers' frequencies for a sequence that fills the table."""
    parameters = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    theirs = LlamaRotaryEmbedding(LlamaConfig(**(HF_CONFIG | {"rope_parameters": parameters})))
    expected, _ = theirs(torch.ones(1), torch.arange(128)[None])
    cos, _ = cos_sin_tables(RopeSpec(10000.0, 8, "dynamic", 2.0), 128, 64)
    torch.testing.assert_close(cos, expected[0, :, :4], rtol=1e-6, atol=1e-6)


def test_a_shorter_table_is_the_beginning_of_a_longer_one() -> None:
    rope = RopeSpec(10000.0, 8, "yarn", 4.0, 16)
    assert torch.equal(cos_sin_tables(rope, 10, 64)[0], cos_sin_tables(rope, 64, 64)[0][:10])
