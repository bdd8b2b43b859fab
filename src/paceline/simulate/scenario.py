"""A scripted scenario: what the scheduler does with given requests, without a model.

The engine core's own step runs on a pipeline that holds every result back until the core waits for it, so the outcome
depends on the script alone. `docs/scheduling.md` describes the file's keys.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import yaml

from paceline.engine.core import EngineCore
from paceline.errors import PacelineError
from paceline.messages import (
    AbortRequests,
    AddRequest,
    BatchResult,
    Plan,
    RequestOutput,
    SampledToken,
    ToCore,
)
from paceline.sampling_params import SamplingParams
from paceline.scheduling import Batch, SchedulerOptions

TOKENS_PER_REQUEST = 1 << 20  # requests draw their token ids from ranges that do not overlap


class ScenarioError(PacelineError):
    """The scenario file cannot be used as it is."""


class Shares(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The first `tokens` prompt tokens equal those of request `with`."""

    other: str = msgspec.field(name="with")
    tokens: int


class ScriptedRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One request of a scenario; lengths in tokens, moments in batches made so far."""

    id: str
    prompt_tokens: int
    output_tokens: int
    arrive_before_batch: int = 0
    abort_before_batch: int | None = None
    shares: Shares | None = None
    priority: int = 0


class Scenario(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The engine's options by their own names, and the requests."""

    stages: int
    requests: list[ScriptedRequest]
    what: str = ""
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 512
    block_size: int = 16
    num_blocks: int = 1024
    enable_chunked_prefill: bool = True
    enable_prefix_caching: bool = True
    scheduling_policy: str = "fcfs"
    pacing: str = "greedy"
    loop_back: bool = False
    expected: Any = None  # what a test compares with; the scenario itself does not look at it


class BatchReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """One batch right after it was made; token positions are [first, one past the last).

    `ahead` names the requests whose token was not known yet: a placeholder stands for it (loop-back).
    """

    batch: int
    slices: dict[str, tuple[int, int]]
    status: dict[str, str]
    why_not: dict[str, str]
    ahead: list[str] = []


class FinalReport(msgspec.Struct, frozen=True):
    status: str
    output_tokens: int


class ScenarioReport(msgspec.Struct, frozen=True):
    batches: list[BatchReport]
    final: dict[str, FinalReport]


