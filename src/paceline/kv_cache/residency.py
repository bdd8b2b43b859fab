"""How long KV blocks keep their content, how long nobody wants it before it goes, and how soon it is wanted again.

A block takes content when it is handed out, is in use while a request holds it, and loses its content when it is handed
out again. Only losses of content that the prefix index knew count: nothing else could have been wanted again.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left

from paceline.messages import BlockAges

# Upper bounds in seconds, those of vLLM's histograms of the same names.
AGE_BOUNDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800)


class Ages:
    """Ages counted by bucket.

    Attributes:
        counts: [buckets + 1], the last one for ages above all bounds; not cumulative.
        seconds: their sum.
    """

    def __init__(self) -> None:
        self.counts = [0] * (len(AGE_BOUNDS) + 1)
        self.seconds = 0.0

    def add(self, seconds: float) -> None:
        """Count one."""
        self.counts[bisect_left(AGE_BOUNDS, seconds)] += 1
        self.seconds += seconds

    def so_far(self) -> BlockAges:
        """For whoever reads it while counting goes on."""
        return BlockAges(list(self.counts), self.seconds)


class Residency:
    """Follows every block of a pool.

    Attributes:
        now: seconds; whoever makes batches sets it, once per batch, so that no block costs a reading of the clock.
        lifetime: from when a block took its content until it lost it.
        idle: from when the last request let go of it until then.
        reuse_gap: from when a block was last held (or, if it is held, last asked for) until a prefix hit asked for it.
    """

    def __init__(self, num_blocks: int) -> None:
        self.now = 0.0
        self.lifetime, self.idle, self.reuse_gap = Ages(), Ages(), Ages()
        self._filled = array("d", bytes(8 * num_blocks))
        self._used = array("d", bytes(8 * num_blocks))

    def lost(self, block: int) -> None:
        """The block's content, which could be found, is about to change."""
        self.lifetime.add(self.now - self._filled[block])
        self.idle.add(self.now - self._used[block])

    def filled(self, block: int) -> None:
        """The block was handed out for new content."""
        self._filled[block] = self._used[block] = self.now

    def hit(self, block: int) -> None:
        """A request wants the block as it is."""
        self.reuse_gap.add(self.now - self._used[block])
        self._used[block] = self.now

    def let_go(self, block: int) -> None:
        """Nobody holds the block any more."""
        self._used[block] = self.now
