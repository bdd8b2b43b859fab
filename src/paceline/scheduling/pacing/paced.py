"""Pacing by time: successive batches take equal time on the slowest stage, so that no stage waits for a longer batch.

Batches go round a ring: each is followed on every stage by the next one, and its requests can go into a batch again when
it has passed the last stage. So one batch of length t among shorter ones makes a whole round take stages · t, and the
stages idle for what the others are shorter. Hence two rules, in predicted seconds (:mod:`paceline.scheduling.cost_model`):

* Decodes that run, in flight or not, are shared evenly over the stages: a batch takes those that have waited
  longest until it holds its share of their time.
* Prompts add the same time to each of several successive batches. Their number m weighs those who wait for a first token
  against those who wait for their next: with W seconds of prefill pending for p prompts beside d decodes, a batch
  that takes b without prefill, and S stages, the prompts are through after (m + S - 1)·(b + W/m), and the decodes lose
  W·S/m as long as m is below S. A decode's loss is spread over all tokens of its answer, so it counts w = 0.1 as much.
  The sum over all is least at

      m = sqrt(((S - 1)·p + w·S·d)·W / (p·b)),

  but no more than `MOST_BATCHES` are needed to keep rounds even. The added time is held until the prompts are through, and
  falls slowly if more keep coming; a chunk shrinks as its context grows, because its time is what is granted.

When more keeps coming than can be served, longer batches gain nothing but a smaller part of their fixed time, and make
everybody wait: their length ends where that part is small.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from paceline.request import Request
from paceline.scheduling.cost_model import StageCost, Work
from paceline.scheduling.pacing.base import Grant, PacingPolicy, Surroundings

MOST_BATCHES = 8.0  # over which pending prefill is spread; more only delays first tokens (docs/pacing.md)
DECODE_WEIGHT = 0.1  # of a second that a decode waits, against one before a first token
FIXED_PART = 0.03  # batches are no longer than it takes to keep their fixed time to this part
UNNOTICED_PART = 0.02  # decodes that lengthen a batch by no more need not be spread
HOLD = 0.9  # how much of the last batch's prefill time the next one gets at least
SMALLEST_GRANT = 32  # tokens after no context: their time is granted to every batch
SMALLEST_CHUNK = 16  # tokens; the first prompt in a batch gets so many at any context, so none waits for ever

GROWTH_PER_PREEMPTION = 16  # positions per RUNNING request
MOST_GROWTH = 1024.0
GROWTH_KEPT = 0.998  # per batch


class _Seconds(Grant):
    """A number of decodes, and seconds of prefill on the slowest stage."""

    def __init__(self, num_decodes: int, seconds: float, cost: StageCost) -> None:
        self.num_decodes = num_decodes
        self._left = seconds
        self._cost = cost
        self._is_first = True

    def chunk(self, request: Request, wanted: int, context: int) -> int:
        fits = int(min(self._cost.longest_chunk(self._left, context), wanted))
        smallest = min(SMALLEST_CHUNK, wanted)
        if fits >= smallest:
            return fits
        return smallest if self._is_first else 0

    def took(self, request: Request, num_tokens: int) -> None:
        self._is_first = False
        self._left -= self._cost.chunk(num_tokens, request.num_scheduled_tokens)


class _Demand:
    """What running and admissible requests ask for, added up in the cost model's units."""

    __slots__ = ("decode_context", "num_decodes", "num_prompts", "prefill_context", "tokens")

    def __init__(self) -> None:
        self.num_decodes = 0
        self.decode_context = 0
        self.num_prompts = 0
        self.tokens = 0
        self.prefill_context = 0.0

    def add_prompt(self, num_tokens: int, context: int) -> None:
        self.num_prompts += 1
        self.tokens += num_tokens
        self.prefill_context += num_tokens * (context + num_tokens / 2)

    def decode_seconds(self, cost: StageCost) -> float:
        return self.num_decodes * cost.decode(0.0) + cost.decode_context * self.decode_context

    def prefill_seconds(self, cost: StageCost) -> float:
        return cost.token * self.tokens + cost.prefill_context * self.prefill_context

    def as_work(self, num_batches: int) -> Work:
        decodes, prompts = self.num_decodes, self.num_prompts
        return Work(
            num_batches,
            decodes + self.tokens,
            decodes + prompts,
            self.decode_context,
            self.prefill_context,
            decodes + prompts,
        )


