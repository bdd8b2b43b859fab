"""A micro-batch as the engine core keeps it while it is in flight, and the reasons for what is not in it."""

from __future__ import annotations

from enum import Enum

from paceline.messages import Plan
from paceline.request import Request


class Reason(Enum):
    """Why a live request is not in a batch; where several apply, the first one is recorded."""

    DRAINING_IN_FLIGHT = "DRAINING_IN_FLIGHT"  # preempted, its last batch not yet back
    GRAMMAR_PENDING = "GRAMMAR_PENDING"
    IN_FLIGHT = "IN_FLIGHT"  # its next token is on its way
    PREEMPTED_THIS_STEP = "PREEMPTED_THIS_STEP"  # this call preempted it, or admits nobody because it preempted
    SEQ_LIMIT = "SEQ_LIMIT"
    TOKEN_BUDGET = "TOKEN_BUDGET"
    PACED = "PACED"  # the policy's grant is used up
    NO_BLOCKS = "NO_BLOCKS"  # blocks or reserve
    BEHIND_HEAD = "BEHIND_HEAD"  # could be admitted, but is kept behind one that may not be overtaken

    __hash__ = object.__hash__


class Batch:
    """A dispatched plan, and the reasons of the live requests that have no slice in it.

    Attributes:
        plan: what the stages execute.
        requests: the request behind each of `plan.slices`.
        lives: the life of each of those requests when the slice was made.
        why_not: why each live request that has no slice has none.
        admitted: numbers of the requests that became RUNNING by it.
        num_decodes: the first so many slices are decodes.
    """

    __slots__ = ("admitted", "lives", "num_decodes", "plan", "requests", "why_not")

    def __init__(
        self,
        plan: Plan,
        requests: list[Request],
        lives: list[int],
        why_not: dict[Request, Reason],
        admitted: list[int],
        num_decodes: int,
    ) -> None:
        self.plan = plan
        self.requests = requests
        self.lives = lives
        self.why_not = why_not
        self.admitted = admitted
        self.num_decodes = num_decodes

    @property
    def number(self) -> int:
        return self.plan.batch
