"""One pass over the live requests that makes one micro-batch.

Decodes first, least recently scheduled first; then prefill: RUNNING requests with more than their newest token to
compute, PREEMPTED and WAITING ones together, by priority and arrival. Each request that is left out has its reason
recorded at the branch that leaves it out.

With loop-back a decode may go in before its token is known: a placeholder stands for it, and the last stage hands the
token to stage 0. If the token is sampled in batch i, such a decode is on time in batch i + stages: by then stage 0 has
done all batches before, and no other decode of that round is overtaken. Earlier it may go only when nothing else can,
and stage 0 is to wait for one such batch at most.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

from paceline.messages import PLACEHOLDER, NewRequest, Plan, Slice
from paceline.request import Request, RequestStatus
from paceline.scheduling.admission import BlockReserve, is_protected
from paceline.scheduling.batch import Batch, Reason

if TYPE_CHECKING:
    from paceline.scheduling.scheduler import Scheduler

# Shared by all slices that bring no blocks, or whose token is not known yet: nobody changes a slice.
NO_BLOCKS: list[int] = []
UNKNOWN_TOKEN = [PLACEHOLDER]

_by_order = attrgetter("order")
_by_recency = attrgetter("recent_batch", "number")


def _by_priority_and_recency(request: Request) -> tuple[int, int, int]:
    return (request.order[0], request.recent_batch, request.number)


class BatchMaker:
    """The state of one `schedule()` call; made for it and thrown away after it."""

    def __init__(self, scheduler: Scheduler, oldest_in_flight: int | None) -> None:
        self.scheduler = scheduler
        self.options = scheduler.options
        self.kv_cache = scheduler.kv_cache
        self.oldest_in_flight = oldest_in_flight
        self.nothing_in_flight = oldest_in_flight is None
        self.budget = scheduler.options.max_num_batched_tokens
        self.number = scheduler.num_batches
        self.slices: list[Slice] = []
        self.requests: list[Request] = []
        self.lives: list[int] = []
        self.new_requests: list[NewRequest] = []
        self.why_not: dict[Request, Reason] = {}
        self.admitted: list[int] = []
        self.preempted = False
        self.reserve: BlockReserve | None = None

    def make(self) -> Batch | None:
        scheduler = self.scheduler
        decodes: list[Request] = []
        chunks: list[Request] = []
        early: list[Request] = []
        runs_ahead = self.options.loop_back
        why_not = self.why_not
        for request in scheduler.running:
            needed = len(request.token_ids) - request.num_scheduled_tokens
            if needed == 1:
                decodes.append(request)
            elif needed > 1:
                chunks.append(request)
            elif needed < 0 or not runs_ahead or not request.may_run_ahead:
                why_not[request] = Reason.IN_FLIGHT
            elif self.number - request.recent_batch >= self.options.stages:
                decodes.append(request)
            else:
                why_not[request] = Reason.IN_FLIGHT
                early.append(request)
        self._sort(decodes)
        self.grant = scheduler.policy.grant(decodes, scheduler.running, scheduler.queue)
        self._decodes(decodes)
        num_decodes = len(self.slices)
        if chunks or scheduler.queue:
            self._prefill(chunks)
        if early and not self.slices:
            self._early(early)
            num_decodes = len(self.slices)
        if not self.slices:
            return None
        plan = Plan(scheduler.epoch, self.number, self.slices, self.new_requests, scheduler.take_released())
        scheduler.num_batches += 1
        return Batch(plan, self.requests, self.lives, why_not, self.admitted, num_decodes)

    # ------------------------------------------------------------ decodes

    def _sort(self, decodes: list[Request]) -> None:
        decodes.sort(key=_by_priority_and_recency if self.options.scheduling_policy == "priority" else _by_recency)

    def _early(self, early: list[Request]) -> None:
        """Nothing else can be scheduled: the decodes whose tokens come next, unless stage 0 waits for some already.

        Only those of one batch, so that requests which take turns in the pipeline go on taking turns.
        """
        scheduler = self.scheduler
        if self.oldest_in_flight is not None and scheduler.awaited_batch >= self.oldest_in_flight:
            return
        running = [request for request in early if request.status is RequestStatus.RUNNING]  # no victim of this call
        next_back = min((request.recent_batch for request in running), default=-1)
        chosen = [request for request in running if request.recent_batch == next_back]
        for request in chosen:
            del self.why_not[request]
        self._sort(chosen)
        self.grant = scheduler.policy.grant(chosen, scheduler.running, scheduler.queue)
        self._decodes(chosen)
        if self.slices:
            scheduler.awaited_batch = next_back

    def _decodes(self, decodes: list[Request]) -> None:
        granted = self.grant.num_decodes
        block_size = self.options.block_size
        for i, request in enumerate(decodes):
            if request.status is not RequestStatus.RUNNING:
                continue  # was made a victim for one before it
            if self.budget == 0:
                self.why_not[request] = Reason.TOKEN_BUDGET
            elif i >= granted and not (self.nothing_in_flight and not self.slices):
                self.why_not[request] = Reason.PACED
            elif request.num_scheduled_tokens % block_size not in (0, block_size - 1) and request.told:
                self._schedule_within_block(request)
            elif self._make_room(request):
                self._schedule(request, 1)

    def _schedule_within_block(self, request: Request) -> None:
        """What `_schedule` comes to for a decode that neither needs a block nor fills one: most of all slices."""
        start = request.num_scheduled_tokens
        self.slices.append(
            Slice(
                request.number,
                request.generation,
                start,
                [request.token_ids[start]] if start < len(request.token_ids) else UNKNOWN_TOKEN,
                True,
                request.num_told_blocks,
                NO_BLOCKS,
            )
        )
        self.requests.append(request)
        self.lives.append(request.life)
        request.num_scheduled_tokens = start + 1
        request.num_in_flight += 1
        request.recent_batch = self.number
        self.budget -= 1

    # ------------------------------------------------------------ prefill and admission

    def _prefill(self, chunks: list[Request]) -> None:
        """RUNNING chunks and the queue, merged by priority and arrival."""
        queue = self.scheduler.queue
        candidates = sorted(chunks + queue, key=_by_order) if chunks else list(queue)
        head_waits = False  # one that may not be overtaken could not be admitted
        for request in candidates:
            if request.status is RequestStatus.RUNNING:
                self._continue(request)
            else:
                reason = self._why_not_admitted(request, head_waits)
                if reason is None:
                    continue
                self.why_not[request] = reason
                head_waits = head_waits or reason not in (Reason.DRAINING_IN_FLIGHT, Reason.GRAMMAR_PENDING)

    def _continue(self, request: Request) -> None:
        """The next chunk of a RUNNING request."""
        wanted = len(request.token_ids) - request.num_scheduled_tokens
        if self.budget == 0:
            self.why_not[request] = Reason.TOKEN_BUDGET
            return
        granted = self._granted(request, min(wanted, self.budget), request.num_scheduled_tokens)
        if granted == 0:
            self.why_not[request] = Reason.PACED
        elif self._make_room(request):
            num_tokens = min(granted, self.kv_cache.room_for(request))
            self.grant.took(request, num_tokens)
            self._schedule(request, num_tokens)

    def _granted(self, request: Request, wanted: int, context: int) -> int:
        """What the policy lets through; the first work of an empty pipeline is at least a block's worth.

        A prompt that may not be cut goes in whole if the policy grants anything: else it might wait for ever.
        """
        granted = self.grant.chunk(request, wanted, context)
        if granted < wanted:
            first = self.nothing_in_flight and not self.slices
            if not self.options.enable_chunked_prefill and request.status is RequestStatus.WAITING:
                return wanted if first or granted else 0
            if first:
                return max(granted, min(wanted, self.options.block_size))
        return granted

    def _why_not_admitted(self, request: Request, head_waits: bool) -> Reason | None:
        """Admit a PREEMPTED or WAITING request and schedule its first chunk, or say why not."""
        if request.num_in_flight and request.status is RequestStatus.PREEMPTED:
            return Reason.DRAINING_IN_FLIGHT
        if request.status is RequestStatus.WAITING_FOR_GRAMMAR:
            return Reason.GRAMMAR_PENDING
        if self.preempted:
            return Reason.PREEMPTED_THIS_STEP
        if len(self.scheduler.running) >= self.options.max_num_seqs:
            return Reason.SEQ_LIMIT
        if self.budget == 0:
            return Reason.TOKEN_BUDGET
        prefix = self.kv_cache.find_prefix(request)
        remaining = len(request.token_ids) - len(prefix) * self.options.block_size
        # Recompute may always be chunked: with its outputs a request may be longer than the budget.
        whole = not self.options.enable_chunked_prefill and request.status is RequestStatus.WAITING
        if whole and remaining > self.budget:
            return Reason.TOKEN_BUDGET
        wanted = min(remaining, self.budget)
        granted = self._granted(request, wanted, len(prefix) * self.options.block_size)
        if granted == 0:
            return Reason.PACED
        if not self._reserve().admits(request, prefix):
            return Reason.NO_BLOCKS
        if head_waits:
            return Reason.BEHIND_HEAD
        self._admit(request, prefix)
        self.grant.took(request, granted)
        self._schedule(request, granted)
        return None

    def _admit(self, request: Request, prefix: list[int]) -> None:
        scheduler = self.scheduler
        scheduler.queue.remove(request)
        scheduler.running[request] = None
        request.change_status(RequestStatus.RUNNING)
        self.admitted.append(request.number)
        self.kv_cache.admit(request, prefix)
        self._reserve().add(request)

    def _reserve(self) -> BlockReserve:
        if self.reserve is None:
            self.reserve = BlockReserve(
                self.kv_cache, self.options.depth, self.scheduler.running, self.scheduler.policy.growth_reserve
            )
        return self.reserve

    # ------------------------------------------------------------ blocks

    def _make_room(self, request: Request) -> bool:
        """Preempt until the RUNNING request can have one more position; False if it is left out.

        Nobody is preempted for a token that is not known yet: it may end its request, and others may end meanwhile.
        """
        while self.kv_cache.room_for(request) <= 0:
            runs_ahead = request.num_scheduled_tokens == len(request.token_ids)
            victim = None if runs_ahead else self._victim()
            if victim is None:
                self.why_not[request] = Reason.NO_BLOCKS
                return False
            self.preempted = True
            self.scheduler.preempt(victim, beneficiary=request)
            self.why_not[victim] = self._why_victim(victim)
            if victim is request:
                return False
        return True

    def _victim(self) -> Request | None:
        """The least important RUNNING request without a slice in this batch, which may be the requester itself."""
        candidates = [r for r in self.scheduler.running if r.recent_batch != self.number and not is_protected(r)]
        return max(candidates, key=_by_order, default=None)

    def _why_victim(self, request: Request) -> Reason:
        return Reason.DRAINING_IN_FLIGHT if request.num_in_flight else Reason.PREEMPTED_THIS_STEP

    # ------------------------------------------------------------ the slice

    def _schedule(self, request: Request, num_tokens: int) -> None:
        """Put the request's next `num_tokens` positions into the batch; their blocks are there."""
        start = request.num_scheduled_tokens
        end = start + num_tokens
        tokens = request.token_ids
        block_size = self.options.block_size
        if end > len(request.blocks) * block_size:
            before = len(request.blocks)
            self.kv_cache.extend(request, num_tokens)
            if self.reserve is not None:
                self.reserve.took(len(request.blocks) - before)
        told = request.num_told_blocks
        blocks = request.blocks
        new_blocks = blocks[told:] if told < len(blocks) else NO_BLOCKS
        known = end <= len(tokens)
        inputs = tokens[start:end] if known else UNKNOWN_TOKEN
        slice_ = Slice(request.number, request.generation, start, inputs, end >= len(tokens), told, new_blocks)
        self.slices.append(slice_)
        self.requests.append(request)
        self.lives.append(request.life)
        if not request.told:
            self._tell(request)
        request.num_told_blocks = len(blocks)
        request.num_scheduled_tokens = end
        request.num_in_flight += 1
        request.recent_batch = self.number
        self.budget -= num_tokens
        if known and end // block_size > start // block_size:
            self.kv_cache.publish(request, start, end)

    def _tell(self, request: Request) -> None:
        request.told = True
        self.new_requests.append(
            NewRequest(
                request.number,
                request.generation,
                request.num_prompt_tokens,
                request.sampling,
                request.eos_token_ids,
            )
        )
