"""Reads the record: feed it lines, and ask it about requests, batches, stages and idle time.

The lines come from a running engine, as many at a time as one likes, or from a trace file. What is kept is bounded: the
oldest batches go, and with them the requests that had ended before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from paceline.messages import StageTimes
from paceline.trace import events as ev
from paceline.trace.idle import CORE, STARTUP, UNATTRIBUTED, Idle, IdleAccount, Passage
from paceline.trace.lives import PREEMPTED, RUNNING, WAITING, BatchRecord, RequestRecord, kind_of

MAX_BYTES = 16 * 2**20  # of encoded batches and arrivals
MAX_ENDED = 20_000  # requests
MAX_REFUSED = 1_000
MAX_IDLE = 50_000  # intervals


class History:
    """What the record says so far.

    Args:
        max_bytes: most bytes of encoded batches and arrivals kept.

    Attributes:
        facts: what does not change; the default before the first line.
        now: the latest moment that is known of.
        unix_offset: wall clock minus the core's clock.
        batches: by number, oldest first.
        requests: by the core's number.
        idle: idle intervals of all stages, in the order in which they were settled.
        account: sums of busy and idle time; None before the first line.
        offsets: per stage, how far its clock is ahead and how uncertain that is, both in seconds.
        latest_batch: its number; -1 before the first.
        running, waiting, free_blocks: at the latest batch.
        last_finished: per stage, when it finished its latest batch.
        num_events: read so far.
        num_prefill_tokens, num_output_tokens, num_preemptions, num_done: since the first line; the last counts batches.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._start_over()
        self._take = {
            ev.Page: self._page,
            ev.Arrived: self._arrived,
            ev.Refused: self._refused,
            ev.Preempted: self._preempted,
            ev.Ended: self._end,
            ev.Made: self._made,
            ev.Held: self._held,
            ev.Done: self._done,
            ev.Sent: self._sent,
            ev.Clocks: self._clocks,
        }

    def _start_over(self) -> None:
        self.facts = ev.Facts()
        self.now = 0.0
        self.unix_offset = 0.0
        self.batches: dict[int, BatchRecord] = {}
        self.requests: dict[int, RequestRecord] = {}
        self.live: dict[int, RequestRecord] = {}
        self.refused: deque[ev.Refused] = deque(maxlen=MAX_REFUSED)
        self.idle: deque[Idle] = deque(maxlen=MAX_IDLE)
        self.num_idle = 0  # ever settled
        self.last_finished: list[float | None] = []
        self.latest_batch = -1
        self.account: IdleAccount | None = None
        self.offsets: list[tuple[float, float]] = []
        self.running = self.waiting = self.free_blocks = 0
        self.num_prefill_tokens = self.num_output_tokens = self.num_preemptions = self.num_done = 0
        self._bytes = 0
        self._ended: deque[RequestRecord] = deque()
        self._numbers: dict[str, int] = {}  # id -> the core's number
        self._in_flight: dict[int, ev.Made] = {}
        self._unsent: list[BatchRecord] = []
        self.num_events = 0

    # ------------------------------------------------------------ reading

    def feed(self, lines: bytes | Iterable[bytes]) -> None:
        """Take in whole lines, in order. A run that began anew starts over.

        Raises:
            msgspec.MsgspecError: a line is no event.
        """
        for line in lines.splitlines() if isinstance(lines, bytes) else lines:
            event = ev.decode(line)
            self.num_events += 1
            self.now = max(self.now, event.at)
            self._take[type(event)](event, line)  # type: ignore[operator]

    def settle(self, now: float) -> None:
        """Nothing more was recorded up to `now`: account for the time in which no batch exists."""
        self.now = max(self.now, now)
        if self.account is not None and not self._in_flight:
            self._keep_idle(self.account.nothing_in_flight(now))

    def _page(self, page: ev.Page, _: bytes) -> None:
        if self.account is not None and page.facts.started == self.facts.started:
            return
        self._start_over()
        self.facts = page.facts
        self.now = page.at
        self.unix_offset = page.unix_time - page.at
        self.offsets = [(0.0, 0.0)] * page.facts.stages
        self.last_finished = [None] * page.facts.stages
        if page.live:
            self.account = IdleAccount(page.facts.stages, page.at, UNATTRIBUTED)
        else:
            self.account = IdleAccount(page.facts.stages, page.facts.started, STARTUP)
            self.account.core_state(page.facts.ready, ev.NO_WORK)
        for known in page.live:
            request = RequestRecord(
                known.request, known.id, known.arrived, known.prompt_tokens, known.label, known.owner
            )
            request.num_output_tokens = known.output_tokens
            request.cached_tokens = known.cached_tokens
            request.known_from_start = False
            self._keep(request, page.at, known.status)

    def _keep(self, request: RequestRecord, at: float, status: str) -> None:
        request.born_after = self.latest_batch
        request.statuses.append((self.num_events, at, status))
        self.requests[request.number] = self.live[request.number] = request
        self._numbers[request.id] = request.number

    def _clocks(self, clocks: ev.Clocks, _: bytes) -> None:
        self.offsets = clocks.offsets

    # ------------------------------------------------------------ requests

    def _arrived(self, event: ev.Arrived, line: bytes) -> None:
        request = RequestRecord(event.request, event.id, event.at, event.prompt_tokens, event.label, event.owner)
        request.max_tokens = event.max_tokens
        request.prompt_token_ids = event.token_ids
        request.num_bytes = len(line)
        self._bytes += len(line)
        self._keep(request, event.at, WAITING)
        self._core_acts(event.at)

    def _refused(self, event: ev.Refused, _: bytes) -> None:
        self.refused.append(event)

    def _preempted(self, event: ev.Preempted, _: bytes) -> None:
        self.num_preemptions += 1
        if (request := self.live.get(event.request)) is not None:
            request.statuses.append((self.num_events, event.at, PREEMPTED))
            request.preemptions.append(event)

    def _end(self, event: ev.Ended, _: bytes) -> None:
        self._core_acts(event.at)
        request = self.live.pop(event.request, None)
        if request is None:
            return
        request.statuses.append((self.num_events, event.at, event.status))
        request.ended = event
        self._ended.append(request)
        if len(self._ended) > MAX_ENDED:
            self._forget(self._ended.popleft())

    def _forget(self, request: RequestRecord) -> None:
        del self.requests[request.number]
        self._bytes -= request.num_bytes
        if self._numbers.get(request.id) == request.number:
            del self._numbers[request.id]

    # ------------------------------------------------------------ batches

    def _made(self, made: ev.Made, line: bytes) -> None:
        batch = BatchRecord(
            made.batch, self.num_events, made.at, kind_of(made.lengths), sum(map(abs, made.lengths)), line
        )
        batch.num_decodes = made.lengths.count(1)
        self.batches[made.batch] = batch
        self._in_flight[made.batch] = made
        self.latest_batch = made.batch
        for number in made.admitted:
            if (request := self.live.get(number)) is not None:
                request.statuses.append((self.num_events, made.at, RUNNING))
                if request.cached_tokens < 0:
                    request.cached_tokens = made.starts[made.requests.index(number)]
        for number in made.requests:
            if (request := self.live.get(number)) is not None:
                request.latest_batch = made.batch
                if request.first_batch < 0:
                    request.first_batch = made.batch
        self.running, self.waiting, self.free_blocks = made.running, made.waiting, made.free_blocks
        full = made.in_flight >= self.facts.depth
        self._core_state(made.at, ev.TOKENS_IN_FLIGHT if full else CORE)
        self._bytes += len(line)
        while self._bytes > self._max_bytes and len(self.batches) > 1:
            self._forget_oldest_batch()

    def _forget_oldest_batch(self) -> None:
        oldest = self.batches.pop(next(iter(self.batches)))
        self._bytes -= len(oldest.line)
        while self._ended and self._ended[0].latest_batch <= oldest.number:
            self._forget(self._ended.popleft())

    def _held(self, event: ev.Held, _: bytes) -> None:
        self._core_state(event.at, event.cause)

    def _done(self, event: ev.Done, _: bytes) -> None:
        made = self._in_flight.pop(event.batch, None)
        passages = [self._on_core_clock(times) for times in event.times]
        if (batch := self.batches.get(event.batch)) is not None:
            batch.done, batch.passages = event.at, passages
            batch.delivered, batch.tokens = event.delivered, event.tokens
            self._unsent.append(batch)
        for number in event.delivered:
            if (request := self.requests.get(number)) is not None:
                request.num_output_tokens += 1
                request.last_token_batch = event.batch
                if request.first_token_batch < 0:
                    request.first_token_batch = event.batch
        self.num_done += 1
        self.num_output_tokens += len(event.delivered)
        if made is not None:
            self.num_prefill_tokens += sum(abs(length) for length in made.lengths if length != 1)
        if self.account is not None and passages:
            self._keep_idle(self.account.passed(None if made is None else made.at, passages))
            self.last_finished = [passage.finished for passage in passages]
            self.account.returned(passages[-1].finished, event.at)
        self._core_acts(event.at)

    def _on_core_clock(self, times: StageTimes) -> Passage:
        ahead = self.offsets[times.stage][0] if times.stage < len(self.offsets) else 0.0
        sent = times.sent or times.finished
        passage = Passage(times.stage, times.plan_received, times.input_received, times.started, times.finished, sent)
        return passage.since(ahead)

    def _sent(self, event: ev.Sent, _: bytes) -> None:
        for batch in self._unsent:
            batch.sent = event.at
        self._unsent.clear()

    # ------------------------------------------------------------ idle time

    def _core_acts(self, at: float) -> None:
        """Something came. If another batch may be in flight, the core is about to try to make one."""
        if len(self._in_flight) < self.facts.depth:
            self._core_state(at, CORE)

    def _core_state(self, at: float, cause: str) -> None:
        if self.account is not None:
            self.account.core_state(at, cause)

    def _keep_idle(self, intervals: Iterator[Idle]) -> None:
        for interval in intervals:
            self.num_idle += 1
            self.idle.append(interval)

    # ------------------------------------------------------------ asking

    def request(self, request_id: str) -> RequestRecord | None:
        """The request of this id; None if it is not on record (any more)."""
        number = self._numbers.get(request_id)
        return None if number is None else self.requests.get(number)

    def choices(self, request_id: str) -> list[RequestRecord]:
        """The requests behind a response: one, or one per prompt where several were asked for together."""
        if (request := self.request(request_id)) is not None:
            return [request]
        found = (self.request(f"{request_id}-{i}") for i in range(len(self._numbers)))
        several = []
        for request in found:
            if request is None:
                break
            several.append(request)
        return several

    def in_flight(self) -> list[int]:
        """Numbers of the batches that are in the pipeline, oldest first."""
        return list(self._in_flight)

    def made(self, number: int) -> ev.Made:
        """What is in a batch that is in the pipeline."""
        return self._in_flight[number]

    def name(self, number: int) -> str:
        """The id of a request, or what can be said of one that is not on record."""
        request = self.requests.get(number)
        return request.id if request is not None else f"request {number}"
