"""Log probabilities as clients see them: of the model's own distribution, before temperature and filters."""

from __future__ import annotations

import numpy as np

from paceline.messages import TokenLogprobs
from paceline.sampling.distribution import Floats, largest

FLOOR = -9999.0
"""Stands for minus infinity, which JSON cannot say (the same number as vLLM's)."""


def token_logprobs(row: Floats, token: int, num_alternatives: int) -> TokenLogprobs:
    """What is reported for `token` chosen from `row`.

    Args:
        row: [vocabulary] raw logits; no NaN, no +inf, at least one finite.
        num_alternatives: how many of the most likely tokens to list; may be 0.

    The order behind rank and list is by logit, then by id, so a greedy token always has rank 1 and is listed first.
    """
    top = float(row.max())
    log_total = top + float(np.log(np.sum(np.exp(row - np.float32(top)), dtype=np.float64)))
    own = row[token]
    rank = 1 + int(np.count_nonzero(row > own)) + int(np.count_nonzero(row[:token] == own))
    ids: list[int] = []
    if num_alternatives:
        best = largest(row, num_alternatives)
        ids = best[np.argsort(-row[best], kind="stable")].tolist()
    return TokenLogprobs(
        token=_finite(float(own) - log_total),
        rank=rank,
        top_ids=ids,
        top=[_finite(float(row[i]) - log_total) for i in ids],
    )


def _finite(logprob: float) -> float:
    return max(logprob, FLOOR)