def load_scenario(path: Path) -> Scenario:
    """Read and check a scenario file.

    Raises:
        ScenarioError: it cannot be read, or a key or value is wrong; the text says which.
    """
    try:
        scenario = msgspec.convert(yaml.safe_load(path.read_text()), Scenario)
    except OSError as error:
        raise ScenarioError(f"{path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise ScenarioError(f"{path}: {error}") from error
    for problem in _problems(scenario):
        raise ScenarioError(f"{path}: {problem}")
    return scenario


def _problems(scenario: Scenario) -> list[str]:
    problems = []
    for key in ("stages", "max_num_seqs", "max_num_batched_tokens", "block_size", "num_blocks"):
        if getattr(scenario, key) < 1:
            problems.append(f"{key} must be at least 1")
    if scenario.scheduling_policy not in ("fcfs", "priority"):
        problems.append(f"scheduling_policy: {scenario.scheduling_policy!r} is neither 'fcfs' nor 'priority'")
    known: set[str] = set()
    for request in scenario.requests:
        if request.id in known:
            problems.append(f"two requests have the id {request.id!r}")
        if not 0 <= request.prompt_tokens < TOKENS_PER_REQUEST or request.output_tokens < 1:
            problems.append(f"{request.id}: prompt_tokens or output_tokens out of range")
        if request.shares and (
            request.shares.other not in known or not 0 <= request.shares.tokens <= request.prompt_tokens
        ):
            problems.append(f"{request.id}: shares must name an earlier request, and no more tokens than the prompt")
        known.add(request.id)
    return problems


class _Script:
    """Mailbox and pipeline of a scenario: arrivals by batches made, results held back until the core waits."""

    def __init__(self, scenario: Scenario) -> None:
        self.depth = scenario.stages + scenario.loop_back
        self.num_batches = 0
        self._prompts: dict[str, list[int]] = {}
        events: list[tuple[int, ToCore]] = []
        for number, request in enumerate(scenario.requests):
            events.append((request.arrive_before_batch, self._arrival(number, request)))
            if request.abort_before_batch is not None:
                events.append((request.abort_before_batch, AbortRequests([request.id])))
        self._events = sorted(events, key=lambda event: event[0])
        self._plans: list[Plan] = []
        self._ready: list[BatchResult] = []

    def _arrival(self, number: int, request: ScriptedRequest) -> AddRequest:
        first = number * TOKENS_PER_REQUEST
        prompt = list(range(first, first + request.prompt_tokens))
        if request.shares:
            shared = request.shares.tokens
            prompt[:shared] = self._prompts[request.shares.other][:shared]
        self._prompts[request.id] = prompt
        sampling = SamplingParams(temperature=0.0, seed=0, max_tokens=request.output_tokens, ignore_eos=True)
        return AddRequest(request.id, prompt, sampling, priority=request.priority)

    @property
    def exhausted(self) -> bool:
        return not self._events

    def drain(self) -> list[ToCore]:
        due = [message for moment, message in self._events if moment <= self.num_batches]
        self._events = [event for event in self._events if event[0] > self.num_batches]
        return due

    def submit(self, plan: Plan) -> None:
        self.num_batches += 1
        self._plans.append(plan)

    def collect(self) -> BatchResult | None:
        return self._ready.pop(0) if self._ready else None

    def wait(self, timeout: float | None) -> None:
        """Let the oldest result go; with none in flight the engine is idle, and the next arrivals come at once."""
        if self._plans:
            plan = self._plans.pop(0)
            tokens = [SampledToken(s.request, s.generation, s.end) for s in plan.slices if s.samples]
            self._ready.append(BatchResult(plan.epoch, plan.batch, tokens, []))
        elif self._events:
            moment = self._events[0][0]
            self._events = [(self.num_batches if m == moment else m, message) for m, message in self._events]

    def close(self) -> None:
        pass


def run_scenario(scenario: Scenario) -> ScenarioReport:
    """Run the engine core's own step over the scenario until every request has ended."""
    script = _Script(scenario)
    batches: list[BatchReport] = []
    final: dict[str, FinalReport] = {}
    outputs: dict[str, int] = {request.id: 0 for request in scenario.requests}

    def on_batch(batch: Batch) -> None:
        batches.append(
            BatchReport(
                batch.number,
                {r.request_id: (s.start, s.end) for r, s in zip(batch.requests, batch.plan.slices, strict=True)},
                {request_id: request.status.name for request_id, request in core.requests.items()},
                {request.request_id: reason.name for request, reason in batch.why_not.items()},
                [r.request_id for r, s in zip(batch.requests, batch.plan.slices, strict=True) if s.runs_ahead],
            )
        )

    def emit(news: list[RequestOutput]) -> None:
        for output in news:
            outputs[output.request_id] += len(output.token_ids)
            if output.status:
                final[output.request_id] = FinalReport(output.status, outputs[output.request_id])

    options = SchedulerOptions(
        stages=scenario.stages,
        loop_back=scenario.loop_back,
        max_num_seqs=scenario.max_num_seqs,
        max_num_batched_tokens=scenario.max_num_batched_tokens,
        block_size=scenario.block_size,
        num_blocks=scenario.num_blocks,
        max_model_len=scenario.num_blocks * scenario.block_size,
        enable_chunked_prefill=scenario.enable_chunked_prefill,
        enable_prefix_caching=scenario.enable_prefix_caching,
        scheduling_policy="priority" if scenario.scheduling_policy == "priority" else "fcfs",
        pacing=scenario.pacing,
    )
    core = EngineCore(options, script, script, emit, on_batch=on_batch, clock=lambda: 0.0, hash_key=b"scenario")
    while core.has_unfinished or core.in_flight or not script.exhausted:
        core.step()
    in_order = {request.id: final[request.id] for request in scenario.requests if request.id in final}
    return ScenarioReport(batches, in_order)
