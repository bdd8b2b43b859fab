"""The real part of `benchmarks/pacing.py`: SmolLM2 behind HTTP on two stages, the policies one after another in every repeat.

Needs a machine that does nothing else. Every run starts a server of its own, so that none finds prompts in the cache. What a
run gave is kept in two files, its figures and the record of the pipeline, and a run whose files are there is not made again.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
from benchmarks.timeline import Span, write_timelines

from paceline.bench.simulated import timelines_of
from paceline.pipeline.profile_store import CostProfile, read_profile
from paceline.pipeline.timing import PricedTiming, Timing
from paceline.scheduling.cost_model import CostModel
from paceline.scheduling.pacing import POLICIES
from paceline.simulate.loads import SimulatedRequest
from paceline.simulate.run import SimulationOptions, simulate
from paceline.simulate.served import Served, ServedTiming, served
from paceline.trace.file import read_history
from paceline.trace.history import History

STAGES = 2
MANY = 2 * (STAGES + 1)  # running requests: two for each batch that can be in flight
BURST, REQUESTS = 64, 336  # of the second number, those after the first tenth count: 300 and more
PARTS = (0.6, 0.8, 0.95)  # of the capacity
GRID = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)  # of it: among these the highest good rate is sought
MOST_SLOWDOWN = 4.0  # of the 99th percentile of the time per output token, against one request at a time
UNLOADED_REQUESTS = 300
PICTURE_PART, PICTURE_BEGIN, PICTURE_SECONDS = 0.95, 4.0, 1.5
PACELINE = [sys.executable, "-m", "paceline.cli.main"]


@dataclass(frozen=True)
class Run:
    """One load on one server.

    Attributes:
        figures: of `paceline bench serve`, with times and lengths of every request.
        history: the record of the pipeline.
    """

    figures: dict[str, Any]
    history: History

    @cached_property
    def first(self) -> float:
        """When the first batch was made, by the core's clock."""
        return next(iter(self.history.batches.values())).at

    @cached_property
    def many_run(self) -> tuple[float, float]:
        """From when until when at least `MANY` requests are running, by the core's clock."""
        enough = [batch.at for batch in self.history.batches.values() if batch.made().running >= MANY]
        return (enough[0], enough[-1]) if enough else (self.first, self.first)

    @property
    def busy(self) -> float:
        """Mean busy fraction of the stages in that time."""
        begin, end = self.many_run
        seconds = sum(
            max(0.0, min(passage.finished, end) - max(passage.started, begin))
            for batch in self.history.batches.values()
            for passage in batch.passages
        )
        return seconds / (self.history.facts.stages * (end - begin)) if end > begin else 0.0

    @property
    def spans(self) -> list[Span]:
        """What the picture shows."""
        return [
            Span(passage.stage, passage.started - self.first, passage.finished - self.first, batch.kind)
            for batch in self.history.batches.values()
            for passage in batch.passages
            if PICTURE_BEGIN - 1.0 < passage.started - self.first < PICTURE_BEGIN + PICTURE_SECONDS + 1.0
        ]

    @cached_property
    def served(self) -> Served:
        """How long things took."""
        return served(self.history)

    @property
    def window(self) -> tuple[float, float]:
        """Seconds between which a run is steady: while requests arrive, without the first tenth; of a burst, while many run."""
        last = max(self.figures["start_times"])
        return (0.1 * last, last) if last > 1.0 else (0.0, self.many_run[1] - self.first)

    @property
    def output_rate(self) -> float:
        """Output tokens per second in the window."""
        begin, end = self.window
        return sum(begin <= moment < end for moment in output_moments(self.figures)) / (end - begin)

    def _of_window(self, values: Sequence[float]) -> list[float]:
        begin, end = self.window
        starts = self.figures["start_times"]
        return [value for start, value in zip(starts, values, strict=True) if begin <= start <= end]

    @property
    def tpot(self) -> tuple[float, float]:
        """Median and 99th percentile over the requests sent in the window, in milliseconds."""
        each = [1e3 * mean(gaps) if gaps else 0.0 for gaps in self.figures["itls"]]
        values = [value for value in self._of_window(each) if value > 0.0]
        return median(values), float(np.percentile(values, 99))

    @property
    def ttft(self) -> float:
        """Median, in milliseconds."""
        return 1e3 * median(self._of_window(self.figures["ttfts"]))


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


