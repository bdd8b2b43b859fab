"""From a model's own configuration to a :class:`ModelSpec`: one small mapping per architecture. No torch here."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

from paceline.errors import ModelError
from paceline.models.fields import Fields
from paceline.models.spec import EMBEDDING, FINAL_NORM, HEAD, ModelSpec, RopeSpec

# ---------------------------------------------------------------- Hugging Face config.json


def spec_from_hf_config(config: Mapping[str, Any]) -> ModelSpec:
    """The spec that a ``config.json`` describes.

    Raises:
        ModelError: an unknown architecture or rotary scaling, a field that is missing, of the wrong type or absurd.
    """
    fields = Fields(config, "config.json")
    architectures = fields.strings("architectures")
    name = architectures[0] if architectures else fields.string("model_type", "")
    mapping = _HF_ARCHITECTURES.get(name)
    if mapping is None:
        raise ModelError(f"architecture {name or 'unnamed'!r} is not supported; supported: {_names(_HF_ARCHITECTURES)}")
    if config.get("quantization_config"):
        raise ModelError("quantized safetensors are not supported; use the unquantized model, or a GGUF of it")
    return mapping(fields).checked()


def _llama_from_hf(fields: Fields) -> ModelSpec:
    activation = fields.string("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise ModelError(f"activation {activation!r} is not supported; supported: silu")
    hidden, heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    head_dim = fields.integer("head_dim", hidden // max(heads, 1))
    max_position = fields.integer("max_position_embeddings", 2048)
    attention_bias = fields.flag("attention_bias")
    return ModelSpec(
        architecture="llama",
        num_layers=fields.integer("num_hidden_layers"),
        hidden_size=hidden,
        intermediate_size=fields.integer("intermediate_size"),
        num_heads=heads,
        num_kv_heads=fields.integer("num_key_value_heads", heads),
        head_dim=head_dim,
        vocab_size=fields.integer("vocab_size"),
        rms_eps=fields.number("rms_norm_eps", 1e-6),
        rope=_rope_from_hf(fields, head_dim, max_position),
        max_position=max_position,
        tie_embeddings=fields.flag("tie_word_embeddings"),
        attention_bias=attention_bias,
        output_bias=attention_bias,
        mlp_bias=fields.flag("mlp_bias"),
    )


def _rope_from_hf(fields: Fields, head_dim: int, max_position: int) -> RopeSpec:
    """Both ways of writing it: ``rope_theta`` + ``rope_scaling``, and the newer ``rope_parameters``."""
    rope = fields.inner("rope_parameters") or fields.inner("rope_scaling") or Fields({}, fields.origin)
    theta = rope.number("rope_theta", fields.number("rope_theta", 10000.0))
    partial = rope.number("partial_rotary_factor", fields.number("partial_rotary_factor", 1.0))
    kind = rope.string("rope_type", rope.string("type", "default"))
    if not 0.0 < partial <= 1.0:
        raise ModelError(f"{fields.origin}: partial_rotary_factor {partial} must lie between 0 and 1")
    rotary_dim = int(head_dim * partial)
    if kind == "default":
        return RopeSpec(theta, rotary_dim)
    if kind in ("linear", "dynamic"):
        return RopeSpec(theta, rotary_dim, scaling=kind, factor=rope.number("factor"))
    original = rope.integer(
        "original_max_position_embeddings", fields.integer("original_max_position_embeddings", max_position)
    )
    if kind == "llama3":
        return RopeSpec(
            theta,
            rotary_dim,
            scaling="llama3",
            factor=rope.number("factor"),
            original_max_position=original,
            low_freq_factor=rope.number("low_freq_factor"),
            high_freq_factor=rope.number("high_freq_factor"),
        )
    if kind == "yarn":
        return _yarn_from_hf(rope, theta, rotary_dim, original, max_position)
    raise ModelError(f"rotary scaling {kind!r} is not supported; supported: default, dynamic, linear, llama3, yarn")


def _yarn_from_hf(rope: Fields, theta: float, rotary_dim: int, original: int, max_position: int) -> RopeSpec:
    factor = rope.number("factor", max_position / max(original, 1))
    mscale, mscale_all = rope.number("mscale", 0.0), rope.number("mscale_all_dim", 0.0)
    if mscale and mscale_all:
        attention = _yarn_attention_factor(factor, mscale) / _yarn_attention_factor(factor, mscale_all)
    else:
        attention = _yarn_attention_factor(factor)
    return RopeSpec(
        theta,
        rotary_dim,
        scaling="yarn",
        factor=factor,
        original_max_position=original,
        beta_fast=rope.number("beta_fast", 32.0),
        beta_slow=rope.number("beta_slow", 1.0),
        truncate=rope.flag("truncate", True),
        attention_factor=rope.number("attention_factor", attention),
    )


def _yarn_attention_factor(factor: float, mscale: float = 1.0) -> float:
    """YaRN, arXiv 2309.00071, equation 22: sharpens attention as the context is stretched."""
    return 1.0 if factor <= 1.0 else 0.1 * mscale * math.log(factor) + 1.0


# ---------------------------------------------------------------- GGUF metadata


def spec_from_gguf(
    metadata: Mapping[str, Any], tensor_names: Collection[str], rope_factors: tuple[float, ...] = ()
) -> ModelSpec:
    """The spec that a GGUF header describes.

    `tensor_names` are the file's own: GGUF says by the mere presence of a tensor that there is a bias, or a head of
    its own. `rope_factors` is the content of ``rope_freqs.weight``, when the file has it.

    Raises:
        ModelError: as for :func:`spec_from_hf_config`.
    """
    name = Fields(metadata, "GGUF header").string("general.architecture", "")
    mapping = _GGUF_ARCHITECTURES.get(name)
    if mapping is None:
        raise ModelError(
            f"GGUF architecture {name or 'unnamed'!r} is not supported; supported: {_names(_GGUF_ARCHITECTURES)}"
        )
    return mapping(Fields(metadata, "GGUF header", f"{name}."), tensor_names, rope_factors).checked()


def _llama_from_gguf(fields: Fields, tensors: Collection[str], rope_factors: tuple[float, ...]) -> ModelSpec:
    if fields.integer("expert_count", 0):
        raise ModelError("mixtures of experts are not supported")
    hidden, heads = fields.integer("embedding_length"), fields.integer("attention.head_count")
    head_dim = fields.integer("attention.key_length", hidden // max(heads, 1))
    if fields.integer("attention.value_length", head_dim) != head_dim:
        raise ModelError("keys and values of different length are not supported")
    return ModelSpec(
        architecture="llama",
        num_layers=fields.integer("block_count"),
        hidden_size=hidden,
        intermediate_size=fields.integer("feed_forward_length"),
        num_heads=heads,
        num_kv_heads=fields.integer("attention.head_count_kv", heads),
        head_dim=head_dim,
        vocab_size=fields.integer("vocab_size", fields.length_of("tokenizer.ggml.tokens")),
        rms_eps=fields.number("attention.layer_norm_rms_epsilon"),
        rope=_rope_from_gguf(fields, head_dim, rope_factors),
        max_position=fields.integer("context_length"),
        tie_embeddings="output.weight" not in tensors,
        attention_bias="blk.0.attn_q.bias" in tensors,
        output_bias="blk.0.attn_output.bias" in tensors,
        mlp_bias="blk.0.ffn_down.bias" in tensors,
    )


def _rope_from_gguf(fields: Fields, head_dim: int, rope_factors: tuple[float, ...]) -> RopeSpec:
    theta = fields.number("rope.freq_base", 10000.0)
    rotary_dim = fields.integer("rope.dimension_count", head_dim)
    kind = fields.string("rope.scaling.type", "none")
    if kind == "none" and rope_factors:
        return RopeSpec(theta, rotary_dim, scaling="factors", factors=rope_factors)
    if rope_factors:
        raise ModelError(f"GGUF header: rotary scaling {kind!r} together with rope_freqs.weight is not supported")
    if kind == "none":
        return RopeSpec(theta, rotary_dim)
    factor = fields.number("rope.scaling.factor")
    if kind == "linear":
        return RopeSpec(theta, rotary_dim, scaling="linear", factor=factor)
    if kind == "yarn":
        # attn_factor is a further multiplier that a converter may add to YaRN's own.
        attention = _yarn_attention_factor(factor) * fields.number("rope.scaling.attn_factor", 1.0)
        return RopeSpec(
            theta,
            rotary_dim,
            scaling="yarn",
            factor=factor,
            original_max_position=fields.integer("rope.scaling.original_context_length"),
            beta_fast=fields.number("rope.scaling.yarn_beta_fast", 32.0),
            beta_slow=fields.number("rope.scaling.yarn_beta_slow", 1.0),
            attention_factor=attention,
        )
    raise ModelError(f"GGUF rotary scaling {kind!r} is not supported; supported: none, linear, yarn")


# ---------------------------------------------------------------- registries

_HF_ARCHITECTURES: dict[str, Callable[[Fields], ModelSpec]] = {
    "LlamaForCausalLM": _llama_from_hf,
    "llama": _llama_from_hf,
}

_GGUF_ARCHITECTURES: dict[str, Callable[[Fields, Collection[str], tuple[float, ...]], ModelSpec]] = {
    "llama": _llama_from_gguf,
}


def _names(registry: Mapping[str, object]) -> str:
    return ", ".join(sorted(registry))


_GGUF_LLAMA_TENSORS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


# Architectures whose GGUF files order query and key rows so that the rotation pairs neighbours (0,1), (2,3) …
GGUF_PAIRS_NEIGHBOURS = frozenset({"llama"})


def gguf_names(spec: ModelSpec) -> dict[str, str]:
    """From GGUF's tensor names to the Hugging Face ones that the decoder uses."""
    names = {"token_embd.weight": EMBEDDING, "output_norm.weight": FINAL_NORM, "output.weight": HEAD}
    for layer in range(spec.num_layers):
        for ours, theirs in _GGUF_LLAMA_TENSORS.items():
            for kind in ("weight", "bias"):
                names[f"blk.{layer}.{ours}.{kind}"] = f"model.layers.{layer}.{theirs}.{kind}"
    return names
