"""Runs the real engine core over the fake pipeline and checks every invariant of the scheduling contract on the way."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from paceline.engine.core import EngineCore
from paceline.messages import AbortRequests, AddRequest, FinishRequest, RequestOutput, Slice, ToCore
from paceline.request import FINISHED, Request, RequestStatus
from paceline.sampling_params import SamplingParams
from paceline.scheduling import Batch, Reason, SchedulerOptions
from paceline.scheduling.pacing import POLICIES, Grant
from tests.engine.fake_pipeline import STOP_TOKEN, FakePipeline, TokenKey, by_request_and_position, oracle

MAX_STEPS = 4000


@dataclass(frozen=True)
class Arrival:
    """One request of a scenario; moments are engine steps."""

    prompt: tuple[int, ...]
    max_tokens: int | None
    priority: int = 0
    at_step: int = 0
    abort_at: int | None = None
    stop_text_at: int | None = None  # the detokenizer finds a stop string in this output token
    timeout: float | None = None
    salt: str = ""


@dataclass(frozen=True)
class Scenario:
    options: SchedulerOptions
    arrivals: list[Arrival]
    interleaving: int
    fault_rate: float = 0.0


def scenarios(
    *, faults: bool = False, few_blocks: bool | None = None, loop_back: bool | None = None
) -> st.SearchStrategy[Scenario]:
    """Random options and arrivals: dense in what is hard, so drawn from a seed rather than shrinkable parts."""
    return st.integers(0, 2**32).map(
        lambda seed: make_scenario(seed, faults=faults, few_blocks=few_blocks, loop_back=loop_back)
    )


def make_scenario(
    seed: int, *, faults: bool = False, few_blocks: bool | None = None, loop_back: bool | None = None
) -> Scenario:
    """Prompts share prefixes, and the blocks often suffice for less than two requests at full length."""
    rng = random.Random(seed)
    block_size = rng.randint(1, 4)
    length = rng.randint(8, 36)
    tight = rng.random() < 0.5 if few_blocks is None else few_blocks
    per_request = -(-length // block_size)
    num_blocks = int(per_request * (rng.uniform(1, rng.choice([1.4, 2.5])) if tight else rng.uniform(4, 10)))
    options = SchedulerOptions(
        stages=rng.randint(1, 8),
        max_num_seqs=rng.randint(2, 8),
        max_num_batched_tokens=rng.choice([1, 2, 3, 4, 6, 8, 12, 16, 24, 64]),
        block_size=block_size,
        num_blocks=num_blocks,
        max_model_len=min(num_blocks * block_size, length),
        enable_chunked_prefill=rng.random() < 0.7,
        enable_prefix_caching=rng.random() < 0.6,
        scheduling_policy=rng.choice(["fcfs", "priority"]),
        loop_back=rng.random() < 0.6 if loop_back is None else loop_back,
        pacing=rng.choice(list(POLICIES)),
        target_tpot=rng.choice([None, None, 1e-3, 1.0]),
    )
    stem = tuple(rng.randint(1, 5) for _ in range(length))
    spread = rng.choice([0, 5, 40])

    def rarely(value: int | float) -> int | float | None:
        return value if rng.random() < 0.15 else None

    arrivals = []
    for _ in range(rng.randint(2, 9)):
        shared = rng.choice([0, rng.randint(0, length // 2)])
        own = tuple(rng.randint(1, 5) for _ in range(rng.randint(1, max(1, length // 3))))
        arrivals.append(
            Arrival(
                prompt=stem[:shared] + own,
                max_tokens=rng.choice([None, None, rng.randint(1, length)]),
                priority=rng.randint(0, 3),
                at_step=rng.randint(0, spread),
                abort_at=rarely(rng.randint(0, 60)),  # type: ignore[arg-type]
                stop_text_at=rarely(rng.randint(1, 8)),  # type: ignore[arg-type]
                timeout=rarely(rng.uniform(0.5, 60)),
                salt=rng.choice(["", "", "", "pepper"]),
            )
        )
    return Scenario(options, arrivals, rng.getrandbits(32), rng.choice([0.02, 0.1]) if faults else 0.0)


@dataclass
class Observed:
    """What the front end saw of one request."""

    arrival: Arrival
    tokens: list[int] = field(default_factory=list)
    status: str = ""
    told_to_finish: bool = False


class Harness:
    """One run of a scenario. `check=False` leaves the invariants to the comparison of the outputs alone."""

    def __init__(
        self, scenario: Scenario, *, drop_stale_rows: bool = False, token_key: TokenKey = by_request_and_position
    ) -> None:
        self.scenario = scenario
        self.options = scenario.options
        self.now = 0.0
        self.mail: list[ToCore] = []
        self.seen: dict[str, Observed] = {}
        self.num_hits = 0
        self.reasons: set[Reason] = set()
        self.slices: dict[tuple[int, int, int], list[Slice]] = {}
        self.passed_over: Counter[Request] = Counter()
        self.granted = 1  # decodes, to the batch being made
        self.least_granted: dict[Request, int] = {}  # while the request was passed over
        self.ahead: list[tuple[Request, int]] = []  # positions scheduled before their token was known
        self.num_preempted_ahead = 0
        self.awaited: dict[int, int] = {}  # batches made early, and the batch whose tokens each waits for
        drop = self._is_stale if drop_stale_rows else None
        self.pipeline = FakePipeline(
            self.options.stages,
            self.options.block_size,
            random.Random(scenario.interleaving),
            loop_back=self.options.loop_back,
            fault_rate=scenario.fault_rate,
            drop=drop,
            token_key=token_key,
        )
        self.core = EngineCore(
            self.options, self.pipeline, self, self._emit, on_batch=self._on_batch, clock=lambda: self.now
        )
        self._grant = self.core.scheduler.policy.grant
        self.core.scheduler.policy.grant = self._noted_grant  # type: ignore[method-assign]

    def run(self) -> Harness:
        arrivals = sorted(enumerate(self.scenario.arrivals), key=lambda item: item[1].at_step)
        for step in range(MAX_STEPS):
            self.now += 1.0
            while arrivals and arrivals[0][1].at_step <= step:
                self._arrive(*arrivals.pop(0))
            for request_id, observed in self.seen.items():
                if observed.arrival.abort_at == step:
                    self.mail.append(AbortRequests([request_id]))
            self.core.step()
            self._check_state()
            if not (arrivals or self.mail or self.core.has_unfinished or self.core.in_flight):
                break
        else:
            raise AssertionError(f"still unfinished after {MAX_STEPS} steps: {self.core.requests}")
        self._check_end()
        return self

    # ------------------------------------------------------------ the front end's part

    def drain(self) -> list[ToCore]:
        mail, self.mail = self.mail, []
        return mail

    def _arrive(self, number: int, arrival: Arrival) -> None:
        request_id = f"r{number}"
        self.seen[request_id] = Observed(arrival)
        sampling = SamplingParams(seed=number, max_tokens=arrival.max_tokens, stop_token_ids=(STOP_TOKEN,))
        self.mail.append(
            AddRequest(
                request_id,
                list(arrival.prompt),
                sampling,
                priority=arrival.priority,
                cache_salt=arrival.salt,
                timeout=arrival.timeout,
            )
        )

    def _emit(self, outputs: list[RequestOutput]) -> None:
        for output in outputs:
            observed = self.seen[output.request_id]
            assert not observed.status, "S9: something was delivered after the end"
            observed.tokens += output.token_ids
            observed.status = output.status
            at = observed.arrival.stop_text_at
            if at is not None and len(observed.tokens) >= at and not observed.told_to_finish and not output.status:
                observed.told_to_finish = True
                self.mail.append(FinishRequest(output.request_id, at))

    # ------------------------------------------------------------ checks

    def _is_stale(self, slice_: Slice) -> bool:
        live = {r.number: r for r in self.core.requests.values()}
        return slice_.request not in live or live[slice_.request].status is RequestStatus.PREEMPTED

    def _on_batch(self, batch: Batch) -> None:
        options, core = self.options, self.core
        slices = batch.plan.slices
        assert sum(s.num_tokens for s in slices) <= options.max_num_batched_tokens, "S4: budget"
        assert len(core.in_flight) <= options.depth, "S4: depth"
        assert [b.number for b in core.in_flight] == list(
            range(batch.number - len(core.in_flight) + 1, batch.number + 1)
        ), "S6"
        members = set(batch.requests)
        assert len(members) == len(slices), "a request has two slices in one batch"
        assert members | set(batch.why_not) == set(core.requests.values()), (
            "every live request is in it or has a reason"
        )
        assert members.isdisjoint(batch.why_not), "in it, and yet with a reason why not"
        for earlier in list(core.in_flight)[:-1]:
            for request, slice_, life in zip(earlier.requests, earlier.plan.slices, earlier.lives, strict=True):
                if request in members and slice_.generation == request.generation:
                    assert life == request.life, "S2: drained before it is scheduled again"
                    assert not slice_.samples or self._is_next(batch, request, slice_), "S2"
        for request, slice_ in zip(batch.requests, slices, strict=True):
            assert request.status is RequestStatus.RUNNING, "S3"
            key = (request.number, request.generation, request.life)
            before = self.slices.setdefault(key, [])
            first = before[-1].end if before else slice_.start
            assert slice_.start == first, "S1: positions follow each other, each once"
            assert before or slice_.start % options.block_size == 0, "a prefix is made of full blocks"
            self.num_hits += 0 if before else slice_.start
            before.append(slice_)
        self.reasons.update(batch.why_not.values())
        self._check_reasons(batch)
        self._check_held_prompts(batch)
        self._check_loop_back(batch)
        self._check_waiting_decodes(batch)

    def _check_reasons(self, batch: Batch) -> None:
        for request, reason in batch.why_not.items():
            needed = request.num_known_tokens - request.num_scheduled_tokens
            if reason is Reason.IN_FLIGHT:
                assert request.status is RequestStatus.RUNNING
                assert needed == 0 or (needed == -1 and self.options.loop_back)
                assert request.num_in_flight > 0
            elif reason is Reason.DRAINING_IN_FLIGHT:
                assert request.status is RequestStatus.PREEMPTED
                assert request.num_in_flight > 0
            elif reason in (Reason.SEQ_LIMIT, Reason.BEHIND_HEAD, Reason.PREEMPTED_THIS_STEP):
                assert request.status is not RequestStatus.RUNNING
            else:
                assert needed > 0 or (needed == 0 and self.options.loop_back)

    def _check_held_prompts(self, batch: Batch) -> None:
        """S7: `paced` holds a prompt back only behind another one that goes on in the same batch."""
        held = [
            request
            for request, reason in batch.why_not.items()
            if reason is Reason.PACED and request.num_known_tokens - request.num_scheduled_tokens > 1
        ]
        if held and self.options.pacing == "paced":
            slices = batch.plan.slices
            assert batch.admitted or any(s.num_tokens > 1 or not s.samples for s in slices), f"S7: nobody else: {held}"

    def _is_next(self, batch: Batch, request: Request, earlier: Slice) -> bool:
        """Whether the request's slice in the batch is the one position that may follow the sampling one in flight."""
        slice_ = batch.plan.slices[batch.requests.index(request)]
        return self.options.loop_back and slice_.runs_ahead and slice_.start == earlier.end

    def _check_loop_back(self, batch: Batch) -> None:
        """Run-ahead slices are on time, or the whole batch waits early for one batch, and no other does."""
        ahead = [(r, s) for r, s in zip(batch.requests, batch.plan.slices, strict=True) if s.runs_ahead]
        self.ahead += [(request, slice_.start) for request, slice_ in ahead]
        for earlier in self.core.in_flight:
            pairs = zip(earlier.requests, earlier.plan.slices, strict=True)
            self.num_preempted_ahead += sum(s.runs_ahead and r.status is RequestStatus.PREEMPTED for r, s in pairs)
        sampled_in = []
        for request, slice_ in ahead:
            assert slice_.start == request.num_known_tokens
            assert slice_.end < request.max_total_tokens, "nothing can follow"
            before = [b for b in list(self.core.in_flight)[:-1] if request in b.requests]
            assert before[-1].plan.slices[before[-1].requests.index(request)].samples
            assert sum(b.plan.slices[b.requests.index(request)].samples for b in before) == 1
            sampled_in.append(before[-1].number)
        if any(batch.number - i < self.options.stages for i in sampled_in):
            assert len(ahead) == len(batch.requests), "early, though something else was there"
            assert len(set(sampled_in)) == 1
            oldest = self.core.in_flight[0].number
            assert all(self.awaited.get(b.number, -1) < oldest for b in self.core.in_flight), "two batches wait"
            self.awaited[batch.number] = sampled_in[0]

    def _noted_grant(self, decodes: Sequence[Request], *others: Any) -> Grant:
        grant = self._grant(decodes, *others)
        if decodes:
            assert grant.num_decodes > 0, "S7: none of the decodes is granted"
            self.granted = min(grant.num_decodes, self.options.max_num_batched_tokens)
        return grant

    def _check_waiting_decodes(self, batch: Batch) -> None:
        """S7: under fcfs no decode that could be scheduled is passed over for long."""
        running = self.core.scheduler.running
        for request in batch.requests:
            self.passed_over[request] = 0
            self.least_granted.pop(request, None)
        for request in running:
            if request.num_known_tokens - request.num_scheduled_tokens == 1 and request in batch.why_not:
                self.passed_over[request] += 1
                self.least_granted[request] = min(self.granted, self.least_granted.get(request, self.granted))
        if self.options.scheduling_policy == "fcfs":
            for request, granted in self.least_granted.items():
                bound = -(-len(running) // granted) + self.options.depth
                assert self.passed_over[request] <= bound, f"S7: {request} waits too long"

    def _check_state(self) -> None:
        scheduler = self.core.scheduler
        live = set(self.core.requests.values())
        assert set(scheduler.running) | set(scheduler.queue) == live, "S3"
        assert len(scheduler.running) + len(scheduler.queue) == len(live), "S3"
        assert all(r.status is RequestStatus.RUNNING for r in scheduler.running), "S3"
        waiting = {RequestStatus.WAITING, RequestStatus.PREEMPTED, RequestStatus.WAITING_FOR_GRAMMAR}
        assert all(r.status in waiting for r in scheduler.queue), "S3"
        assert len(scheduler.running) <= self.options.max_num_seqs, "S4: seats"
        held = Counter(block for request in live for block in request.blocks)
        pool = scheduler.kv_cache.pool
        assert [held[block] for block in range(pool.num_blocks)] == pool.references, "S5"
        assert pool.num_free == pool.references.count(0), "S5"
        for request in live:
            assert len(set(request.blocks)) == len(request.blocks), "S5: a block twice in one table"
            assert request.num_computed_tokens <= request.num_scheduled_tokens
            assert request.num_scheduled_tokens <= request.num_known_tokens + self.options.loop_back

    def _check_end(self) -> None:
        assert self.core.scheduler.kv_cache.num_free == self.options.num_blocks, "S5: all free when idle"
        for number, arrival in enumerate(self.scenario.arrivals):
            observed = self.seen[f"r{number}"]
            status = RequestStatus[observed.status]
            assert status in FINISHED, "S7"
            if status is RequestStatus.FINISHED_REFUSED:
                too_long = len(arrival.prompt) >= self.options.max_model_len
                unchunked = not self.options.enable_chunked_prefill
                assert too_long or not arrival.prompt or unchunked
                continue
            limit = self.options.max_model_len
            if arrival.max_tokens is not None:
                limit = min(limit, len(arrival.prompt) + arrival.max_tokens)
            expected = oracle(arrival.prompt, number, limit)
            assert tuple(observed.tokens) == expected[: len(observed.tokens)], "S8"
            if not observed.told_to_finish and status in (
                RequestStatus.FINISHED_STOPPED,
                RequestStatus.FINISHED_LENGTH,
            ):
                assert len(observed.tokens) == len(expected), "S8: it ended early"
