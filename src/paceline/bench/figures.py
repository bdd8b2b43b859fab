"""From the times of single requests to the figures that benchmarks report, under vLLM's names.

TTFT: from sending a request to its first output. ITL: between two outputs. TPOT: (last output - first output) ÷
(tokens - 1). E2EL: from sending to the last output. Offline, everything is sent at the start unless the concurrency is
limited, so TTFT holds the time in the queue.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from paceline.messages import CoreReady, CoreStats

PERCENTILES = (99,)


@dataclass
class Timeline:
    """When one request was sent and when its outputs came, in seconds of one clock."""

    input_tokens: int
    sent: float = 0.0
    outputs: list[float] = field(default_factory=list)
    output_tokens: int = 0
    error: str = ""

    @property
    def completed(self) -> bool:
        return not self.error and self.output_tokens > 0

    @property
    def ttft(self) -> float:
        return self.outputs[0] - self.sent

    @property
    def tpot(self) -> float:
        """0 for a single token: nobody waited between tokens."""
        return (self.outputs[-1] - self.outputs[0]) / max(self.output_tokens - 1, 1)

    @property
    def e2el(self) -> float:
        return self.outputs[-1] - self.sent


def request_figures(
    timelines: Sequence[Timeline],
    duration: float,
    *,
    percentiles: Sequence[float] = PERCENTILES,
    goodput: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """Counts, throughputs (per second) and latencies (milliseconds) of a run of `duration` seconds.

    Failed requests count as failed and in nothing else.

    Args:
        percentiles: which ones of every latency, 0 to 100.
        goodput: most milliseconds of `ttft`, `tpot` and `e2el` that a good request may take; if given, good requests
            per second are counted.
    """
    done = [line for line in timelines if line.completed]
    inputs, outputs = sum(line.input_tokens for line in done), sum(line.output_tokens for line in done)
    figures: dict[str, Any] = {
        "duration": duration,
        "completed": len(done),
        "failed": len(timelines) - len(done),
        "total_input_tokens": inputs,
        "total_output_tokens": outputs,
        "request_throughput": len(done) / duration,
        "output_throughput": outputs / duration,
        "total_token_throughput": (inputs + outputs) / duration,
        "max_output_tokens_per_s": _most_per_second(done),
        "max_concurrent_requests": _most_at_once(done),
    }
    if goodput:
        good = sum(all(getattr(line, name) * 1e3 <= limit for name, limit in goodput.items()) for line in done)
        figures["request_goodput"] = good / duration
    samples = {
        "ttft": [line.ttft for line in done],
        "tpot": [line.tpot for line in done if line.output_tokens > 1],
        "itl": [gap for line in done for gap in np.diff(line.outputs).tolist()],
        "e2el": [line.e2el for line in done],
    }
    for name, seconds in samples.items():
        figures |= _spread(name, seconds, percentiles)
    return figures


def _spread(name: str, seconds: list[float], percentiles: Sequence[float]) -> dict[str, float]:
    """Mean, median, standard deviation and percentiles in milliseconds; zeros if there is nothing to measure."""
    times = np.array(seconds or [0.0]) * 1e3
    figures = {"mean": float(times.mean()), "median": float(np.median(times)), "std": float(times.std())}
    figures |= {f"p{p:g}": float(np.percentile(times, p)) for p in percentiles}
    return {f"{kind}_{name}_ms": value for kind, value in figures.items()}


def _most_per_second(done: Sequence[Timeline]) -> float:
    """Outputs in the busiest second, counted in whole seconds from the first request on."""
    if not done:
        return 0.0
    start = min(line.sent for line in done)
    seconds = np.array([time - start for line in done for time in line.outputs]).astype(np.int64)
    return float(np.bincount(seconds).max())


def _most_at_once(done: Sequence[Timeline]) -> int:
    changes = [(line.sent, 1) for line in done] + [(line.outputs[-1], -1) for line in done]
    running = most = 0
    for _, change in sorted(changes):  # at the same moment the one that ends goes first
        running += change
        most = max(most, running)
    return most


def pipeline_figures(
    info: CoreReady, before: CoreStats, after: CoreStats, duration: float, num_delivered: int
) -> dict[str, Any]:
    """What the stages did between two readings of the core's counters.

    Args:
        duration: seconds of the measured run; busy and CPU time are fractions of it.
        num_delivered: input and output tokens of the run, less the last output of each request, which nothing reads.

    Mean batch tokens leaves out what was computed again after preemptions: the core does not count it.
    """
    stages = range(info.num_stages)
    batches = after.num_batches - before.num_batches
    hits = after.prefix_cache_hits - before.prefix_cache_hits
    return {
        "stages": info.num_stages,
        "layer_split": list(info.layer_split),
        "busy_fraction": [_grown(before.stage_busy_seconds, after.stage_busy_seconds, i) / duration for i in stages],
        "cpu_fraction": [_grown(before.stage_cpu_seconds, after.stage_cpu_seconds, i) / duration for i in stages],
        "batches": batches,
        "mean_batch_tokens": (num_delivered - hits) / batches if batches else 0.0,
        "preemptions": after.num_preemptions - before.num_preemptions,
        "prefix_cache_hit_tokens": hits,
    }


def _grown(before: Sequence[float], after: Sequence[float], index: int) -> float:
    """How much one stage's counter has grown; a stage that has not worked yet has none."""
    if index >= len(after):
        return 0.0
    return after[index] - (before[index] if index < len(before) else 0.0)
