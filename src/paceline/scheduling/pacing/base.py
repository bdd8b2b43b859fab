"""The interface between the scheduler and a pacing policy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence

from paceline.request import Request


class Grant(ABC):
    """What one batch may take, on top of the token budget.

    Attributes:
        num_decodes: the first so many of the decodes offered may go in.
    """

    num_decodes: int

    @abstractmethod
    def chunk(self, request: Request, wanted: int) -> int:
        """How many of the `wanted` prefill tokens of this request may go in now; 0 when the grant is used up."""

    @abstractmethod
    def took(self, request: Request, num_tokens: int) -> None:
        """So many prefill tokens of the request went in, from `request.num_scheduled_tokens` on."""


class PacingPolicy(ABC):
    """Decides how much work the next batch may take; the scheduler decides whose."""

    @abstractmethod
    def grant(self, decodes: Sequence[Request], running: Collection[Request], pending: Sequence[Request]) -> Grant:
        """Grant work for the batch that is about to be made.

        Args:
            decodes: RUNNING requests with exactly their newest token to compute, in scheduling order.
            running: all RUNNING requests.
            pending: requests that wait for admission, in order.
        """
