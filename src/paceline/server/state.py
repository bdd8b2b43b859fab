"""What the HTTP server knows: whether it can serve, with which model, and who is being served."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Protocol

from paceline.config import EngineConfig, ServerConfig
from paceline.engine.trace_reader import TraceReader
from paceline.errors import EngineDeadError, RequestError
from paceline.messages import CoreReady, CoreStats, RequestOutput
from paceline.sampling_params import SamplingParams
from paceline.server.fields import UnknownFields
from paceline.server.metrics import Metrics
from paceline.server.monitor import Monitor
from paceline.server.sampling import SamplingDefaults
from paceline.tokenization import Tokenizer

if TYPE_CHECKING:
    from paceline.server.spans import Spans


FOLLOW_SECONDS = 2.0  # that metrics wait for the core: a scrape must not hang with it


class Engine(Protocol):
    """The part of :class:`paceline.engine.client.AsyncEngine` that serves requests."""

    @property
    def dead(self) -> str | None: ...

    @property
    def stats(self) -> CoreStats | None: ...

    def check_queue(self, num_requests: int = 1) -> None: ...

    def generate(
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
    ) -> AsyncGenerator[RequestOutput, None]: ...

    def finish(self, request_id: str, num_output_tokens: int) -> None: ...

    def abort(self, request_ids: list[str]) -> None: ...

    @property
    def trace(self) -> TraceReader: ...


class Phase(Enum):
    """Where the server stands in its life; every phase but READY answers 503 with the phase as code."""

    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    ENGINE_DEAD = "engine_dead"


_WHY_NOT = {
    Phase.LOADING: "The model is still loading",
    Phase.DRAINING: "The server is shutting down and takes no new requests",
    Phase.ENGINE_DEAD: "The engine has stopped; the server ends",
}


@dataclass(frozen=True)
class Served:
    """The model being served, once it is loaded."""

    engine: Engine
    tokenizer: Tokenizer
    info: CoreReady
    vocab_size: int  # token ids that both tokenizer and model know
    names: tuple[str, ...]  # clients may use any; the first is used in answers
    defaults: SamplingDefaults
    chat_template: str | None = None  # text of --chat-template
    longest_token: int = 1  # bytes


@dataclass
class ServerState:
    """Shared by all routes; lives on the event loop's thread alone."""

    config: ServerConfig
    engine_config: EngineConfig
    created: int  # Unix time, for /v1/models
    phase: Phase = Phase.LOADING
    waiting_for: str = "starting"  # what start-up waits for
    served: Served | None = None
    metrics: Metrics = field(default_factory=Metrics)

    spans: Spans | None = None  # where requests are traced to

    def __post_init__(self) -> None:
        self.unknown_fields = UnknownFields(self.metrics.on_unknown_fields)
        self.active: dict[str, asyncio.Task[None]] = {}  # request id -> the task that answers it
        self.engine_ids: dict[str, str] = {}  # what the engine is working on, and whose it is
        self.monitor = Monitor()
        self._idle = asyncio.Event()
        self._idle.set()

    def require_ready(self) -> Served:
        """The model, if requests can be served now.

        Raises:
            RequestError: 503 with the reason as code.
        """
        if self.served is not None and self.served.engine.dead and self.phase is not Phase.ENGINE_DEAD:
            self.phase = Phase.ENGINE_DEAD
        if self.phase is not Phase.READY or self.served is None:
            detail = f" ({self.waiting_for})" if self.phase is Phase.LOADING else ""
            raise RequestError(f"{_WHY_NOT[self.phase]}{detail}.", status=503, code=self.phase.value)
        return self.served

    async def follow_pipeline(self) -> None:
        """Let the metrics of the pipeline count what is new on record; given up if the core does not answer soon."""
        if self.served is None or self.metrics.pipeline is None:
            return
        with suppress(EngineDeadError, TimeoutError):
            async with asyncio.timeout(FOLLOW_SECONDS):
                history = await self.served.engine.trace.catch_up()
            self.metrics.pipeline.update(history)

    @contextmanager
    def serving(self, request_id: str, task: asyncio.Task[None]) -> Iterator[None]:
        """Count a request as active, for as long as it may use the engine."""
        self.active[request_id] = task
        self._idle.clear()
        try:
            yield
        finally:
            del self.active[request_id]
            if not self.active:
                self._idle.set()

    async def wait_idle(self) -> None:
        """Return once no request is active."""
        await self._idle.wait()
