"""Load on a running server: requests at a rate or at a concurrency, and the figures of their streams."""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
from tqdm import tqdm

from paceline.bench.arrivals import RampUp, arrival_times, ramped_times
from paceline.bench.datasets import Lengths, Sample, random_samples, read_sharegpt, sharegpt_samples
from paceline.bench.figures import request_figures
from paceline.bench.openai_stream import Answer, Target, ask
from paceline.bench.server_facts import (
    SAMPLE_TEXT,
    Counters,
    Model,
    find_model,
    pipeline_facts,
    read_counters,
    read_gauge,
    server_tokens,
)
from paceline.bench.vocabulary import Vocabulary
from paceline.errors import BenchError
from paceline.tokenization import Tokenizer, load_tokenizer

REQUEST_SECONDS = 6 * 3600.0  # a request that takes longer has failed
CONNECT_SECONDS = 10.0
KV_PEAK_INTERVAL = 1.0  # seconds between two looks at the cache
WARM_UP_TOKENS = 32, 4  # prompt and output of a warm-up request


@dataclass(frozen=True, kw_only=True)
class ServedLoad:
    """What to send, to whom, and what to report."""

    base_url: str = "http://127.0.0.1:8000"
    backend: str = "paceline"  # paceline, vllm: completions with token ids; openai: without; openai-chat
    endpoint: str | None = None
    model: str | None = None
    api_key: str | None = None
    tokenizer: Path | None = None

    dataset: str = "random"  # random, lognormal, sharegpt
    dataset_path: Path | None = None
    num_prompts: int = 1000
    input_len: Lengths = field(default_factory=lambda: Lengths(1024))
    output_len: Lengths = field(default_factory=lambda: Lengths(128))
    sharegpt_output_len: int | None = None
    seed: int = 0

    request_rate: float = math.inf  # requests per second
    burstiness: float = 1.0
    ramp_up: RampUp | None = None  # instead of the rate
    max_concurrency: int | None = None
    num_warmups: int = 2
    ignore_eos: bool | None = None  # None: unless the answers' own ends are wanted
    temperature: float | None = 0.0
    extra_body: dict[str, Any] = field(default_factory=dict)

    goodput: dict[str, float] = field(default_factory=dict)  # ttft, tpot, e2el -> milliseconds
    percentiles: tuple[float, ...] = (99,)
    detailed: bool = False
    metadata: dict[str, Any] = field(default_factory=dict)

    @property
    def chat(self) -> bool:
        return self.backend == "openai-chat"


async def measure_server(load: ServedLoad, *, show_progress: bool = True) -> dict[str, Any]:
    """Warm up, send the load, and give its figures under the names of ``vllm bench serve``, and ``pipeline``.

    Raises:
        BenchError: the server cannot be measured so.
        ConfigError: the data set cannot be used.
        ModelError: `tokenizer` cannot be used.
    """
    async with _session(load) as session:
        model = await find_model(session, load.base_url, load.model)
        vocabulary = await _vocabulary(session, load, model)
        samples, num_cut = await _samples(load, vocabulary, model)
        target = _target(load, model)
        shared = await _warm_up(session, target, vocabulary, load.num_warmups)
        before = await read_counters(session, load.base_url)
        async with _kv_peak(session, load.base_url, before) as peak:
            answers, duration = await _send_all(session, target, samples, load, show_progress)
        after = await read_counters(session, load.base_url)
    figures = request_figures(answers, duration, percentiles=load.percentiles, goodput=load.goodput)
    cached = cached_tokens(answers, before, after)
    return (
        _describe(load, model, num_cut)
        | figures
        | {
            "prefix_cache": _cache_state(cached, shared * len(answers)),
            "cached_tokens": cached,
            "pipeline": pipeline_facts(before, after, peak(), duration),
        }
        | _details(load, answers)
    )


@asynccontextmanager
async def _session(load: ServedLoad) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=REQUEST_SECONDS, sock_connect=CONNECT_SECONDS),
        headers={"Authorization": f"Bearer {load.api_key}"} if load.api_key else {},
        read_bufsize=2**20,
    ) as session:
        yield session


async def _vocabulary(session: aiohttp.ClientSession, load: ServedLoad, model: Model) -> Vocabulary:
    """From --tokenizer, else from the server's /tokenize, else words."""
    if load.tokenizer is not None:
        own: Tokenizer = load_tokenizer(load.tokenizer)
        plain = [token for token in range(own.vocab_size) if not own.is_special(token)]

        async def encode(text: str) -> Sequence[int]:
            return own.encode(text, add_special_tokens=False)

        return Vocabulary([] if load.chat else plain, encode)

    async def ask_server(text: str) -> Sequence[int]:
        tokens = await server_tokens(session, load.base_url, model.name, text)
        if tokens is None:
            raise BenchError("the server does not count tokens (/tokenize); give --tokenizer with the model's folder")
        return tokens

    if load.chat or load.dataset == "sharegpt":
        return Vocabulary([], ask_server)
    tokens = await server_tokens(session, load.base_url, model.name, SAMPLE_TEXT)
    return Vocabulary(sorted(set(tokens or ())), ask_server)


async def _samples(load: ServedLoad, vocabulary: Vocabulary, model: Model) -> tuple[list[Sample], int]:
    if load.dataset == "sharegpt":
        assert load.dataset_path is not None
        pairs = read_sharegpt(load.dataset_path)
        output_len = load.sharegpt_output_len
        return await sharegpt_samples(pairs, vocabulary, load.num_prompts, output_len, load.seed), 0
    return random_samples(vocabulary, load.num_prompts, load.input_len, load.output_len, model.longest, load.seed)


