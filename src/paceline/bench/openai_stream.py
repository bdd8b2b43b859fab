"""One streamed answer of an OpenAI-compatible server, and when each part of it arrived."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec

from paceline.bench.datasets import Sample
from paceline.bench.figures import Timeline

LONGEST_LINE = 16 * 2**20  # bytes of one event
SHOWN_ERROR = 300  # characters


@dataclass
class Answer(Timeline):
    """A timeline with what came along it."""

    text: str = ""
    cached_tokens: int | None = None  # of the prompt, as the server says; None if it does not


@dataclass(frozen=True)
class Target:
    """Where and how requests are sent.

    Attributes:
        base_url: without `/v1`.
        path: such as `/v1/completions`.
        chat: prompts are texts in a conversation's first message.
        fields: of every request: model, sampling, extras.
    """

    base_url: str
    path: str
    chat: bool
    fields: dict[str, Any]

    def body(self, sample: Sample) -> dict[str, Any]:
        """The request for one sample, streamed and with usage."""
        if self.chat:
            prompt: dict[str, Any] = {"messages": [{"role": "user", "content": sample.prompt}]}
            limit = "max_completion_tokens"
        else:
            prompt, limit = {"prompt": sample.prompt}, "max_tokens"
        common = {limit: sample.output_len, "stream": True, "stream_options": {"include_usage": True}}
        return prompt | common | self.fields


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    token_ids: list[int] | None = None
    finish_reason: str | None = None

    @property
    def words(self) -> str:
        if self.delta is not None:
            return (self.delta.reasoning_content or "") + (self.delta.content or "")
        return self.text or ""


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _Details | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] = msgspec.field(default_factory=list)
    usage: _Usage | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Event).decode


class EventLines:
    """Cuts a stream of bytes, in whatever pieces it comes, into the data of its server-sent events."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """Data of every event line that `piece` completes; comments and other fields are skipped.

        Raises:
            ValueError: a line is too long.
        """
        *lines, self._rest = (self._rest + piece).split(b"\n")
        if len(self._rest) > LONGEST_LINE:
            raise ValueError("a line of the stream does not end")
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].strip()


async def ask(session: aiohttp.ClientSession, target: Target, sample: Sample) -> Answer:
    """Send one request and follow its stream; what goes wrong becomes the answer's `error`."""
    answer = Answer(sample.input_len, time.perf_counter())
    try:
        async with session.post(target.base_url + target.path, json=target.body(sample)) as response:
            if response.status != 200:
                answer.error = f"HTTP {response.status}: {(await response.text(errors='replace'))[:SHOWN_ERROR]}"
            else:
                answer.error = await _follow(response, answer)
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        answer.error = f"{type(error).__name__}: {error}"
    if not answer.error and not answer.output_tokens:
        answer.error = "the answer is empty"
    return answer


async def _follow(response: aiohttp.ClientResponse, answer: Answer) -> str:
    """Note every output with its time; returns what went wrong.

    Raises:
        ValueError: the stream is not made of OpenAI's events.
    """
    lines, finished, num_ids, usage = EventLines(), False, 0, None
    async for piece in response.content.iter_any():
        now = time.perf_counter()
        for data in lines.feed(piece):
            if data == b"[DONE]":
                finished = True
                continue
            event = _decode(data)
            if event.error is not None:
                return f"in the stream: {_message(event.error)}"
            usage = event.usage or usage
            for choice in event.choices:
                finished = finished or choice.finish_reason is not None
                if choice.words or choice.token_ids:
                    answer.outputs.append(now)
                    answer.text += choice.words
                    num_ids += len(choice.token_ids or ())
    if not finished:
        return "the stream broke off"
    answer.output_tokens = num_ids or len(answer.outputs)
    if usage is not None:
        answer.input_tokens = usage.prompt_tokens or answer.input_tokens
        answer.output_tokens = usage.completion_tokens or answer.output_tokens
        answer.cached_tokens = usage.prompt_tokens_details.cached_tokens if usage.prompt_tokens_details else None
    if answer.output_tokens and not answer.outputs:
        answer.outputs.append(time.perf_counter())  # nothing of it had a text
    return ""


def _message(error: Any) -> str:
    text = error.get("message", error) if isinstance(error, dict) else error
    return str(text)[:SHOWN_ERROR]
