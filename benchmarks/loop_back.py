"""How long a round takes with and without token loop-back: from a request's decode on stage 0 to its next one there.

python benchmarks/loop_back.py [--stages 1,2] [--requests 1,2,4,16] [--output-len 64] [--turns 6] [--model MODEL]

Read from the record, by the stage's own clock, so no other process has to be scheduled for the figure to be right. Both
engines stay up and take turns, so a busy machine disturbs both alike; the low percentiles are the rounds that it
disturbed least.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

from paceline.bench.throughput import run_timed
from paceline.bench.workload import plain_tokens, random_jobs
from paceline.config import EngineConfig
from paceline.engine.offline import OfflineEngine
from paceline.trace.events import Done, Made, decode
from paceline.trace.file import read_lines

SETTINGS = (False, True)
PERCENTILES = (5, 10, 25, 50)


def rounds(trace: Path) -> Iterator[float]:
    """Milliseconds from each batch of decodes alone to the next that continues one of its requests."""
    made: dict[int, Made] = {}
    previous: dict[int, tuple[int, float]] = {}  # request -> its batch before and when that started
    pairs: set[tuple[int, int]] = set()
    for event in map(decode, read_lines(trace)):
        if isinstance(event, Made):
            made[event.batch] = event
        elif isinstance(event, Done):
            batch, started = made.pop(event.batch), event.times[0].started
            only_decodes = set(batch.lengths) == {1}
            for request in batch.requests:
                if request in previous and only_decodes and (previous[request][0], event.batch) not in pairs:
                    pairs.add((previous[request][0], event.batch))
                    yield (started - previous[request][1]) * 1e3
                if only_decodes:
                    previous[request] = (event.batch, started)


def run(engine: OfflineEngine, requests: int, output_len: int, seed: int) -> None:
    tokens = plain_tokens(engine.model.tokenizer, engine.model.vocab_size)
    jobs = [engine.check(job) for job in random_jobs(tokens, requests, 16, output_len, seed)]
    run_timed(engine, jobs, None, "", show_progress=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stages", default="1,2")
    parser.add_argument("--requests", default="1,2,4,16")
    parser.add_argument("--output-len", type=int, default=64)
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--pacing", default="auto")
    parser.add_argument("--model")
    args = parser.parse_args()
    names = "".join(f"{f'p{p}':>8}" for p in PERCENTILES)
    print(f"ms per round: {'stages':>6} {'requests':>8} {'loop-back':>9}{names}")
    for stages in map(int, args.stages.split(",")):
        for requests in map(int, args.requests.split(",")):
            with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
                traces = [Path(folder) / f"{loop_back}" for loop_back in SETTINGS]
                options = {
                    "model": args.model,
                    "pacing": args.pacing,
                    "pipeline_parallel_size": stages,
                    "num_blocks": 512,
                }
                engines = [
                    stack.enter_context(
                        closing(OfflineEngine(EngineConfig(**options, loop_back=on, trace_file=str(trace))))
                    )
                    for on, trace in zip(SETTINGS, traces, strict=True)
                ]
                for turn in range(args.turns):
                    for engine in engines:
                        run(engine, requests, args.output_len, turn)
                for loop_back, trace in zip(SETTINGS, traces, strict=True):
                    times = sorted(rounds(trace))
                    figures = "".join(f"{times[len(times) * p // 100]:8.2f}" for p in PERCENTILES)
                    print(
                        f"{'':13} {stages:>6} {requests:>8} {'with' if loop_back else 'without':>9}{figures}",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
