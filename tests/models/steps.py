"""Feeds one sequence to a stack of stages the way a scheduler would: chunk after chunk, over scattered blocks."""

from __future__ import annotations

import torch
from torch import Tensor

from paceline.models.decoder import StageModel
from paceline.models.inputs import BatchInputs

BLOCK_SIZE = 4
NUM_BLOCKS = 32


def allocate(stages: list[StageModel], dtype: torch.dtype = torch.float32) -> None:
    for stage in stages:
        stage.allocate_cache(NUM_BLOCKS, BLOCK_SIZE, dtype)


def inputs(tokens: list[int], start: int) -> BatchInputs:
    """One sequence's positions [start, start + len(tokens)); its blocks lie in reverse."""
    end = start + len(tokens)
    blocks = [NUM_BLOCKS - 1 - i for i in range(-(-end // BLOCK_SIZE))]
    positions = range(start, end)
    return BatchInputs(
        token_ids=torch.tensor(tokens),
        positions=torch.tensor(positions, dtype=torch.int32),
        slots=torch.tensor([blocks[p // BLOCK_SIZE] * BLOCK_SIZE + p % BLOCK_SIZE for p in positions]),
        block_tables=torch.tensor([blocks], dtype=torch.int32),
        query_starts=torch.tensor([0, len(tokens)], dtype=torch.int32),
        context_lens=torch.tensor([end], dtype=torch.int32),
        sample_rows=torch.arange(len(tokens)),
    )


def logits(stages: list[StageModel], tokens: list[int], chunks: list[int]) -> Tensor:
    """Logits after every token, computed in chunks of these lengths: [len(tokens), vocabulary]."""
    out = []
    start = 0
    for length in chunks:
        batch = inputs(tokens[start : start + length], start)
        hidden = None
        for stage in stages:
            hidden = stage.forward(batch, hidden)
        assert hidden is not None
        out.append(hidden)
        start += length
    assert start == len(tokens)
    return torch.cat(out)


def greedy(stages: list[StageModel], prompt: list[int], count: int) -> list[int]:
    tokens = list(prompt)
    last = logits(stages, tokens, [len(tokens)])[-1]
    for _ in range(count):
        tokens.append(int(last.argmax()))
        batch = inputs(tokens[-1:], len(tokens) - 1)
        hidden = None
        for stage in stages:
            hidden = stage.forward(batch, hidden)
        assert hidden is not None
        last = hidden[-1]
    return tokens[len(prompt) :]
