"""The tables of the real part of `benchmarks/pacing.py`, and what the simulator says of the same runs."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean, median

from benchmarks.pacing_run import Run

from paceline.bench.simulated import timelines_of
from paceline.pipeline.profile_store import CostProfile
from paceline.pipeline.timing import PricedTiming, Timing
from paceline.scheduling.cost_model import CostModel
from paceline.simulate.loads import SimulatedRequest
from paceline.simulate.run import SimulationOptions, simulate
from paceline.simulate.served import ServedTiming


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


def profile_line(profile: CostProfile) -> str:
    errors = ", ".join(f"{kind} {100 * error:.1f} %" for kind, error in profile.errors.items())
    return f"Cost model: median error on {profile.num_steps} measured batches, those held out: {errors}."


def _spread(values: Sequence[float], digits: int = 1) -> str:
    return f"{mean(values):.{digits}f} ({min(values):.{digits}f}–{max(values):.{digits}f})"


def burst_table(num_requests: int, bursts: dict[str, list[Run]], one_stage: list[Run]) -> list[str]:
    alone = mean(found.output_rate for found in one_stage)
    lines = [
        f"| {num_requests} requests at once | output tokens/s | against one stage on one core | stages busy while many run |",
        "|---|---|---|---|",
        f"| one stage, one core | {_spread([found.output_rate for found in one_stage])} | 1 | |",
    ]
    for policy, runs in bursts.items():
        rates = [found.output_rate for found in runs]
        busy = _spread([100 * found.busy for found in runs], 0)
        lines.append(f"| {policy} | {_spread(rates)} | {mean(rates) / alone:.2f} | {busy} % |")
    return lines


def arrival_table(arrivals: dict[tuple[float, str], list[Run]]) -> list[str]:
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


def fidelity_table(cells: dict[str, tuple[str, list[Run]]], profile: CostProfile) -> list[str]:
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
