"""Writes the record: called by the engine core at every turn of a batch's and a request's life.

It is always on, so it must be cheap: each call builds one small struct and encodes it, a few microseconds per batch
(`benchmarks/trace.py` measures it). Nothing is looked up, formatted or derived here; that is the readers' work.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from paceline.trace.events import (
    LETTER_OF,
    REASON_OF,
    VERSION,
    Arrived,
    Clocks,
    Done,
    Ended,
    Event,
    Facts,
    Held,
    LiveRequest,
    Made,
    Page,
    Preempted,
    Refused,
    Sent,
    held_cause,
)
from paceline.trace.log import Chunk, PagedLog

if TYPE_CHECKING:
    from paceline.messages import AddRequest, BatchResult
    from paceline.request import Request
    from paceline.scheduling import Batch, Reason
    from paceline.scheduling.scheduler import Preemption
    from paceline.trace.file import TraceFile

MAX_BYTES = 16 * 2**20
CHUNK_BYTES = 64 * 1024


class Recorder:
    """The record of one engine.

    Args:
        clock: seconds, monotonic: the core's.
        facts: what does not change.
        max_bytes: most memory for it.
        keep_tokens: also record token ids.
        file: gets every event, too.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        facts: Facts | None = None,
        max_bytes: int = MAX_BYTES,
        *,
        keep_tokens: bool = False,
        file: TraceFile | None = None,
    ) -> None:
        self._clock = clock
        self._facts = facts or Facts()
        self._keep_tokens = keep_tokens
        self._file = file
        self._log = PagedLog(max_bytes, self._page_start, on_page=self._end_page)
        self._append = self._log.append
        self._live: Mapping[str, Request] = {}
        self._names: dict[int, tuple[str, str]] = {}  # request -> label and owner, where there are any
        self._held = ""  # the cause recorded last, until something happens
        self._written = 0  # bytes of the log that are in the file

    def begin(self, live: Mapping[str, Request]) -> None:
        """Start; `live` is the core's own table of live requests, read when a page of the record begins."""
        self._live = live

    def read(self, begin: int) -> Chunk:
        """Some of what was recorded from byte `begin` on."""
        return self._log.read(begin, CHUNK_BYTES)

    # ------------------------------------------------------------ requests

    def arrived(self, message: AddRequest, request: Request) -> None:
        self._held = ""
        if message.label or message.owner:
            self._names[request.number] = (message.label, message.owner)
        self._append(
            Arrived(
                request.arrival_time,
                request.number,
                request.request_id,
                request.num_prompt_tokens,
                message.sampling.max_tokens,
                message.priority,
                message.label,
                message.owner,
                message.prompt_token_ids if self._keep_tokens else None,
            )
        )

    def refused(self, message: AddRequest, why: str) -> None:
        num_tokens = len(message.prompt_token_ids)
        self._append(Refused(self._clock(), message.request_id, num_tokens, why, message.label, message.owner))

    def preempted(self, preemptions: Iterable[Preemption]) -> None:
        now = self._clock()
        for request, batch, beneficiary in preemptions:
            self._append(Preempted(now, request, batch, beneficiary))

    def ended(self, request: Request, why: str = "") -> None:
        self._held = ""
        self._names.pop(request.number, None)
        self._append(Ended(self._clock(), request.number, request.status.name, request.num_output_tokens, why))

    # ------------------------------------------------------------ batches

    def made(self, at: float, batch: Batch, running: int, waiting: int, free_blocks: int, in_flight: int) -> None:
        """A batch was dispatched; `at` is the moment before."""
        self._held = ""
        slices, why_not, num_decodes = batch.plan.slices, batch.why_not, batch.num_decodes
        chunks = [len(s.token_ids) if s.samples else -len(s.token_ids) for s in slices[num_decodes:]]
        kinds = set(why_not.values())
        if len(kinds) == 1:  # nearly always: the others are in flight
            letters = LETTER_OF[kinds.pop()] * len(why_not)
        else:
            letters = "".join([LETTER_OF[reason] for reason in why_not.values()])
        self._append(
            Made(
                at,
                batch.plan.batch,
                [s.request for s in slices],
                [s.start for s in slices],
                [1] * num_decodes + chunks,  # most slices are decodes, and this is called for every batch
                batch.admitted,
                [request.number for request in why_not],
                letters,
                running,
                waiting,
                free_blocks,
                in_flight,
            )
        )

    def held(self, why_not: Mapping[Request, Reason]) -> None:
        """There was room for a batch in flight, and these reasons left nothing for one. Recorded when it is news."""
        cause = held_cause(set(why_not.values()))
        if cause != self._held:
            self._held = cause
            self._append(Held(self._clock(), cause))

    def done(self, at: float, result: BatchResult, delivered: list[int]) -> None:
        """A batch's result was taken up at `at` and has been applied."""
        self._held = ""
        tokens = [token.token_id for token in result.tokens] if self._keep_tokens else None
        self._append(Done(at, result.batch, result.times, delivered, tokens))

    def sent(self) -> None:
        self._append(Sent(self._clock()))

    def clocks(self, offsets: list[tuple[float, float]]) -> None:
        """The stages' clocks were measured anew: offset and uncertainty of each."""
        self._append(Clocks(self._clock(), offsets))

    # ------------------------------------------------------------ pages and the file

    def _page_start(self) -> Event:
        now = self._clock()
        live = []
        for request in self._live.values():
            label, owner = self._names.get(request.number, ("", ""))
            live.append(
                LiveRequest(
                    request.number,
                    request.request_id,
                    request.arrival_time,
                    request.status.name,
                    request.num_prompt_tokens,
                    request.num_output_tokens,
                    request.num_cached_tokens,
                    label,
                    owner,
                )
            )
        return Page(now, VERSION, time.time(), self._facts, REASON_OF, live)

    def _end_page(self) -> None:
        if self._file is not None:
            self.flush()
            self._file.end_page()

    def flush(self) -> None:
        """Hand what is new to the file, if there is one. It is with the system then, and outlives this process."""
        if self._file is None:
            return
        while self._written < self._log.total:
            chunk = self._log.read(self._written, 2**30)
            self._file.write(chunk.lines)
            self._written = chunk.end

    def close(self) -> None:
        self.flush()
        if self._file is not None:
            self._file.close()
