"""The front end's side of the engine: sends requests to the core, and hands tokens to whoever asked."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

from paceline.config import EngineConfig
from paceline.engine.core_process import CoreProcess
from paceline.engine.trace_reader import TraceReader
from paceline.errors import EngineDeadError, PacelineError, RequestError
from paceline.messages import (
    AbortRequests,
    AddRequest,
    CoreProgress,
    CoreReady,
    CoreStats,
    FinishRequest,
    FromCore,
    Outputs,
    ReadTrace,
    RequestOutput,
    TraceChunk,
)
from paceline.sampling_params import SamplingParams

logger = logging.getLogger(__name__)


def kv_cache_size(info: CoreReady) -> tuple[int, int]:
    """Tokens in the KV cache, and how many requests of the maximum length fit in it at once."""
    blocks_each = -(-info.max_model_len // info.block_size)
    return info.num_blocks * info.block_size, info.num_blocks // blocks_each


class StartError(PacelineError):
    """The engine could not start; the text is the reason, from whichever process had it."""


class AsyncEngine:
    """One engine, used from one event loop.

    Args:
        model_path: the model's folder or .gguf file.
        eos_token_ids: tokens that end a sequence, unless a request ignores them.

    Attributes:
        info: sizes of the running engine, after :meth:`start`.
        stats: the core's latest figures, None before the first.
        dead: why the engine died, None while it lives.
        died: set when it did.
        trace: follows the record of what it does.
    """

    def __init__(self, config: EngineConfig, model_path: Path, eos_token_ids: tuple[int, ...] = ()) -> None:
        self.config = config
        self.stats: CoreStats | None = None
        self.dead: str | None = None
        self.died = asyncio.Event()
        self.trace = TraceReader(self, config.trace_bytes)
        self._model_path = model_path
        self._eos_token_ids = eos_token_ids
        self._info: CoreReady | None = None
        self._streams: dict[str, asyncio.Queue[RequestOutput | None]] = {}
        self._waiting: set[str] = set()
        self._core = CoreProcess(self._take, self._die)
        self._started: asyncio.Future[CoreReady] | None = None
        self._chunks: deque[asyncio.Future[TraceChunk]] = deque()  # who asked for some of the record, in order
        self._on_progress: Callable[[CoreProgress], None] = lambda progress: None

    @property
    def info(self) -> CoreReady:
        assert self._info is not None, "the engine has not started"
        return self._info

    @property
    def num_unfinished(self) -> int:
        return len(self._streams)

    # ------------------------------------------------------------ start and end

    async def start(self, on_progress: Callable[[CoreProgress], None] | None = None) -> CoreReady:
        """Start the core and its stages, and wait until they can take requests.

        Raises:
            StartError: they cannot; everything that was started has ended.
        """
        self._on_progress = on_progress or self._on_progress
        self._started = asyncio.get_running_loop().create_future()
        self._core.start(self.config, self._model_path)
        try:
            self._info = await self._started
        except BaseException:
            await self.close()
            raise
        tokens, at_once = kv_cache_size(self._info)
        logger.info("KV cache: %d tokens; at most %d requests of the maximum length at once", tokens, at_once)
        if self._info.max_model_len == tokens != self.config.max_model_len:
            logger.warning("the model length is capped to %d tokens: the KV cache holds no more", tokens)
        return self._info

    async def close(self) -> None:
        """End the engine; unfinished requests end with an error. May be called twice."""
        await self._core.close()
        self._die("the engine was closed")

    # ------------------------------------------------------------ requests

    def check_queue(self, num_requests: int = 1) -> None:
        """Whether so many more requests may wait.

        Raises:
            RequestError: 429, too many do already.
            EngineDeadError: nobody will ever answer.
        """
        if self.dead is not None:
            raise EngineDeadError(self.dead)
        limit = self.config.max_num_queued_reqs
        if len(self._waiting) + num_requests > limit:
            raise RequestError(
                f"{len(self._waiting)} requests are waiting already, and at most {limit} may",
                status=429,
                code="queue_full",
            )

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
        """Tokens as they come, the last with a status. Closing the iterator early aborts the request.

        Raises:
            RequestError: too many requests wait.
            EngineDeadError: the engine died before the request ended.
        """
        self.check_queue()
        if request_id in self._streams:
            raise ValueError(f"request id {request_id} is in use")
        queue: asyncio.Queue[RequestOutput | None] = asyncio.Queue()
        self._streams[request_id] = queue
        self._waiting.add(request_id)
        finished = False
        try:
            self._core.post(
                AddRequest(
                    request_id,
                    prompt_token_ids,
                    sampling,
                    self._eos_token_ids,
                    priority,
                    cache_salt,
                    timeout,
                    label,
                    owner,
                )
            )
            while not finished:
                output = await queue.get()
                if output is None:
                    finished = True
                    raise EngineDeadError(self.dead or "the engine died")
                finished = bool(output.status)
                yield output
        finally:
            self._forget(request_id)
            if not finished and self.dead is None:
                self._core.post(AbortRequests([request_id]))

    def finish(self, request_id: str, num_output_tokens: int) -> None:
        """A stop string was found: tokens past so many never existed."""
        if request_id in self._streams:
            self._core.post(FinishRequest(request_id, num_output_tokens))

    def abort(self, request_ids: list[str]) -> None:
        self._core.post(AbortRequests(request_ids))

    async def read_trace(self, begin: int) -> TraceChunk:
        """Some of the record, from byte `begin` of it on, or from the oldest page if that is gone.

        Raises:
            EngineDeadError: nobody will answer.
        """
        if self.dead is not None:
            raise EngineDeadError(self.dead)
        asked: asyncio.Future[TraceChunk] = asyncio.get_running_loop().create_future()
        self._chunks.append(asked)
        self._core.post(ReadTrace(begin))
        return await asked

    def _forget(self, request_id: str) -> None:
        self._streams.pop(request_id, None)
        self._waiting.discard(request_id)

    # ------------------------------------------------------------ what the core says

    def _take(self, message: FromCore) -> None:
        if isinstance(message, Outputs):
            for output in message.outputs:
                self._waiting.discard(output.request_id)
                if (queue := self._streams.get(output.request_id)) is not None:
                    queue.put_nowait(output)
        elif isinstance(message, CoreStats):
            self.stats = message
        elif isinstance(message, TraceChunk):
            if self._chunks:
                _set(self._chunks.popleft(), message)
        elif isinstance(message, CoreProgress):
            self._on_progress(message)
        elif isinstance(message, CoreReady):
            self._set_started(message)
        else:
            self._die(message.error)

    def _set_started(self, ready: CoreReady) -> None:
        if self._started is not None and not self._started.done():
            self._started.set_result(ready)

    def _die(self, error: str) -> None:
        if self.dead is not None:
            return
        self.dead = error
        self.died.set()
        if self._started is not None and not self._started.done():
            self._started.set_exception(StartError(error))
        if self._info is not None and not self._core.closing:
            logger.error("the engine died: %s", error)
        for queue in self._streams.values():
            queue.put_nowait(None)
        while self._chunks:
            asked = self._chunks.popleft()
            if not asked.done():
                asked.set_exception(EngineDeadError(error))


def _set(asked: asyncio.Future[TraceChunk], chunk: TraceChunk) -> None:
    if not asked.done():  # whoever asked may have given up
        asked.set_result(chunk)
