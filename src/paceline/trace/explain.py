"""Answers about one batch or one request, as data; :mod:`paceline.trace.story` tells them in words."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from paceline.request import RequestStatus
from paceline.trace.events import Made, Refused
from paceline.trace.history import History
from paceline.trace.idle import Passage
from paceline.trace.lives import BatchRecord, RequestRecord, slices_of, why_not
from paceline.trace.parts import PARTS, spans_of, split

REFUSED = RequestStatus.FINISHED_REFUSED.name
MAX_BATCHES = 2000  # told of one request


class BatchStory(msgspec.Struct, frozen=True):
    """One batch: `batch`, `slices`, `status` and `why_not` as in the scenarios of `paceline schedule`."""

    batch: int
    slices: dict[str, tuple[int, int]]
    status: dict[str, str]
    why_not: dict[str, str]
    in_flight_in: dict[str, int]  # of those left out because their next token is on its way: the batch that has it
    made: float
    done: float | None
    kind: str
    running: int
    waiting: int
    free_blocks: int
    batches_in_flight: int
    stages: list[Passage]
    others: int = 0  # requests of other API keys that this answer leaves out
    text: str = ""


class Step(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one batch meant for a request; times in seconds since the request's arrival."""

    batch: int
    made: float
    status: str
    tokens: tuple[int, int] | None = None  # its positions [first, end) in the batch; None: it was not in it
    why_not: str | None = None
    in_flight_in: int | None = None
    done: float | None = None
    stages: list[Passage] = []


class Change(msgspec.Struct, frozen=True):
    at: float
    status: str


class Timeline(msgspec.Struct, frozen=True):
    """The life of a request; times in seconds since its arrival.

    `time_to_first_token` and `total` are the sums of their parts; None while they are not over.
    """

    id: str
    label: str
    status: str
    arrived_unix: float
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    max_tokens: int | None
    complete: bool  # false: the beginning is no longer on record
    statuses: list[Change]
    preemptions: list[dict[str, object]]
    batches: list[Step]
    batches_omitted: int
    time_to_first_token: float | None
    time_to_first_token_parts: dict[str, float] | None
    total: float | None
    total_parts: dict[str, float] | None
    error: str
    prompt_text: str | None = None
    output_text: str | None = None
    text: str = ""


# ---------------------------------------------------------------- batches


def explain_batch(history: History, number: int) -> BatchStory | None:
    """One batch; None if it is not on record."""
    batch = history.batches.get(number)
    if batch is None:
        return None
    made = batch.made()
    reasons = why_not(made)
    status = {}
    for request in (*made.requests, *made.left_out):
        record = history.requests.get(request)
        status[history.name(request)] = "RUNNING" if record is None else record.status_at(batch.index)
    waits = {request: carrier(history, request, number) for request, reason in reasons.items() if reason == "IN_FLIGHT"}
    return BatchStory(
        batch=number,
        slices={history.name(request): positions for request, positions in slices_of(made).items()},
        status=status,
        why_not={history.name(request): reason for request, reason in reasons.items()},
        in_flight_in={history.name(request): found for request, found in waits.items() if found is not None},
        made=batch.at,
        done=batch.done,
        kind=batch.kind,
        running=made.running,
        waiting=made.waiting,
        free_blocks=made.free_blocks,
        batches_in_flight=made.in_flight,
        stages=list(batch.passages),
    )


def only_of(story: BatchStory, mine: set[str]) -> BatchStory:
    """The same batch as the owner of some of its requests may see it."""
    visible: dict[str, dict[str, object]] = {
        name: {request: value for request, value in getattr(story, name).items() if request in mine}
        for name in ("slices", "status", "why_not", "in_flight_in")
    }
    others = len(story.status) - len(visible["status"])
    return msgspec.structs.replace(story, others=others, **visible)


def carrier(history: History, request: int, before: int) -> int | None:
    """The batch that had a request's latest tokens in flight when batch `before` was made."""
    made_at = history.batches[before].at
    for number in range(before - 1, before - 1 - history.facts.depth, -1):
        batch = history.batches.get(number)
        if batch is None or (batch.done is not None and batch.done <= made_at):
            return None
        if request in batch.made().requests:
            return number
    return None


