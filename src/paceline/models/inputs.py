"""What one batch brings to a stage's layers: tensors, built once per step."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class BatchInputs:
    """T rows (tokens) of S sequences; R rows are sampled from.

    Attributes:
        token_ids: [T] int64, the input tokens (read by the first stage).
        positions: [T] int32, each row's position in its sequence.
        slots: [T] int64, where each row's K and V go: block · block_size + offset.
        block_tables: [S, B] int32, each sequence's blocks.
        query_starts: [S + 1] int32, sequence s owns rows query_starts[s] to query_starts[s + 1] - 1.
        context_lens: [S] int32, positions of each sequence including this batch's.
        sample_rows: [R] int64, the rows whose logits are wanted (read by the last stage).
    """

    token_ids: Tensor
    positions: Tensor
    slots: Tensor
    block_tables: Tensor
    query_starts: Tensor
    context_lens: Tensor
    sample_rows: Tensor
