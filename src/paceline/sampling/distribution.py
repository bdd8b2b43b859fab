"""From one row of logits to the tokens that may be chosen, and the choice among them.

The order is vLLM's: temperature, then min_p, then top_k, then top_p over what is left, renormalised.

* ``weight(t) = exp((logit(t) - max) / temperature)``, so that the most likely token weighs 1 and nothing overflows.
* min_p keeps tokens of weight ≥ min_p: a probability relative to the most likely token's is just its weight.
* top_k keeps the k largest; on ties the lower id stays.
* top_p keeps the fewest largest whose weights add up to at least top_p of all that the other filters left.

min_p and top_k both cut below a bar that does not depend on the other, so it is correct to apply top_k first, on
the logits, where it spares the exponential of a whole vocabulary. The most likely token always stays.

Everything here works on one row alone, in an order that depends on this row only: the result is bitwise the same
whatever else is sampled beside it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from paceline.sampling_params import SamplingParams

Floats = NDArray[np.float32]
Ids = NDArray[np.int64]

GREEDY_BELOW = 1e-5
"""Temperatures below this are greedy: they would only multiply rounding errors (vLLM draws the line here, too)."""

_CHUNK = 256


def is_greedy(sampling: SamplingParams) -> bool:
    """Whether the most likely token is taken, so that no random number is needed."""
    return sampling.temperature < GREEDY_BELOW or sampling.top_k == 1


def largest(row: Floats, k: int) -> Ids:
    """Ids of the k largest entries, ascending; the lower id wins a tie. All ids if k reaches the length."""
    if k >= row.size:
        return np.arange(row.size)
    bar = np.partition(row, row.size - k)[row.size - k]
    ids = np.flatnonzero(row >= bar)
    if ids.size > k:
        at_bar = np.flatnonzero(row[ids] == bar)
        ids = np.delete(ids, at_bar[k - ids.size :])
    return ids


def candidates(row: Floats, sampling: SamplingParams) -> tuple[Ids | None, Floats]:
    """The tokens that may be chosen and their weights (unnormalised probabilities).

    Args:
        row: [vocabulary] logits; -inf means never; at least one finite, no NaN, no +inf.
        sampling: not greedy.

    Returns:
        ids [n] in ascending order, or None when they are the whole vocabulary; and weights [n].
    """
    ids = largest(row, sampling.top_k) if 0 < sampling.top_k < row.size else None
    weights = row if ids is None else row[ids]
    weights = weights - weights.max()
    np.divide(weights, np.float32(sampling.temperature), out=weights)
    np.exp(weights, out=weights)
    if sampling.min_p > 0.0:
        ids, weights = _keep(ids, weights, np.flatnonzero(weights >= np.float32(sampling.min_p)))
    if sampling.top_p < 1.0:
        ids, weights = _keep(ids, weights, _nucleus(weights, sampling.top_p))
    return ids, weights


def choose(weights: Floats, random: float) -> int:
    """The index at which the running sum of `weights` passes `random` of their total (inverse CDF, in index order).

    Sums of chunks come first, so that only one chunk of a whole vocabulary needs a running sum.

    Args:
        weights: [n], none negative, at least one positive.
        random: in [0, 1).
    """
    if weights.size > _CHUNK:
        sums = np.add.reduceat(weights, np.arange(0, weights.size, _CHUNK))
        chunk, rest = _pass(sums, random)
        start = chunk * _CHUNK
        return start + _pass(weights[start : start + _CHUNK], random, rest)[0]
    return _pass(weights, random)[0]


def _pass(weights: Floats, random: float, target: float | None = None) -> tuple[int, float]:
    """The index whose running sum passes the target, and what is left of the target there."""
    running = np.cumsum(weights, dtype=np.float64)
    if target is None:
        target = random * float(running[-1])
    # The two levels round differently, so the target may lie a hair past the end: then the last positive weight is
    # meant. The first index that reaches the end is it, since zeros after it do not raise the running sum.
    index = int(np.searchsorted(running, target, side="right"))
    if index == running.size:
        index = int(np.searchsorted(running, running[-1], side="left"))
    return index, target - (float(running[index - 1]) if index else 0.0)


def _keep(ids: Ids | None, weights: Floats, kept: Ids) -> tuple[Ids, Floats]:
    return (kept if ids is None else ids[kept]), weights[kept]


def _nucleus(weights: Floats, top_p: float) -> Ids:
    """Ascending indices of the fewest largest weights that add up to `top_p` of the total; lower index wins a tie."""
    total = float(np.sum(weights, dtype=np.float64))
    # All weights below this bar add up to less than the tail that is cut off, so none of them can stay: no need to
    # sort them. On real distributions this leaves a few hundred of a vocabulary.
    bar = (1.0 - top_p) * total / weights.size
    running = np.cumsum(np.sort(weights[weights >= bar])[::-1], dtype=np.float64)
    return largest(weights, int(np.searchsorted(running, top_p * total, side="left")) + 1)
