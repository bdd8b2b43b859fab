"""The decoder against an independent implementation: tiny random models of many kinds, and the real SmolLM2."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from paceline.models.decoder import StageModel
from paceline.tokenization import Tokenizer
from paceline.weights.checkpoint import Checkpoint, open_checkpoint
from tests.models.steps import allocate, greedy, logits

BASE = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
    "tie_word_embeddings": False,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "tied": {"tie_word_embeddings": True},
    "heads-of-their-own": {"num_key_value_heads": 6},
    "one-kv-head": {"num_key_value_heads": 1},
    "wide-heads": {"head_dim": 32},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "theta": {"rope_parameters": {"rope_type": "default", "rope_theta": 1000.0}},
    "linear": {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}},
    "dynamic": {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}},
    "llama3": {"rope_parameters": LLAMA3},
    "yarn": {
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 16,
        }
    },
}


def save_tiny(folder: Path, seed: int = 0, shard: str = "5GB", **changes: Any) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    model = LlamaForCausalLM(LlamaConfig(**(BASE | changes))).eval()
    for name, parameter in model.named_parameters():
        if "norm" in name or name.endswith("bias"):
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    model.save_pretrained(folder, max_shard_size=shard)
    return model


def stages_of(checkpoint: Checkpoint, split: list[int], **options: Any) -> list[StageModel]:
    stages, first = [], 0
    for count in split:
        stages.append(StageModel(checkpoint.spec, first, first + count, checkpoint, **options))
        first += count
    allocate(stages)
    return stages


@pytest.mark.parametrize(
    ("variant", "seed"), [*((variant, 0) for variant in VARIANTS), ("plain", 1), ("tied", 2), ("biases", 3)]
)
def test_logits_and_greedy_tokens_are_those_of_transformers(variant: str, seed: int, tmp_path: Path) -> None:
    reference = save_tiny(tmp_path, seed, **VARIANTS[variant])
    generator = torch.Generator().manual_seed(seed + 1)
    tokens = torch.randint(0, 97, (40,), generator=generator).tolist()
    with torch.inference_mode():
        expected = reference(torch.tensor([tokens])).logits[0]
    checkpoint = open_checkpoint(tmp_path)
    for chunks in ([40], [7, 1, 1, 20, 11], [39, 1]):
        got = logits(stages_of(checkpoint, [4]), tokens, chunks)
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
    continuation = reference.generate(
        torch.tensor([tokens[:12]]), max_new_tokens=20, do_sample=False, eos_token_id=None
    )
    assert greedy(stages_of(checkpoint, [2, 2]), tokens[:12], 20) == continuation[0, 12:].tolist()


@pytest.mark.parametrize("split", [[1, 3], [3, 1], [1, 1, 1, 1]])
def test_a_split_model_computes_the_same_bits(split: list[int], tmp_path: Path) -> None:
    save_tiny(tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    tokens = list(range(1, 30))
    whole = logits(stages_of(checkpoint, [4]), tokens, [20, 1, 8])
    assert torch.equal(logits(stages_of(checkpoint, split), tokens, [20, 1, 8]), whole)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bit_types_stay_near_float32(dtype: torch.dtype, tmp_path: Path) -> None:
    save_tiny(tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    tokens = list(range(1, 20))
    exact = logits(stages_of(checkpoint, [4]), tokens, [19])
    rounded = logits(stages_of(checkpoint, [2, 2], dtype=dtype), tokens, [19])
    assert rounded.dtype is torch.float32
    assert (rounded - exact).abs().max() < 0.1 * exact.abs().max()


def test_shards_hold_the_same_model(tmp_path: Path) -> None:
    save_tiny(tmp_path / "one")
    save_tiny(tmp_path / "many", shard="40KB")
    index = json.loads((tmp_path / "many" / "model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) > 2
    tokens = [3, 1, 4, 1, 5]
    one, many = (logits(stages_of(open_checkpoint(tmp_path / name), [4]), tokens, [5]) for name in ("one", "many"))
    assert torch.equal(one, many)


def test_a_stage_takes_only_its_own_tensors(tmp_path: Path) -> None:
    save_tiny(tmp_path, tie_word_embeddings=True)
    checkpoint = open_checkpoint(tmp_path)
    taken: list[list[str]] = []

    class Watched:
        def __init__(self) -> None:
            taken.append([])
            self.spec = checkpoint.spec
            self.shapes = checkpoint.shapes

        def stored(self, name: str) -> None:
            return None

        def tensor(self, name: str) -> torch.Tensor:
            taken[-1].append(name)
            return checkpoint.tensor(name)

    for first, last in ((0, 1), (1, 3), (3, 4)):
        StageModel(checkpoint.spec, first, last, Watched())  # type: ignore[arg-type]
    embedding = "model.embed_tokens.weight"
    assert [embedding in names for names in taken] == [True, False, True]
    layers = [{int(n.split(".")[2]) for n in names if ".layers." in n} for names in taken]
    assert layers == [{0}, {1, 2}, {3}]
    assert all(len(names) == len(set(names)) for names in taken)


def reference_smollm2(path: Path) -> LlamaForCausalLM:
    """SmolLM2 in transformers, from our own dequantised weights: what is compared is the computation."""
    checkpoint = open_checkpoint(path)
    spec = checkpoint.spec
    config = LlamaConfig(
        vocab_size=spec.vocab_size,
        hidden_size=spec.hidden_size,
        intermediate_size=spec.intermediate_size,
        num_hidden_layers=spec.num_layers,
        num_attention_heads=spec.num_heads,
        num_key_value_heads=spec.num_kv_heads,
        max_position_embeddings=spec.max_position,
        rms_norm_eps=spec.rms_eps,
        rope_parameters={"rope_type": "default", "rope_theta": spec.rope.theta},
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config).eval()
    missing = model.load_state_dict({name: checkpoint.tensor(name) for name in checkpoint.shapes()}, strict=False)
    assert missing.missing_keys == ["lm_head.weight"]
    assert not missing.unexpected_keys
    model.tie_weights()
    return model


def test_smollm2_is_what_transformers_makes_of_the_same_file(smollm2_gguf: Path) -> None:
    """transformers reads the GGUF by itself here, so this checks our reading of it too."""
    theirs = LlamaForCausalLM.from_pretrained(smollm2_gguf.parent, gguf_file=smollm2_gguf.name, dtype=torch.float32)
    ours = reference_smollm2(smollm2_gguf).state_dict()
    for name, tensor in theirs.state_dict().items():
        torch.testing.assert_close(ours[name], tensor, rtol=0, atol=1e-6)
    tokens = [19556, 28, 905, 17, 339, 744, 253, 1232]
    with torch.inference_mode():
        expected = theirs.eval()(torch.tensor([tokens])).logits[0]
    stages = stages_of(open_checkpoint(smollm2_gguf), [18, 12], max_position=128)
    torch.testing.assert_close(logits(stages, tokens, [5, 1, 2]), expected, rtol=1e-4, atol=1e-4)


def test_smollm2_continues_prompts_as_transformers_does(smollm2_gguf: Path, smollm2_tokenizer: Tokenizer) -> None:
    model = reference_smollm2(smollm2_gguf)
    stages = stages_of(open_checkpoint(smollm2_gguf), [11, 11, 8], max_position=128)
    for prompt in ("The capital of France is", "def fibonacci(n):\n", "Es war einmal ein"):
        tokens = smollm2_tokenizer.encode(prompt)
        expected = model.generate(torch.tensor([tokens]), max_new_tokens=10, do_sample=False, eos_token_id=None)
        assert greedy(stages, tokens, 10) == expected[0, len(tokens) :].tolist()
