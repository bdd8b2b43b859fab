"""Whether a request may join the RUNNING ones: blocks for its known tokens, and a reserve for the others' growth."""

from __future__ import annotations

from collections.abc import Iterable

from paceline.kv_cache import KVCacheManager
from paceline.request import Request

PROTECTED_AFTER = 3  # preemptions


def is_protected(request: Request) -> bool:
    """Preempted so often that it is admitted only for good, and is no victim of others."""
    return request.num_preemptions >= PROTECTED_AFTER


class BlockReserve:
    """The blocks that RUNNING requests are going to need, added up once per batch and kept up to date.

    A request's part: the blocks its known but unscheduled tokens still need, and one more if the positions that it
    reaches within one round of the pipeline need a further one; a protected request's part is its full need.
    A pacing policy may have the reserve look `growth` positions further ahead.
    """

    def __init__(self, kv_cache: KVCacheManager, depth: int, running: Iterable[Request], growth: int = 0) -> None:
        self._kv_cache = kv_cache
        self._depth = depth
        self._growth = growth
        self._total = 0
        self._any = False
        for request in running:
            self._total += self._future_blocks(request) - len(request.blocks)
            self._any = True

    def admits(self, request: Request, prefix: list[int]) -> bool:
        """Whether the request fits beside what is reserved.

        Alone it needs no reserve for its own growth: there is nobody to take the blocks from.
        """
        cache = self._kv_cache
        if self._any or is_protected(request):
            end_blocks = self._future_blocks(request)
        else:
            end_blocks = cache.blocks_for(len(request.token_ids))
        shared_in_use = cache.blocks_for(len(request.token_ids)) - cache.num_new_blocks(prefix, len(request.token_ids))
        return end_blocks - shared_in_use + self._total <= cache.num_free

    def add(self, request: Request) -> None:
        """The request was admitted; call before it takes blocks beyond its prefix."""
        self._total += self._future_blocks(request) - len(request.blocks)
        self._any = True

    def took(self, num_blocks: int) -> None:
        """A RUNNING request took so many of the blocks that were reserved for its known tokens."""
        self._total -= num_blocks

    def _future_blocks(self, request: Request) -> int:
        """How many blocks the request will hold in all, as far as the reserve looks ahead."""
        known = len(request.token_ids)
        size = self._kv_cache.block_size
        if request.num_preemptions >= PROTECTED_AFTER:
            return -(-request.max_total_tokens // size)
        now = -(-known // size)
        if self._growth:
            return max(now, -(-min(known + self._depth + self._growth, request.max_total_tokens) // size))
        return now + 1 if -(-(known + self._depth) // size) > now else now
