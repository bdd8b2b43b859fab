"""What the engine core costs per batch: schedule + update, without any model or process.

python benchmarks/scheduler.py [--requests 256] [--stages 2] [--loop-back] [--batches 2000] [--seen 20000]

Prints microseconds of CPU per batch for that many running decodes, in one batch and spread evenly over the depth, at first and
after many other requests have come and gone.
"""

from __future__ import annotations

import argparse
import time
from collections import deque

from paceline.engine.core import EngineCore
from paceline.messages import AddRequest, BatchResult, Plan, RequestOutput, SampledToken, ToCore
from paceline.sampling_params import SamplingParams
from paceline.scheduling import SchedulerOptions


class Instant:
    """A pipeline whose oldest result is there as soon as the core waits, and a mailbox that is filled by hand.

    It is emptied one wave at a time: the core looks again after each batch, so that waves end up in batches of their own.
    """

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.mail: deque[list[ToCore]] = deque()
        self._plans: deque[Plan] = deque()
        self._ready: deque[BatchResult] = deque()
        self.own_seconds = 0.0

    def drain(self) -> list[ToCore]:
        return self.mail.popleft() if self.mail else []

    def submit(self, plan: Plan) -> None:
        self._plans.append(plan)

    def collect(self) -> BatchResult | None:
        return self._ready.popleft() if self._ready else None

    def wait(self, timeout: float | None) -> None:
        start = time.thread_time()
        if self._plans:
            plan = self._plans.popleft()
            tokens = [SampledToken(s.request, s.generation, 7) for s in plan.slices if s.samples]
            self._ready.append(BatchResult(plan.epoch, plan.batch, tokens, []))
        self.own_seconds += time.thread_time() - start

    def close(self) -> None:
        pass


def engine(stages: int, requests: int, *, loop_back: bool) -> tuple[EngineCore, Instant]:
    pipeline = Instant(stages + loop_back)
    options = SchedulerOptions(
        stages=stages,
        loop_back=loop_back,
        max_num_seqs=requests,
        max_num_batched_tokens=8192,
        num_blocks=1_000_000,
        max_model_len=1_000_000,
    )

    def ignore(outputs: list[RequestOutput]) -> None:
        pass

    return EngineCore(options, pipeline, pipeline, ignore), pipeline


def add(pipeline: Instant, count: int, prompt: int, output: int | None, tag: str) -> None:
    """One wave of requests."""
    sampling = SamplingParams(temperature=0.0, seed=0, max_tokens=output)
    starts = [(i * 37) % 1000 for i in range(count)]
    pipeline.mail.append([AddRequest(f"{tag}{i}", list(range(s, s + prompt)), sampling) for i, s in enumerate(starts)])


def microseconds(core: EngineCore, pipeline: Instant, batches: int) -> tuple[float, float]:
    """Microseconds of CPU per batch without the stand-in pipeline's own, and decodes per batch."""
    own, made = pipeline.own_seconds, core.scheduler.num_batches
    tokens = sum(r.num_output_tokens for r in core.requests.values())
    start = time.thread_time()
    while core.scheduler.num_batches < made + batches:
        core.step()
    took = time.thread_time() - start - (pipeline.own_seconds - own)
    count = core.scheduler.num_batches - made
    return took / count * 1e6, (sum(r.num_output_tokens for r in core.requests.values()) - tokens) / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--stages", type=int, default=2)
    parser.add_argument("--loop-back", action="store_true")
    parser.add_argument("--batches", type=int, default=2000)
    parser.add_argument("--seen", type=int, default=20000)
    args = parser.parse_args()
    for spread in (False, True):
        core, pipeline = engine(args.stages, args.requests, loop_back=args.loop_back)
        waves = args.stages if spread else 1
        for wave in range(waves):
            add(pipeline, args.requests // waves, 32, None, f"wave{wave}-")
        core.step()
        for moment in ("at first", f"after {args.seen} other requests"):
            took, decodes = microseconds(core, pipeline, args.batches)
            print(f"{args.requests} running, {decodes:5.0f} decodes a batch, {moment}: {took:6.0f} us per batch")
            other, other_pipeline = core, pipeline
            for i in range(args.seen // args.requests):
                for request in list(other.requests.values())[: args.requests // 8]:
                    request.max_total_tokens = len(request.token_ids) + 2
                add(other_pipeline, args.requests // 8, 32, None, f"{moment}{i}-")
                for _ in range(4 * args.stages):
                    other.step()


if __name__ == "__main__":
    main()
