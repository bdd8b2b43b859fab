"""Token throttling as published with gLLM (arXiv 2504.14775): decodes spread evenly over the pipeline by number, prefill
by how many tokens wait and how much of the KV cache is free.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from paceline.request import Request
from paceline.scheduling.pacing.base import Grant, PacingPolicy, Surroundings

MIN_PREFILL_TOKENS = 32
PREFILL_BATCHES = 8  # waiting prompt tokens are spread over so many batches
KV_THRESHOLD = 0.05  # of the blocks; prefill leaves so many free


class _Tokens(Grant):
    def __init__(self, num_decodes: int, num_prefill_tokens: int) -> None:
        self.num_decodes = num_decodes
        self._left = num_prefill_tokens

    def chunk(self, request: Request, wanted: int, context: int) -> int:
        return max(0, min(wanted, self._left))  # the first work of an empty pipeline may exceed the grant

    def took(self, request: Request, num_tokens: int) -> None:
        self._left -= num_tokens


class Throttle(PacingPolicy):
    """Balances batches by their number of tokens."""

    def __init__(self, surroundings: Surroundings) -> None:
        super().__init__(surroundings)
        self._turn = 0  # rotates, so that what does not divide evenly is spread too

    def grant(self, decodes: Sequence[Request], running: Collection[Request], pending: Sequence[Request]) -> Grant:
        stages = self.surroundings.num_stages
        num_decodes = num_prompts = waiting = 0
        for request in running:
            needed = len(request.token_ids) - request.num_scheduled_tokens
            if needed > 1:
                waiting += needed
                num_prompts += 1
            else:
                num_decodes += 1
        waiting += sum(len(request.token_ids) for request in pending)
        num_prompts += len(pending)
        share = max(1, (num_decodes + self._turn) // stages) if num_decodes >= stages else 1
        self._turn = (self._turn + 1) % stages
        return _Tokens(share, self._prefill_tokens(waiting, alone=num_prompts <= 1))

    def _prefill_tokens(self, waiting: int, alone: bool) -> int:
        surroundings = self.surroundings
        pool = surroundings.kv_cache.pool
        free = pool.num_free / pool.num_blocks
        most = surroundings.max_num_batched_tokens
        by_blocks = int(surroundings.kv_cache.block_size * max(pool.num_free - KV_THRESHOLD * pool.num_blocks, 0.0))
        by_share = round(most * max((free - KV_THRESHOLD) / (1.0 - KV_THRESHOLD), 0.0))
        # Nobody is served sooner by holding back the only prompt: a later version of the rule lets it through.
        by_waiting = most if alone else max(waiting // PREFILL_BATCHES, MIN_PREFILL_TOKENS)
        return min(by_blocks, by_share, by_waiting)
