"""A pipeline that computes hashes instead of a model, so that any misplaced block, row or token changes the output.

There are `LAYERS` layers, spread over the stages. Each has one KV array; a row writes a hash of its input, its position and
everything that it reads through its block table, and passes the same hash on. A sampled token is a hash of the last
layer's row, so it depends on every position before it in every layer. Stages advance in random interleaving, each
first-in first-out. With loop-back the last stage hands sampled tokens to stage 0 over a link of its own, which is one more
that may be late.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Hashable
from functools import lru_cache
from itertools import pairwise

from paceline.messages import BatchResult, LoopedToken, NewRequest, Plan, SampledToken, Slice, StageTimes

LAYERS = 8
VOCABULARY = 120
STOP_TOKEN = 0
LINK = -1  # from the last stage to stage 0


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


TokenKey = Callable[[int, LoopedToken], Hashable]


def by_request_and_position(row: int, token: LoopedToken) -> Hashable:
    return token.request, token.generation, token.position


class FakePipeline:
    """Implements the pipeline seam over hashing stages.

    Args:
        stages: how many, 1 to LAYERS.
        block_size: positions per block.
        loop_back: the last stage hands tokens to stage 0.
        rng: chooses which stage advances, and which rows fail.
        fault_rate: probability that a sampling row fails on the last stage and leaves worthless KV everywhere.
        drop: a mutant: rows for which this holds are not computed.
        token_key: by what stage 0 tells tokens that were handed to it apart; others than the default are mutants.
    """

    def __init__(
        self,
        stages: int,
        block_size: int,
        rng: random.Random,
        *,
        loop_back: bool = False,
        fault_rate: float = 0.0,
        drop: Callable[[Slice], bool] | None = None,
        token_key: TokenKey = by_request_and_position,
    ) -> None:
        self.depth = stages + loop_back
        self.num_waits = self.num_tombstones = 0
        bounds = [LAYERS * i // stages for i in range(stages + 1)]
        self.stages = [_Stage(range(a, b), block_size) for a, b in pairwise(bounds)]
        self.ready: deque[BatchResult] = deque()
        self._rng = rng
        self._fault_rate = fault_rate
        self._drop = drop
        self._faulty: set[tuple[int, int]] = set()
        self._loop_back = loop_back
        self._token_key = token_key
        self._looping: deque[list[LoopedToken]] = deque()
        self._looped: dict[Hashable, int] = {}

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
        if 0 in able and not self._has_tokens(self.stages[0].queue[0][0]):
            self.num_waits += 1
            able.remove(0)
        if self._looping:
            able.append(LINK)
        if not able:
            return False
        i = self._rng.choice(able)
        if i == LINK:
            for row, token in enumerate(self._looping.popleft()):
                self._looped[self._token_key(row, token)] = token.token_id
            return True
        stage = self.stages[i]
        plan, values = stage.queue.popleft()
        stage.learn(plan)
        if i == 0:
            values = [self._inputs(row, slice_) for row, slice_ in enumerate(plan.slices)]
        out = []
        for slice_, row in zip(plan.slices, values, strict=True):
            if self._drop is not None and self._drop(slice_):
                out.append(row)
                continue
            out.append(stage.run(slice_, row, self._rng if (plan.batch, slice_.request) in self._faulty else None))
        if i + 1 < len(self.stages):
            self.stages[i + 1].queue.append((plan, out))
        else:
            result = self._result(plan, out, stage.known)
            self.ready.append(result)
            if self._loop_back:
                sampling = [s for s in plan.slices if s.samples]
                pairs = zip(sampling, result.tokens, strict=True)
                self._looping.append([LoopedToken(s.request, s.generation, s.end, t.token_id) for s, t in pairs])
        return True

    def _has_tokens(self, plan: Plan) -> bool:
        return all(self._key(row, s) in self._looped for row, s in enumerate(plan.slices) if s.runs_ahead)

    def _key(self, row: int, slice_: Slice) -> Hashable:
        return self._token_key(row, LoopedToken(slice_.request, slice_.generation, slice_.start, 0))

    def _inputs(self, row: int, slice_: Slice) -> list[int]:
        if not slice_.runs_ahead:
            return slice_.token_ids
        assert self._loop_back
        assert slice_.num_tokens == 1
        token = self._looped[self._key(row, slice_)]
        self.num_tombstones += token < 0
        return [token]

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
        return BatchResult(plan.epoch, plan.batch, tokens, self._times())

    def _times(self) -> list[StageTimes]:
        """Nothing may rely on clocks: stages claim to have taken anything between no time and days."""
        seconds = [self._rng.choice([0.0, 1e-9, 0.01, 0.011, 1.0, 1e6]) for _ in self.stages]
        return [StageTimes(stage, 0.0, 0.0, 0.0, took, took) for stage, took in enumerate(seconds)]
