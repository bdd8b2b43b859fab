"""The two shapes of an answer: text completion and chat; as stream events and as one JSON object.

Stream events are put together from parts that are encoded once per stream; only the text (and what a client
asked for beyond it) is encoded per event.
"""

from __future__ import annotations

import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import msgspec

from paceline.engine.choice import Choice, Delta
from paceline.server.logprobs import CompletionLogprobs, TokenNames, chat_logprobs
from paceline.server.protocol import ChatRequest, CompletionRequest

DONE = b"data: [DONE]\n\n"

encode = msgspec.json.Encoder().encode


def usage_of(choices: Sequence[Choice]) -> dict[str, Any]:
    """The `usage` object: prompts and answers of all choices together."""
    prompt = sum(len(choice.prompt_token_ids) for choice in choices)
    output = sum(choice.num_output_tokens for choice in choices)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": {"cached_tokens": sum(choice.num_cached_tokens for choice in choices)},
    }


class Shape(ABC):
    """Formats one answer. `stream` events end with an empty line; `body` is the whole answer."""

    kind = ""
    chunk_kind = ""
    id_prefix = ""

    def __init__(
        self, request: CompletionRequest | ChatRequest, model: str, names: TokenNames, force_usage: bool
    ) -> None:
        options = request.stream_options
        self.id = f"{self.id_prefix}-{secrets.token_hex(16)}"
        self.names = names
        self.with_token_ids = bool(request.return_token_ids)
        self.with_usage = force_usage or bool(options and options.include_usage)
        self.with_running_usage = self.with_usage and bool(options and options.continuous_usage_stats)
        self._created = int(time.time())
        self._model = model
        self._started: set[int] = set()  # indexes of the choices whose first event is out
        self._head = (
            b'data: {"id":' + encode(self.id) + b',"object":' + encode(self.chunk_kind)
            + f',"created":{self._created},"model":'.encode() + encode(model)
        )  # fmt: skip
        self._choice_head = self._head + b',"choices":[{"index":'
        self._tail = b'}],"usage":null}\n\n' if self.with_usage else b"}]}\n\n"

    # ------------------------------------------------------------ events

    def delta_event(self, choice: Choice, delta: Delta) -> bytes:
        """Events for new text and tokens; empty if there is nothing to tell."""
        first = choice.index not in self._started
        start = self._start_event(choice) if first else b""
        told_tokens = delta.token_ids and (self.with_token_ids or delta.logprobs is not None)
        if start or delta.text or told_tokens:
            self._started.add(choice.index)
        if not delta.text and not told_tokens:
            return start
        return start + self._event(choice, self._delta(choice, delta, first))

    def finish_event(self, choice: Choice) -> bytes:
        """The event that carries the finish reason, and nothing else."""
        reason = b',"finish_reason":' + encode(choice.finish_reason) + b',"stop_reason":' + encode(choice.stop_reason)
        return self._event(choice, self._empty_delta + reason)

    def usage_event(self, choices: Sequence[Choice]) -> bytes:
        """The last event before the end, if usage was asked for."""
        if not self.with_usage:
            return b""
        return self._head + b',"choices":[],"usage":' + encode(usage_of(choices)) + b"}\n\n"

    def _event(self, choice: Choice, fields: bytes) -> bytes:
        tail = self._tail
        if self.with_running_usage:
            tail = b'}],"usage":' + encode(usage_of([choice])) + b"}\n\n"
        return b"%s%d,%s%s" % (self._choice_head, choice.index, fields, tail)

    _empty_delta = b""

    def _start_event(self, choice: Choice) -> bytes:
        return b""

    @abstractmethod
    def _delta(self, choice: Choice, delta: Delta, first: bool) -> bytes:
        """The fields of one streamed piece, after its index."""

    # ------------------------------------------------------------ the whole answer

    def body(self, choices: Sequence[Choice], deltas: Sequence[Sequence[Delta]]) -> bytes:
        """The whole answer as one JSON object; `deltas` holds each choice's."""
        answer = {
            "id": self.id,
            "object": self.kind,
            "created": self._created,
            "model": self._model,
            "choices": [self._whole(choice, parts) for choice, parts in zip(choices, deltas, strict=True)],
            "usage": usage_of(choices),
            "system_fingerprint": None,
        }
        return encode(answer | self._extras(choices))

    def _extras(self, choices: Sequence[Choice]) -> dict[str, Any]:
        return {}

    @abstractmethod
    def _whole(self, choice: Choice, parts: Sequence[Delta]) -> dict[str, Any]:
        """One choice of the whole answer."""

    def _ending(self, choice: Choice, parts: Sequence[Delta]) -> dict[str, Any]:
        ending: dict[str, Any] = {"finish_reason": choice.finish_reason, "stop_reason": choice.stop_reason}
        if self.with_token_ids:
            ending["token_ids"] = [token for part in parts for token in part.token_ids]
        return ending


