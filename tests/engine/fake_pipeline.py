"""A pipeline that computes hashes instead of a model, so that any misplaced block, row or token changes the output.

There are `LAYERS` layers, spread over the stages. Each has one KV array; a row writes a hash of its input, its position and
everything that it reads through its block table, and passes the same hash on. A sampled token is a hash of the last
layer's row, so it depends on every position before it in every layer. Stages advance in random interleaving, each
first-in first-out.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise

from paceline.messages import BatchResult, NewRequest, Plan, SampledToken, Slice

LAYERS = 8
VOCABULARY = 120
STOP_TOKEN = 0


def row_hash(value: int, position: int, read: tuple[int, ...], layer: int) -> int:
    return hash((value, position, read, layer))


def sampled_token(value: int, seed: int, position: int) -> int:
    return hash((value, seed, position)) % VOCABULARY


@lru_cache(maxsize=100_000)
def oracle(prompt: tuple[int, ...], seed: int, max_total: int) -> tuple[int, ...]:
    """The output of a request that is alone in the world: no blocks, no batches, no chunks."""
    tokens = list(prompt)
    kv: list[list[int]] = [[] for _ in range(LAYERS)]
    while True:
        for position in range(len(kv[0]), len(tokens)):
            value = tokens[position]
            for layer in range(LAYERS):
                value = row_hash(value, position, tuple(kv[layer]), layer)
                kv[layer].append(value)
        tokens.append(sampled_token(value, seed, len(tokens)))
        if tokens[-1] == STOP_TOKEN or len(tokens) >= max_total:
            return tuple(tokens[len(prompt) :])


class _Stage:
    """A range of layers: their KV arrays, and the block tables of the requests it was told of."""

    def __init__(self, layers: range, block_size: int) -> None:
        self.layers = layers
        self.block_size = block_size
        self.queue: deque[tuple[Plan, list[list[int]]]] = deque()
        self.kv: dict[tuple[int, int], int] = {}
        self.tables: dict[int, list[int]] = {}
        self.known: dict[int, NewRequest] = {}

    def learn(self, plan: Plan) -> None:
        for number in plan.released:
            self.known.pop(number)
            self.tables.pop(number)
        for new in plan.new_requests:
            assert new.request not in self.known, "told twice"
            self.known[new.request] = new
            self.tables[new.request] = []
        for slice_ in plan.slices:
            assert self.known[slice_.request].generation == slice_.generation
            table = self.tables[slice_.request]
            assert slice_.blocks_from <= len(table)
            table[slice_.blocks_from :] = slice_.new_blocks
            assert len(table) * self.block_size >= slice_.end, "a position without a block"

    def run(self, slice_: Slice, values: list[int], damage: random.Random | None) -> list[int]:
        """One row after another; `damage` makes what is written worthless."""
        slots = [b * self.block_size + i for b in self.tables[slice_.request] for i in range(self.block_size)]
        out = []
        for position, value in enumerate(values, slice_.start):
            for layer in self.layers:
                read = tuple(self.kv.get((layer, slots[p]), -1) for p in range(position))
                value = row_hash(value, position, read, layer)
                if damage is not None:
                    value ^= damage.getrandbits(60)
                self.kv[layer, slots[position]] = value
            out.append(value)
        return out


class FakePipeline:
    """Implements the pipeline seam over hashing stages.

    Args:
        stages: how many, 1 to LAYERS; also the depth.
        block_size: positions per block.
        rng: chooses which stage advances, and which rows fail.
        fault_rate: probability that a sampling row fails on the last stage and leaves worthless KV everywhere.
        drop: a mutant: rows for which this holds are not computed.
    """

    def __init__(
        self,
        stages: int,
        block_size: int,
        rng: random.Random,
        *,
        fault_rate: float = 0.0,
        drop: Callable[[Slice], bool] | None = None,
    ) -> None:
        self.depth = stages
        bounds = [LAYERS * i // stages for i in range(stages + 1)]
        self.stages = [_Stage(range(a, b), block_size) for a, b in pairwise(bounds)]
        self.ready: deque[BatchResult] = deque()
        self._rng = rng
        self._fault_rate = fault_rate
        self._drop = drop
        self._faulty: set[tuple[int, int]] = set()

    def submit(self, plan: Plan) -> None:
        assert plan.slices, "an empty batch was dispatched"
        for slice_ in plan.slices:
            if slice_.samples and self._rng.random() < self._fault_rate:
                self._faulty.add((plan.batch, slice_.request))
        self.stages[0].queue.append((plan, [slice_.token_ids for slice_ in plan.slices]))

    def collect(self) -> BatchResult | None:
        for _ in range(self._rng.randrange(3)):
            self._advance()
        return self.ready.popleft() if self.ready else None

    def wait(self, timeout: float | None) -> None:
        while not self.ready and self._advance():
            pass

    def close(self) -> None:
        pass

    def _advance(self) -> bool:
        """Let one stage that has work finish its oldest batch."""
        able = [i for i, stage in enumerate(self.stages) if stage.queue]
        if not able:
            return False
        i = self._rng.choice(able)
        stage = self.stages[i]
        plan, values = stage.queue.popleft()
        stage.learn(plan)
        out = []
        for slice_, row in zip(plan.slices, values, strict=True):
            if self._drop is not None and self._drop(slice_):
                out.append(row)
                continue
            out.append(stage.run(slice_, row, self._rng if (plan.batch, slice_.request) in self._faulty else None))
        if i + 1 < len(self.stages):
            self.stages[i + 1].queue.append((plan, out))
        else:
            self.ready.append(self._result(plan, out, stage.known))
        return True

    def _result(self, plan: Plan, values: list[list[int]], known: dict[int, NewRequest]) -> BatchResult:
        tokens = []
        for slice_, row in zip(plan.slices, values, strict=True):
            if not slice_.samples:
                continue
            if (plan.batch, slice_.request) in self._faulty:
                tokens.append(SampledToken(slice_.request, slice_.generation, -1, None, "logits are not finite"))
            else:
                seed = known[slice_.request].sampling.seed or 0
                token = sampled_token(row[-1], seed, slice_.end)
                tokens.append(SampledToken(slice_.request, slice_.generation, token))
        return BatchResult(plan.epoch, plan.batch, tokens, [])
