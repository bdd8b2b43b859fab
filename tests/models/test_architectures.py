"""From config.json to a spec: defaults, both ways of writing the rotary scaling, and refusals that name the field."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import LlamaConfig

from paceline.errors import ModelError
from paceline.models.architectures import spec_from_gguf, spec_from_hf_config
from paceline.models.spec import RopeSpec
from tests.weights.files import GGUF_FIELDS, HF_CONFIG

LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}


def spec_of(**changes: Any) -> Any:
    config = {name: value for name, value in (HF_CONFIG | changes).items() if value != "absent"}
    return spec_from_hf_config(config)


def test_defaults_are_those_of_transformers() -> None:
    left_out = ("num_key_value_heads", "max_position_embeddings", "rms_norm_eps", "tie_word_embeddings")
    spec, theirs = spec_of(**dict.fromkeys(left_out, "absent")), LlamaConfig()
    assert spec.num_kv_heads == spec.num_heads
    assert spec.max_position == theirs.max_position_embeddings
    assert spec.rms_eps == theirs.rms_norm_eps
    assert spec.tie_embeddings == theirs.tie_word_embeddings
    assert spec.attention_bias == theirs.attention_bias
    assert spec.mlp_bias == theirs.mlp_bias
    assert spec.rope == RopeSpec(theta=10000.0, rotary_dim=8)


def test_null_counts_as_absent() -> None:
    assert spec_of(num_key_value_heads=None, head_dim=None, rope_scaling=None) == spec_of(num_key_value_heads="absent")


@pytest.mark.parametrize("key", ["rope_type", "type"])
def test_the_older_way_of_writing_rotary_scaling(key: str) -> None:
    old = spec_of(rope_theta=5e5, rope_scaling={key: "llama3"} | LLAMA3)
    new = spec_of(rope_parameters={"rope_type": "llama3", "rope_theta": 5e5} | LLAMA3)
    assert old == new
    assert old.rope == RopeSpec(5e5, 8, "llama3", 8.0, 16, 1.0, 4.0)


def test_part_of_a_head_may_turn() -> None:
    assert spec_of(partial_rotary_factor=0.5).rope.rotary_dim == 4


def test_model_type_stands_in_for_absent_architectures() -> None:
    assert spec_of(architectures="absent", model_type="llama") == spec_of()


BAD: list[tuple[dict[str, Any], str]] = [
    ({"architectures": ["GPT2LMHeadModel"]}, "'GPT2LMHeadModel' is not supported; supported: LlamaForCausalLM"),
    ({"architectures": "absent"}, "'unnamed' is not supported"),
    ({"architectures": "LlamaForCausalLM"}, "a list of texts"),
    ({"quantization_config": {"quant_method": "awq"}}, "quantized safetensors"),
    ({"hidden_act": "gelu"}, "activation 'gelu'"),
    ({"hidden_size": "absent"}, "field hidden_size is missing"),
    ({"hidden_size": "576"}, "field hidden_size is '576'; it must be a whole number"),
    ({"hidden_size": 32.0}, "whole number"),
    ({"hidden_size": True}, "whole number"),
    ({"hidden_size": [32, 64]}, "same whole number"),
    ({"hidden_size": []}, "same whole number"),
    ({"num_hidden_layers": 0}, "num_layers is 0"),
    ({"num_hidden_layers": 1 << 40}, "must lie between 1 and"),
    ({"num_attention_heads": 0}, "num_heads is 0"),
    ({"num_key_value_heads": 3}, "4 attention heads cannot share 3"),
    ({"rms_norm_eps": "small"}, "must be a number"),
    ({"rms_norm_eps": float("nan")}, "finite"),
    ({"rms_norm_eps": -1.0}, "epsilon"),
    ({"tie_word_embeddings": 1}, "true or false"),
    ({"head_dim": 7}, "rotary dimension 7"),
    ({"rope_theta": 0.5}, "rotary base"),
    ({"partial_rotary_factor": 1.5}, "partial_rotary_factor"),
    ({"rope_scaling": "linear"}, "must be a mapping"),
    ({"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, "'longrope' is not supported; supported: default"),
    ({"rope_scaling": {"rope_type": "linear"}}, "field factor is missing"),
    ({"rope_scaling": {"rope_type": "linear", "factor": 0.0}}, "factor 0.0 must be greater"),
    ({"rope_scaling": {"rope_type": "llama3"} | LLAMA3 | {"low_freq_factor": 4.0}}, "low_freq_factor"),
    ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "beta_slow": 0.0}}, "beta_slow"),
]


@pytest.mark.parametrize(("changes", "problem"), BAD)
def test_a_config_that_cannot_be_used(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ModelError, match=problem):
        spec_of(**changes)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
rope_keys = st.sampled_from(["rope_type", "type", "factor", "rope_theta", "beta_fast", "mscale", *LLAMA3])
rope_kinds = st.sampled_from(["linear", "dynamic", "llama3", "yarn", "default"])
ropes = st.dictionaries(rope_keys, json_values | rope_kinds, max_size=6)


@given(st.dictionaries(st.sampled_from([*HF_CONFIG, "rope_scaling", "head_dim", "hidden_act"]), json_values | ropes))
def test_any_config_gives_a_spec_or_a_model_error(changes: dict[str, Any]) -> None:
    with suppress(ModelError):
        spec_from_hf_config(HF_CONFIG | changes)


@given(st.dictionaries(st.sampled_from([*GGUF_FIELDS, "general.architecture", "llama.vocab_size"]), json_values))
def test_any_metadata_gives_a_spec_or_a_model_error(changes: dict[str, Any]) -> None:
    with suppress(ModelError):
        spec_from_gguf({"general.architecture": "llama"} | GGUF_FIELDS | changes, [])
