"""A request as the engine core sees it, and the statuses of its life."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline.messages import AddRequest


class RequestStatus(Enum):
    """Where a request stands. Being in flight is no status: it is derived from the counters."""

    WAITING = "WAITING"
    WAITING_FOR_GRAMMAR = "WAITING_FOR_GRAMMAR"
    RUNNING = "RUNNING"
    PREEMPTED = "PREEMPTED"
    FINISHED_STOPPED = "FINISHED_STOPPED"
    FINISHED_LENGTH = "FINISHED_LENGTH"
    FINISHED_ABORTED = "FINISHED_ABORTED"
    FINISHED_REFUSED = "FINISHED_REFUSED"
    FINISHED_TIMEOUT = "FINISHED_TIMEOUT"
    FINISHED_ERROR = "FINISHED_ERROR"

    __hash__ = object.__hash__  # members are singletons; Enum's own hashes the name on every look-up


# The one table of endings: status -> (finish reason that clients read, HTTP status when nothing was sent yet).
FINISH_TABLE: dict[RequestStatus, tuple[str, int]] = {
    RequestStatus.FINISHED_STOPPED: ("stop", 200),
    RequestStatus.FINISHED_LENGTH: ("length", 200),
    RequestStatus.FINISHED_ABORTED: ("abort", 499),
    RequestStatus.FINISHED_REFUSED: ("refused", 400),
    RequestStatus.FINISHED_TIMEOUT: ("timeout", 408),
    RequestStatus.FINISHED_ERROR: ("error", 500),
}

FINISHED = frozenset(FINISH_TABLE)

_ALLOWED: dict[RequestStatus, frozenset[RequestStatus]] = {
    RequestStatus.WAITING_FOR_GRAMMAR: FINISHED | {RequestStatus.WAITING},
    RequestStatus.WAITING: FINISHED | {RequestStatus.RUNNING},
    RequestStatus.RUNNING: FINISHED | {RequestStatus.PREEMPTED},
    RequestStatus.PREEMPTED: FINISHED | {RequestStatus.RUNNING},
} | {status: frozenset() for status in FINISHED}


class Request:
    """One request's tokens, counters and blocks. Only the scheduler and the core change it.

    Attributes:
        number: the core's own id, never reused; also the order of arrival.
        token_ids: prompt and output tokens that are known.
        num_scheduled_tokens: positions that are in some dispatched batch (or cached), in this life; one more than are
            known while a placeholder stands for the next token.
        num_computed_tokens: positions whose batch has come back (or cached), in this life.
        num_in_flight: slices dispatched whose result has not been processed, of any life.
        generation: changes on finish, abort and restart; late results of another one are dropped.
        life: changes on preemption; positions of an earlier life do not count as computed.
        blocks: the KV blocks held, in the order of positions.
        num_cached_tokens: prompt tokens found in the prefix cache at the first admission; -1 before it.
        num_trusted_blocks: this many of the first blocks were never filled by the request itself, in any life.
        num_told_blocks: how many of `blocks` the stages know of.
        queue_seconds: from arrival to the first batch; -1 before it.
    """

    __slots__ = (
        "arrival_time",
        "block_hashes",
        "blocks",
        "cache_salt",
        "deadline",
        "eos_token_ids",
        "generation",
        "life",
        "max_total_tokens",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_in_flight",
        "num_preemptions",
        "num_prompt_tokens",
        "num_scheduled_tokens",
        "num_told_blocks",
        "num_trusted_blocks",
        "number",
        "order",
        "priority",
        "queue_seconds",
        "recent_batch",
        "request_id",
        "sampling",
        "status",
        "stop_token_ids",
        "token_ids",
        "told",
    )

    def __init__(self, message: AddRequest, number: int, max_model_len: int, arrival_time: float = 0.0) -> None:
        self.request_id = message.request_id
        self.number = number
        self.token_ids = list(message.prompt_token_ids)
        self.num_prompt_tokens = len(self.token_ids)
        self.sampling = message.sampling
        self.eos_token_ids = message.eos_token_ids
        ends = message.sampling.stop_token_ids
        self.stop_token_ids = frozenset(ends if message.sampling.ignore_eos else ends + message.eos_token_ids)
        limit = message.sampling.max_tokens
        self.max_total_tokens = max_model_len if limit is None else min(max_model_len, self.num_prompt_tokens + limit)
        self.priority = message.priority
        self.order = (message.priority, number)
        self.cache_salt = message.cache_salt
        self.arrival_time = arrival_time
        self.deadline = None if message.timeout is None else arrival_time + message.timeout
        self.status = RequestStatus.WAITING
        self.num_scheduled_tokens = 0
        self.num_computed_tokens = 0
        self.num_in_flight = 0
        self.num_preemptions = 0
        self.generation = 0
        self.life = 0
        self.recent_batch = -1
        self.blocks: list[int] = []
        self.block_hashes: list[bytes] = []
        self.num_cached_tokens = -1
        self.num_trusted_blocks = -1
        self.queue_seconds = -1.0
        self.num_told_blocks = 0
        self.told = False

    def change_status(self, status: RequestStatus) -> None:
        """Move along an allowed arrow.

        Raises:
            ValueError: the arrow does not exist.
        """
        if status not in _ALLOWED[self.status]:
            raise ValueError(f"{self.request_id}: {self.status.name} may not become {status.name}")
        self.status = status

    @property
    def is_finished(self) -> bool:
        return self.status in FINISHED

    @property
    def num_known_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def may_run_ahead(self) -> bool:
        """Whether the position after the token that is on its way may be scheduled before that token is known.

        Not if that token is the last for its number. What the last stage needs to know of a token (seed and position,
        a count of tokens) does not stand against it; what only the core could work out from the token would.
        """
        return len(self.token_ids) + 1 < self.max_total_tokens

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    def __repr__(self) -> str:
        return (
            f"<{self.request_id} {self.status.name} known={len(self.token_ids)} "
            f"scheduled={self.num_scheduled_tokens} computed={self.num_computed_tokens}>"
        )
