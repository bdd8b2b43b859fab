"""The real part of `benchmarks/pacing.py`: SmolLM2 behind HTTP on two stages, the policies one after another in every repeat.

Needs a machine that does nothing else. Every run starts a server of its own, so that none finds prompts in the cache.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
from benchmarks.timeline import Span, write_timelines

from paceline.bench.simulated import timelines_of
from paceline.pipeline.profile_store import CostProfile, read_profile
from paceline.scheduling.cost_model import CostModel
from paceline.scheduling.pacing import POLICIES
from paceline.simulate.loads import SimulatedRequest
from paceline.simulate.run import SimulationOptions, simulate
from paceline.trace.history import History

STAGES = 2
BURST, REQUESTS = 64, 300
PARTS = (0.6, 0.8, 0.95)  # of the capacity
SWEEP = (0.3, 0.45, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1)  # for the highest rate that keeps the time per output token
UNLOADED_PART, MOST_SLOWDOWN = 0.05, 4.0
PICTURE_SECONDS = 3.0
PACELINE = [sys.executable, "-m", "paceline.cli.main"]


@dataclass(frozen=True)
class Run:
    """One load on one server: the figures of `paceline bench serve`, and the record of the pipeline."""

    figures: dict[str, Any]
    history: History

    @property
    def output_rate(self) -> float:
        """Output tokens per second; under arrivals only while they arrive, without the first tenth."""
        begin, end = window(self.figures)
        moments = output_moments(self.figures)
        return sum(begin <= moment < end for moment in moments) / (end - begin)

    @property
    def tpot(self) -> tuple[float, float]:
        """Median and 99th percentile, in milliseconds."""
        return self.figures["median_tpot_ms"], self.figures["p99_tpot_ms"]


def window(figures: dict[str, Any]) -> tuple[float, float]:
    """Seconds between which throughput is counted."""
    last = max(figures["start_times"])
    return (0.1 * last, last) if last > 1.0 else (0.0, figures["duration"])


def output_moments(figures: dict[str, Any]) -> Iterator[float]:
    """When each output token came, in seconds since the first request was sent."""
    for start, ttft, gaps in zip(figures["start_times"], figures["ttfts"], figures["itls"], strict=True):
        yield from np.cumsum([start + ttft, *gaps]).tolist()


@contextmanager
def server(options: Sequence[str], confined: bool) -> Iterator[str]:
    """A server's URL; all its processes on one core if `confined`."""
    pin = ["taskset", "--cpu-list", str(min(os.sched_getaffinity(0)))] if confined else []
    command = [*pin, *PACELINE, "serve", "--port", "0", "--no-enable-prefix-caching", *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        ready = next((found for line in process.stderr if (found := re.search(r"is ready: (\S+)/v1", line))), None)
        if ready is None:
            raise SystemExit(f"the server did not start: {' '.join(command)}")
        yield ready.group(1)
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)


def run(policy: str, *, rate: float | None, seed: int, stages: int = STAGES) -> Run:
    """Start a server, send the load, and end it.

    Args:
        rate: requests per second; None: `BURST` requests at once.
        stages: 1 confines the whole server to one core.
    """
    with tempfile.TemporaryDirectory() as folder:
        result, record = Path(folder, "result.json"), Path(folder, "record")
        options = ["--pipeline-parallel-size", str(stages), "--pacing", policy, "--trace-file", str(record)]
        with server([*options, "--trace-file-bytes", "1G"], confined=stages == 1) as url:
            command = [*PACELINE, "bench", "serve", "--base-url", url, "--dataset-name", "lognormal", "--save-detailed"]
            command += ["--num-prompts", str(BURST if rate is None else REQUESTS), "--seed", str(seed), "--quiet"]
            command += ["--request-rate", "inf" if rate is None else f"{rate:.4f}", "--output-json", str(result)]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        history = History(max_bytes=sys.maxsize)
        history.feed(record.read_bytes())
        return Run(json.loads(result.read_text()), history)


def busy_while_many_run(history: History) -> float:
    """Mean busy fraction of the stages while at least 2 x depth requests are running."""
    enough = [batch for batch in history.batches.values() if batch.made().running >= 2 * history.facts.depth]
    begin, end = enough[0].at, enough[-1].at
    busy = sum(
        max(0.0, min(passage.finished, end) - max(passage.started, begin))
        for batch in history.batches.values()
        for passage in batch.passages
    )
    return busy / (history.facts.stages * (end - begin))


def spans_of(history: History) -> list[Span]:
    """What the picture shows, in seconds since the first batch."""
    first = next(iter(history.batches.values())).at
    return [
        Span(passage.stage, passage.started - first, passage.finished - first, batch.kind)
        for batch in history.batches.values()
        for passage in batch.passages
    ]


