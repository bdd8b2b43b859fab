"""How long a stage takes for a batch: the one model behind the layer split, the pacing and the simulator.

A batch's work is counted in six additive terms, and a stage has a price in seconds for each:

    time = fixed + token · tokens + sequence · slices + decode_context · Σ context
                 + prefill_context · Σ chunk · (context + chunk / 2) + sample · sampled tokens

The context sums go over slices of one token and over longer ones: the two read the KV cache by different kernels. The sum over
prefill slices is the number of (query, key) pairs. A transfer from one stage to the next is no part of either
stage's time; it has a price of its own. Where the form comes from: `docs/pacing.md`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from paceline.messages import Slice


class Work(NamedTuple):
    """What a batch asks of a stage, in the units that stages have prices for. Works add up term by term."""

    fixed: float = 1.0  # batches
    token: float = 0.0
    sequence: float = 0.0  # slices
    decode_context: float = 0.0  # positions before each slice of one token, added up
    prefill_context: float = 0.0  # pairs of a query and a key, over longer slices
    sample: float = 0.0  # rows that the head and the sampler see

    @property
    def kind(self) -> str:
        """``prefill``, ``decode`` or ``mixed``; a slice of one token counts as a decode."""
        if self.token == self.sequence:
            return "decode"
        return "prefill" if self.decode_context == 0.0 else "mixed"


def work_of(slices: Iterable[Slice]) -> Work:
    """The work of a batch with these slices."""
    tokens = sequences = samples = 0
    decode_context = prefill_context = 0.0
    for slice_ in slices:
        count = len(slice_.token_ids)
        sequences += 1
        tokens += count
        samples += slice_.samples
        if count == 1:
            decode_context += slice_.start
        else:
            prefill_context += count * (slice_.start + count / 2)
    return Work(1.0, tokens, sequences, decode_context, prefill_context, samples)


class StageCost(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One stage's prices in seconds, one per term of :class:`Work`; none is negative."""

    fixed: float = 0.0
    token: float = 0.0
    sequence: float = 0.0
    decode_context: float = 0.0
    prefill_context: float = 0.0
    sample: float = 0.0

    def __post_init__(self) -> None:
        for name, price in zip(TERMS, msgspec.structs.astuple(self), strict=True):
            if not 0.0 <= price < math.inf:
                raise ValueError(f"the price {name} is {price}; it must be a finite number of seconds, 0 or more")

    def time(self, work: Work) -> float:
        """Seconds for a batch with this work."""
        return (
            self.fixed * work[0]
            + self.token * work[1]
            + self.sequence * work[2]
            + self.decode_context * work[3]
            + self.prefill_context * work[4]
            + self.sample * work[5]
        )

    def scaled(self, factor: float) -> StageCost:
        return StageCost(*(price * factor for price in msgspec.structs.astuple(self)))

    def decode(self, context: float) -> float:
        """Seconds that a decode after `context` positions adds to a batch."""
        return self.token + self.sequence + self.sample + self.decode_context * context

    def chunk(self, num_tokens: float, context: float) -> float:
        """Seconds that a chunk of a prompt adds to a batch; sampling after its last token is left out."""
        return num_tokens * (self.token + self.prefill_context * (context + num_tokens / 2))

    def longest_chunk(self, seconds: float, context: float) -> float:
        """The inverse of :meth:`chunk`: how many tokens fit into the time, after `context` positions."""
        per_token = self.token + self.prefill_context * context
        if seconds <= 0.0:
            return 0.0
        if self.prefill_context * seconds <= 1e-9 * per_token * per_token:  # the quadratic term does not count
            return seconds / per_token if per_token > 0.0 else math.inf
        root = math.sqrt(per_token * per_token + 2.0 * self.prefill_context * seconds)
        return (root - per_token) / self.prefill_context


TERMS: tuple[str, ...] = StageCost.__struct_fields__


class LinkCost(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Seconds from the end of one stage to the moment when the next one has the batch; also to and from the core."""

    fixed: float = 0.0
    token: float = 0.0

    def time(self, num_tokens: float) -> float:
        return self.fixed + self.token * num_tokens


class CostModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The prices of every stage, first to last, and of the links between them."""

    stages: tuple[StageCost, ...]
    link: LinkCost = LinkCost()

    def __post_init__(self) -> None:
        if not self.stages:
            raise ValueError("a cost model needs at least one stage")

    def time(self, stage: int, work: Work) -> float:
        """Seconds of the stage for a batch with this work."""
        return self.stages[stage].time(work)

    def slowest(self, work: Work) -> StageCost:
        """The stage that takes longest for this work."""
        return max(self.stages, key=lambda stage: stage.time(work))


def uniform(num_stages: int, stage: StageCost) -> CostModel:
    """A pipeline of equal stages."""
    return CostModel((stage,) * num_stages)
