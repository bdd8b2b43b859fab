"""Gives KV blocks to requests and takes them back; knows prefixes, knows nothing of scheduling."""

from __future__ import annotations

from paceline.kv_cache.block_pool import BlockPool
from paceline.kv_cache.prefix_index import PrefixIndex
from paceline.request import Request


class KVCacheManager:
    """The block tables of all requests over one pool; the same tables hold on every stage.

    A block can be found by its prefix as soon as the slice that fills it is in a batch: every stage runs that batch
    before any batch made later, and within a batch each layer writes all K and V before any row attends.
    """

    def __init__(
        self, num_blocks: int, block_size: int, *, prefix_caching: bool, hash_key: bytes | None = None
    ) -> None:
        self.block_size = block_size
        self.prefix_caching = prefix_caching
        self.index = PrefixIndex(hash_key)
        self.pool = BlockPool(num_blocks, self.index.forget)
        self.num_queried_tokens = 0
        self.num_hit_tokens = 0

    @property
    def num_free(self) -> int:
        return self.pool.num_free

    def blocks_for(self, num_tokens: int) -> int:
        """How many blocks hold this many positions."""
        return -(-num_tokens // self.block_size)

    # ------------------------------------------------------------ admission

    def find_prefix(self, request: Request) -> list[int]:
        """The longest run of cached blocks that starts the request's tokens; leaves at least one to compute."""
        found: list[int] = []
        if not self.prefix_caching:
            return found
        for i in range((len(request.token_ids) - 1) // self.block_size):
            block = self.index.find(self._block_name(request, i))
            if block is None:
                break
            found.append(block)
        return found

    def num_new_blocks(self, prefix: list[int], num_tokens: int) -> int:
        """Free blocks that go for `num_tokens` positions with this prefix: new ones, and free ones taken as hits."""
        taken = sum(1 for block in prefix if self.pool.is_free(block)) if prefix else 0
        return self.blocks_for(num_tokens) - len(prefix) + taken

    def admit(self, request: Request, prefix: list[int]) -> None:
        """Begin a life of the request with these cached blocks as its first."""
        for block in prefix:
            self.pool.share(block)
        request.blocks = list(prefix)
        request.num_scheduled_tokens = request.num_computed_tokens = len(prefix) * self.block_size
        if request.num_cached_tokens < 0:  # the first life
            request.num_cached_tokens = request.num_scheduled_tokens
            request.num_trusted_blocks = len(prefix)
        request.num_trusted_blocks = min(request.num_trusted_blocks, len(prefix))
        if self.prefix_caching:
            self.num_queried_tokens += len(request.token_ids)
            self.num_hit_tokens += request.num_scheduled_tokens

    # ------------------------------------------------------------ growth

    def room_for(self, request: Request) -> int:
        """How many more positions the request's blocks and all free blocks could hold."""
        held = len(request.blocks) + self.pool.num_free
        return held * self.block_size - request.num_scheduled_tokens

    def extend(self, request: Request, num_tokens: int) -> None:
        """Have blocks for the next `num_tokens` positions; the caller has checked that they are there."""
        missing = self.blocks_for(request.num_scheduled_tokens + num_tokens) - len(request.blocks)
        if missing > 0:
            request.blocks += self.pool.take_new(missing)

    def publish(self, request: Request, start: int, end: int) -> None:
        """Positions start to end - 1 are in a batch and their tokens known: blocks that they fill can now be found."""
        if not self.prefix_caching:
            return
        for i in range(start // self.block_size, end // self.block_size):
            name = self._block_name(request, i)
            parent = request.block_hashes[i - 1] if i else self.index.root(request.cache_salt)
            self.index.add(name, parent, request.blocks[i])

    # ------------------------------------------------------------ the end

    def free(self, request: Request) -> None:
        """Take all blocks back at once: stages are first-in first-out, so later batches may reuse them safely."""
        self.pool.release(reversed(request.blocks))
        request.blocks = []

    def distrust(self, request: Request) -> set[int]:
        """Forget every block that the request filled, in any life, and all that was computed on top.

        Returns the blocks that were forgotten; whoever holds one of them read content that is not to be trusted.
        """
        filled = [self.index.find(name) for name in request.block_hashes[max(request.num_trusted_blocks, 0) :]]
        return self.index.forget_with_descendants(block for block in filled if block is not None)

    def _block_name(self, request: Request, i: int) -> bytes:
        names = request.block_hashes
        size = self.block_size
        while len(names) <= i:
            n = len(names)
            parent = names[-1] if names else self.index.root(request.cache_salt)
            names.append(self.index.name(parent, request.token_ids[n * size : (n + 1) * size]))
        return names[i]
