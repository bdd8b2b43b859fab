"""The engine core's process as the front end sees it: started, spoken to, and ended."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import zmq
import zmq.asyncio

from paceline.config import EngineConfig
from paceline.engine.process import CoreConfig
from paceline.messages import FromCore, Shutdown, ToCore
from paceline.pipeline import child, wire

logger = logging.getLogger(__name__)

STOP_SECONDS = 5.0  # how long the core may take to end by itself
LAST_WORDS_SECONDS = 2.0  # how long what it said last may take to arrive after its end


class CoreProcess:
    """One core and the socket to it, used from one event loop.

    Args:
        on_message: takes what the core says.
        on_end: told that the core has ended, or cannot be understood any more, and in words how.

    Attributes:
        closing: it ends because it was told to.
    """

    def __init__(self, on_message: Callable[[FromCore], None], on_end: Callable[[str], None]) -> None:
        self.closing = False
        self._on_message = on_message
        self._on_end = on_end
        self._folder: wire.SocketFolder | None = None
        self._context: zmq.asyncio.Context | None = None
        self._socket: Any = None
        self._child: subprocess.Popen[bytes] | None = None
        self._death_fd: int | None = None  # readable once the process has ended
        self._gone = asyncio.Event()
        self._reader: asyncio.Task[None] | None = None
        self._decoder = msgspec.msgpack.Decoder(FromCore)
        self._encoder = msgspec.msgpack.Encoder()

    @property
    def pid(self) -> int:
        assert self._child is not None, "the core has not been started"
        return self._child.pid

    def start(self, config: EngineConfig, model_path: Path) -> None:
        """Start the process; what becomes of it, it says itself."""
        self._folder = wire.SocketFolder()
        self._context = zmq.asyncio.Context()
        self._socket = wire.make_socket(self._context, zmq.PAIR)
        address = self._folder.address("mail")
        self._socket.bind(address)
        self._child = child.start(
            "paceline.engine.process", msgspec.json.encode(CoreConfig(config, str(model_path), address))
        )
        self._death_fd = os.pidfd_open(self._child.pid)
        asyncio.get_running_loop().add_reader(self._death_fd, self._has_ended)
        self._reader = asyncio.create_task(self._read())

    def post(self, message: ToCore) -> None:
        """Send a message. The socket keeps what it cannot send at once, so this neither blocks nor fails while the core lives."""
        sent = self._socket.send(self._encoder.encode(message), zmq.DONTWAIT)
        sent.add_done_callback(_look_at)  # a core that has just died cannot be sent to; its death is told elsewhere

    async def close(self) -> None:
        """End the process, by force if need be. May be called twice."""
        self.closing = True
        if self._socket is not None and self._child is not None and self._child.poll() is None:
            with contextlib.suppress(zmq.ZMQError):
                self.post(Shutdown())
            # Not in another thread: at the interpreter's end, where offline use closes, none can be started any more.
            with contextlib.suppress(TimeoutError, OSError):
                assert self._child.stdin is not None
                self._child.stdin.close()
                await asyncio.wait_for(self._gone.wait(), STOP_SECONDS)
            child.stop([self._child], 0.0)
        self._forget_death()
        if self._reader is not None:
            self._reader.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._reader
            self._reader = None
        if self._context is not None:
            self._context.destroy(linger=0)
            self._context = None
        self._close_folder()

    async def _read(self) -> None:
        try:
            while True:
                message = self._decoder.decode(await self._socket.recv())
                self._close_folder()  # the core is connected, and nobody else shall be
                self._on_message(message)
        except Exception as error:  # without this task no stream would ever end
            logger.exception("reading from the engine core failed")
            self._on_end(f"what the engine core said could not be read: {type(error).__name__}")

    def _has_ended(self) -> None:
        """If it ended by itself it has said why, and that may still be on its way."""
        self._forget_death()
        self._gone.set()
        if self.closing or self._child is None:
            return
        code = self._child.wait()
        patience = LAST_WORDS_SECONDS if code > 0 else 0.0
        asyncio.get_running_loop().call_later(patience, self._on_end, f"the engine core {child.how_it_ended(code)}")

    def _forget_death(self) -> None:
        if self._death_fd is not None:
            asyncio.get_running_loop().remove_reader(self._death_fd)
            os.close(self._death_fd)
            self._death_fd = None

    def _close_folder(self) -> None:
        if self._folder is not None:
            self._folder.close()
            self._folder = None


def _look_at(sent: asyncio.Future[Any]) -> None:
    """Nobody waits for this future; unseen, its error would be logged with a stack trace."""
    if not sent.cancelled():
        sent.exception()
