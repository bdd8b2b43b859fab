"""From logits to tokens: one row per slice that samples, none of them aware of the others.

Rows that are greedy and want no log probabilities, which is most of them under load, share one batched argmax; an
argmax of a row does not depend on other rows. Everything else works on one row at a time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from paceline.messages import SampledToken, TokenLogprobs
from paceline.sampling.distribution import Floats, candidates, choose, is_greedy, largest
from paceline.sampling.random import uniform
from paceline.sampling_params import SamplingParams

LOGPROB_FLOOR = -9999.0
NOT_FINITE = "the model's output is not finite for this request"


class SampleRow(NamedTuple):
    """Whose token a row of logits is, and how it is chosen.

    `position` is the index of the token to be sampled in prompt and output together.
    """

    request: int
    generation: int
    position: int
    num_prompt_tokens: int
    sampling: SamplingParams
    eos_token_ids: tuple[int, ...]

    @property
    def forbidden(self) -> tuple[int, ...]:
        """Tokens that would end the output before it has `min_tokens`."""
        if self.position - self.num_prompt_tokens >= self.sampling.min_tokens:
            return ()
        return self.sampling.stop_token_ids + self.eos_token_ids


def sample(logits: Tensor, rows: Sequence[SampleRow]) -> list[SampledToken]:
    """One token per row, in order.

    Args:
        logits: [R, vocabulary] float32, on any device; changed in place for rows with forbidden tokens.
        rows: R of them.

    Returns:
        R tokens. A row without a usable logit, or whose sampling fails, has ``token_id`` -1 and says why in ``error``.
    """
    if not rows:
        return []
    logits = logits.cpu()
    best, best_ids = logits.max(dim=-1)  # NaN wins a maximum, so this finds every unusable row
    usable = torch.isfinite(best).tolist()
    ids = _lowest_best(logits, best, best_ids)
    tokens = []
    for i, row in enumerate(rows):
        if not usable[i]:
            tokens.append(SampledToken(row.request, row.generation, -1, None, NOT_FINITE))
        elif is_greedy(row.sampling) and row.sampling.logprobs is None and not row.forbidden:
            tokens.append(SampledToken(row.request, row.generation, ids[i]))
        else:
            tokens.append(_sample_row(logits[i].numpy(), row))
    return tokens


def _lowest_best(logits: Tensor, best: Tensor, best_ids: Tensor) -> list[int]:
    """Greedy choices, the lowest id on a tie: torch leaves open which of several maxima it names."""
    ids: list[int] = best_ids.tolist()
    ties = (logits == best[:, None]).sum(dim=-1).tolist()
    for i, count in enumerate(ties):
        if count > 1:
            ids[i] = int(torch.nonzero(logits[i] == best[i])[0])
    return ids


def _sample_row(logits: Floats, row: SampleRow) -> SampledToken:
    try:
        raw = logits
        if row.forbidden:
            logits = logits.copy()
            logits[list(row.forbidden)] = -np.inf
            if not np.isfinite(logits.max()):
                return SampledToken(row.request, row.generation, -1, None, "every token is forbidden by min_tokens")
        token = _choose_token(logits, row)
        wanted = row.sampling.logprobs
        logprobs = None if wanted is None else _logprobs(raw, token, wanted)
        return SampledToken(row.request, row.generation, token, logprobs)
    except (ArithmeticError, ValueError, IndexError) as error:
        return SampledToken(row.request, row.generation, -1, None, f"sampling failed: {error}")


def _choose_token(logits: Floats, row: SampleRow) -> int:
    if is_greedy(row.sampling):
        return int(np.argmax(logits))
    ids, weights = candidates(logits, row.sampling)
    index = choose(weights, uniform(row.sampling.seed or 0, row.position))
    return index if ids is None else int(ids[index])


def _logprobs(logits: Floats, token: int, wanted: int) -> TokenLogprobs:
    """Log probabilities of the model's own distribution, before temperature and filters."""
    top = float(logits.max())
    log_total = top + math.log(float(np.exp(logits - np.float32(top), dtype=np.float64).sum()))
    ids = largest(logits, wanted) if wanted else np.empty(0, dtype=np.int64)
    ids = ids[np.argsort(-logits[ids], kind="stable")]

    def finite(value: float) -> float:
        return max(value - log_total, LOGPROB_FLOOR)

    rank = int((logits > logits[token]).sum()) + 1
    return TokenLogprobs(finite(float(logits[token])), rank, ids.tolist(), [finite(float(logits[i])) for i in ids])
