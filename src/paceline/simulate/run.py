"""Runs the engine core over a virtual pipeline, as fast as the core itself allows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from paceline.engine.core import EngineCore
from paceline.messages import AddRequest, CoreStats, Plan, RequestOutput, StageTimes, ToCore
from paceline.pipeline.timing import PricedTiming, Timing
from paceline.pipeline.virtual import VirtualClock, VirtualPipeline
from paceline.sampling_params import SamplingParams
from paceline.scheduling import Batch, SchedulerOptions
from paceline.scheduling.cost_model import CostModel
from paceline.simulate.loads import SimulatedRequest
from paceline.trace.events import Facts
from paceline.trace.file import TraceFile
from paceline.trace.history import History
from paceline.trace.idle import CAUSES
from paceline.trace.recorder import Recorder

PLENTY_OF_BLOCKS = 1 << 20
STEPS_PER_READING = 1000


class SimulationOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The engine's options by their own names, and what only a simulation has.

    Attributes:
        jitter: standard deviation of stage times, relative, where no timing is given.
        known_cost: the policy begins with the pipeline's own cost model; if not, it has to learn it.
    """

    pacing: str = "paced"
    loop_back: bool = False
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    block_size: int = 16
    num_blocks: int = PLENTY_OF_BLOCKS
    target_tpot: float | None = None  # seconds
    jitter: float = 0.0
    known_cost: bool = True
    seed: int = 0


@dataclass
class RequestTimes:
    """When one request was sent and when its outputs came, in seconds since the start."""

    sent: float
    outputs: list[float] = field(default_factory=list)
    error: str = ""


@dataclass
class Simulation:
    """What happened.

    Attributes:
        requests: in order of arrival.
        stats: the core's counters.
        seconds: from the start to the last output.
        idle: seconds by cause, over all stages.
        cost_errors: median relative error of the policy's predictions, per kind of batch.
    """

    requests: list[RequestTimes]
    stats: CoreStats
    seconds: float
    idle: dict[str, float]
    cost_errors: dict[str, float]


class _Reader:
    """Follows the record, as an observer of a real engine does, for the sake of its account of idle time."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._history = History()
        self._read = 0

    def follow(self) -> None:
        """Take in what is new."""
        while (chunk := self._recorder.read(self._read)).end > self._read:
            self._history.feed(chunk.lines)
            self._read = chunk.end

    def idle(self) -> dict[str, float]:
        """Seconds by cause, over all stages; causes that did not occur are left out."""
        account = self._history.account
        stages = [] if account is None else account.idle
        totals = {cause: sum(stage.get(cause, 0.0) for stage in stages) for cause in CAUSES}
        return {cause: seconds for cause, seconds in totals.items() if seconds > 0.0}


class _Arrivals:
    """The mailbox: requests arrive when the virtual clock says so."""

    def __init__(self, requests: Sequence[SimulatedRequest], clock: VirtualClock) -> None:
        self._requests = requests
        self._clock = clock
        self._next = 0

    def drain(self) -> list[ToCore]:
        due: list[ToCore] = []
        while self._next < len(self._requests) and self._requests[self._next].arrival <= self._clock.now:
            request = self._requests[self._next]
            sampling = SamplingParams(temperature=0.0, seed=0, max_tokens=request.output_tokens, ignore_eos=True)
            due.append(AddRequest(str(self._next), [0] * request.prompt_tokens, sampling))
            self._next += 1
        return due

    def next_mail(self) -> float | None:
        return self._requests[self._next].arrival if self._next < len(self._requests) else None


def simulate(
    cost: CostModel,
    requests: Sequence[SimulatedRequest],
    options: SimulationOptions,
    *,
    timing: Timing | None = None,
    trace_file: TraceFile | None = None,
    on_batch: Callable[[Batch], None] | None = None,
    on_times: Callable[[Plan, list[StageTimes]], None] | None = None,
) -> Simulation:
    """Serve the requests, sorted by arrival, on a virtual pipeline.

    Args:
        cost: what the policies are told, and how long things take where `timing` does not say otherwise.
        trace_file: gets the record, as of a real engine.
        on_batch: told of every batch when it is made.
        on_times: told of every batch and when each stage works on it.
    """
    clock = VirtualClock()
    arrivals = _Arrivals(requests, clock)
    times = [RequestTimes(request.arrival) for request in requests]

    def emit(outputs: list[RequestOutput]) -> None:
        for output in outputs:
            line = times[int(output.request_id)]
            line.outputs += [clock.now] * len(output.token_ids)
            line.error = line.error or output.error

    pipeline = VirtualPipeline(
        timing or PricedTiming(cost, options.jitter, options.seed),
        clock,
        arrivals.next_mail,
        loop_back=options.loop_back,
        on_times=on_times,
    )
    scheduler_options = SchedulerOptions(
        stages=len(cost.stages),
        loop_back=options.loop_back,
        max_num_seqs=options.max_num_seqs,
        max_num_batched_tokens=options.max_num_batched_tokens,
        block_size=options.block_size,
        num_blocks=options.num_blocks,
        max_model_len=options.num_blocks * options.block_size,
        enable_prefix_caching=False,  # no two simulated prompts are equal
        pacing=options.pacing,
        target_tpot=options.target_tpot,
        cost=cost if options.known_cost else None,
        cost_is_calibrated=options.known_cost,
    )
    facts = Facts(
        model="simulated",
        stages=len(cost.stages),
        depth=pipeline.depth,
        num_blocks=options.num_blocks,
        block_size=options.block_size,
        pacing=options.pacing,
        max_num_batched_tokens=options.max_num_batched_tokens,
        max_num_seqs=options.max_num_seqs,
    )
    recorder = Recorder(clock, facts, file=trace_file)
    reader = _Reader(recorder)
    core = EngineCore(
        scheduler_options, pipeline, arrivals, emit, on_batch=on_batch, clock=clock, hash_key=b"", recorder=recorder
    )
    steps = 0
    while arrivals.next_mail() is not None or core.has_unfinished or core.in_flight:
        core.step()
        steps += 1
        if steps % STEPS_PER_READING == 0:
            reader.follow()
    reader.follow()
    return Simulation(times, core.stats(), clock.now, reader.idle(), core.scheduler.cost_fit.errors())
