"""A deterministic engine and a tokenizer of bytes, for tests of the HTTP layer alone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any

import httpx

from paceline.config import EngineConfig, ServerConfig
from paceline.engine.trace_reader import TraceReader
from paceline.errors import EngineDeadError, RequestError
from paceline.messages import CoreReady, CoreStats, RequestOutput, TokenLogprobs, TraceChunk
from paceline.sampling_params import SamplingParams
from paceline.server.app import build_app
from paceline.server.sampling import SamplingDefaults
from paceline.server.state import Phase, Served, ServerState
from paceline.trace import Recorder
from paceline.trace.events import Facts

EOS = 256
MAX_MODEL_LEN = 100


class ByteTokenizer:
    """Token n is byte n; 256 ends an answer. Interface of :class:`paceline.tokenization.Tokenizer`."""

    vocab_size = 257
    bos_token_id = None
    eos_token_ids = (EOS,)
    strips_first_space = False
    has_chat_template = True

    def encode(self, text: str, add_special_tokens: bool = True, allow_special: bool = True) -> list[int]:
        return list(text.encode("utf-8", "replace"))

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return b"".join(self.token_bytes(token) for token in ids).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id]) if 0 <= token_id < 256 else b""

    def is_special(self, token_id: int) -> bool:
        return token_id == EOS

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        chat_template: str | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        if any(message["content"] == "bad template" for message in messages):
            raise RequestError("the chat template cannot make a prompt of this", code="template_error")
        return "".join(f"{message['role'][0]}:{message['content']};" for message in messages)


class FakeEngine:
    """Answers each prompt with `answer(prompt)`, one token per output; obeys max_tokens, EOS and stop tokens.

    Attributes:
        gate: event that every answer waits for after each token; `before_first`: before its first.
        posted: every call that a real engine would be sent.
        live: ids of requests that have neither ended nor been aborted.
    """

    def __init__(self, answer: Callable[[list[int]], list[int]] | None = None, queue: int = 1000) -> None:
        self.answer = answer or (lambda prompt: [*b" then this.", EOS])
        self.queue = queue
        self.dead: str | None = None
        self.stats: CoreStats | None = None
        self.gate: asyncio.Event | None = None
        self.before_first: asyncio.Event | None = None
        self.first_out = asyncio.Event()
        self.posted: list[tuple[str, Any]] = []
        self.sampled: list[SamplingParams] = []
        self.timeouts: list[float | None] = []
        self.time_out_after: int | None = None
        self.live: set[str] = set()
        self.cancelled: asyncio.Queue[str] = asyncio.Queue()
        self.labels: list[str] = []
        self.owners: list[str] = []
        self.recorder = Recorder(facts=Facts(stages=2, depth=2))
        self.trace = TraceReader(self, 2**20)
        self.fail_after: int | None = None
        self.die_after: int | None = None

    def check_queue(self, num_requests: int = 1) -> None:
        if self.dead is not None:
            raise EngineDeadError(self.dead)
        if len(self.live) + num_requests > self.queue:
            raise RequestError("too many requests wait", status=429, code="queue_full")

    async def generate(
        self,
        request_id: str,
        prompt_token_ids: list[int],
        sampling: SamplingParams,
        *,
        priority: int = 0,
        cache_salt: str = "",
        timeout: float | None = None,
        label: str = "",
        owner: str = "",
    ) -> AsyncGenerator[RequestOutput, None]:
        self.check_queue()
        self.timeouts.append(timeout)
        self.posted.append(("add", (request_id, priority, cache_salt)))
        self.labels.append(label)
        self.owners.append(owner)
        self.sampled.append(sampling)
        self.live.add(request_id)
        ended = False
        try:
            if self.before_first is not None:
                await self.before_first.wait()
            for place, output in enumerate(self._outputs(request_id, prompt_token_ids, sampling)):
                await asyncio.sleep(0)
                if place == self.die_after:
                    ended, self.dead = True, "stage 1 was killed"
                    raise EngineDeadError(self.dead)
                if place == self.time_out_after:
                    ended = True
                    yield RequestOutput(request_id, [], status="FINISHED_TIMEOUT")
                    return
                if place == self.fail_after:
                    ended = True
                    yield RequestOutput(request_id, [], status="FINISHED_ERROR", error="row at 0x7f12ab: not finite")
                    return
                ended = bool(output.status)
                yield output
                self.first_out.set()
                if self.gate is not None:
                    await self.gate.wait()
        finally:
            self.live.discard(request_id)
            if not ended:
                self.posted.append(("abort", request_id))
                self.cancelled.put_nowait(request_id)

    def _outputs(self, request_id: str, prompt: list[int], sampling: SamplingParams) -> list[RequestOutput]:
        tokens = self.answer(prompt)[: sampling.max_tokens or MAX_MODEL_LEN - len(prompt)]
        outputs = []
        for place, token in enumerate(tokens):
            stops = token in sampling.stop_token_ids or (token == EOS and not sampling.ignore_eos)
            ends = stops or place == len(tokens) - 1
            status = ("FINISHED_STOPPED" if stops else "FINISHED_LENGTH") if ends else ""
            logprobs = None
            if sampling.logprobs is not None:
                others = [token, (token + 1) % 256][: sampling.logprobs]
                logprobs = [TokenLogprobs(-0.5, 1, others, [-0.5, float("-inf")][: len(others)])]
            outputs.append(
                RequestOutput(
                    request_id,
                    [token],
                    logprobs,
                    status,
                    token if stops else None,
                    num_cached_tokens=min(2, len(prompt)) if place == 0 else -1,
                    queue_seconds=0.0 if place == 0 else -1.0,
                )
            )
            if ends:
                break
        return outputs

    def finish(self, request_id: str, num_output_tokens: int) -> None:
        self.posted.append(("finish", (request_id, num_output_tokens)))

    def abort(self, request_ids: list[str]) -> None:
        self.posted.append(("abort", tuple(request_ids)))

    async def read_trace(self, begin: int) -> TraceChunk:
        await asyncio.sleep(0)
        chunk = self.recorder.read(begin)
        return TraceChunk(chunk.begin, chunk.end, chunk.total, time.monotonic(), chunk.lines)


class Site:
    """The application over a fake engine, and a client to it."""

    def __init__(
        self,
        engine: FakeEngine | None = None,
        config: ServerConfig | None = None,
        engine_config: EngineConfig | None = None,
        defaults: SamplingDefaults | None = None,
        names: tuple[str, ...] = ("m", "alias"),
        max_model_len: int = MAX_MODEL_LEN,
    ) -> None:
        self.engine = engine or FakeEngine()
        self.state = ServerState(config or ServerConfig(), engine_config or EngineConfig(), created=1)
        info = CoreReady(64, 16, max_model_len, 2, [1, 1], "float32")
        self.state.served = Served(
            engine=self.engine,
            tokenizer=ByteTokenizer(),  # type: ignore[arg-type]
            info=info,
            vocab_size=257,
            names=names,
            defaults=defaults or SamplingDefaults(),
            longest_token=1,
        )
        self.state.metrics.attach(names[0], info, self.state.engine_config, self.engine)
        self.state.phase = Phase.READY
        self.app = build_app(self.state)
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        self.client = httpx.AsyncClient(transport=transport, base_url="http://localhost")

    async def complete(self, **body: Any) -> httpx.Response:
        return await self.client.post("/v1/completions", json={"prompt": "one"} | body)

    async def chat(self, **body: Any) -> httpx.Response:
        messages = [{"role": "user", "content": "hello"}]
        return await self.client.post("/v1/chat/completions", json={"messages": messages} | body)

    def metric(self, name: str) -> float:
        """Sum over all label values of one sample name."""
        lines = self.state.metrics.render().decode().splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.partition("{")[0].partition(" ")[0] == name)
