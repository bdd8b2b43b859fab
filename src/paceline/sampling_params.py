"""How one request's tokens are chosen and when its generation ends."""

from __future__ import annotations

import msgspec


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
