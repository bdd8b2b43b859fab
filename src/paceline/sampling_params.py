"""How one request's tokens are chosen and when its generation ends."""

from __future__ import annotations

import math

import msgspec

from paceline.errors import RequestError


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """Sampling and stopping of one request; validated by :func:`validate`.

    Attributes:
        temperature: 0 means greedy (the most likely token, lowest id on a tie).
        top_k: keep the k most likely tokens; 0 or -1 keeps all.
        top_p: keep the smallest set of most likely tokens whose probability reaches this.
        min_p: drop tokens less likely than this fraction of the most likely one.
        seed: key of the request's random numbers. None: the front end draws one, so that
            the engine always has a seed and recomputation repeats the same choices.
        max_tokens: most output tokens; None means up to the model's length.
        min_tokens: end-of-sequence and stop tokens are not sampled before this many outputs.
        stop: strings that end the output (found by the detokenizer, not by the engine).
        stop_token_ids: token ids that end the output, besides the model's own.
        ignore_eos: do not end at the model's end-of-sequence tokens.
        logprobs: how many alternatives to report per token; None reports none at all.
        include_stop_str_in_output: keep the stop string in the text.
        skip_special_tokens: leave special tokens out of the text.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    max_tokens: int | None = 16
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True


class Limit(msgspec.Struct, frozen=True):
    """Bounds of a numeric field, both inclusive."""

    low: float
    high: float


LIMITS: dict[str, Limit] = {
    "temperature": Limit(0.0, 100.0),
    "top_k": Limit(-1, 2**31 - 1),
    "top_p": Limit(1e-9, 1.0),
    "min_p": Limit(0.0, 1.0),
    "seed": Limit(-(2**63), 2**63 - 1),
    "max_tokens": Limit(1, 2**31 - 1),
    "min_tokens": Limit(0, 2**31 - 1),
    "logprobs": Limit(0, 20),
}
MAX_STOP_STRINGS = 16
MAX_STOP_LENGTH = 1024  # characters
MAX_STOP_TOKENS = 256


def validate(params: SamplingParams, *, vocab_size: int, max_model_len: int, num_prompt_tokens: int) -> SamplingParams:
    """The same parameters, if they can be used for a prompt of this length.

    `max_tokens` must be at least 1: a request that generates nothing has nothing to ask of the engine.

    Raises:
        RequestError: names the field; ``context_length_exceeded`` names both lengths.
    """
    for name, limit in LIMITS.items():
        value = getattr(params, name)
        if value is None:
            continue
        if not math.isfinite(value) or not limit.low <= value <= limit.high:
            raise _out_of_range(name, f"{name} is {value}; it must be from {limit.low:g} to {limit.high:g}.")
    _check_stops(params, vocab_size)
    if num_prompt_tokens == 0:
        raise RequestError("The prompt is empty.", param="prompt")
    _check_lengths(params, max_model_len, num_prompt_tokens)
    return params


def _check_stops(params: SamplingParams, vocab_size: int) -> None:
    if len(params.stop) > MAX_STOP_STRINGS:
        raise _out_of_range("stop", f"There are {len(params.stop)} stop strings; at most {MAX_STOP_STRINGS} may be.")
    if not all(0 < len(text) <= MAX_STOP_LENGTH for text in params.stop):
        raise _out_of_range("stop", f"A stop string must have 1 to {MAX_STOP_LENGTH} characters.")
    if len(params.stop_token_ids) > MAX_STOP_TOKENS:
        raise _out_of_range("stop_token_ids", f"At most {MAX_STOP_TOKENS} stop token ids may be given.")
    if not all(0 <= token < vocab_size for token in params.stop_token_ids):
        raise _out_of_range("stop_token_ids", f"stop_token_ids must be from 0 to {vocab_size - 1}.")


def _check_lengths(params: SamplingParams, max_model_len: int, num_prompt_tokens: int) -> None:
    if num_prompt_tokens >= max_model_len:
        raise RequestError(
            f"The prompt has {num_prompt_tokens} tokens, and the model's length of {max_model_len} must hold the "
            "prompt and at least one token of output.",
            code="context_length_exceeded",
            param="prompt",
        )
    most = max_model_len - num_prompt_tokens
    if params.max_tokens is not None and params.max_tokens > most:
        raise RequestError(
            f"The prompt has {num_prompt_tokens} tokens and max_tokens is {params.max_tokens}; together they exceed "
            f"the model's length of {max_model_len}.",
            code="context_length_exceeded",
            param="max_tokens",
        )
    limit = most if params.max_tokens is None else params.max_tokens
    if params.min_tokens > limit:
        raise _out_of_range("min_tokens", f"min_tokens is {params.min_tokens}, more than the {limit} that may come.")


def _out_of_range(param: str, message: str) -> RequestError:
    return RequestError(message, code="out_of_range", param=param)