def _target(load: ServedLoad, model: Model) -> Target:
    fields: dict[str, Any] = {"model": model.name}
    if load.temperature is not None:
        fields["temperature"] = load.temperature
    if load.ignore_eos if load.ignore_eos is not None else load.dataset != "sharegpt":
        fields["ignore_eos"] = True
    if load.backend in ("paceline", "vllm"):
        fields["return_token_ids"] = True  # an event for every token, also for one that has no text of its own
    path = load.endpoint or ("/v1/chat/completions" if load.chat else "/v1/completions")
    return Target(load.base_url, path, load.chat, fields | load.extra_body)


async def _warm_up(session: aiohttp.ClientSession, target: Target, vocabulary: Vocabulary, count: int) -> int:
    """A few requests with prompts that no measured one has.

    Returns: how many cached tokens even they found: what every prompt shares, such as the chat template's beginning.

    Raises:
        BenchError: one failed.
    """
    draw = random.Random(secrets.randbits(64))
    shared = 0
    for _ in range(count):
        prompt = vocabulary.prompt(draw, WARM_UP_TOKENS[0])
        answer = await ask(session, target, Sample(prompt, WARM_UP_TOKENS[0], WARM_UP_TOKENS[1]))
        if answer.error:
            raise BenchError(f"the warm-up request failed: {answer.error}")
        shared = max(shared, answer.cached_tokens or 0)
    return shared


@asynccontextmanager
async def _kv_peak(
    session: aiohttp.ClientSession, base_url: str, before: Counters
) -> AsyncIterator[Callable[[], float | None]]:
    """Watches how full the KV cache gets, on a server that tells."""
    name = "vllm:kv_cache_usage_perc"
    most: float | None = None  # until it was looked at once, which a short run may not live to see

    async def watch() -> None:
        nonlocal most
        while True:
            await asyncio.sleep(KV_PEAK_INTERVAL)
            most = max(most or 0.0, await read_gauge(session, base_url, name))

    if name not in before.values:
        yield lambda: None
        return
    watcher = asyncio.create_task(watch())
    try:
        yield lambda: most
    finally:
        watcher.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watcher


async def _send_all(
    session: aiohttp.ClientSession, target: Target, samples: Sequence[Sample], load: ServedLoad, show_progress: bool
) -> tuple[list[Answer], float]:
    """Every sample at its time; answers in the order of samples, and the seconds until the last was there."""
    draw = np.random.default_rng(load.seed)
    if load.ramp_up is not None:
        times = ramped_times(len(samples), load.ramp_up, load.burstiness, draw)
    else:
        times = arrival_times(len(samples), load.request_rate, load.burstiness, draw)
    seats = asyncio.Semaphore(load.max_concurrency or len(samples))
    start = time.perf_counter()
    with tqdm(total=len(samples), desc="Measuring", unit="request", disable=not show_progress, leave=False) as bar:

        async def one(sample: Sample, at: float) -> Answer:
            if at:
                await asyncio.sleep(at - (time.perf_counter() - start))
            async with seats:
                answer = await ask(session, target, sample)
            bar.update()
            return answer

        answers = await asyncio.gather(*(one(sample, at) for sample, at in zip(samples, times, strict=True)))
    return answers, time.perf_counter() - start


def cached_tokens(answers: Sequence[Answer], before: Counters, after: Counters) -> int | None:
    """Prompt tokens found in the server's prefix cache: by its answers, else by its counters, else not known."""
    told = [answer.cached_tokens for answer in answers if answer.cached_tokens is not None]
    if told:
        return sum(told)
    grown = after.grown(before, "vllm:prefix_cache_hits_total")
    return None if grown is None else int(grown)


def _cache_state(cached: int | None, shared: int) -> str:
    """A run that found more than what all prompts share says nothing about runs that did not."""
    return "unknown" if cached is None else "warm" if cached > shared else "cold"


def _describe(load: ServedLoad, model: Model, num_cut: int) -> dict[str, Any]:
    return {
        "date": time.strftime("%Y%m%d-%H%M%S"),
        "backend": load.backend,
        "base_url": load.base_url,
        "model_id": model.name,
        "tokenizer_id": str(load.tokenizer) if load.tokenizer else None,
        "dataset_name": load.dataset,
        "num_prompts": load.num_prompts,
        "num_prompts_cut": num_cut,
        "request_rate": load.request_rate if math.isfinite(load.request_rate) else "inf",
        "burstiness": load.burstiness,
        **_ramp_facts(load.ramp_up),
        "max_concurrency": load.max_concurrency,
        "seed": load.seed,
    } | load.metadata


def _ramp_facts(ramp: RampUp | None) -> dict[str, Any]:
    if ramp is None:
        return {}
    return {"ramp_up_strategy": ramp.strategy, "ramp_up_start_rps": ramp.start, "ramp_up_end_rps": ramp.end}


def _details(load: ServedLoad, answers: Sequence[Answer]) -> dict[str, Any]:
    """Per request with --save-detailed; else only which errors there were."""
    if not load.detailed:
        errors = sorted({answer.error for answer in answers if answer.error})
        return {"errors": errors} if errors else {}
    first = min((answer.sent for answer in answers), default=0.0)
    return {
        "input_lens": [answer.input_tokens for answer in answers],
        "output_lens": [answer.output_tokens for answer in answers],
        "start_times": [answer.sent - first for answer in answers],
        "ttfts": [answer.outputs[0] - answer.sent if answer.outputs else 0.0 for answer in answers],
        "itls": [np.diff(answer.outputs).tolist() for answer in answers],
        "generated_texts": [answer.text for answer in answers],
        "errors": [answer.error for answer in answers],
    }