class Bench:
    """Makes runs, or finds them in its folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def burst(self, policy: str, seed: int, stages: int = STAGES) -> Run:
        """`BURST` requests at once; one stage means that the whole server is confined to one core."""
        name = f"burst-{stages}-{policy}-{seed}"
        return self._run(name, policy, ["--num-prompts", str(BURST)], seed, stages)

    def arrivals(self, policy: str, rate: float, part: float, seed: int) -> Run:
        """Poisson arrivals of `REQUESTS` requests; `part` of the capacity is `rate` requests per second."""
        load = ["--num-prompts", str(REQUESTS), "--request-rate", f"{part * rate:.4f}"]
        return self._run(f"arrivals-{part:.2f}-{policy}-{seed}", policy, load, seed)

    def unloaded(self) -> Run:
        """One request at a time, where all policies do the same."""
        load = ["--num-prompts", str(UNLOADED_REQUESTS), "--max-concurrency", "1"]
        return self._run("unloaded", "paced", load, seed=0)

    def profile(self) -> CostProfile:
        """A fresh profile of this machine, in a file of its own: the servers here start without one, as most do."""
        path = self._folder / "profile.json"
        if not path.exists():
            command = [*PACELINE, "profile", "--pipeline-parallel-size", str(STAGES), "--quiet", "--output", str(path)]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return read_profile(path)

    def _run(self, name: str, policy: str, load: Sequence[str], seed: int, stages: int = STAGES) -> Run:
        result, record = self._folder / f"{name}.json", self._folder / f"{name}.record"
        if not result.exists():
            _measure(policy, load, seed, stages, result, record)
        run = Run(json.loads(result.read_text()), read_history(record))
        p50, p99 = run.tpot
        print(
            f"{name}: {run.output_rate:.1f} tokens/s, {p50:.1f} and {p99:.1f} ms, busy {run.busy:.2f}", file=sys.stderr
        )
        return run


def _measure(policy: str, load: Sequence[str], seed: int, stages: int, result: Path, record: Path) -> None:
    """Start a server, send the load, end the server; the file of figures comes last, when all went well."""
    record.unlink(missing_ok=True)
    part = result.with_suffix(".part")
    options = ["--pipeline-parallel-size", str(stages), "--pacing", policy, "--trace-file", str(record)]
    with server([*options, "--trace-file-bytes", "1G"], confined=stages == 1) as url:
        command = [*PACELINE, "bench", "serve", "--base-url", url, "--dataset-name", "lognormal", "--save-detailed"]
        command += [*load, "--num-warmups", "0", "--seed", str(seed), "--quiet", "--output-json", str(part)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    if failed := json.loads(part.read_text())["failed"]:
        raise SystemExit(f"{failed} requests failed under {policy}")
    part.replace(result)


def predicted(timing: Timing, cost: CostModel, measured: Run, policy: str) -> tuple[float, float]:
    """What the simulator says of the same requests: output tokens per second, and the median time per output token, ms."""
    figures = measured.figures
    lengths = zip(figures["start_times"], figures["input_lens"], figures["output_lens"], strict=True)
    requests = sorted((SimulatedRequest(*row) for row in lengths), key=lambda request: request.arrival)
    batch_tokens = measured.history.facts.max_num_batched_tokens
    options = SimulationOptions(pacing=policy, loop_back=True, max_num_batched_tokens=batch_tokens)
    simulation = simulate(cost, requests, options, timing=timing)
    lines = timelines_of(simulation, requests)
    begin, end = measured.window
    rate = sum(begin <= moment < end for line in lines for moment in line.outputs) / (end - begin)
    times = [line.tpot for line in lines if line.output_tokens > 1 and begin <= line.sent <= end]
    return rate, 1e3 * median(times)


def highest_rate(bench: Bench, policy: str, capacity: float) -> float:
    """The highest part of the capacity at which the time per output token is kept, found by halving; 0 if there is none."""
    most = MOST_SLOWDOWN * bench.unloaded().tpot[1]
    kept, lost = -1, len(GRID)
    while lost - kept > 1:
        middle = (kept + lost) // 2
        if bench.arrivals(policy, capacity, GRID[middle], seed=0).tpot[1] <= most:
            kept = middle
        else:
            lost = middle
    return GRID[kept] if kept >= 0 else 0.0


def measure(picture: Path, repeats: int, folder: Path) -> str:
    """Run everything; gives the tables as Markdown, and draws the picture."""
    bench = Bench(folder)
    profile = bench.profile()
    bursts: dict[str, list[Run]] = {policy: [] for policy in POLICIES}
    one_stage = []
    for seed in range(repeats):
        for policy in POLICIES:
            bursts[policy].append(bench.burst(policy, seed))
        one_stage.append(bench.burst("greedy", seed, stages=1))
    tokens = mean(found.figures["total_output_tokens"] / found.figures["completed"] for found in bursts["paced"])
    capacity = mean(found.output_rate for found in bursts["paced"]) / tokens
    arrivals: dict[tuple[float, str], list[Run]] = {}
    for seed in range(repeats):
        for part in PARTS:
            for policy in POLICIES:
                found = bench.arrivals(policy, capacity, part, seed)
                arrivals.setdefault((part, policy), []).append(found)
    shown = {policy: arrivals[PICTURE_PART, policy][0].spans for policy in POLICIES}
    write_timelines(picture, shown, PICTURE_BEGIN, PICTURE_SECONDS)
    limits = {policy: highest_rate(bench, policy, capacity) for policy in ("greedy", "paced")}
    lines = [_profile_line(profile), "", *_burst_table(bursts, one_stage), "", *_arrival_table(arrivals), ""]
    cells = {f"{BURST} at once, {policy}": (policy, runs) for policy, runs in bursts.items()}
    cells |= {f"{part:.0%} of capacity, {policy}": (policy, runs) for (part, policy), runs in arrivals.items()}
    lines += [*_fidelity_table(cells, profile), ""]
    ratio = limits["paced"] / limits["greedy"] if limits["greedy"] else float("inf")
    lines.append(
        f"Capacity is {capacity:.2f} requests per second. The p99 time per output token stays under {MOST_SLOWDOWN:g} times "
        f"that of one request at a time ({bench.unloaded().tpot[1]:.1f} ms) up to {limits['paced']:.0%} of it under "
        f"paced, and up to {limits['greedy']:.0%} under greedy: {ratio:.2f} times the rate."
    )
    return "\n".join(lines)


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
        busy = _spread([100 * found.busy for found in runs], 0)
        lines.append(f"| {policy} | {_spread(rates)} | {mean(rates) / alone:.2f} | {busy} % |")
    return lines


def _arrival_table(arrivals: dict[tuple[float, str], list[Run]]) -> list[str]:
    lines = [
        "| load, policy | output tokens/s | time per output token p50, ms | p99, ms | TTFT p50, ms |",
        "|---|---|---|---|---|",
    ]
    for (part, policy), runs in arrivals.items():
        cells = [
            f"{part:.0%} of capacity, {policy}",
            _spread([found.output_rate for found in runs]),
            _spread([found.tpot[0] for found in runs]),
            _spread([found.tpot[1] for found in runs]),
            _spread([found.ttft for found in runs], 0),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _fidelity_table(cells: dict[str, tuple[str, list[Run]]], profile: CostProfile) -> list[str]:
    """The simulator against each cell's runs: with the times of another of them on record, and with the profile's prices."""
    lines = [
        "| load, policy | output tokens/s | by a record | by the profile | p50 per token, ms | by a record | by the profile |",
        "|---|---|---|---|---|---|---|",
    ]
    cost = CostModel(tuple(profile.stages), profile.cost.link)
    for name, (policy, runs) in cells.items():
        others = [runs[i - 1].served for i in range(len(runs))]
        by_record = [
            predicted(ServedTiming(other, seed), other.cost, found, policy)
            for seed, (found, other) in enumerate(zip(runs, others, strict=True))
        ]
        by_profile = [predicted(PricedTiming(cost), cost, found, policy) for found in runs]
        row = [name]
        for i, measured in enumerate((mean(run.output_rate for run in runs), mean(run.tpot[0] for run in runs))):
            row.append(f"{measured:.1f}")
            for guesses in (by_record, by_profile):
                guess = mean(values[i] for values in guesses)
                row.append(f"{guess:.1f} ({guess / measured:.2f})")
        lines.append(f"| {' | '.join(row)} |")
    return lines
