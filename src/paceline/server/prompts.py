"""From what a client wrote to prompt tokens. Long texts are tokenized off the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from paceline.errors import RequestError
from paceline.server.protocol import ChatRequest, CompletionRequest, TokenizeRequest, convert
from paceline.server.state import Served

MAX_PROMPTS = 1024  # in one request
ALWAYS_COUNTED = 16 * 1024  # characters: milliseconds, and of use to whoever asks how long a text is
SHORT_TEXT = 1024  # characters that are tokenized at once: less time than changing threads twice

_ROLES = frozenset({"system", "developer", "user", "assistant"})


async def completion_prompts(request: CompletionRequest, served: Served) -> list[list[int]]:
    """Token ids of each prompt: a text, a list of texts, a list of ids, or a list of lists of ids.

    Raises:
        RequestError: `param` is ``prompt`` or a place in it.
    """
    prompt = request.prompt
    if isinstance(prompt, str):
        return [await encode(prompt, served, request.add_special_tokens is not False)]
    if not isinstance(prompt, list) or not prompt:
        raise RequestError("prompt must be a text, token ids, or a non-empty list of those.", param="prompt")
    if type(prompt[0]) is int:
        return [_checked_ids(convert(prompt, list[int], "prompt"), served, "prompt")]
    if len(prompt) > MAX_PROMPTS:
        raise RequestError(
            f"prompt has {len(prompt)} items; at most {MAX_PROMPTS} are allowed.", code="out_of_range", param="prompt"
        )
    if isinstance(prompt[0], str):
        texts = convert(prompt, list[str], "prompt")
        return [await encode(text, served, request.add_special_tokens is not False) for text in texts]
    lists = convert(prompt, list[list[int]], "prompt")
    return [_checked_ids(ids, served, f"prompt[{place}]") for place, ids in enumerate(lists)]


def _checked_ids(ids: list[int], served: Served, param: str) -> list[int]:
    if not ids:
        raise RequestError("The prompt is empty.", param=param)
    limit = served.info.max_model_len
    if len(ids) >= limit:
        raise too_long(f"has {len(ids)} tokens", limit, param)
    check_token_ids(ids, served, param)
    return ids


def check_token_ids(ids: list[int], served: Served, param: str) -> None:
    """Refuse ids that no token has."""
    if ids and (min(ids) < 0 or max(ids) >= served.vocab_size):
        raise RequestError(f"Token ids must be from 0 to {served.vocab_size - 1}.", code="out_of_range", param=param)


def too_long(what: str, limit: int, param: str) -> RequestError:
    return RequestError(
        f"The prompt {what}, but the model's length is {limit} tokens for prompt and output together, "
        "and there must be room for at least one token of output.",
        code="context_length_exceeded",
        param=param,
    )


async def encode(text: str, served: Served, add_special_tokens: bool, param: str = "prompt") -> list[int]:
    """Token ids of `text`, at least one and fewer than the model's length.

    Raises:
        RequestError: empty or too long.
    """
    ids = await tokens_of(text, served, add_special_tokens, param)
    if not ids:
        raise RequestError("The prompt is empty.", param=param)
    limit = served.info.max_model_len
    if len(ids) >= limit:
        raise too_long(f"has {len(ids)} tokens", limit, param)
    return ids


async def tokens_of(text: str, served: Served, add_special_tokens: bool, param: str) -> list[int]:
    """Token ids of a text, which may be none or more than the model takes.

    Raises:
        RequestError: the text is so long that it has more than that for certain; it is not tokenized.
    """
    limit = served.info.max_model_len
    if len(text) > max(limit * served.longest_token, ALWAYS_COUNTED):
        raise too_long(f"of {len(text)} characters has more tokens than fit", limit, param)
    if len(text) <= SHORT_TEXT:
        return served.tokenizer.encode(text, add_special_tokens)
    return await asyncio.to_thread(served.tokenizer.encode, text, add_special_tokens)


async def chat_prompt(request: ChatRequest, served: Served) -> list[int]:
    """Token ids of a conversation, through the chat template.

    Raises:
        RequestError: codes ``template_error``, ``no_chat_template``, ``context_length_exceeded``, and others.
    """
    return await encode(await chat_text(request, served), served, bool(request.add_special_tokens), "messages")


async def chat_text(request: ChatRequest | TokenizeRequest, served: Served) -> str:
    """A conversation as one text, as the chat template writes it.

    Raises:
        RequestError: a message is not what a template can use, or the template refuses them.
    """
    if not request.messages:
        raise RequestError("messages must hold at least one message.", param="messages")
    return await asyncio.to_thread(
        served.tokenizer.apply_chat_template,
        [_message(message, f"messages[{place}]") for place, message in enumerate(request.messages)],
        add_generation_prompt=request.add_generation_prompt is not False,
        chat_template=served.chat_template,
        kwargs=request.chat_template_kwargs,
    )


def _message(message: Mapping[str, Any], param: str) -> dict[str, Any]:
    """Role and text of one message, as templates expect them.

    Raises:
        RequestError: something that the model could not see would be dropped.
    """
    role = message.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        known = ", ".join(sorted(_ROLES))
        raise RequestError(f"{param}.role must be one of {known}.", param=f"{param}.role")
    for name in ("tool_calls", "function_call", "audio"):
        if message.get(name):
            raise RequestError(f"{param}.{name} is not available yet.", code="unsupported", param=f"{param}.{name}")
    content = message.get("content")
    if isinstance(content, list):
        content = "\n".join(_part_text(part, f"{param}.content[{place}]") for place, part in enumerate(content))
    if content is None and role == "assistant":
        content = ""
    if not isinstance(content, str):
        raise RequestError(f"{param}.content must be a text or a list of parts.", param=f"{param}.content")
    plain = {"role": "system" if role == "developer" else role, "content": content}
    return plain | ({"name": message["name"]} if isinstance(message.get("name"), str) else {})


def _part_text(part: Any, param: str) -> str:
    if isinstance(part, dict) and part.get("type") in ("text", "input_text"):
        text = part.get("text")
        if isinstance(text, str):
            return text
        raise RequestError(f"{param}.text must be a text.", param=f"{param}.text")
    raise RequestError(f"{param}: only text parts are available.", code="unsupported", param=param)
