"""A micro-batch as the engine core keeps it while it is in flight, and the reasons for what is not in it."""

from __future__ import annotations

from enum import Enum

from paceline.messages import Plan, Slice
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


class Entry:
    """One slice of a batch with the request it belongs to, and the life in which it was scheduled."""

    __slots__ = ("life", "request", "slice")

    def __init__(self, request: Request, slice_: Slice) -> None:
        self.request = request
        self.slice = slice_
        self.life = request.life


class Batch:
    """A dispatched plan, the requests behind its slices, and the reasons of the live requests that have none."""

    __slots__ = ("entries", "plan", "why_not")

    def __init__(self, plan: Plan, entries: list[Entry], why_not: dict[Request, Reason]) -> None:
        self.plan = plan
        self.entries = entries
        self.why_not = why_not

    @property
    def number(self) -> int:
        return self.plan.batch
