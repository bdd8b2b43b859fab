"""The life of a server: listen, load, serve, drain, end."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import signal
import socket
import time
from collections.abc import Iterator

import uvicorn
import uvloop

from paceline.config import EngineConfig, ServerConfig
from paceline.engine.client import AsyncEngine
from paceline.errors import ConfigError, PacelineError
from paceline.server.access import is_loopback
from paceline.server.app import build_app
from paceline.server.http_protocol import BoundedHttp
from paceline.server.loading import load
from paceline.server.spans import Spans
from paceline.server.state import Phase, Served, ServerState
from paceline.server.stats_log import log_stats

logger = logging.getLogger(__name__)

LAST_WORDS_SECONDS = 2.0  # for streams to be told that the engine died


class _Uvicorn(uvicorn.Server):
    """uvicorn without its signal handlers: draining is ours to do."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def listen(config: ServerConfig) -> socket.socket:
    """The listening socket.

    Raises:
        ConfigError: the address is taken, not ours, or none.
    """
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    server = socket.socket(family, socket.SOCK_STREAM)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        server.bind((config.host, config.port))
        server.listen(2048)
    except (OSError, UnicodeError) as error:  # the latter: of a name that no host can have
        server.close()
        if isinstance(error, socket.gaierror | UnicodeError) or error.errno == errno.EADDRNOTAVAIL:
            problem = "is no address of this machine, and no name for one"
            raise ConfigError("host", config.host, problem, "Give such as 127.0.0.1 or 0.0.0.0.") from error
        where = f"{config.host}:{config.port}"
        raise ConfigError(
            "port", config.port, f"cannot listen on {where} ({error.strerror})", "Choose another."
        ) from error
    return server


def run(engine_config: EngineConfig, server_config: ServerConfig) -> int:
    """Serve until told to stop; returns the exit code.

    Raises:
        ConfigError: the address cannot be used.
    """
    listener = listen(server_config)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_Life(engine_config, server_config, listener).run())


class _Life:
    def __init__(self, engine_config: EngineConfig, config: ServerConfig, listener: socket.socket) -> None:
        self.config = config
        self.engine_config = engine_config
        self.listener = listener
        self.state = ServerState(config, engine_config, int(time.time()))
        if config.otlp_traces_endpoint is not None:
            self.state.spans = Spans(config.otlp_traces_endpoint)
        self.engine: AsyncEngine | None = None
        self.stop = asyncio.Event()  # set by the first signal
        self.stop_now = asyncio.Event()  # set by the second
        host, port = listener.getsockname()[:2]
        self.url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        server = _Uvicorn(
            uvicorn.Config(
                build_app(self.state),
                http=BoundedHttp,
                lifespan="off",
                log_level=self.config.uvicorn_log_level,
                access_log=self.config.uvicorn_log_level in ("info", "debug", "trace"),
                timeout_graceful_shutdown=1,
                server_header=False,
            )
        )
        http = asyncio.create_task(server.serve(sockets=[self.listener]))
        try:
            return await self._serve()
        finally:
            self.state.monitor.close()
            server.should_exit = True
            await http
            if self.state.spans is not None:
                await self.state.spans.close()
            if self.engine is not None:
                await self.engine.close()

    def _on_signal(self) -> None:
        if self.stop.is_set():
            self.stop_now.set()
        self.stop.set()

    async def _serve(self) -> int:
        logger.info("listening on %s; /health answers 503 until the model is loaded", self.url)
        if not is_loopback(self.config.host) and not self.config.api_key:
            logger.warning("anybody who reaches %s may use this server: it has no API key", self.config.host)
        stopped = asyncio.create_task(self.stop.wait())
        try:
            loaded = await self._load(stopped)
            if loaded is None:
                return 0
            self.engine, self.state.served = loaded
            return await self._answer(stopped)
        except PacelineError as error:
            logger.error("cannot start: %s", error)
            return 1
        finally:
            stopped.cancel()

    async def _load(self, stopped: asyncio.Task[bool]) -> tuple[AsyncEngine, Served] | None:
        """What to serve; None if told to stop first.

        Raises:
            PacelineError: it cannot be loaded.
        """
        loading = asyncio.create_task(load(self.engine_config, self.config, self._waiting_for))
        await asyncio.wait({loading, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if loading.done():
            return loading.result()
        loading.cancel()
        await asyncio.wait({loading})
        return None

    async def _answer(self, stopped: asyncio.Task[bool]) -> int:
        """Take requests until told to stop, or until the engine dies."""
        assert self.engine is not None
        assert self.state.served is not None
        served = self.state.served
        self.state.metrics.attach(served.names[0], served.info, self.engine_config, self.engine)
        self.state.phase = Phase.READY
        logger.info("layers per stage: %s", ", ".join(map(str, served.info.layer_split)))
        logger.info("Paceline is ready: %s/v1 serves %s", self.url, served.names[0])
        stats = asyncio.create_task(log_stats(self.state, self.config.log_stats_interval))
        died = asyncio.create_task(self.engine.died.wait())
        try:
            await asyncio.wait({stopped, died}, return_when=asyncio.FIRST_COMPLETED)
            return await self._engine_died() if died.done() else await self._drain(died)
        finally:
            for task in (stats, died):
                task.cancel()

    def _waiting_for(self, what: str) -> None:
        self.state.waiting_for = what

    async def _engine_died(self) -> int:
        self.state.phase = Phase.ENGINE_DEAD
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.state.wait_idle(), LAST_WORDS_SECONDS)
        return 1

    async def _drain(self, died: asyncio.Task[bool]) -> int:
        """Let running requests end, for so long as is allowed or until a second signal."""
        self.state.phase = Phase.DRAINING
        if self.state.active:
            logger.info(
                "draining: %d requests may go on for %g s; a second signal ends them",
                len(self.state.active),
                self.config.shutdown_timeout,
            )
        idle = asyncio.create_task(self.state.wait_idle())
        now = asyncio.create_task(self.stop_now.wait())
        try:
            await asyncio.wait(
                {idle, now, died}, timeout=self.config.shutdown_timeout, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            now.cancel()
        if not idle.done() and self.engine is not None and self.engine.dead is None:
            logger.info("ending %d requests", len(self.state.active))
            self.engine.abort(list(self.state.engine_ids))
            await asyncio.wait({idle}, timeout=LAST_WORDS_SECONDS)
        idle.cancel()
        logger.info("stopped")
        return 1 if self.engine is not None and self.engine.dead is not None else 0