def token_ids_of(history: History, request: RequestRecord) -> list[int]:
    """The output tokens that are on record, with --trace-text."""
    ids = []
    for batch, made in _during(history, request):
        if request.number in batch.delivered and batch.tokens is not None:
            sampled = [number for number, length in zip(made.requests, made.lengths, strict=True) if length > 0]
            ids.append(batch.tokens[sampled.index(request.number)])
    return ids


# ---------------------------------------------------------------- requests


def explain_request(history: History, request: RequestRecord) -> Timeline:
    """The life of a request."""
    zero = request.arrived
    during = list(_during(history, request))
    spans = list(spans_of(during, request))
    ttft, ttft_parts = split(spans, zero, _first_token(history, request))
    total, total_parts = split(spans, zero, _end(history, request))
    steps = [_step(history, request, batch, made) for batch, made in _shortened(during)]
    return Timeline(
        id=request.id,
        label=request.label,
        status=request.status,
        arrived_unix=zero + history.unix_offset,
        prompt_tokens=request.prompt_tokens,
        cached_tokens=max(0, request.cached_tokens),
        output_tokens=request.num_output_tokens if request.ended is None else request.ended.output_tokens,
        max_tokens=request.max_tokens,
        complete=request.known_from_start and (request.first_batch < 0 or request.first_batch in history.batches),
        statuses=[Change(at - zero, status) for _, at, status in request.statuses],
        preemptions=[
            {"at": event.at - zero, "batch": event.batch, "for": _beneficiary(history, event.beneficiary)}
            for event in request.preemptions
        ],
        batches=steps,
        batches_omitted=len(during) - len(steps),
        time_to_first_token=ttft,
        time_to_first_token_parts=ttft_parts,
        total=total,
        total_parts=total_parts,
        error="" if request.ended is None else request.ended.why,
    )


def explain_refused(refused: Refused, unix_offset: float) -> Timeline:
    """The short life of a request that was not taken in."""
    return Timeline(
        id=refused.id,
        label=refused.label,
        status=REFUSED,
        arrived_unix=refused.at + unix_offset,
        prompt_tokens=refused.prompt_tokens,
        cached_tokens=0,
        output_tokens=0,
        max_tokens=None,
        complete=True,
        statuses=[Change(0.0, REFUSED)],
        preemptions=[],
        batches=[],
        batches_omitted=0,
        time_to_first_token=None,
        time_to_first_token_parts=None,
        total=0.0,
        total_parts=dict.fromkeys(PARTS, 0.0),
        error=refused.why,
    )


def _beneficiary(history: History, number: int) -> str | None:
    return None if number < 0 else history.name(number)


def _during(history: History, request: RequestRecord) -> Iterator[tuple[BatchRecord, Made]]:
    """Every batch that was made while the request was live."""
    until = history.now if request.ended is None else request.ended.at
    oldest = next(iter(history.batches), 0)
    for number in range(max(oldest, request.born_after + 1), history.latest_batch + 1):
        batch = history.batches[number]
        if batch.at > until:
            return
        made = batch.made()
        if request.number in made.requests or request.number in made.left_out:
            yield batch, made


def _shortened(during: list[tuple[BatchRecord, Made]]) -> list[tuple[BatchRecord, Made]]:
    half = MAX_BATCHES // 2
    return during if len(during) <= MAX_BATCHES else during[:half] + during[-half:]


def _step(history: History, request: RequestRecord, batch: BatchRecord, made: Made) -> Step:
    zero = request.arrived
    status = request.status_at(batch.index)
    if request.number in made.requests:
        done = None if batch.done is None else batch.done - zero
        tokens = slices_of(made)[request.number]
        stages = [passage.since(zero) for passage in batch.passages]
        return Step(batch.number, batch.at - zero, status, tokens, done=done, stages=stages)
    reason = why_not(made)[request.number]
    found = carrier(history, request.number, batch.number) if reason == "IN_FLIGHT" else None
    return Step(batch.number, batch.at - zero, status, why_not=reason, in_flight_in=found)


def _first_token(history: History, request: RequestRecord) -> float | None:
    batch = history.batches.get(request.first_token_batch)
    return None if batch is None else batch.sent


def _end(history: History, request: RequestRecord) -> float | None:
    """When the request's end was told: with its last token, or by itself."""
    if request.ended is None:
        return None
    batch = history.batches.get(request.last_token_batch)
    if batch is not None and batch.sent is not None and batch.done is not None and request.ended.at >= batch.done:
        return max(batch.sent, request.ended.at)
    return request.ended.at
