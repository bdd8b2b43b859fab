"""The engine step: take in what has arrived, fill the pipeline, wait, apply the oldest result.

The core alone decides. It owns every token of every live request, ships immutable plans to the stages, and drops
results that no longer matter; a stage never drops a row. The same step drives every pipeline: real stages, the
scripted scenario, and later the simulator.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from paceline.engine.deadlines import Deadlines
from paceline.errors import PipelineError
from paceline.messages import (
    AbortRequests,
    AddRequest,
    BatchResult,
    CoreStats,
    FinishRequest,
    ReadTrace,
    RequestOutput,
    SampledToken,
    StageTimes,
    ToCore,
    TraceChunk,
)
from paceline.pipeline.seam import Pipeline
from paceline.request import Request, RequestStatus
from paceline.scheduling import Batch, Scheduler, SchedulerOptions
from paceline.trace import Recorder


class Mailbox(Protocol):
    """Where requests and aborts arrive."""

    def drain(self) -> list[ToCore]:
        """What has arrived since the last call, oldest first; never waits."""


class EngineCore:
    """Every live request, the batches in flight, and the step that moves them.

    Args:
        options: limits and policies.
        pipeline: computes the plans.
        mailbox: brings requests and aborts.
        emit: takes new tokens and endings, at most once per result.
        on_batch: told of every batch right after it was dispatched.
        clock: seconds, monotonic.
        hash_key: key of the prefix cache's names; fresh random bytes by default.
        why_unusable: why the stages could not run a request, or None; front ends check too, but this is the last door.
        recorder: keeps the record of all this; by default one of the usual size.
        tell: takes what was asked of the record.
    """

    def __init__(
        self,
        options: SchedulerOptions,
        pipeline: Pipeline,
        mailbox: Mailbox,
        emit: Callable[[list[RequestOutput]], None],
        *,
        on_batch: Callable[[Batch], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
        hash_key: bytes | None = None,
        why_unusable: Callable[[AddRequest], str | None] = lambda message: None,
        recorder: Recorder | None = None,
        tell: Callable[[TraceChunk], None] = lambda chunk: None,
    ) -> None:
        self.scheduler = Scheduler(options, hash_key)
        self.pipeline = pipeline
        self.requests: dict[str, Request] = {}
        self.in_flight: deque[Batch] = deque()
        self.shutting_down = False
        self._max_model_len = options.max_model_len
        self._mailbox = mailbox
        self._emit = emit
        self._on_batch = on_batch
        self._why_unusable = why_unusable
        self._clock = clock
        self._tell = tell
        self.recorder = recorder or Recorder(clock)
        self.recorder.begin(self.requests)
        self._started = clock()
        self._num_requests = 0
        self._outputs: list[RequestOutput] = []
        self._deadlines = Deadlines()
        self._stage_busy: list[float] = []
        self._stage_cpu: list[float] = []

    @property
    def has_unfinished(self) -> bool:
        return bool(self.requests)

    # ------------------------------------------------------------ the step

    def step(self) -> None:
        """Fill the pipeline, then wait for the oldest batch or for mail, and apply what came.

        Raises:
            PipelineError: a stage failed; call :meth:`fail`.
        """
        self._take_in()
        while len(self.in_flight) < self.pipeline.depth and self._make_batch():
            self._take_in()
        self._flush()
        self.recorder.flush()
        if self.shutting_down:  # nobody would end the wait
            return
        self.pipeline.wait(self._until_deadline())
        self._take_in()
        self._flush()

    def _take_in(self) -> None:
        """New requests, aborts and deadlines, then results that are there: an abort beats a natural finish."""
        for message in self._mailbox.drain():
            self._receive(message)
        self._apply_deadlines()
        while (result := self.pipeline.collect()) is not None:
            self._apply(result)

    def _make_batch(self) -> bool:
        """Make and dispatch one batch if the scheduler can; this is its one call site."""
        self.scheduler.kv_cache.pool.residency.now = self._clock()
        while True:
            preemptions = self.scheduler.num_preemptions
            batch = self.scheduler.schedule(oldest_in_flight=self.in_flight[0].number if self.in_flight else None)
            self._record_preemptions()
            if batch is not None:
                break
            if self.in_flight or self.scheduler.num_preemptions == preemptions:
                self.recorder.held(self.scheduler.why_nothing)
                return False
        self.in_flight.append(batch)
        made = self._clock()
        self.pipeline.submit(batch.plan)
        self._record_batch(batch, made)
        if batch.plan.new_requests:
            for request in batch.requests:
                if request.queue_seconds < 0:
                    request.queue_seconds = made - request.arrival_time
        if self._on_batch is not None:
            self._on_batch(batch)
        return True

    def _record_preemptions(self) -> None:
        if preemptions := self.scheduler.take_preemptions():
            self.recorder.preempted(preemptions)

    def _record_batch(self, batch: Batch, made: float) -> None:
        """After dispatch, so that stages do not wait for it."""
        scheduler = self.scheduler
        free = scheduler.kv_cache.num_free
        self.recorder.made(made, batch, len(scheduler.running), len(scheduler.queue), free, len(self.in_flight))

    # ------------------------------------------------------------ mail

    def _receive(self, message: ToCore) -> None:
        if isinstance(message, AddRequest):
            self._add(message)
        elif isinstance(message, AbortRequests):
            for request_id in message.request_ids:
                if request_id in self.requests:
                    self._finish(self.requests[request_id], RequestStatus.FINISHED_ABORTED)
        elif isinstance(message, FinishRequest):
            self._stopped_by_text(message)
        elif isinstance(message, ReadTrace):
            chunk = self.recorder.read(message.begin)
            self._tell(TraceChunk(chunk.begin, chunk.end, chunk.total, self._clock(), chunk.lines))
        else:
            self.shutting_down = True

    def _add(self, message: AddRequest) -> None:
        request = Request(message, self._num_requests, self._max_model_len, self._clock())
        self._num_requests += 1
        refusal = self._why_unusable(message) or self.scheduler.why_refused(request)
        if message.request_id in self.requests:
            refusal = "a request with this id is already live"
        if refusal is not None:
            request.change_status(RequestStatus.FINISHED_REFUSED)
            self.recorder.refused(message, refusal)
            self._report(request, [], error=refusal)
            return
        self.requests[request.request_id] = request
        self.scheduler.add(request)
        self.recorder.arrived(message, request)
        self._deadlines.add(request)

    def _stopped_by_text(self, message: FinishRequest) -> None:
        """The detokenizer found a stop string: tokens past it never existed."""
        request = self.requests.get(message.request_id)
        if request is not None:
            del request.token_ids[request.num_prompt_tokens + message.num_output_tokens :]
            self._finish(request, RequestStatus.FINISHED_STOPPED)

    def _apply_deadlines(self) -> None:
        if self._deadlines:
            for request in self._deadlines.passed(self._clock()):
                self._finish(request, RequestStatus.FINISHED_TIMEOUT)

    def _until_deadline(self) -> float | None:
        return self._deadlines.seconds_left(self._clock()) if self._deadlines else None

    # ------------------------------------------------------------ results

    def _apply(self, result: BatchResult) -> None:
        """Account for the oldest batch and deliver its tokens.

        Raises:
            PipelineError: the result is not that of the oldest batch in flight.
        """
        if result.epoch != self.scheduler.epoch:
            return
        if not self.in_flight or self.in_flight[0].number != result.batch:
            raise PipelineError(f"batch {result.batch} came back out of turn")
        taken = self.scheduler.kv_cache.pool.residency.now = self._clock()
        batch = self.in_flight.popleft()
        delivered: list[int] = []
        self._add_times(result.times)
        self.scheduler.measured(batch.plan, result.times)
        tokens = iter(result.tokens)
        for request, slice_, life in zip(batch.requests, batch.plan.slices, batch.lives, strict=True):
            request.num_in_flight -= 1
            live = slice_.generation == request.generation
            if live and life == request.life:
                request.num_computed_tokens = slice_.start + len(slice_.token_ids)
            if slice_.samples:
                token = next(tokens)
                if live:
                    if not token.error:
                        delivered.append(request.number)
                    self._deliver(request, token)
                elif token.error and request.is_finished and request.status is not RequestStatus.FINISHED_ERROR:
                    self.scheduler.fail_row(request)  # it ended while this row was on its way
        self._record_preemptions()
        self.recorder.done(taken, result, delivered)

    def _deliver(self, request: Request, token: SampledToken) -> None:
        """Give a request its next token, and end it if that token does."""
        if token.error:
            self.scheduler.fail_row(request)
            self._end(request, error=token.error)
            return
        self.scheduler.take_token(request, token.token_id)
        logprobs = None if token.logprobs is None else [token.logprobs]
        if token.token_id in request.stop_token_ids:
            status, stop_token_id = RequestStatus.FINISHED_STOPPED, token.token_id
        elif len(request.token_ids) >= request.max_total_tokens:
            status, stop_token_id = RequestStatus.FINISHED_LENGTH, None
        else:
            status, stop_token_id = None, None
        self._outputs.append(
            RequestOutput(
                request.request_id,
                [token.token_id],
                logprobs,
                "" if status is None else status.name,
                stop_token_id,
                "",
                request.num_cached_tokens,
                request.queue_seconds,
            )
        )
        if status is not None:
            self.scheduler.finish(request, status)
            del self.requests[request.request_id]
            self.recorder.ended(request)

    def _finish(self, request: Request, status: RequestStatus, error: str = "") -> None:
        """End a request for a reason other than its own next token."""
        self.scheduler.finish(request, status)
        self._end(request, error)

    def _end(self, request: Request, error: str) -> None:
        del self.requests[request.request_id]
        self.recorder.ended(request, error)
        self._report(request, [], error)

    def _report(self, request: Request, token_ids: list[int], error: str = "") -> None:
        self._outputs.append(
            RequestOutput(
                request.request_id,
                token_ids,
                status=request.status.name,
                error=error,
                num_cached_tokens=request.num_cached_tokens,
                queue_seconds=request.queue_seconds,
            )
        )

    def _flush(self) -> None:
        """Hand over what is new; after dispatch, so that stages do not wait for it.

        The trace file gets its part first: it holds whatever a client can have seen, however this process ends.
        """
        if self._outputs:
            self.recorder.flush()
            outputs, self._outputs = self._outputs, []
            self._emit(outputs)
            self.recorder.sent()

    # ------------------------------------------------------------ failure and figures

    def fail(self, error: str) -> None:
        """The pipeline is gone: every live request ends with FINISHED_ERROR."""
        for request in list(self.requests.values()):
            self._finish(request, RequestStatus.FINISHED_ERROR, error)
        self.in_flight.clear()
        self._flush()
        self.recorder.flush()

    def _add_times(self, times: list[StageTimes]) -> None:
        if len(self._stage_busy) < len(times):
            self._stage_busy = [0.0] * len(times)
            self._stage_cpu = [0.0] * len(times)
        for stage in times:
            self._stage_busy[stage.stage] += stage.finished - stage.started
            self._stage_cpu[stage.stage] += stage.cpu_seconds

    def stats(self) -> CoreStats:
        """Counters since the start, and where things stand now."""
        scheduler = self.scheduler
        pool = scheduler.kv_cache.pool
        return CoreStats(
            num_running=len(scheduler.running),
            num_waiting=len(scheduler.queue),
            num_blocks_used=pool.num_blocks - pool.num_free,
            num_blocks=pool.num_blocks,
            num_batches=scheduler.num_batches,
            num_batches_in_flight=len(self.in_flight),
            num_preemptions=scheduler.num_preemptions,
            prefix_cache_queries=scheduler.kv_cache.num_queried_tokens,
            prefix_cache_hits=scheduler.kv_cache.num_hit_tokens,
            stage_busy_seconds=list(self._stage_busy),
            stage_cpu_seconds=list(self._stage_cpu),
            wall_seconds=self._clock() - self._started,
            num_deferred=sum(request.status is RequestStatus.WAITING_FOR_GRAMMAR for request in scheduler.queue),
            block_lifetime=pool.residency.lifetime.so_far(),
            block_idle=pool.residency.idle.so_far(),
            block_reuse_gap=pool.residency.reuse_gap.so_far(),
        )