def predicted(profile: CostProfile, measured: Run, policy: str) -> tuple[float, float]:
    """What the simulator says of the same requests: output tokens per second, and the median time per output token, ms."""
    figures = measured.figures
    lengths = zip(figures["start_times"], figures["input_lens"], figures["output_lens"], strict=True)
    requests = sorted((SimulatedRequest(*row) for row in lengths), key=lambda request: request.arrival)
    options = SimulationOptions(pacing=policy, loop_back=True, max_num_batched_tokens=256)
    simulation = simulate(CostModel(tuple(profile.stages), profile.cost.link), requests, options)
    lines = timelines_of(simulation, requests)
    begin, end = window(figures)
    end = min(end, simulation.seconds)
    rate = sum(begin <= moment < end for line in lines for moment in line.outputs) / (end - begin)
    return rate, 1e3 * median(line.tpot for line in lines if line.output_tokens > 1)


def measured_profile() -> CostProfile:
    """A fresh profile of this machine, in a file of its own: the servers here start without one, as most do."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "profile.json")
        command = [*PACELINE, "profile", "--pipeline-parallel-size", str(STAGES), "--quiet", "--output", str(path)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return read_profile(path)


def measure(picture: Path, repeats: int) -> str:
    """Run everything; gives the tables as Markdown, and draws the picture."""
    profile = measured_profile()
    bursts: dict[str, list[Run]] = {policy: [] for policy in POLICIES}
    one_stage = []
    for seed in range(repeats):
        for policy in POLICIES:
            bursts[policy].append(run(policy, rate=None, seed=seed))
        one_stage.append(run("greedy", rate=None, seed=seed, stages=1))
    write_timelines(picture, {p: spans_of(runs[0].history) for p, runs in bursts.items()}, 4.0, PICTURE_SECONDS)
    capacity = mean(found.output_rate for found in bursts["paced"])
    tokens = mean(found.figures["total_output_tokens"] / found.figures["completed"] for found in bursts["paced"])
    arrivals: dict[tuple[float, str], list[Run]] = {}
    for seed in range(repeats):
        for part in PARTS:
            for policy in POLICIES:
                found = run(policy, rate=part * capacity / tokens, seed=seed)
                arrivals.setdefault((part, policy), []).append(found)
    limits = {policy: highest_rate(policy, capacity / tokens) for policy in ("greedy", "paced")}
    lines = [_profile_line(profile), "", *_burst_table(bursts, one_stage), "", *_arrival_table(arrivals, profile), ""]
    ratio = limits["paced"] / limits["greedy"] if limits["greedy"] else float("inf")
    lines.append(
        f"Highest rate at which the p99 time per output token stays under {MOST_SLOWDOWN:g} times its unloaded value: "
        f"{limits['paced']:.2f} requests/s under paced, {limits['greedy']:.2f} under greedy ({ratio:.2f} times)."
    )
    return "\n".join(lines)


def highest_rate(policy: str, capacity: float) -> float:
    """The highest of the swept rates, in requests per second, up to which the time per output token is kept."""
    unloaded = run(policy, rate=UNLOADED_PART * capacity, seed=0).tpot[1]
    kept = 0.0
    for part in SWEEP:
        if run(policy, rate=part * capacity, seed=0).tpot[1] > MOST_SLOWDOWN * unloaded:
            break
        kept = part * capacity
    return kept


def _profile_line(profile: CostProfile) -> str:
    errors = ", ".join(f"{kind} {100 * error:.1f} %" for kind, error in profile.errors.items())
    return f"Cost model: median error on {profile.num_steps} measured batches, those held out: {errors}."


def _spread(values: Sequence[float], digits: int = 1) -> str:
    return f"{mean(values):.{digits}f} ({min(values):.{digits}f}–{max(values):.{digits}f})"


def _burst_table(bursts: dict[str, list[Run]], one_stage: list[Run]) -> list[str]:
    alone = mean(found.output_rate for found in one_stage)
    lines = [
        f"| {BURST} requests at once | output tokens/s | against one stage on one core | stages busy while many run |",
        "|---|---|---|---|",
        f"| one stage, one core | {_spread([found.output_rate for found in one_stage])} | 1 | |",
    ]
    for policy, runs in bursts.items():
        rates = [found.output_rate for found in runs]
        busy = 100 * mean(busy_while_many_run(found.history) for found in runs)
        lines.append(f"| {policy} | {_spread(rates)} | {mean(rates) / alone:.2f} | {busy:.0f} % |")
    return lines


def _arrival_table(arrivals: dict[tuple[float, str], list[Run]], profile: CostProfile) -> list[str]:
    lines = [
        "| load, policy | output tokens/s | predicted | time per output token p50, ms | predicted | p99, ms | TTFT p50, ms |",
        "|---|---|---|---|---|---|---|",
    ]
    for (part, policy), runs in arrivals.items():
        guesses = [predicted(profile, found, policy) for found in runs]
        cells = [
            f"{part:.0%} of capacity, {policy}",
            _spread([found.output_rate for found in runs]),
            f"{mean(rate for rate, _ in guesses):.1f}",
            _spread([found.tpot[0] for found in runs]),
            f"{mean(tpot for _, tpot in guesses):.1f}",
            _spread([found.tpot[1] for found in runs]),
            _spread([found.figures["median_ttft_ms"] for found in runs], 0),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines
