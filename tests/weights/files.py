"""Tiny model files, written by the formats' own libraries (`gguf`, `safetensors`), not by ours."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

LAYERS, HIDDEN, INNER, HEADS, KV_HEADS, VOCABULARY = 2, 32, 64, 4, 2, 40
HF_CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "eos_token_id": [7, 3],
}

GGUF_FIELDS: dict[str, Any] = {
    "llama.block_count": LAYERS,
    "llama.context_length": 64,
    "llama.embedding_length": HIDDEN,
    "llama.feed_forward_length": INNER,
    "llama.attention.head_count": HEADS,
    "llama.attention.head_count_kv": KV_HEADS,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.freq_base": 10000.0,
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.tokens": [f"t{i}" for i in range(VOCABULARY)],
}

_GGUF_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def tiny_model(seed: int = 0, **changes: Any) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    model = LlamaForCausalLM(LlamaConfig(**(HF_CONFIG | {"initializer_range": 0.2} | changes))).eval()
    for name, parameter in model.named_parameters():
        if "norm" in name or name.endswith("bias"):
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    return model


def write_folder(folder: Path, tensors: Mapping[str, torch.Tensor], **changes: Any) -> Path:
    """A Hugging Face folder with one safetensors file."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(HF_CONFIG | changes))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    return folder


def gguf_name(name: str) -> str:
    fixed = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    stem, kind = name.rsplit(".", 1)
    if stem in fixed:
        return f"{fixed[stem]}.{kind}"
    _, _, layer, rest = stem.split(".", 3)
    return f"blk.{layer}.{_GGUF_NAMES[rest]}.{kind}"


def pair_neighbours(values: np.ndarray, heads: int) -> np.ndarray:
    """What llama.cpp's converter does to query and key rows: row j of each half becomes row 2j or 2j + 1."""
    out = np.empty_like(values)
    size = len(values) // heads
    for head in range(heads):
        for j in range(size // 2):
            out[head * size + 2 * j] = values[head * size + j]
            out[head * size + 2 * j + 1] = values[head * size + size // 2 + j]
    return out


def gguf_arrays(model: LlamaForCausalLM) -> dict[str, np.ndarray]:
    """A model's weights as a GGUF file holds them, float32."""
    arrays = {}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        values = tensor.float().numpy()
        if "q_proj" in name:
            values = pair_neighbours(values, model.config.num_attention_heads)
        if "k_proj" in name:
            values = pair_neighbours(values, model.config.num_key_value_heads)
        arrays[gguf_name(name)] = values
    return arrays


def write_gguf(
    path: Path,
    arrays: Mapping[str, np.ndarray],
    kinds: Mapping[str, gguf.GGMLQuantizationType] | None = None,
    fields: Mapping[str, Any] | None = None,
    architecture: str = "llama",
) -> Path:
    """A GGUF file of these arrays; those with a kind hold its raw blocks (uint8) already."""
    writer = gguf.GGUFWriter(path, architecture)
    for name, value in (GGUF_FIELDS | dict(fields or {})).items():
        add = {str: writer.add_string, float: writer.add_float32, int: writer.add_uint32, list: writer.add_array}
        add[type(value)](name, value)
    for name, array in arrays.items():
        writer.add_tensor(name, array, raw_dtype=(kinds or {}).get(name))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
