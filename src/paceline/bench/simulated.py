"""A simulated run's figures, under the names that `paceline bench` uses for real ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paceline.bench.figures import Timeline, request_figures
from paceline.bench.server_facts import NOTHING_TO_DO
from paceline.simulate.loads import SimulatedRequest
from paceline.simulate.run import Simulation, SimulationOptions

PERCENTILES = (90, 99)


def timelines_of(simulation: Simulation, requests: Sequence[SimulatedRequest]) -> list[Timeline]:
    """The requests as a benchmark of a server sees them."""
    return [
        Timeline(request.prompt_tokens, times.sent, times.outputs, len(times.outputs), times.error)
        for request, times in zip(requests, simulation.requests, strict=True)
    ]


def simulated_figures(
    simulation: Simulation, requests: Sequence[SimulatedRequest], options: SimulationOptions
) -> dict[str, Any]:
    """Counts, throughputs and latencies of the requests, and what the stages did."""
    timelines = timelines_of(simulation, requests)
    figures = request_figures(timelines, simulation.seconds, percentiles=PERCENTILES)
    stats = simulation.stats
    busy = [seconds / simulation.seconds for seconds in stats.stage_busy_seconds]
    mean = sum(busy) / len(busy)
    lost = sum(seconds for cause, seconds in simulation.idle.items() if cause not in NOTHING_TO_DO)
    worked = sum(stats.stage_busy_seconds)
    # The last output of a request is read by nobody.
    computed = figures["total_input_tokens"] + figures["total_output_tokens"] - figures["completed"]
    pipeline = {
        "stages": len(busy),
        "stage_busy": busy,
        "stage_idle_seconds": simulation.idle,
        "bubble_fraction": lost / (lost + worked),
        "imbalance": max(busy) / mean,
        "batches": stats.num_batches,
        "mean_batch_tokens": computed / stats.num_batches,
        "preemptions": stats.num_preemptions,
    }
    return {
        "backend": "paceline-simulate",
        "pacing": options.pacing,
        "loop_back": options.loop_back,
        "num_prompts": len(requests),
        "seed": options.seed,
        **figures,
        "pipeline": pipeline,
    }