class CompletionShape(Shape):
    """``/v1/completions``."""

    kind = chunk_kind = "text_completion"
    id_prefix = "cmpl"
    _empty_delta = b'"text":"","logprobs":null'

    def __init__(
        self, request: CompletionRequest | ChatRequest, model: str, names: TokenNames, force_usage: bool
    ) -> None:
        super().__init__(request, model, names, force_usage)
        self._logprobs: dict[int, CompletionLogprobs] = {}

    def _delta(self, choice: Choice, delta: Delta, first: bool) -> bytes:
        text = b'"text":' + encode(delta.text)
        if delta.logprobs is None and not self.with_token_ids:
            return text + b',"logprobs":null,"finish_reason":null'
        extra = b""
        if self.with_token_ids:
            extra = b',"token_ids":' + encode(delta.token_ids)
            if first:
                extra += b',"prompt_token_ids":' + encode(choice.prompt_token_ids)
        return text + b',"logprobs":' + encode(self._logprobs_of(choice, delta)) + b',"finish_reason":null' + extra

    def _logprobs_of(self, choice: Choice, delta: Delta) -> dict[str, Any] | None:
        if delta.logprobs is None:
            return None
        rows = self._logprobs.setdefault(choice.index, CompletionLogprobs(self.names))
        return rows.add(delta.token_ids, delta.logprobs)

    def _whole(self, choice: Choice, parts: Sequence[Delta]) -> dict[str, Any]:
        rows = [found for part in parts if (found := self._logprobs_of(choice, part)) is not None]
        logprobs = {key: [item for row in rows for item in row[key]] for key in rows[0]} if rows else None
        whole = {"index": choice.index, "text": "".join(part.text for part in parts), "logprobs": logprobs}
        prompt = {"prompt_token_ids": choice.prompt_token_ids} if self.with_token_ids else {}
        return whole | self._ending(choice, parts) | prompt


class ChatShape(Shape):
    """``/v1/chat/completions``."""

    kind, chunk_kind = "chat.completion", "chat.completion.chunk"
    id_prefix = "chatcmpl"
    _empty_delta = b'"delta":{},"logprobs":null'

    def _start_event(self, choice: Choice) -> bytes:
        role = b'"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null'
        if self.with_token_ids:
            role += b',"prompt_token_ids":' + encode(choice.prompt_token_ids)
        return self._event(choice, role)

    def _delta(self, choice: Choice, delta: Delta, first: bool) -> bytes:
        text = b'"delta":{"content":' + encode(delta.text)
        if delta.logprobs is None and not self.with_token_ids:
            return text + b'},"logprobs":null,"finish_reason":null'
        logprobs = chat_logprobs(delta.token_ids, delta.logprobs, self.names) if delta.logprobs is not None else None
        extra = b',"token_ids":' + encode(delta.token_ids) if self.with_token_ids else b""
        return text + b'},"logprobs":' + encode(logprobs) + b',"finish_reason":null' + extra

    def _extras(self, choices: Sequence[Choice]) -> dict[str, Any]:
        return {"prompt_token_ids": choices[0].prompt_token_ids} if self.with_token_ids else {}

    def _whole(self, choice: Choice, parts: Sequence[Delta]) -> dict[str, Any]:
        content: list[Any] = []
        for part in parts:
            if part.logprobs is not None:
                content += chat_logprobs(part.token_ids, part.logprobs, self.names)["content"]
        message = {"role": "assistant", "content": "".join(part.text for part in parts), "refusal": None}
        logprobs = {"content": content} if choice.sampling.logprobs is not None else None
        return {"index": choice.index, "message": message, "logprobs": logprobs} | self._ending(choice, parts)
