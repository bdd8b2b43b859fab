"""How one request's tokens are chosen and when its generation ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from paceline.errors import RequestError


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """Sampling and stopping of one request; validated by :func:`validate`.

    Attributes:
        temperature: 0, and anything below 1e-5, means greedy (the most likely token, lowest id on a tie).
        top_k: keep the k most likely tokens; 0 or -1 keeps all.
        top_p: keep the smallest set of most likely tokens whose probability reaches this.
        min_p: drop tokens less likely than this fraction of the most likely one.
        seed: key of the request's random numbers. None: the front end draws one, so that
            the engine always has a seed and recomputation repeats the same choices.
        max_tokens: most output tokens, at least 1; None means up to the model's length.
        min_tokens: end-of-sequence and stop tokens are not sampled before this many outputs.
        stop: strings that end the output (found by the detokenizer, not by the engine).
        stop_token_ids: token ids that end the output, besides the model's own.
        ignore_eos: do not end at the model's end-of-sequence tokens.
        logprobs: how many alternatives to report per token; 0 only the token's own; None nothing.
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


class Limit(NamedTuple):
    """Type and bounds of a number, both bounds inclusive; `optional`: None may stand for "decide for me"."""

    kind: type[int] | type[float]
    low: float
    high: float
    optional: bool = False


LIMITS: dict[str, Limit] = {
    "temperature": Limit(float, 0.0, 100.0),
    "top_k": Limit(int, -1, 2**31 - 1),
    "top_p": Limit(float, 1e-9, 1.0),
    "min_p": Limit(float, 0.0, 1.0),
    "seed": Limit(int, -(2**63), 2**63 - 1, optional=True),
    "max_tokens": Limit(int, 1, 2**31 - 1, optional=True),
    "min_tokens": Limit(int, 0, 2**31 - 1),
    "logprobs": Limit(int, 0, 20, optional=True),
    "priority": Limit(int, -(2**31), 2**31 - 1),
    "timeout": Limit(float, 1e-3, 7 * 86400.0, optional=True),  # seconds
}
"""Every number that a request may carry. One table, used by each front end and again at the engine's door."""

MAX_STOP_STRINGS = 16
MAX_STOP_LENGTH = 1024  # characters
MAX_STOP_TOKENS = 256
MAX_CACHE_SALT_LENGTH = 1024  # characters

_NUMBERS = ("temperature", "top_k", "top_p", "min_p", "seed", "max_tokens", "min_tokens", "logprobs")
_SWITCHES = ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens")


def validate(params: SamplingParams, *, vocab_size: int, max_model_len: int, num_prompt_tokens: int) -> SamplingParams:
    """The same parameters, if they can be used for a prompt of this length.

    Lists become tuples and a single stop string a tuple of one, so that the result can be sent and hashed.

    `max_tokens` must be at least 1: a request that generates nothing has nothing to ask of the engine. A front end
    that offers "only repeat my prompt" answers that by itself.

    Raises:
        RequestError: names the field at fault; code ``invalid_request`` for a wrong type, ``out_of_range`` for a
            wrong value, ``context_length_exceeded`` (naming both lengths) where prompt and output do not fit.
    """
    for name in _NUMBERS:
        check_number(name, getattr(params, name))
    for name in _SWITCHES:
        if not isinstance(getattr(params, name), bool):
            raise _wrong_type(name, "true or false")
    params = _with_tuples(params)
    _check_stops(params, vocab_size)
    _check_lengths(params, max_model_len, num_prompt_tokens)
    return params


