"""Time per output token with and without token loop-back, few requests and many, on one machine and in turns.

python benchmarks/loop_back.py [--stages 1,2] [--requests 1,2,4,16] [--output-len 16] [--rounds 40] [--model MODEL]

Both engines stay up, and the runs of one row alternate between them, so a busy machine disturbs both alike. Runs are
short, so that some meet no disturbance. A run's figure is the mean time per output token, from first to last; printed
are the least and the median of all runs.
"""

from __future__ import annotations

import argparse
import statistics
from contextlib import ExitStack, closing

from paceline.bench.throughput import run_timed
from paceline.bench.workload import plain_tokens, random_jobs
from paceline.config import EngineConfig
from paceline.engine.offline import OfflineEngine

SETTINGS = (False, True)


def milliseconds_per_token(engine: OfflineEngine, requests: int, output_len: int, seed: int) -> float:
    """From a request's first token to its last, over the tokens after the first; the mean over the run's requests."""
    tokens = plain_tokens(engine.model.tokenizer, engine.model.vocab_size)
    jobs = [engine.check(job) for job in random_jobs(tokens, requests, 16, output_len, seed)]
    timelines, _ = run_timed(engine, jobs, None, "", show_progress=False)
    return statistics.mean((line.outputs[-1] - line.outputs[0]) / (output_len - 1) for line in timelines) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stages", default="1,2")
    parser.add_argument("--requests", default="1,2,4,16")
    parser.add_argument("--output-len", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--model")
    args = parser.parse_args()
    print(f"{'stages':>6} {'requests':>8} {'ms per token, without':>24} {'with loop-back':>18}   (least / median)")
    for stages in map(int, args.stages.split(",")):
        with ExitStack() as stack:
            configs = [
                EngineConfig(model=args.model, pipeline_parallel_size=stages, num_blocks=512, loop_back=loop_back)
                for loop_back in SETTINGS
            ]
            engines = [stack.enter_context(closing(OfflineEngine(config))) for config in configs]
            for requests in map(int, args.requests.split(",")):
                figures: list[list[float]] = [[] for _ in SETTINGS]
                for seed in range(args.rounds):
                    for engine, runs in zip(engines, figures, strict=True):
                        runs.append(milliseconds_per_token(engine, requests, args.output_len, seed))
                off, on = (f"{min(runs):.2f} / {statistics.median(runs):.2f}" for runs in figures)
                print(f"{stages:>6} {requests:>8} {off:>24} {on:>18}", flush=True)


if __name__ == "__main__":
    main()
