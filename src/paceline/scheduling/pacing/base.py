"""The interface between the scheduler and a pacing policy."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from paceline.kv_cache import KVCacheManager
from paceline.request import Request
from paceline.scheduling.cost_fit import CostFit


@dataclass(frozen=True)
class Surroundings:
    """What a policy may look at besides the requests.

    Attributes:
        num_stages: batches that can be computed at the same moment; work is spread over so many.
        target_tpot: seconds per output token to keep to while that is feasible, or None.
        fit: what batches are predicted to take; its model changes while the engine runs, between two batches.
    """

    num_stages: int
    max_num_batched_tokens: int
    max_num_seqs: int
    target_tpot: float | None
    kv_cache: KVCacheManager
    fit: CostFit


class Grant(ABC):
    """What one batch may take, on top of the token budget.

    Attributes:
        num_decodes: the first so many of the decodes offered may go in.
    """

    num_decodes: int

    @abstractmethod
    def chunk(self, request: Request, wanted: int, context: int) -> int:
        """How many of the `wanted` prefill tokens after `context` positions may go in; 0 when the grant is used up."""

    @abstractmethod
    def took(self, request: Request, num_tokens: int) -> None:
        """So many prefill tokens of the request went in, from `request.num_scheduled_tokens` on."""


class Everything(Grant):
    """No limit but the token budget."""

    num_decodes = sys.maxsize

    def chunk(self, request: Request, wanted: int, context: int) -> int:
        return wanted

    def took(self, request: Request, num_tokens: int) -> None:
        pass


class PacingPolicy(ABC):
    """Decides how much work the next batch may take; the scheduler decides whose."""

    def __init__(self, surroundings: Surroundings) -> None:
        self.surroundings = surroundings

    @abstractmethod
    def grant(self, decodes: Sequence[Request], running: Collection[Request], pending: Sequence[Request]) -> Grant:
        """Grant work for the batch that is about to be made.

        Args:
            decodes: RUNNING requests with exactly their newest token to compute, in scheduling order.
            running: all RUNNING requests.
            pending: requests that wait for admission, in order.
        """

    @property
    def growth_reserve(self) -> int:
        """Positions per RUNNING request for which an admission must leave blocks, beyond one round of the pipeline."""
        return 0

    def preempted(self) -> None:  # noqa: B027 - most policies need not know
        """A request lost its blocks because they had run out."""
