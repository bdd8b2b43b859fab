"""What clients send: typed request bodies, and errors that name the field at fault."""

from __future__ import annotations

import re
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from paceline.errors import RequestError
from paceline.server.fields import CHAT_FIELDS, COMPLETION_FIELDS, IGNORED, UnknownFields, refuse_unsupported

T = TypeVar("T", bound=Struct)

Priority = Annotated[int, Meta(ge=-(2**31), lt=2**31)]
CacheSalt = Annotated[str, Meta(min_length=1, max_length=1024)]


class StreamOptions(Struct, frozen=True):
    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class CommonRequest(Struct, kw_only=True, frozen=True):
    """Fields that completions and chat share. None means: the default."""

    model: str | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    max_tokens: int | UnsetType | None = UNSET
    min_tokens: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = False
    include_stop_str_in_output: bool | None = False
    skip_special_tokens: bool | None = True
    return_token_ids: bool | None = False
    return_tokens_as_token_ids: bool | None = False
    priority: Priority | None = None
    cache_salt: CacheSalt | None = None
    request_id: str | None = None  # labels, see `Ids`
    session_id: str | None = None


class CompletionRequest(CommonRequest, kw_only=True, frozen=True):
    """Body of POST /v1/completions."""

    prompt: Any = None
    logprobs: int | None = None
    add_special_tokens: bool | None = True


class ChatRequest(CommonRequest, kw_only=True, frozen=True):
    """Body of POST /v1/chat/completions."""

    messages: list[dict[str, Any]] = msgspec.field(default_factory=list)
    max_completion_tokens: int | None = None  # wins over max_tokens
    logprobs: bool | None = False
    top_logprobs: int | None = None
    add_generation_prompt: bool | None = True
    add_special_tokens: bool | None = False
    chat_template_kwargs: dict[str, Any] | None = None


class TokenizeRequest(Struct, kw_only=True, frozen=True):
    """Body of POST /tokenize: `prompt`, or `messages` as in a chat."""

    model: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = True
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool | None = False


class DetokenizeRequest(Struct, kw_only=True, frozen=True):
    """Body of POST /detokenize."""

    tokens: list[int]
    model: str | None = None


_UNSUPPORTED: dict[type, dict[str, tuple[Any, ...]]] = {
    CompletionRequest: COMPLETION_FIELDS,
    ChatRequest: CHAT_FIELDS,
}


def _known(cls: type[Struct]) -> frozenset[str]:
    return frozenset(cls.__struct_fields__) | IGNORED | frozenset(_UNSUPPORTED.get(cls, ()))


_KNOWN = {cls: _known(cls) for cls in (CompletionRequest, ChatRequest, TokenizeRequest, DetokenizeRequest)}


def decode_object(data: bytes) -> dict[str, Any]:
    """The JSON object in `data`.

    Raises:
        RequestError: not JSON, or not an object.
    """
    try:
        body = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError(f"The body is not valid JSON: {error}") from None
    if not isinstance(body, dict):
        raise RequestError("The body must be a JSON object.")
    return body


def parse(body: dict[str, Any], cls: type[T], unknown: UnknownFields) -> T:
    """Check `body` and give it types.

    Raises:
        RequestError: a field has the wrong type (`param` names it), or asks for what is not supported.
    """
    unknown.note(body, _KNOWN[cls])  # type: ignore[index]
    request: T = convert(body, cls)
    refuse_unsupported(body, _UNSUPPORTED.get(cls, {}))
    return request


def convert(value: Any, kind: type[T] | Any, param: str = "") -> Any:
    """`value` as `kind`; `param` is its name in the request ("" for the whole body).

    Raises:
        RequestError: wrong type or out of range; `param` leads to the place.
    """
    try:
        return msgspec.convert(value, kind)
    except (msgspec.ValidationError, OverflowError, RecursionError) as error:
        text, _, path = str(error).partition(" - at `$")
        name = (param + path.rstrip("`")).lstrip(".") or None
        # msgspec writes `key` paths of dicts as [...]; the text itself holds only type names and bounds.
        message = f"{name}: {_plain(text)}" if name else _plain(text)
        raise RequestError(message, param=name) from None


def _plain(text: str) -> str:
    return re.sub("`", "", text[:1].lower() + text[1:]) + "."
