"""Chooses the next token of each row of logits.

A row's outcome is a function of its own logits, parameters, seed and position only: neighbours, batch size and row
order cannot change a bit of it, and a damaged row costs nobody else anything.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from paceline.messages import SampledToken
from paceline.sampling.distribution import Floats, Ids, candidates, choose, is_greedy
from paceline.sampling.logprobs import token_logprobs
from paceline.sampling.random import uniform
from paceline.sampling_params import SamplingParams

if TYPE_CHECKING:
    from torch import Tensor

logger = logging.getLogger(__name__)

HOST = "cpu"


class SampleRow(NamedTuple):
    """Whose row it is, and how its token is to be chosen.

    Attributes:
        request, generation: copied into the outcome.
        position: index of the token to choose in prompt and output together.
        num_prompt_tokens: so the token is output number ``position - num_prompt_tokens``.
        sampling: validated, with a seed unless it is greedy.
        eos_token_ids: the model's own ends.
    """

    request: int
    generation: int
    position: int
    num_prompt_tokens: int
    sampling: SamplingParams
    eos_token_ids: tuple[int, ...] = ()


def sample(logits: Tensor, rows: Sequence[SampleRow]) -> list[SampledToken]:
    """One token per row.

    Args:
        logits: [rows, vocabulary] float32 on any device; never changed.
        rows: one per row of `logits`, in the same order.

    Returns:
        In the order of `rows`. Where a row's logits have a NaN or +inf, or allow no token at all, or where choosing
        failed: a token of -1 with the reason in ``error``.
    """
    if not rows:
        return []
    table = _Logits(logits)
    # Differences of huge logits and quotients by tiny temperatures may overflow to -inf, which means: never.
    with np.errstate(over="ignore", under="ignore"):
        return [_sample_row(table, index, row) for index, row in enumerate(rows)]


class _Logits:
    """Rows of logits as numpy arrays, and the best of each found for all rows at once.

    Off the CPU only the rows that need more than their best token are copied to the host.
    """

    def __init__(self, logits: Tensor) -> None:
        logits = logits.detach()
        self._logits = logits
        self.best_ids: list[int]
        self.best_values: list[float]
        if logits.device.type == HOST:  # numpy's argmax is an order of magnitude faster than torch's here
            rows = logits.numpy()
            ids = rows.argmax(axis=-1)
            self.best_ids, self.best_values = ids.tolist(), rows[np.arange(len(ids)), ids].tolist()
        else:
            values, best = logits.max(dim=-1)
            self.best_ids, self.best_values = best.tolist(), values.tolist()

    def row(self, index: int) -> Floats:
        """[vocabulary]; may share memory with the logits, so it must not be written to."""
        row: Floats = self._logits[index].cpu().numpy()
        return row


def _sample_row(table: _Logits, index: int, row: SampleRow) -> SampledToken:
    best = table.best_values[index]
    if not np.isfinite(best):  # argmax and max stop at a NaN and at +inf, and give -inf only if there is nothing else
        what = "allow no token" if best == -np.inf else f"hold {best}"
        return SampledToken(
            row.request, row.generation, -1, error=f"the model's logits {what} at position {row.position}"
        )
    try:
        token = _choose_token(table, index, row)
        logprobs = None
        if token >= 0 and row.sampling.logprobs is not None:
            logprobs = token_logprobs(table.row(index), token, row.sampling.logprobs)
    except Exception as error:  # one request's bad parameters must not cost the whole batch, whatever they broke
        logger.exception("sampling failed for request %d", row.request)
        return SampledToken(row.request, row.generation, -1, error=f"sampling failed: {type(error).__name__}")
    if token < 0:
        error_text = f"min_tokens forbids every token that the model allows at position {row.position}"
        return SampledToken(row.request, row.generation, -1, error=error_text)
    return SampledToken(row.request, row.generation, token, logprobs)


def _choose_token(table: _Logits, index: int, row: SampleRow) -> int:
    """The chosen id, or -1 if no token is left to choose."""
    forbidden = _forbidden(row)
    if is_greedy(row.sampling) and table.best_ids[index] not in forbidden:
        return table.best_ids[index]
    logits = table.row(index)
    if forbidden:
        logits = logits.copy()
        logits[list(forbidden)] = -np.inf
        if logits.max() == -np.inf:
            return -1
    if is_greedy(row.sampling):
        return int(logits.argmax())
    seed = row.sampling.seed
    if seed is None:
        raise ValueError("random sampling needs a seed; the front end draws one")
    ids, weights = candidates(logits, row.sampling)
    return _id_at(ids, choose(weights, uniform(seed, row.position)))


def _forbidden(row: SampleRow) -> frozenset[int]:
    """Tokens that would end the output before it has `min_tokens` tokens."""
    if row.position - row.num_prompt_tokens >= row.sampling.min_tokens:
        return frozenset()
    ends = row.sampling.stop_token_ids
    return frozenset(ends if row.sampling.ignore_eos else ends + row.eos_token_ids)


def _id_at(ids: Ids | None, index: int) -> int:
    return index if ids is None else int(ids[index])