def validate_request(
    prompt_token_ids: Sequence[int], priority: int, cache_salt: str, timeout: float | None, *, vocab_size: int
) -> None:
    """Check what a request has besides its sampling parameters.

    Raises:
        RequestError: names the field at fault.
    """
    if not prompt_token_ids:
        raise _empty_prompt()
    if min(prompt_token_ids) < 0 or max(prompt_token_ids) >= vocab_size:
        raise _out_of_range("prompt", f"Token ids must be from 0 to {vocab_size - 1}.")
    check_number("priority", priority)
    check_number("timeout", timeout)
    if not isinstance(cache_salt, str):
        raise _wrong_type("cache_salt", "a text")
    if len(cache_salt) > MAX_CACHE_SALT_LENGTH:
        raise _out_of_range("cache_salt", f"cache_salt may have at most {MAX_CACHE_SALT_LENGTH} characters.")
    if not _is_unicode(cache_salt):
        raise _out_of_range("cache_salt", "cache_salt has half of a surrogate pair, which is no character.")


def check_number(name: str, value: object) -> None:
    """Check one value against its row of :data:`LIMITS`.

    Raises:
        RequestError: names the field; infinities and NaN are out of range.
    """
    limit = LIMITS[name]
    if value is None and limit.optional:
        return
    if isinstance(value, bool) or not isinstance(value, int if limit.kind is int else (int, float)):
        raise _wrong_type(name, "a whole number" if limit.kind is int else "a number")
    if not limit.low <= value <= limit.high:  # false for NaN, and exact for integers of any size
        bounds = f"from {limit.kind(limit.low)} to {limit.kind(limit.high)}"
        raise _out_of_range(name, f"{name} is {_short(value)}; it must be {bounds}.")


def _with_tuples(params: SamplingParams) -> SamplingParams:
    stop: object = (params.stop,) if isinstance(params.stop, str) else params.stop
    if not isinstance(stop, list | tuple) or not all(isinstance(text, str) for text in stop):
        raise _wrong_type("stop", "a text or a list of texts")
    ids: object = params.stop_token_ids
    if not isinstance(ids, list | tuple) or not all(type(token) is int for token in ids):
        raise _wrong_type("stop_token_ids", "a list of whole numbers")
    if type(params.stop) is tuple and type(ids) is tuple:
        return params
    return msgspec.structs.replace(params, stop=tuple(stop), stop_token_ids=tuple(ids))


def _check_stops(params: SamplingParams, vocab_size: int) -> None:
    if len(params.stop) > MAX_STOP_STRINGS:
        raise _out_of_range("stop", f"There are {len(params.stop)} stop strings; at most {MAX_STOP_STRINGS} may be.")
    if not all(0 < len(text) <= MAX_STOP_LENGTH for text in params.stop):
        raise _out_of_range("stop", f"A stop string must have 1 to {MAX_STOP_LENGTH} characters.")
    if not all(_is_unicode(text) for text in params.stop):
        raise _out_of_range("stop", "A stop string has half of a surrogate pair, which is no character.")
    if len(params.stop_token_ids) > MAX_STOP_TOKENS:
        raise _out_of_range("stop_token_ids", f"At most {MAX_STOP_TOKENS} stop token ids may be given.")
    if not all(0 <= token < vocab_size for token in params.stop_token_ids):
        raise _out_of_range("stop_token_ids", f"stop_token_ids must be from 0 to {vocab_size - 1}.")


def _check_lengths(params: SamplingParams, max_model_len: int, num_prompt_tokens: int) -> None:
    if num_prompt_tokens == 0:
        raise _empty_prompt()
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


def _is_unicode(text: str) -> bool:
    """Whether the text can be encoded: Python and JSON let half of a surrogate pair through, sockets do not."""
    return text.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in text)


def _short(value: int | float) -> str:
    """A number as it was given, unless it has hundreds of digits."""
    if isinstance(value, int) and value.bit_length() > 128:
        return "a number of more than 128 bits"
    return str(value)


def _empty_prompt() -> RequestError:
    return RequestError("The prompt is empty.", param="prompt")


def _wrong_type(param: str, expected: str) -> RequestError:
    return RequestError(f"{param} must be {expected}.", param=param)


def _out_of_range(param: str, message: str) -> RequestError:
    return RequestError(message, code="out_of_range", param=param)
