"""What of the decoder the comparison with transformers does not reach."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor

from paceline.models.decoder import StageModel
from paceline.models.inputs import BatchInputs
from paceline.models.spec import ModelSpec, RopeSpec, stage_tensors
from paceline.weights.dummy import DummyCheckpoint
from tests.models.steps import BLOCK_SIZE, NUM_BLOCKS, allocate, inputs, logits

SPEC = ModelSpec("llama", 3, 32, 48, 4, 2, 8, 50, 1e-5, RopeSpec(10000.0, 8), 64)


def model_of(spec: ModelSpec = SPEC, first: int = 0, last: int = 3, **options: Any) -> StageModel:
    stage = StageModel(spec, first, last, DummyCheckpoint(spec, {}, 0), **options)
    stage.allocate_cache(NUM_BLOCKS, BLOCK_SIZE, options.get("dtype", torch.float32))
    return stage


def replaced(spec: ModelSpec, **changes: Any) -> ModelSpec:
    return msgspec.structs.replace(spec, **changes)


# ---------------------------------------------------------------- rows that are sampled from


@pytest.mark.parametrize("rows", [[7], [0, 3, 4], [6, 2]])
def test_only_the_rows_asked_for_reach_the_head(rows: list[int]) -> None:
    tokens = [4, 8, 15, 16, 23, 42, 1, 2]
    everything = logits([model_of()], tokens, [8])
    stage = model_of()
    some = stage.forward(replace(inputs(tokens, 0), sample_rows=torch.tensor(rows)))
    assert some.shape == (len(rows), 50)
    torch.testing.assert_close(some, everything[rows], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_batch_that_samples_nothing_still_fills_the_cache(dtype: torch.dtype) -> None:
    tokens = [4, 8, 15, 16, 23, 42, 1, 2]
    stage = model_of(dtype=dtype)
    nothing = stage.forward(replace(inputs(tokens[:5], 0), sample_rows=torch.empty(0, dtype=torch.int64)))
    assert nothing.shape == (0, 50)
    after = stage.forward(inputs(tokens[5:], 5))
    expected = logits([model_of(dtype=dtype)], tokens, [5, 3])[5:]
    torch.testing.assert_close(after, expected, rtol=1e-5, atol=1e-5)


# ---------------------------------------------------------------- neighbours


def joined(parts: list[BatchInputs]) -> BatchInputs:
    """Several one-sequence batches as one, each with blocks of its own."""
    width = max(part.block_tables.shape[1] for part in parts)
    tables = torch.zeros((len(parts), width), dtype=torch.int32)
    slots = []
    for s, part in enumerate(parts):
        # Sequence s takes block b's place at b - 8·s, so that sequences share none.
        tables[s, : part.block_tables.shape[1]] = part.block_tables[0] - 8 * s
        slots.append(part.slots - 8 * s * BLOCK_SIZE)
    lengths = torch.tensor([0, *(len(part.positions) for part in parts)])
    return BatchInputs(
        token_ids=torch.cat([part.token_ids for part in parts]),
        positions=torch.cat([part.positions for part in parts]),
        slots=torch.cat(slots),
        block_tables=tables,
        query_starts=lengths.cumsum(0).int(),
        context_lens=torch.cat([part.context_lens for part in parts]),
        sample_rows=torch.arange(int(lengths.sum())),
    )


def test_sequences_in_one_batch_do_not_see_each_other() -> None:
    sequences = [[1, 2, 3, 4, 5, 6, 7, 8, 9], [11, 12], [21, 22, 23, 24, 25]]
    alone = [logits([model_of()], tokens, [len(tokens)]) for tokens in sequences]
    stage = model_of()
    # The first chunk of each, of different length, then a batch that mixes the rest of prompts and single tokens.
    first = stage.forward(joined([inputs(tokens[:n], 0) for tokens, n in zip(sequences, (6, 1, 1), strict=True)]))
    second = stage.forward(joined([inputs(tokens[n:], n) for tokens, n in zip(sequences, (6, 1, 1), strict=True)]))
    got = [torch.cat(parts) for parts in zip(first.split([6, 1, 1]), second.split([3, 1, 4]), strict=True)]
    for ours, expected in zip(got, alone, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)


# ---------------------------------------------------------------- rotation of a part of each head


def plain_logits(spec: ModelSpec, tokens: list[int]) -> Tensor:
    """The whole model for one sequence, written as the papers do: pairs rotated as complex numbers, dense attention."""
    source = DummyCheckpoint(spec, {}, 0)
    w = {name: source.tensor(name).double() for name in source.shapes()}
    n = len(tokens)
    turning = spec.rope.rotary_dim
    speeds = spec.rope.theta ** (-torch.arange(0, turning, 2).double() / turning)
    turns = torch.polar(torch.ones(n, turning // 2).double(), torch.outer(torch.arange(n).double(), speeds))

    def norm(x: Tensor, name: str) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + spec.rms_eps).sqrt() * w[name]

    def rotate(x: Tensor) -> Tensor:
        pairs = torch.complex(x[..., : turning // 2], x[..., turning // 2 : turning]) * turns[:, None]
        return torch.cat([pairs.real, pairs.imag, x[..., turning:]], -1)

    x = w["model.embed_tokens.weight"][tokens]
    for i in range(spec.num_layers):
        at = f"model.layers.{i}"
        y = norm(x, f"{at}.input_layernorm.weight")
        q, k, v = ((y @ w[f"{at}.self_attn.{p}_proj.weight"].T).view(n, -1, spec.head_dim) for p in ("q", "k", "v"))
        q, k = rotate(q), rotate(k)
        share = spec.num_heads // spec.num_kv_heads
        mixed = torch.empty_like(q)
        for head in range(spec.num_heads):
            for row in range(n):
                scores = k[: row + 1, head // share] @ q[row, head] / spec.head_dim**0.5
                mixed[row, head] = scores.softmax(0) @ v[: row + 1, head // share]
        x = x + mixed.reshape(n, -1) @ w[f"{at}.self_attn.o_proj.weight"].T
        y = norm(x, f"{at}.post_attention_layernorm.weight")
        gate, up = y @ w[f"{at}.mlp.gate_proj.weight"].T, y @ w[f"{at}.mlp.up_proj.weight"].T
        x = x + (gate / (1 + (-gate).exp()) * up) @ w[f"{at}.mlp.down_proj.weight"].T
    return norm(x, "model.norm.weight") @ w["lm_head.weight"].T


@pytest.mark.parametrize("rotary_dim", [8, 4, 2])
def test_part_of_each_head_turns(rotary_dim: int) -> None:
    spec = replaced(SPEC, rope=RopeSpec(10000.0, rotary_dim))
    tokens = [4, 8, 15, 16, 23, 42, 1, 2, 3]
    got = logits([model_of(spec)], tokens, [5, 4])
    torch.testing.assert_close(got.double(), plain_logits(spec, tokens), rtol=1e-4, atol=1e-4)


# ---------------------------------------------------------------- figures that the engine plans with


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weight_bytes_are_those_of_the_stage_tensors(dtype: torch.dtype) -> None:
    for first, last in ((0, 1), (1, 2), (2, 3)):
        shapes = stage_tensors(SPEC, first, last).values()
        elements = sum(torch.Size(shape).numel() for shape in shapes)
        assert model_of(SPEC, first, last, dtype=dtype).weight_bytes == elements * dtype.itemsize


def test_cache_bytes_per_block_are_what_a_block_takes() -> None:
    stage = StageModel(SPEC, 1, 3, DummyCheckpoint(SPEC, {}, 0))
    stage.allocate_cache(10, 16, torch.bfloat16)
    allocated = sum(k.nbytes + v.nbytes for k, v in stage._caches)
    assert stage.cache_bytes_per_block(16, torch.bfloat16) * 10 == allocated


def test_a_cache_of_16_bits_serves_a_float32_model() -> None:
    tokens = [4, 8, 15, 16, 23, 42]
    stages = [StageModel(SPEC, 0, 3, DummyCheckpoint(SPEC, {}, 0))]
    allocate(stages)
    exact = logits(stages, tokens, [4, 2])
    allocate(stages, torch.float16)
    torch.testing.assert_close(logits(stages, tokens, [4, 2]), exact, rtol=1e-2, atol=1e-2)


def test_progress_rises_to_one_over_the_tensors() -> None:
    for spec in (SPEC, replaced(SPEC, tie_embeddings=True), replaced(SPEC, attention_bias=True, mlp_bias=True)):
        seen: list[tuple[float, str]] = []
        StageModel(
            spec, 0, 3, DummyCheckpoint(spec, {}, 0), progress=lambda done, what, to=seen: to.append((done, what))
        )
        assert [what for _, what in seen].count("model.norm.weight") == 1
        assert {what for _, what in seen} == stage_tensors(spec, 0, 3).keys()
        assert [done for done, _ in seen] == sorted(done for done, _ in seen)
        assert seen[-1][0] == 1.0
        assert seen[0][0] < 0.1
