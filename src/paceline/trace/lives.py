"""What a reader of the record knows of one request and of one batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from paceline.request import RequestStatus
from paceline.trace.events import REASON_OF, Ended, Made, Preempted, decode
from paceline.trace.idle import Passage

RUNNING = RequestStatus.RUNNING.name
WAITING = RequestStatus.WAITING.name
PREEMPTED = RequestStatus.PREEMPTED.name


@dataclass(slots=True)
class RequestRecord:
    """A request's life so far; times in seconds of the core's clock.

    Attributes:
        number: the core's own name for it; `id` is the one that responses carry.
        label: the client's own name for it.
        owner: stands for the API key that it came with.
        statuses: (index of the event, time, status) of each change, oldest first.
        num_output_tokens: delivered so far.
        cached_tokens: found in the prefix cache at the first admission; -1 before it.
        first_batch, latest_batch: with a slice of it; -1: none.
        born_after: the latest batch that was made before it was known.
        known_from_start: its arrival is on record, not only what a later page tells of it.
    """

    number: int
    id: str
    arrived: float
    prompt_tokens: int
    label: str = ""
    owner: str = ""
    max_tokens: int | None = None
    statuses: list[tuple[int, float, str]] = field(default_factory=list)
    preemptions: list[Preempted] = field(default_factory=list)
    num_output_tokens: int = 0
    cached_tokens: int = -1
    first_token_batch: int = -1
    last_token_batch: int = -1
    first_batch: int = -1
    born_after: int = -1
    latest_batch: int = -1
    ended: Ended | None = None
    known_from_start: bool = True
    prompt_token_ids: list[int] | None = None
    num_bytes: int = 0  # of its arrival in the record

    @property
    def status(self) -> str:
        return self.statuses[-1][2]

    def status_at(self, index: int) -> str:
        """Its status when the event of that index was recorded."""
        return next((status for at, _, status in reversed(self.statuses) if at <= index), self.statuses[0][2])


@dataclass(slots=True)
class BatchRecord:
    """A batch's life so far. What was in it is kept encoded and read by :meth:`made` when it is asked for.

    Attributes:
        index: of its event among all events.
        done: when the core applied its result; None while it is in flight.
        sent: when its tokens had been handed to the front end.
        passages: one per stage, once it is done.
        kind: "prefill", "decode" or "mixed".
    """

    number: int
    index: int
    at: float
    kind: str
    num_tokens: int
    line: bytes
    num_decodes: int = 0
    done: float | None = None
    sent: float | None = None
    passages: Sequence[Passage] = ()
    delivered: Sequence[int] = ()
    tokens: list[int] | None = None

    def made(self) -> Made:
        """What was in it and what was not."""
        event = decode(self.line)
        assert isinstance(event, Made)
        return event


def why_not(made: Made) -> dict[int, str]:
    """Why each live request that had no slice in the batch had none."""
    return {number: REASON_OF[letter] for number, letter in zip(made.left_out, made.reasons, strict=True)}


def slices_of(made: Made) -> dict[int, tuple[int, int]]:
    """Positions [first, end) of each request in the batch."""
    return {
        number: (start, start + abs(length))
        for number, start, length in zip(made.requests, made.starts, made.lengths, strict=True)
    }


def kind_of(lengths: Sequence[int]) -> str:
    """A decode is a slice of one token after which one is sampled."""
    decodes = lengths.count(1)
    return "decode" if decodes == len(lengths) else "mixed" if decodes else "prefill"
