"""Decides what goes into the next micro-batch.

One counter answers most questions. `num_scheduled_tokens` advances when a batch is made, `num_computed_tokens` when
its result returns; a request needs `known - scheduled` tokens, and with 0 it is skipped: its next token is on its way.
So several chunks of one prompt may be in flight together, and a decode may not. With token loop-back it may, one: a
placeholder counts as known.

`Scheduler` keeps the live requests in two places: `running` (they hold a seat and blocks) and `queue` (WAITING,
PREEMPTED and WAITING_FOR_GRAMMAR, by priority and arrival). `schedule()` makes one batch in a pass over both, see
`BatchMaker`; everything else here moves a request along the arrows of its status.
"""

from __future__ import annotations

from bisect import insort
from operator import attrgetter
from typing import Literal, NamedTuple

import msgspec

from paceline.kv_cache import KVCacheManager
from paceline.messages import Plan, StageTimes
from paceline.request import Request, RequestStatus
from paceline.scheduling.batch import Batch, Reason
from paceline.scheduling.batch_maker import BatchMaker
from paceline.scheduling.cost_fit import CostFit
from paceline.scheduling.cost_model import CostModel, StageCost, uniform, work_of
from paceline.scheduling.pacing import Surroundings, make_policy

_by_order = attrgetter("order")

# Proportions to begin with where nothing is known of the model: a token's own work, and a batch's as of a few tokens.
UNKNOWN_STAGE = StageCost(fixed=4e-3, token=1e-3, sequence=1e-4, decode_context=1e-6, prefill_context=2e-7, sample=1e-4)


class SchedulerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the scheduler needs to know of the engine's options; names and meanings are theirs."""

    stages: int
    loop_back: bool = False
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 512
    block_size: int = 16
    num_blocks: int
    max_model_len: int  # already capped to num_blocks * block_size
    enable_chunked_prefill: bool = True
    enable_prefix_caching: bool = True
    scheduling_policy: Literal["fcfs", "priority"] = "fcfs"
    pacing: str = "greedy"
    target_tpot: float | None = None  # seconds
    cost: CostModel | None = None  # not given: a batch costs what its tokens do, until steps are measured
    cost_is_calibrated: bool = False  # its figures are seconds of this machine, not only proportions

    @property
    def depth(self) -> int:
        """How many batches may be in flight. With loop-back one more than stages, which waits at stage 0."""
        return self.stages + self.loop_back


class Preemption(NamedTuple):
    """Who lost its blocks, for whom (-1: they could not be trusted), and in the making of which batch."""

    victim: int
    batch: int
    beneficiary: int


