"""Offline throughput: many prompts through an engine in this process's care, no HTTP."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tqdm import tqdm

from paceline.bench.figures import Timeline, pipeline_figures, request_figures
from paceline.bench.workload import plain_tokens, random_jobs, warm_up_jobs
from paceline.engine.choice import Delta
from paceline.engine.offline import Job, OfflineEngine


@dataclass(frozen=True)
class Load:
    """What to send."""

    num_prompts: int
    input_len: int  # tokens per prompt
    output_len: int  # tokens to generate per prompt
    max_concurrency: int | None  # None: everything at once
    warm_up: int  # prompts before the measured ones
    seed: int


def measure(engine: OfflineEngine, load: Load, *, show_progress: bool = True) -> dict[str, Any]:
    """Warm up, run the load, and give its figures under the names that ``vllm bench`` uses, and ``pipeline``.

    Raises:
        RequestError: prompts of this length do not fit the model.
        EngineDeadError: the engine died.
    """
    tokens = plain_tokens(engine.model.tokenizer, engine.model.vocab_size)
    jobs = [
        engine.check(job) for job in random_jobs(tokens, load.num_prompts, load.input_len, load.output_len, load.seed)
    ]
    warm_up = warm_up_jobs(tokens, load.warm_up, load.input_len, min(load.output_len, 8))
    run_timed(engine, warm_up, load.max_concurrency, "Warming up", show_progress)
    before = engine.stats()
    timelines, duration = run_timed(engine, jobs, load.max_concurrency, "Measuring", show_progress)
    after = engine.stats()
    figures = request_figures(timelines, duration)
    delivered = figures["total_input_tokens"] + figures["total_output_tokens"] - figures["completed"]
    pipeline = pipeline_figures(engine.info, before, after, duration, delivered)
    errors = sorted({line.error for line in timelines if line.error})
    return (
        describe(engine, load)
        | figures
        | {"prefix_cache": _cache_state(engine, pipeline["prefix_cache_hit_tokens"]), "pipeline": pipeline}
        | ({"errors": errors} if errors else {})
    )


def run_timed(
    engine: OfflineEngine, jobs: Sequence[Job], concurrency: int | None, title: str, show_progress: bool
) -> tuple[list[Timeline], float]:
    """Run jobs and note when each output came; and how long everything took, in seconds."""
    timelines = [Timeline(len(job.prompt_token_ids)) for job in jobs]
    total = sum(job.sampling.max_tokens or 0 for job in jobs)
    with tqdm(total=total, desc=title, unit="token", disable=not show_progress or not jobs, leave=False) as bar:

        def on_start(index: int) -> None:
            timelines[index].sent = time.perf_counter()

        def on_delta(index: int, delta: Delta) -> None:
            if delta.token_ids:
                timelines[index].outputs.append(time.perf_counter())
                timelines[index].output_tokens += len(delta.token_ids)
                bar.update(len(delta.token_ids))

        start = time.perf_counter()
        outcomes = engine.run(jobs, concurrency=concurrency, on_start=on_start, on_delta=on_delta)
        duration = time.perf_counter() - start
    for line, outcome in zip(timelines, outcomes, strict=True):
        line.error = outcome.error
    return timelines, duration


def describe(engine: OfflineEngine, load: Load) -> dict[str, Any]:
    """What was measured, so that a result can be read alone."""
    config = engine.config
    return {
        "date": time.strftime("%Y%m%d-%H%M%S"),
        "backend": "paceline",
        "model_id": engine.model.files.name,
        "dtype": engine.info.dtype,
        "num_prompts": load.num_prompts,
        "input_len": load.input_len,
        "output_len": load.output_len,
        "max_concurrency": load.max_concurrency,
        "warm_up": load.warm_up,
        "seed": load.seed,
        "max_num_seqs": config.max_num_seqs,
        "max_num_batched_tokens": config.max_num_batched_tokens,
        "threads_per_stage": config.threads_per_stage,
    }


def _cache_state(engine: OfflineEngine, hits: int) -> str:
    """A run that found prefixes in the cache says nothing about runs that did not."""
    if not engine.config.enable_prefix_caching:
        return "off"
    return "warm" if hits else "cold"
