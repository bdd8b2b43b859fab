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
from pathlib import Path
from statistics import mean

from benchmarks.pacing_run import PICTURE_BEGIN, PICTURE_SECONDS, STAGES, Run
from benchmarks.pacing_tables import arrival_table, burst_table, fidelity_table, profile_line
from benchmarks.timeline import write_timelines

from paceline.pipeline.profile_store import CostProfile, read_profile
from paceline.scheduling.pacing import POLICIES
from paceline.trace.file import read_history

BURST, REQUESTS = 64, 336  # of the second number, those after the first tenth count: 300 and more
PARTS = (0.6, 0.8, 0.95)  # of the capacity
GRID = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)  # of it: among these the highest good rate is sought
MOST_SLOWDOWN = 4.0  # of the 99th percentile of the time per output token, against one request at a time
UNLOADED_REQUESTS = 300
PICTURE_PART = 0.95
PACELINE = [sys.executable, "-m", "paceline.cli.main"]


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
    lines = [profile_line(profile), "", *burst_table(BURST, bursts, one_stage), "", *arrival_table(arrivals), ""]
    cells = {f"{BURST} at once, {policy}": (policy, runs) for policy, runs in bursts.items()}
    cells |= {f"{part:.0%} of capacity, {policy}": (policy, runs) for (part, policy), runs in arrivals.items()}
    lines += [*fidelity_table(cells, profile), ""]
    ratio = limits["paced"] / limits["greedy"] if limits["greedy"] else float("inf")
    lines.append(
        f"Capacity is {capacity:.2f} requests per second. The p99 time per output token stays under {MOST_SLOWDOWN:g} times "
        f"that of one request at a time ({bench.unloaded().tpot[1]:.1f} ms) up to {limits['paced']:.0%} of it under "
        f"paced, and up to {limits['greedy']:.0%} under greedy: {ratio:.2f} times the rate."
    )
    return "\n".join(lines)