class Scheduler:
    """The live requests, their blocks, and the making of batches."""

    def __init__(self, options: SchedulerOptions, hash_key: bytes | None = None) -> None:
        self.options = options
        self.kv_cache = KVCacheManager(
            options.num_blocks,
            options.block_size,
            prefix_caching=options.enable_prefix_caching,
            hash_key=hash_key,
        )
        start = options.cost or uniform(options.stages, UNKNOWN_STAGE)
        self.cost_fit = CostFit(start, calibrated=options.cost_is_calibrated)
        self.policy = make_policy(
            options.pacing,
            Surroundings(
                num_stages=options.stages,
                max_num_batched_tokens=options.max_num_batched_tokens,
                max_num_seqs=options.max_num_seqs,
                target_tpot=options.target_tpot,
                kv_cache=self.kv_cache,
                fit=self.cost_fit,
            ),
        )
        self.running: dict[Request, None] = {}
        self.queue: list[Request] = []
        self.num_batches = 0
        self.num_preemptions = 0
        self.epoch = 0
        self.awaited_batch = -1  # the newest batch whose tokens stage 0 was made to wait for, early
        self.why_nothing: dict[Request, Reason] = {}  # of the latest call that made no batch
        self._released: list[int] = []
        self._preemptions: list[Preemption] = []

    @property
    def num_unfinished(self) -> int:
        return len(self.running) + len(self.queue)

    # ------------------------------------------------------------ arrival and end

    def why_refused(self, request: Request) -> str | None:
        """Why the request can never be served, or None."""
        options = self.options
        if request.num_prompt_tokens == 0:
            return "the prompt is empty"
        if request.num_prompt_tokens >= options.max_model_len:
            return (
                f"the prompt has {request.num_prompt_tokens} tokens, and the model length of "
                f"{options.max_model_len} leaves none to generate"
            )
        if not options.enable_chunked_prefill and request.num_prompt_tokens > options.max_num_batched_tokens:
            return (
                f"the prompt has {request.num_prompt_tokens} tokens, more than max_num_batched_tokens="
                f"{options.max_num_batched_tokens}, and chunked prefill is off"
            )
        return None

    def add(self, request: Request) -> None:
        """Take in a request that can be served."""
        if self.options.scheduling_policy == "fcfs":
            request.order = (0, request.number)
        insort(self.queue, request, key=_by_order)

    def grammar_ready(self, request: Request) -> None:
        """The request's grammar is compiled: it may be admitted from now on."""
        request.change_status(RequestStatus.WAITING)

    def finish(self, request: Request, status: RequestStatus) -> None:
        """End a request at any moment: its blocks return at once, its late results will be dropped."""
        self._leave(request)
        request.change_status(status)
        request.generation += 1
        self.kv_cache.free(request)
        if request.told:
            self._released.append(request.number)

    def preempt(self, request: Request, *, counts: bool = True, beneficiary: Request | None = None) -> None:
        """Take a RUNNING request's blocks; it keeps its tokens and will be recomputed.

        Tokens that are on their way are still delivered, but no position in flight counts as computed.
        With `counts` false the request is not to blame, and is not protected for it.
        """
        gains = -1 if beneficiary is None else beneficiary.number
        self._preemptions.append(Preemption(request.number, self.num_batches, gains))
        del self.running[request]
        request.change_status(RequestStatus.PREEMPTED)
        self.kv_cache.free(request)
        request.life += 1
        request.num_scheduled_tokens = request.num_computed_tokens = 0
        request.num_told_blocks = 0
        if counts:
            request.num_preemptions += 1
            self.num_preemptions += 1
            self.policy.preempted()
        insort(self.queue, request, key=_by_order)

    def fail_row(self, request: Request) -> None:
        """The request's row could not be sampled: trust nothing that it computed, and end it if it has not ended.

        RUNNING requests that share a block which it filled, or one computed on top of that, are recomputed; results of
        theirs that are on their way were computed from the same block and are dropped.
        """
        distrusted = self.kv_cache.distrust(request)
        if not request.is_finished:
            self.finish(request, RequestStatus.FINISHED_ERROR)
        pending = [r for r in self.running if not distrusted.isdisjoint(r.blocks)]
        while pending:
            sharer = pending.pop()
            if sharer not in self.running:
                continue
            more = self.kv_cache.distrust(sharer)
            self.preempt(sharer, counts=False)
            self._forget_on_stages(sharer)
            pending.extend(r for r in self.running if not more.isdisjoint(r.blocks))

    def _forget_on_stages(self, request: Request) -> None:
        """Drop what is on its way for the request; the stages are told of it anew under another generation."""
        request.generation += 1
        if request.told:
            self._released.append(request.number)
            request.told = False

    def _leave(self, request: Request) -> None:
        if request in self.running:
            del self.running[request]
        else:
            self.queue.remove(request)

    # ------------------------------------------------------------ batches

    def schedule(self, *, oldest_in_flight: int | None) -> Batch | None:
        """Make the next batch, or None if there is nothing to put into one.

        A call may preempt and make nothing; if nothing is in flight then, call again.

        Args:
            oldest_in_flight: number of the oldest batch in flight; None: nothing is.
        """
        maker = BatchMaker(self, oldest_in_flight)
        batch = maker.make()
        if batch is None:
            self.why_nothing = maker.why_not
        return batch

    def take_token(self, request: Request, token_id: int) -> None:
        """The request's next token is known. If its position was scheduled already, a block may be complete now."""
        request.token_ids.append(token_id)
        known = len(request.token_ids)
        if request.num_scheduled_tokens == known and known % self.options.block_size == 0:
            self.kv_cache.publish(request, known - 1, known)

    def measured(self, plan: Plan, times: list[StageTimes]) -> None:
        """Let the cost model learn from what each stage took for a batch."""
        if len(times) == len(self.cost_fit.model.stages):
            self.cost_fit.add(work_of(plan.slices), [t.finished - t.started for t in times])

    def take_released(self) -> list[int]:
        """Numbers of the requests that stages may forget before they run the next plan."""
        released, self._released = self._released, []
        return released

    def take_preemptions(self) -> list[Preemption]:
        """Who was preempted since this was asked last, in order."""
        preemptions, self._preemptions = self._preemptions, []
        return preemptions
