"""The virtual part of `benchmarks/pacing.py`: every preset, load and rate under every policy, on the simulator."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path
from statistics import mean, stdev
from typing import NamedTuple

import numpy as np
from benchmarks.timeline import Span, write_timelines

from paceline.bench.simulated import timelines_of
from paceline.messages import Plan, StageTimes
from paceline.scheduling.cost_model import work_of
from paceline.scheduling.pacing import POLICIES
from paceline.simulate.loads import LOADS, draw_load
from paceline.simulate.presets import PRESETS, RATES
from paceline.simulate.run import SimulationOptions, simulate

NUM_PROMPTS = 300
PARTS = (1.0, 0.6)  # of the presets' rates
WARM_UP = 0.1  # of the time in which requests arrive; left out of throughput
TTFT_SLACK_SECONDS, TTFT_SLACK = 0.1, 0.25


class Cell(NamedTuple):
    preset: str
    load: str
    part: float

    @property
    def rate(self) -> float:
        return RATES[self.preset, self.load] * self.part


class Figures(NamedTuple):
    """Of one run. Output tokens per second while requests arrive: neither the beginning nor the end, when stages run empty."""

    output_rate: float
    busy: float
    ttft_p50: float  # seconds
    tpot_p50: float
    tpot_p99: float


Results = dict[tuple[Cell, str], list[Figures]]


def run_cell(cell: Cell, policy: str, seed: int) -> Figures:
    """Simulate one run."""
    requests = draw_load(cell.load, NUM_PROMPTS, cell.rate, seed)
    simulation = simulate(PRESETS[cell.preset], requests, SimulationOptions(pacing=policy, seed=seed))
    lines = timelines_of(simulation, requests)
    end = requests[-1].arrival
    begin = WARM_UP * end
    outputs = sum(begin <= moment < end for line in lines for moment in line.outputs)
    tpot = [line.tpot for line in lines if line.output_tokens > 1]
    busy = simulation.stats.stage_busy_seconds
    return Figures(
        outputs / (end - begin),
        mean(busy) / simulation.seconds,
        float(np.median([line.ttft for line in lines])),
        float(np.median(tpot)),
        float(np.percentile(tpot, 99)),
    )


def run_all(seeds: int) -> Results:
    """Every cell under every policy, on all cores."""
    jobs = [
        (Cell(preset, load, part), policy, seed)
        for preset, load, part in product(PRESETS, LOADS, PARTS)
        for policy in POLICIES
        for seed in range(1, seeds + 1)
    ]
    with ProcessPoolExecutor() as pool:
        figures = list(pool.map(run_cell, *zip(*jobs, strict=True), chunksize=2))
    results: Results = {}
    for (cell, policy, _), found in zip(jobs, figures, strict=True):
        results.setdefault((cell, policy), []).append(found)
    return results


def not_worse(results: Results, cell: Cell) -> list[str]:
    """In what `paced` is worse than another policy in this cell, beyond the spread of the seeds; empty if in nothing.

    Both ran on the same requests, so the differences per seed are compared with twice their standard error.
    """
    worse = []
    for other in ("greedy", "throttle"):
        pairs = list(zip(results[cell, "paced"], results[cell, other], strict=True))
        for name, sign in (("output_rate", -1.0), ("tpot_p50", 1.0), ("tpot_p99", 1.0)):
            losses = [sign * (getattr(a, name) - getattr(b, name)) for a, b in pairs]
            spread = 2.0 * stdev(losses) / math.sqrt(len(losses)) if len(losses) > 1 else 0.0
            if mean(losses) > spread:
                worse.append(f"{name} than {other}")
    mine, best = (
        mean(f.ttft_p50 for f in results[cell, "paced"]),
        min(mean(f.ttft_p50 for f in results[cell, other]) for other in ("greedy", "throttle")),
    )
    if mine - best > max(TTFT_SLACK_SECONDS, TTFT_SLACK * best):
        worse.append("ttft_p50")
    return worse


def table(results: Results) -> str:
    """Markdown: a row per cell, and in each column the three policies."""
    lines = [
        "| pipeline, load, requests/s | output tokens/s | time per output token p50, ms | p99, ms | TTFT p50, s | stages busy |",
        "|---|---|---|---|---|---|",
    ]
    for cell in dict.fromkeys(cell for cell, _ in results):
        columns = []
        for name, scale, digits in (
            ("output_rate", 1.0, 1),
            ("tpot_p50", 1e3, 0),
            ("tpot_p99", 1e3, 0),
            ("ttft_p50", 1.0, 2),
            ("busy", 100.0, 0),
        ):
            values = [scale * mean(getattr(f, name) for f in results[cell, policy]) for policy in POLICIES]
            columns.append(" / ".join(f"{value:.{digits}f}" for value in values) + (" %" if name == "busy" else ""))
        lines.append(f"| {cell.preset}, {cell.load}, {cell.rate:.3g} | {' | '.join(columns)} |")
    return "\n".join(lines)


def draw(path: Path, preset: str, load: str, begin: float, seconds: float) -> None:
    """A picture of the same stretch of the same load under each policy."""
    requests = draw_load(load, 60, RATES[preset, load], 1)
    lanes: dict[str, list[Span]] = {}
    for policy in POLICIES:
        spans = lanes[policy] = []

        def note(plan: Plan, times: Sequence[StageTimes], spans: list[Span] = spans) -> None:
            kind = work_of(plan.slices).kind
            spans += [Span(t.stage, t.started, t.finished, kind) for t in times]

        simulate(PRESETS[preset], requests, SimulationOptions(pacing=policy), on_times=note)
    write_timelines(path, lanes, begin, seconds)
