"""Random batches for the attention kernels: sequences with contexts in scattered blocks, and rows at their ends."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class Batch:
    q: Tensor
    k_cache: Tensor  # [blocks, kv_heads, head_dim, block_size]
    v_cache: Tensor  # [blocks, kv_heads, block_size, head_dim]
    block_tables: Tensor
    query_starts: Tensor
    context_lens: Tensor

    def arguments(self) -> tuple[Tensor, ...]:
        return (self.q, self.k_cache, self.v_cache, self.block_tables, self.query_starts, self.context_lens)


def make_batch(
    seed: int,
    lengths: list[tuple[int, int]],
    *,
    heads: int,
    kv_heads: int,
    head_dim: int,
    block_size: int,
    kv_dtype: torch.dtype = torch.float32,
) -> Batch:
    """`lengths`: for each sequence its context and how many of its last positions are rows of this batch."""
    generator = torch.Generator().manual_seed(seed)
    per_sequence = [-(-context // block_size) for context, _ in lengths]
    num_blocks = sum(per_sequence) + 2
    order = torch.randperm(num_blocks, generator=generator).tolist()
    tables = torch.zeros((len(lengths), max(per_sequence)), dtype=torch.int32)
    at = 0
    for s, count in enumerate(per_sequence):
        tables[s, :count] = torch.tensor(order[at : at + count], dtype=torch.int32)
        at += count
    shape = (num_blocks, kv_heads, block_size, head_dim)
    rows = [count for _, count in lengths]
    return Batch(
        torch.randn((sum(rows), heads, head_dim), generator=generator),
        torch.randn(shape, generator=generator).mT.contiguous().to(kv_dtype),
        torch.randn(shape, generator=generator).to(kv_dtype),
        tables,
        torch.tensor([0, *torch.tensor(rows).cumsum(0).tolist()], dtype=torch.int32),
        torch.tensor([context for context, _ in lengths], dtype=torch.int32),
    )
