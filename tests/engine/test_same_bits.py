"""S8 with a real decoder: tokens and log-probabilities have the same bits however the requests were scheduled.

The engine core runs tiny models with packed weights; what is compared with is each request alone, in one batch per step,
on one stage, with an empty cache.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.engine.core import EngineCore
from paceline.messages import AddRequest, RequestOutput, ToCore, TokenLogprobs
from paceline.pipeline.build import load_stage, open_model, resolved_cache_dtype, torch_dtype
from paceline.pipeline.inline import InlinePipeline
from paceline.pipeline.stage import StageRunner
from paceline.sampling_params import SamplingParams
from paceline.scheduling import SchedulerOptions
from paceline.scheduling.pacing import POLICIES
from tests.pipeline.tiny import BLOCK_SIZE, LAYERS, MAX_LEN, engine_config, write_model

MAX_STEPS = 4000
KINDS = ["none", "q8_0", "q4_1"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("tiny"))


@dataclass
class Run:
    """One engine from the first request to the last output."""

    core: EngineCore | None = None
    mail: list[ToCore] = field(default_factory=list)
    tokens: dict[str, list[int]] = field(default_factory=dict)
    logprobs: dict[str, list[TokenLogprobs]] = field(default_factory=dict)
    status: dict[str, str] = field(default_factory=dict)
    hits: int = 0

    def drain(self) -> list[ToCore]:
        mail, self.mail = self.mail, []
        return mail

    def emit(self, outputs: list[RequestOutput]) -> None:
        for output in outputs:
            self.tokens.setdefault(output.request_id, []).extend(output.token_ids)
            self.logprobs.setdefault(output.request_id, []).extend(output.logprobs or [])
            self.hits += max(output.num_cached_tokens, 0)
            if output.status:
                self.status[output.request_id] = output.status


def run(folder: Path, kind: str, cuts: list[int], options: SchedulerOptions, arrivals: list[list[AddRequest]]) -> Run:
    """`arrivals[i]` come before engine step i."""
    config = engine_config(quantization=kind)
    runners = []
    for layers in pairwise([0, *cuts, LAYERS]):
        model = load_stage(config, open_model(config, folder), layers, MAX_LEN, lambda done, what: None)
        assert model.packed
        model.allocate_cache(options.num_blocks, BLOCK_SIZE, torch_dtype(resolved_cache_dtype(config)))
        runners.append(StageRunner(model, BLOCK_SIZE))
    result = Run()
    pipeline = InlinePipeline(runners, lambda timeout: None, loop_back=options.loop_back)
    core = result.core = EngineCore(options, pipeline, result, result.emit)
    for step in range(MAX_STEPS):
        if step < len(arrivals):
            result.mail += arrivals[step]
        core.step()
        if step >= len(arrivals) and not (result.mail or core.has_unfinished or core.in_flight):
            return result
    raise AssertionError("still unfinished")


def make_request(number: int, rng: random.Random, stem: list[int]) -> AddRequest:
    prompt = stem[: rng.choice([0, len(stem) // 2, len(stem)])] + [
        rng.randint(1, 255) for _ in range(rng.randint(1, 20))
    ]
    sampling = SamplingParams(
        temperature=rng.choice([0.0, 1.0]),
        top_p=rng.choice([1.0, 0.9]),
        seed=number,
        logprobs=3,
        max_tokens=rng.randint(1, 24),
        ignore_eos=True,
    )
    return AddRequest(f"r{number}", prompt, sampling)


ALONE = SchedulerOptions(
    stages=1, max_num_seqs=1, max_num_batched_tokens=MAX_LEN, block_size=BLOCK_SIZE, num_blocks=32, max_model_len=MAX_LEN,
    enable_prefix_caching=False,
)  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(KINDS))
def test_any_schedule(folder: Path, seed: int, kind: str) -> None:
    rng = random.Random(seed)
    stem = [rng.randint(1, 255) for _ in range(24)]
    requests = [make_request(number, rng, stem) for number in range(rng.randint(2, 7))]
    cuts = sorted(rng.sample(range(1, LAYERS), rng.randint(0, LAYERS - 1)))
    options = SchedulerOptions(
        stages=len(cuts) + 1,
        max_num_seqs=rng.randint(2, 8),
        max_num_batched_tokens=rng.choice([3, 7, 16, 64]),
        block_size=BLOCK_SIZE,
        num_blocks=rng.choice([18, 24, 64]),
        max_model_len=18 * BLOCK_SIZE,
        enable_prefix_caching=rng.random() < 0.7,
        loop_back=rng.random() < 0.5,
        pacing=rng.choice(list(POLICIES)),
    )
    arrivals: list[list[AddRequest]] = [[] for _ in range(12)]
    for request in requests:
        rng.choice(arrivals).append(request)
    together = run(folder, kind, cuts, options, arrivals)
    for request in requests:
        alone = run(folder, kind, [], ALONE, [[request]])
        name = request.request_id
        assert together.status[name] == alone.status[name] == "FINISHED_LENGTH"
        assert together.tokens[name] == alone.tokens[name]
        assert together.logprobs[name] == alone.logprobs[name]


@pytest.mark.parametrize("stages", [1, 2, 4])
def test_preempted_and_cached(folder: Path, stages: int) -> None:
    """What random schedules may miss: that preemptions and prefix hits really happened."""
    rng = random.Random(stages)
    stem = [rng.randint(1, 255) for _ in range(16)]
    requests = [
        AddRequest(f"r{n}", [*stem, n + 1], SamplingParams(temperature=0.0, logprobs=3, seed=n, max_tokens=40, ignore_eos=True))
        for n in range(6)
    ]  # fmt: skip
    options = SchedulerOptions(
        stages=stages, max_num_seqs=8, max_num_batched_tokens=32, block_size=BLOCK_SIZE, num_blocks=22,
        max_model_len=16 * BLOCK_SIZE,
    )  # fmt: skip
    cuts = list(range(1, stages))
    together = run(folder, "q8_0", cuts, options, [[request] for request in requests])
    assert together.core is not None
    assert together.core.scheduler.num_preemptions > 0
    assert together.hits > 0
    for request in requests:
        alone = run(folder, "q8_0", [], ALONE, [[request]])
        assert together.tokens[request.request_id] == alone.tokens[request.request_id]
        assert together.logprobs[request.request_id] == alone.logprobs[request.request_id]
