"""Fill the token budget: what most engines do."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence

from paceline.request import Request
from paceline.scheduling.pacing.base import Grant, PacingPolicy


class _Everything(Grant):
    num_decodes = sys.maxsize

    def chunk(self, request: Request, wanted: int) -> int:
        return wanted

    def took(self, request: Request, num_tokens: int) -> None:
        pass


class Greedy(PacingPolicy):
    """Grants everything; only the token budget limits a batch."""

    _everything = _Everything()

    def grant(self, decodes: Sequence[Request], running: Collection[Request], pending: Sequence[Request]) -> Grant:
        return self._everything
