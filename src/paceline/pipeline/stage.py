"""What a stage does with a plan: look up blocks, build tensors, run its layers, and sample if it is the last.

The same code runs in a stage's own process and in the inline pipeline. A stage executes plans in order, computes every
row of each, and decides nothing.
"""

from __future__ import annotations

import sys

import numpy as np
import torch
from torch import Tensor

from paceline.errors import PipelineError
from paceline.messages import LoopedTokens, NewRequest, Plan, SampledToken
from paceline.models.decoder import StageModel
from paceline.models.inputs import BatchInputs
from paceline.pipeline.loop_back import LoopedTokenStore
from paceline.sampling.sampler import SampleRow, sample


class _BlockTable:
    """The blocks of one request, in an array that grows by doubling."""

    __slots__ = ("blocks",)

    def __init__(self) -> None:
        self.blocks = np.zeros(8, dtype=np.int32)

    def place(self, at: int, new_blocks: list[int]) -> None:
        end = at + len(new_blocks)
        if end > len(self.blocks):
            self.blocks = np.resize(self.blocks, max(end, 2 * len(self.blocks)))
        self.blocks[at:end] = new_blocks


class StageRunner:
    """A stage's layers, and what it was told of each request.

    Args:
        model: its layers, with their KV cache allocated.
        block_size: positions per KV block.
    """

    def __init__(self, model: StageModel, block_size: int) -> None:
        self.model = model
        self._block_size = block_size
        self._requests: dict[int, NewRequest] = {}
        self._tables: dict[int, _BlockTable] = {}
        self._looped = LoopedTokenStore()

    def take_looped(self, tokens: LoopedTokens) -> None:
        """On the first stage: tokens from the last one, for placeholders in plans to come."""
        self._looped.take(tokens, self._requests)

    def can_execute(self, plan: Plan) -> bool:
        """Whether the tokens that the plan, the next to be executed, has placeholders for are there."""
        return not self.model.is_first or self._looped.has_all(plan)

    def execute(self, plan: Plan, hidden: Tensor | None = None) -> Tensor | list[SampledToken]:
        """Run one plan.

        Args:
            hidden: [T, H] from the stage before; None on the first.

        Returns:
            [T, H] for the next stage; from the last stage the tokens of the slices that sample, in slice order.

        Raises:
            PipelineError: the plan names a request that this stage was never told of, or needs a token that has not
                come (:meth:`can_execute`).
        """
        laps = self.model.laps
        if laps is not None:
            laps.begin(sum(len(slice_.token_ids) for slice_ in plan.slices))
        self._learn(plan)
        inputs = self._inputs(plan)
        if laps is not None:
            laps.lap("inputs")
        out = self.model.forward(inputs, None if hidden is None else hidden.to(self.model.device))
        if not self.model.is_last:
            return out
        sampled = sample(out, self._sample_rows(plan))
        if laps is not None:
            laps.lap("sampling")
        return sampled

    def show_profile(self, number: int) -> None:
        """Under ``--profile``, write to standard error where the time of this stage's steps went."""
        if self.model.laps is not None and self.model.laps.steps:
            print(self.model.laps.table(f"stage {number}"), file=sys.stderr, flush=True)

    def _learn(self, plan: Plan) -> None:
        for number in plan.released:
            self._requests.pop(number, None)
            self._tables.pop(number, None)
            self._looped.forget(number)
        for new in plan.new_requests:
            self._requests[new.request] = new
            self._tables[new.request] = _BlockTable()
        for slice_ in plan.slices:
            if slice_.new_blocks:
                self._table(slice_.request).place(slice_.blocks_from, slice_.new_blocks)

    def _table(self, request: int) -> _BlockTable:
        try:
            return self._tables[request]
        except KeyError:
            raise PipelineError(f"a plan has a slice of request {request}, of which this stage was not told") from None

    def _inputs(self, plan: Plan) -> BatchInputs:
        """The plan as tensors; the only work in Python that grows with the number of slices."""
        slices, size = plan.slices, self._block_size
        starts = np.array([s.start for s in slices], dtype=np.int64)
        lengths = np.array([len(s.token_ids) for s in slices], dtype=np.int64)
        ends = starts + lengths
        query_starts = np.zeros(len(slices) + 1, dtype=np.int64)
        np.cumsum(lengths, out=query_starts[1:])
        widest = int(-(-ends.max() // size))
        tables = np.zeros((len(slices), widest), dtype=np.int32)
        for i, slice_ in enumerate(slices):
            blocks = self._table(slice_.request).blocks
            count = min(widest, len(blocks))
            tables[i, :count] = blocks[:count]
        # Row r of sequence s is position start[s] + r - query_starts[s].
        owners = np.repeat(np.arange(len(slices)), lengths)
        positions = np.arange(query_starts[-1]) + (starts - query_starts[:-1])[owners]
        slots = tables[owners, positions // size].astype(np.int64) * size + positions % size
        samples = np.array([s.samples for s in slices], dtype=bool)
        if self.model.is_first:
            inputs = (t for s in slices for t in self._looped.inputs(plan, s))
            token_ids = np.fromiter(inputs, dtype=np.int64, count=len(positions))
        else:
            token_ids = np.empty(0, dtype=np.int64)
        return BatchInputs(
            *(
                torch.from_numpy(array).to(self.model.device)
                for array in (
                    token_ids,
                    positions.astype(np.int32),
                    slots,
                    tables,
                    query_starts.astype(np.int32),
                    ends.astype(np.int32),
                    query_starts[1:][samples] - 1,
                )
            )
        )

    def _sample_rows(self, plan: Plan) -> list[SampleRow]:
        rows = []
        for slice_ in plan.slices:
            if slice_.samples:
                told = self._requests[slice_.request]
                rows.append(
                    SampleRow(
                        slice_.request,
                        slice_.generation,
                        slice_.end,
                        told.num_prompt_tokens,
                        told.sampling,
                        told.eos_token_ids,
                    )
                )
        return rows
