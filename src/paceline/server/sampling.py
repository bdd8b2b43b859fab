"""From request fields to sampling parameters: the client's value, else the model's default, else OpenAI's."""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import UNSET

from paceline import sampling_params
from paceline.errors import RequestError
from paceline.messages import CoreReady
from paceline.sampling_params import SamplingParams
from paceline.server.protocol import ChatRequest, CommonRequest, CompletionRequest

COMPLETION_MAX_TOKENS = 16  # OpenAI's default


class SamplingDefaults(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Values for fields that the client left out, from the model's generation config; None: OpenAI's."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    max_tokens: int | None = None

    @classmethod
    def from_generation_config(cls, config: Mapping[str, Any]) -> SamplingDefaults:
        """The usable part of a model's ``generation_config.json``."""

        def number(name: str, low: float, high: float) -> float | None:
            value = config.get(name)
            if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
                return None
            return value if low <= value <= high else None

        top_k, max_tokens = number("top_k", -1, 2**31), number("max_new_tokens", 1, 2**31)
        return cls(
            temperature=number("temperature", 0, 100),
            top_k=None if top_k is None else int(top_k),
            top_p=number("top_p", 1e-9, 1),
            min_p=number("min_p", 0, 1),
            max_tokens=None if max_tokens is None else int(max_tokens),
        )


def sampling_for(
    request: CompletionRequest | ChatRequest,
    defaults: SamplingDefaults,
    info: CoreReady,
    vocab_size: int,
    num_prompt_tokens: int,
) -> SamplingParams:
    """Checked sampling parameters of one prompt of `request`; the seed is always set.

    Raises:
        RequestError: a value is out of range, or prompt and output do not fit the model's length.
    """
    params = SamplingParams(
        temperature=_first(request.temperature, defaults.temperature, 1.0),
        top_k=_first(request.top_k, defaults.top_k, 0),
        top_p=_first(request.top_p, defaults.top_p, 1.0),
        min_p=_first(request.min_p, defaults.min_p, 0.0),
        seed=secrets.randbits(63) if request.seed is None else request.seed,
        max_tokens=_max_tokens(request, defaults, info.max_model_len - num_prompt_tokens),
        min_tokens=request.min_tokens or 0,
        stop=_stop(request),
        stop_token_ids=tuple(request.stop_token_ids or ()),
        ignore_eos=bool(request.ignore_eos),
        logprobs=_logprobs(request),
        include_stop_str_in_output=bool(request.include_stop_str_in_output),
        skip_special_tokens=request.skip_special_tokens is not False,
    )
    return sampling_params.validate(
        params, vocab_size=vocab_size, max_model_len=info.max_model_len, num_prompt_tokens=num_prompt_tokens
    )


def _first(*values: Any) -> Any:
    return next(value for value in values if value is not None)


def _max_tokens(request: CommonRequest, defaults: SamplingDefaults, room: int) -> int | None:
    """None: as many as the model's length allows, which leaves `room` after the prompt.

    What the client did not ask for is cut to the room; only what it did ask for can be too much.
    """
    if isinstance(request, ChatRequest) and request.max_completion_tokens is not None:
        return request.max_completion_tokens
    if request.max_tokens is not UNSET:
        return request.max_tokens
    default = defaults.max_tokens
    if default is None and not isinstance(request, ChatRequest):
        default = COMPLETION_MAX_TOKENS
    return default if default is None or default <= room else None


def _stop(request: CommonRequest) -> tuple[str, ...]:
    if isinstance(request.stop, str):
        return (request.stop,)
    return tuple(request.stop or ())


def _logprobs(request: CompletionRequest | ChatRequest) -> int | None:
    if isinstance(request, CompletionRequest):
        return request.logprobs
    if not request.logprobs:
        if request.top_logprobs:
            raise RequestError("top_logprobs needs logprobs: true.", param="top_logprobs")
        return None
    return request.top_logprobs or 0
