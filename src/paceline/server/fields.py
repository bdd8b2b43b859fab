"""Request fields that are known but not supported yet, and the values that change nothing.

A client may send such a field with a neutral value (many always do); any other value is refused by name, because
to ignore it would silently give a different answer than asked for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from paceline.errors import RequestError

logger = logging.getLogger(__name__)

_BOTH: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "length_penalty": (1,),
    "logit_bias": ({},),
    "use_beam_search": (False,),
    "spaces_between_special_tokens": (True,),
    "truncate_prompt_tokens": (),
    "truncation_side": (),
    "prompt_logprobs": (),
    "logprob_token_ids": ([],),
    "allowed_token_ids": (),
    "bad_words": ([],),
    "echo": (False,),
    "response_format": ({"type": "text"},),
    "structured_outputs": ({},),
    "guided_json": (),
    "guided_regex": ("",),
    "guided_choice": ([],),
    "guided_grammar": ("",),
    "kv_transfer_params": ({},),
    "vllm_xargs": ({},),
    "repetition_detection": (),
    "stream_interval": (1,),
    "return_prompt_text": (False,),
    "prompt_embeds": (),
}
_COMPLETION_ONLY: dict[str, tuple[Any, ...]] = {"best_of": (1,), "suffix": ("",)}
_CHAT_ONLY: dict[str, tuple[Any, ...]] = {
    "tools": ([],),
    "functions": ([],),
    "tool_choice": ("none", "auto"),
    "function_call": ("none", "auto"),
    "reasoning_effort": ("none",),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
    "documents": ([],),
    "chat_template": (),
    "continue_final_message": (False,),
}
COMPLETION_FIELDS = _BOTH | _COMPLETION_ONLY
CHAT_FIELDS = _BOTH | _CHAT_ONLY

# Without effect on the answer, whatever their value.
IGNORED = frozenset(
    {"user", "metadata", "store", "service_tier", "parallel_tool_calls", "safety_identifier", "prompt_cache_key"}
)

_MOST_NAMES_LOGGED = 100
_NAMES_PER_LINE = 10
_NAME_LENGTH = 64


def refuse_unsupported(body: Mapping[str, Any], unsupported: Mapping[str, tuple[Any, ...]]) -> None:
    """Refuse the first field of `body` whose value asks for what is not there.

    Raises:
        RequestError: code ``unsupported``, with the field's name.
    """
    for name, value in body.items():
        if name not in unsupported or value is None:
            continue
        if not any(_same(value, neutral) for neutral in unsupported[name]):
            raise RequestError(
                f"{name} is not available yet; leave it out or give its neutral value.",
                code="unsupported",
                param=name,
            )


def _same(value: Any, neutral: Any) -> bool:
    """Equal, and not by way of True == 1."""
    return value == neutral and isinstance(value, bool) == isinstance(neutral, bool)


class UnknownFields:
    """Notes fields that nobody knows: ignored, counted, and logged: once per name, a line per request at most."""

    def __init__(self, count: Callable[[int], None]) -> None:
        self._count = count
        self._seen: set[str] = set()

    def note(self, body: Mapping[str, Any], known: frozenset[str]) -> None:
        """Note every key of `body` that is not in `known`."""
        unknown = body.keys() - known
        if not unknown:
            return
        self._count(len(unknown))
        new = sorted({name[:_NAME_LENGTH] for name in unknown} - self._seen)
        if new and len(self._seen) < _MOST_NAMES_LOGGED:
            told = new[:_NAMES_PER_LINE]
            self._seen.update(told)
            more = f" and {len(new) - len(told)} more" if len(new) > len(told) else ""
            names = ", ".join(map(ascii, told))
            logger.warning("unknown request fields are ignored: %s%s (each is said once)", names, more)
