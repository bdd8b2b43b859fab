"""Which KV blocks are free, and how often each of the others is referenced."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable

from paceline.kv_cache.residency import Residency


class BlockPool:
    """Blocks 0 to num_blocks - 1, each free or referenced by one or more requests.

    Free blocks are handed out least recently freed first. A free block may still hold content
    that the prefix index knows; `on_reuse` is called when a block is handed out for new content, and says whether that is so.
    """

    def __init__(self, num_blocks: int, on_reuse: Callable[[int], bool]) -> None:
        self.num_blocks = num_blocks
        self.references = [0] * num_blocks
        self.residency = Residency(num_blocks)
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        self._on_reuse = on_reuse

    @property
    def num_free(self) -> int:
        return len(self._free)

    def is_free(self, block: int) -> bool:
        return self.references[block] == 0

    def take_new(self, count: int) -> list[int]:
        """Take `count` blocks for new content; the caller has checked that they are there."""
        taken = []
        for _ in range(count):
            block, _ = self._free.popitem(last=False)
            if self._on_reuse(block):
                self.residency.lost(block)
            self.residency.filled(block)
            self.references[block] = 1
            taken.append(block)
        return taken

    def share(self, block: int) -> None:
        """Add a reference to a block whose content is wanted as it is."""
        if self.references[block] == 0:
            del self._free[block]
        self.references[block] += 1
        self.residency.hit(block)

    def release(self, blocks: Iterable[int]) -> None:
        """Drop one reference each. Give them last position first, so that prefixes are reused last."""
        for block in blocks:
            self.references[block] -= 1
            if self.references[block] == 0:
                self._free[block] = None
                self.residency.let_go(block)
