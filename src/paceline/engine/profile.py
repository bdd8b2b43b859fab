"""Measures what batches take on real stages, and fits a cost model to it.

Plans are handed to the stages without an engine core: what KV blocks hold does not change how long they take to read, so
any mix of decodes and chunks at any context can be had at once. As many batches are in flight as when serving, because
stages that share a machine slow each other down.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, product
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import msgspec
import zmq

from paceline.config import EngineConfig
from paceline.engine.costs import KnownCosts, profile_conditions
from paceline.errors import ConfigError
from paceline.messages import BatchResult, CoreProgress, NewRequest, Plan, Slice
from paceline.models.context import context_length
from paceline.models.model_cost import ModelCost, operation_count
from paceline.pipeline import wire
from paceline.pipeline.build import layer_ranges, open_model
from paceline.pipeline.processes import ProcessPipeline
from paceline.pipeline.profile_store import CostProfile
from paceline.sampling_params import SamplingParams
from paceline.scheduling.cost_fit import KINDS, PriceFit, fit_stages
from paceline.scheduling.cost_model import LinkCost, StageCost, Work, work_of

DECODES = (1, 2, 4, 8, 16, 32)
CHUNKS = (16, 64, 128, 256)
CONTEXTS = (16, 256, 1024)
MIXED = tuple(product((4, 12), (32, 128)))  # decodes beside a chunk
REPEATS = 3
HELD_OUT_PART = 0.4  # of the time: batches drawn at random, on which the fit is judged
TOKEN = 1


class Shape(NamedTuple):
    """A batch to measure."""

    decodes: int
    chunk: int  # tokens of one prompt, or 0
    context: int  # positions before each slice


class Step(NamedTuple):
    """What a batch asked, and how many seconds each stage took for it."""

    work: Work
    seconds: list[float]


Progress = Callable[[float], None]


def measure_profile(
    config: EngineConfig,
    model_path: Path,
    seconds: float,
    on_loading: Callable[[CoreProgress], None],
    on_progress: Progress,
) -> CostProfile:
    """Start the stages, measure for about so many seconds, and fit.

    Args:
        on_progress: told which part of the measuring is done, 0 to 1.

    Raises:
        PacelineError: the stages cannot start, or one failed.
        ConfigError: the stages would run in this process, where they take turns.
    """
    if config.pipeline == "inline":
        raise ConfigError("pipeline", "inline", "cannot be measured: its stages take turns", "Use processes.")
    checkpoint = open_model(config, model_path)
    costs = KnownCosts(config, checkpoint.spec, model_path)
    split = costs.split()
    max_model_len = context_length(checkpoint.spec, config.max_model_len)
    context: zmq.Context[Any] = zmq.Context()
    nobody = wire.make_socket(context, zmq.PAIR)
    pipeline = None
    try:
        pipeline = ProcessPipeline(config, model_path, layer_ranges(split), max_model_len, nobody, context)
        num_blocks, _ = pipeline.load(on_loading)
        bench = _Bench(pipeline, config, num_blocks, min(max_model_len, num_blocks * config.block_size))
        learned, held_out, link = bench.measure(seconds, on_progress)
    finally:
        if pipeline is not None:
            pipeline.close()
        nobody.close(0)
        context.destroy(linger=0)
    start = operation_count(checkpoint.spec)
    stages = fit_stages(start.pipeline(split), [step.work for step in learned], [step.seconds for step in learned])
    return CostProfile(
        conditions=profile_conditions(config, model_path),
        cost=msgspec.structs.replace(fit_parts(start, split, learned), link=link),
        layer_split=split,
        stages=stages,
        errors=errors_of(stages, held_out),
        num_steps=len(learned) + len(held_out),
    )


class _Bench:
    """Puts batches of given shapes through the stages.

    The requests exist only for the stages: each has a block table that is long enough, filled with whatever is there.
    """

    def __init__(self, pipeline: ProcessPipeline, config: EngineConfig, num_blocks: int, max_model_len: int) -> None:
        self._pipeline = pipeline
        self._depth = pipeline.num_stages
        self._block_size = config.block_size
        self._longest = max_model_len - 1
        self._max_decodes = min(config.max_num_seqs, config.max_num_batched_tokens)
        self._max_tokens = config.max_num_batched_tokens
        self._blocks_each = -(-min(self._longest, CONTEXTS[-1] + CHUNKS[-1] + 1) // config.block_size)
        self._num_blocks = num_blocks
        self._told: set[int] = set()
        self._batch = 0
        self._handed_over: dict[int, float] = {}

    def measure(self, seconds: float, on_progress: Progress) -> tuple[list[Step], list[Step], LinkCost]:
        """Steps to learn from, steps to judge by, and what links take."""
        started = time.monotonic()
        shapes = [shape for shape in grid() if self._fits(shape)]
        draw = random.Random(0)
        draw.shuffle(shapes)
        self._run(shapes[: len(shapes) // 4])  # caches, branch predictors and allocators warm up
        learn_until = started + (1.0 - HELD_OUT_PART) * seconds

        def told(shapes: Iterator[Shape], until: float) -> Iterator[Shape]:
            for shape in shapes:
                if time.monotonic() >= until:
                    return
                on_progress(min(1.0, (time.monotonic() - started) / seconds))
                yield shape

        repeats = (shape for _ in range(REPEATS) for shape in shapes)
        learned = self._run(told(chain(repeats, self._drawn(draw)), learn_until))
        link = self._links()
        held_out = self._run(told(self._drawn(draw), started + seconds))
        return learned, held_out, link

    def _fits(self, shape: Shape) -> bool:
        longest = shape.context + max(shape.chunk, 1)
        tokens = shape.decodes + shape.chunk
        return longest <= self._longest and tokens <= self._max_tokens and shape.decodes <= self._max_decodes

    def _drawn(self, draw: random.Random) -> Iterator[Shape]:
        """Shapes between those of the grid, the three kinds in turn."""
        while True:
            for kind in KINDS:
                decodes = 0 if kind == "prefill" else round(2 ** draw.uniform(0, 5))
                chunk = 0 if kind == "decode" else round(2 ** draw.uniform(4, 8))
                shape = Shape(decodes, chunk, draw.randint(0, min(CONTEXTS[-1], self._longest // 2)))
                if self._fits(shape):
                    yield shape

    def _run(self, shapes: Sequence[Shape] | Iterator[Shape]) -> list[Step]:
        """Put the batches through, as many in flight as there are stages."""
        steps = []
        works: dict[int, Work] = {}
        for shape in shapes:
            plan = self._plan(shape)
            works[plan.batch] = work_of(plan.slices)
            self._pipeline.submit(plan)
            while len(works) >= self._depth:
                steps.append(self._step(works))
        while works:
            steps.append(self._step(works))
        return steps

    def _step(self, works: dict[int, Work]) -> Step:
        result = self._result()
        return Step(works.pop(result.batch), [times.finished - times.started for times in result.times])

    def _result(self) -> BatchResult:
        while (result := self._pipeline.collect()) is None:
            self._pipeline.wait(None)
        return result

    def _links(self) -> LinkCost:
        """What a batch alone takes beyond its stages, shared evenly over the hops: all measured by this clock."""
        hops = self._depth + 1
        beyond = []
        for shape in (Shape(1, 0, 16), Shape(0, min(CHUNKS[-1], self._max_tokens, self._longest), 0)):
            lost = []
            for _ in range(10):
                plan = self._plan(shape)
                begin = time.monotonic()
                self._pipeline.submit(plan)
                result = self._result()
                took = time.monotonic() - begin
                lost.append(took - sum(times.finished - times.started for times in result.times))
            beyond.append((work_of(plan.slices).token, max(median(lost), 0.0) / hops))
        (few, short), (many, long) = beyond
        per_token = max(0.0, (long - short) / (many - few)) if many > few else 0.0
        return LinkCost(fixed=max(0.0, short - per_token * few), token=per_token)

    def _plan(self, shape: Shape) -> Plan:
        slices, new = [], []
        lengths = [1] * shape.decodes + ([shape.chunk] if shape.chunk else [])
        for request, length in enumerate(lengths):
            blocks: list[int] = []
            if request not in self._told:
                self._told.add(request)
                blocks = [(request * self._blocks_each + i) % self._num_blocks for i in range(self._blocks_each)]
                sampling = SamplingParams(temperature=0.0, seed=0, max_tokens=1, ignore_eos=True)
                new.append(NewRequest(request, 0, 1, sampling, ()))
            samples = length == 1 or shape.context == CONTEXTS[0]
            slices.append(Slice(request, 0, shape.context, [TOKEN] * length, samples, 0, blocks))
        plan = Plan(0, self._batch, slices, new, [])
        self._batch += 1
        return plan


def grid() -> list[Shape]:
    """The batches that every profile measures."""
    shapes = [Shape(decodes, 0, context) for decodes, context in product(DECODES, CONTEXTS)]
    shapes += [Shape(0, chunk, context) for chunk, context in product(CHUNKS, (0, *CONTEXTS[1:]))]
    return shapes + [Shape(decodes, chunk, context) for (decodes, chunk), context in product(MIXED, CONTEXTS)]


def fit_parts(start: ModelCost, split: Sequence[int], steps: Sequence[Step]) -> ModelCost:
    """Prices of a layer and of the head that explain all stages together, so that other splits can be predicted."""
    scale = median(
        seconds / stage.time(step.work)
        for step in steps
        for stage, seconds in zip(start.pipeline(split).stages, step.seconds, strict=True)
    )
    layer, head = start.layer.scaled(scale), start.head.scaled(scale)
    # Columns: the terms of all layers, then of the head what it has a price for: a batch, and a sampled token.
    rows, seconds = [], []
    last = len(split) - 1
    for step in steps:
        for i, (count, took) in enumerate(zip(split, step.seconds, strict=True)):
            ends = (1.0, step.work.sample) if i == last else (0.0, 0.0)
            rows.append([*(count * amount for amount in step.work[:5]), *ends])
            seconds.append(took)
    prices = [*msgspec.structs.astuple(layer)[:5], head.fixed, head.sample]
    for _ in range(2):
        fit = PriceFit(prices)
        fit.add(rows, seconds)
        prices = fit.prices.tolist()
    return ModelCost(layer=StageCost(*prices[:5]), head=StageCost(fixed=prices[5], sample=prices[6]))


def errors_of(stages: Sequence[StageCost], steps: Sequence[Step]) -> dict[str, float]:
    """Median absolute error of the predictions, relative to what was measured, per kind of batch."""
    found: dict[str, list[float]] = {}
    for work, seconds in steps:
        for stage, took in zip(stages, seconds, strict=True):
            found.setdefault(work.kind, []).append(abs(stage.time(work) - took) / took)
    return {kind: median(found[kind]) for kind in KINDS if kind in found}