class Paced(PacingPolicy):
    """Balances batches by their predicted time."""

    def __init__(self, surroundings: Surroundings) -> None:
        super().__init__(surroundings)
        self._prefill_seconds = 0.0  # granted to the last batch
        self._growth = 0.0

    def grant(self, decodes: Sequence[Request], running: Collection[Request], pending: Sequence[Request]) -> Grant:
        self._growth *= GROWTH_KEPT
        demand = self._demand(running, pending)
        stages = self.surroundings.num_stages
        cost = self.surroundings.fit.model.slowest(demand.as_work(stages))
        share = demand.decode_seconds(cost) / stages
        num_decodes, taken = _fill(decodes, self._most_decodes(demand, share, cost), cost)
        prefill = self._prefill(demand, share, cost)
        least = cost.chunk(SMALLEST_GRANT, 0)
        return _Seconds(num_decodes, max(share + prefill - taken, least), cost)

    def _demand(self, running: Collection[Request], pending: Sequence[Request]) -> _Demand:
        demand = _Demand()
        num_decodes = context = 0
        for request in running:
            known = len(request.token_ids)
            needed = known - request.num_scheduled_tokens
            if needed > 1:
                demand.add_prompt(needed, request.num_scheduled_tokens)
            else:
                num_decodes += 1
                context += known
        demand.num_decodes, demand.decode_context = num_decodes, context
        self._add_admissible(demand, pending, self.surroundings.max_num_seqs - len(running))
        return demand

    def _add_admissible(self, demand: _Demand, pending: Sequence[Request], seats: int) -> None:
        """Those who could be admitted now: the others' prefill must not make batches longer that cannot hold it."""
        surroundings = self.surroundings
        cache = surroundings.kv_cache
        blocks = cache.num_free
        enough = MOST_BATCHES * surroundings.max_num_batched_tokens
        for request in pending[: max(seats, 0)]:
            known = len(request.token_ids)
            blocks -= cache.blocks_for(known)
            if blocks < 0 or demand.tokens > enough:
                break
            demand.add_prompt(known, 0)

    def _most_decodes(self, demand: _Demand, share: float, cost: StageCost) -> float:
        """Seconds of decodes for the next batch: the share, rounded to whole decodes as makes rounds shorter.

        With n decodes of d seconds on S stages and k of them per batch, a round takes S batches or, if there are more
        groups, n / k: rounded down k = floor(n / S) costs (n / k)·(b + k·d), rounded up S·(b + (k + 1)·d), where b is
        a batch without decodes. Beside that a batch takes what hardly makes it longer.
        """
        hardly_longer = UNNOTICED_PART * cost.fixed
        if demand.num_decodes == 0:
            return hardly_longer
        stages = self.surroundings.num_stages
        each = demand.decode_seconds(cost) / demand.num_decodes
        whole = max(demand.num_decodes // stages, 1)
        down = demand.num_decodes / whole * (cost.fixed + whole * each)
        up = stages * (cost.fixed + (whole + 1) * each)
        return max(share + (each if up < down else 0.5 * each), hardly_longer)

    def _prefill(self, demand: _Demand, share: float, cost: StageCost) -> float:
        """Seconds of prefill for the next batch."""
        pending = demand.prefill_seconds(cost)
        if pending == 0.0:
            self._prefill_seconds = 0.0
            return 0.0
        surroundings = self.surroundings
        stages = surroundings.num_stages
        bare = cost.fixed + share
        weight = (stages - 1) * demand.num_prompts + DECODE_WEIGHT * stages * demand.num_decodes
        most = MOST_BATCHES if stages > 1 else 1.0
        batches = math.sqrt(weight * pending / (demand.num_prompts * bare)) if bare > 0.0 else most
        seconds = max(pending / min(max(batches, 1.0), most), HOLD * self._prefill_seconds)
        budget = cost.token * surroundings.max_num_batched_tokens
        seconds = min(seconds, budget)
        if demand.num_decodes:
            seconds = min(seconds, max(cost.fixed / FIXED_PART - share, budget / 8))
        if surroundings.target_tpot is not None and surroundings.fit.calibrated:
            seconds = min(seconds, max(surroundings.target_tpot / stages - bare, 0.0))
        self._prefill_seconds = seconds
        return seconds

    # ------------------------------------------------------------ blocks

    @property
    def growth_reserve(self) -> int:
        return int(self._growth)

    def preempted(self) -> None:
        self._growth = min(self._growth + GROWTH_PER_PREEMPTION, MOST_GROWTH)


def _fill(decodes: Sequence[Request], most: float, cost: StageCost) -> tuple[int, float]:
    """How many of the decodes, in order, take no longer than `most` seconds; at least one. And the time they take."""
    price, per_position = cost.decode(0.0), cost.decode_context
    taken, count = 0.0, 0
    for request in decodes:
        seconds = price + per_position * len(request.token_ids)
        if count and taken + seconds > most:
            break
        taken += seconds
        count += 1
    return count, taken
