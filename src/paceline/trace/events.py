"""The events of the record: typed, and encoded as one JSON array per line.

Times are seconds on the engine core's monotonic clock, except those in :class:`Done`, which are on each stage's own
(:class:`Clocks` maps them). Requests are named by the core's number; `Arrived` and `Live` tell whose number it is.
What a batch holds is kept as parallel lists: building them costs the core a fraction of a list of objects.
"""

from __future__ import annotations

import msgspec

from paceline.messages import StageTimes
from paceline.scheduling import Reason

VERSION = 1

LETTER_OF = {
    Reason.DRAINING_IN_FLIGHT: "D",
    Reason.GRAMMAR_PENDING: "G",
    Reason.IN_FLIGHT: "F",
    Reason.PREEMPTED_THIS_STEP: "P",
    Reason.SEQ_LIMIT: "S",
    Reason.TOKEN_BUDGET: "T",
    Reason.PACED: "H",
    Reason.NO_BLOCKS: "N",
    Reason.BEHIND_HEAD: "B",
}
REASON_OF = {letter: reason.name for reason, letter in LETTER_OF.items()}


class Facts(msgspec.Struct, frozen=True):
    """What does not change while an engine runs; `started` and `ready` in seconds of the core's clock."""

    model: str = ""
    stages: int = 1
    depth: int = 1
    layers: list[int] = []
    num_blocks: int = 0
    block_size: int = 0
    pacing: str = ""
    max_num_batched_tokens: int = 0  # 0: not on record
    max_num_seqs: int = 0
    started: float = 0.0  # the core began to load the model
    ready: float = 0.0  # the pipeline could take requests


class LiveRequest(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A request that had not ended when a page of the record began."""

    request: int
    id: str
    arrived: float
    status: str
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int  # -1: not yet admitted
    label: str
    owner: str


class Event(msgspec.Struct, frozen=True, array_like=True, gc=False):
    at: float


class Page(Event, frozen=True, tag="page"):
    """The first line of every page: all that is needed to read on from here."""

    version: int
    unix_time: float  # wall clock at `at`
    facts: Facts
    reasons: dict[str, str]  # letter in `Made.reasons` -> name
    live: list[LiveRequest]


class Arrived(Event, frozen=True, tag="arrived"):
    """A request came to the core and was taken in: it is WAITING."""

    request: int
    id: str
    prompt_tokens: int
    max_tokens: int | None
    priority: int
    label: str  # the client's own name for it
    owner: str  # stands for the API key it came with
    token_ids: list[int] | None = None  # with --trace-text


class Refused(Event, frozen=True, tag="refused"):
    """A request came and was not taken in."""

    id: str
    prompt_tokens: int
    why: str
    label: str
    owner: str


class Preempted(Event, frozen=True, tag="preempted"):
    """A RUNNING request lost its blocks: to `beneficiary`, or (-1) because what they held could not be trusted."""

    request: int
    batch: int  # the one being made, or the next one
    beneficiary: int


class Ended(Event, frozen=True, tag="ended"):
    request: int
    status: str
    output_tokens: int
    why: str


class Made(Event, frozen=True, tag="made"):
    """A batch, right before it was handed to the stages.

    Attributes:
        requests, starts, lengths: one entry per slice; the length is negative where no token is sampled.
        admitted: those that became RUNNING by being put into this batch.
        left_out, reasons: every other live request, and one letter each for why.
        running, waiting, free_blocks, in_flight: right after making it, itself included.
    """

    batch: int
    requests: list[int]
    starts: list[int]
    lengths: list[int]
    admitted: list[int]
    left_out: list[int]
    reasons: str
    running: int
    waiting: int
    free_blocks: int
    in_flight: int


class Held(Event, frozen=True, tag="held"):
    """A batch could have been dispatched, and none could be made; `cause` is one of :data:`HELD_CAUSES`."""

    cause: str


class Done(Event, frozen=True, tag="done"):
    """The core has applied a batch's result. `times` on the stages' clocks."""

    batch: int
    times: list[StageTimes]
    delivered: list[int]  # requests that got a token
    tokens: list[int] | None = None  # with --trace-text: one per slice that samples


class Sent(Event, frozen=True, tag="sent"):
    """Everything delivered so far has been handed to the front end."""


class Clocks(Event, frozen=True, tag="clocks"):
    """Seconds by which each stage's clock is ahead of the core's, and how far that may be off."""

    offsets: list[tuple[float, float]]


AnyEvent = Page | Arrived | Refused | Preempted | Ended | Made | Held | Done | Sent | Clocks

_decoder = msgspec.json.Decoder(AnyEvent)


def decode(line: bytes) -> AnyEvent:
    """The event of one line.

    Raises:
        msgspec.MsgspecError: it is none.
    """
    event: AnyEvent = _decoder.decode(line)
    return event


# ---------------------------------------------------------------- why no batch could be made

NO_WORK, PACE, BLOCKS, TOKENS_IN_FLIGHT = "no_work", "pace", "blocks", "tokens_in_flight"
HELD_CAUSES = (PACE, BLOCKS, TOKENS_IN_FLIGHT, NO_WORK)

_CAUSE_OF = {
    Reason.PACED: PACE,
    Reason.NO_BLOCKS: BLOCKS,
    Reason.PREEMPTED_THIS_STEP: BLOCKS,
    Reason.IN_FLIGHT: TOKENS_IN_FLIGHT,
    Reason.DRAINING_IN_FLIGHT: TOKENS_IN_FLIGHT,
    Reason.SEQ_LIMIT: TOKENS_IN_FLIGHT,  # the seats come back with the tokens
    Reason.TOKEN_BUDGET: TOKENS_IN_FLIGHT,
    Reason.BEHIND_HEAD: BLOCKS,
    Reason.GRAMMAR_PENDING: NO_WORK,
}


def held_cause(reasons: set[Reason]) -> str:
    """The first of :data:`HELD_CAUSES` that one of the reasons means: what would have had to be different."""
    causes = {_CAUSE_OF[reason] for reason in reasons}
    return next((cause for cause in HELD_CAUSES if cause in causes), NO_WORK)
