"""Fill the token budget: what most engines do."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from paceline.request import Request
from paceline.scheduling.pacing.base import Everything, Grant, PacingPolicy


class Greedy(PacingPolicy):
    """Grants everything; only the token budget limits a batch."""

    _everything = Everything()

    def grant(self, decodes: Sequence[Request], running: Collection[Request], pending: Sequence[Request]) -> Grant:
        return self._everything
