"""The frames between the engine core and its stage processes, and where their sockets live.

Each message on the control socket is two frames: a kind, and a msgpack struct of exactly that kind. Sockets are Unix
domain sockets in a folder that only this user may enter.
"""

from __future__ import annotations

import math
import os
import shutil
import tempfile
from typing import Any, TypeVar

import msgspec
import zmq

from paceline.config import EngineConfig
from paceline.errors import PipelineError

MAX_MESSAGE_BYTES = 1 << 30

T = TypeVar("T")


class WorkerConfig(msgspec.Struct, frozen=True):
    """What a stage process reads from its standard input at the start."""

    engine: EngineConfig
    model_path: str
    stage: int
    first_layer: int
    last_layer: int
    max_model_len: int
    threads: int
    cpus: tuple[int, ...]
    control: str
    link_in: str | None
    link_out: str | None
    tokens_in: str | None  # loop-back, from the last stage to the first
    tokens_out: str | None


class Progress(msgspec.Struct, frozen=True):
    phase: str
    done: float


class Loaded(msgspec.Struct, frozen=True):
    """The weights are in memory; memory is that which is still free on this host."""

    weight_bytes: int
    cache_bytes_per_block: int
    available_memory: int
    dtype: str


class MakeCache(msgspec.Struct, frozen=True):
    num_blocks: int


class Ping(msgspec.Struct, frozen=True):
    """Asks a stage for its clock; `sent` by the core's."""

    sent: float


class Pong(msgspec.Struct, frozen=True):
    sent: float  # of the ping
    clock: float  # the stage's, while it answered


class Failed(msgspec.Struct, frozen=True):
    error: str


class Empty(msgspec.Struct, frozen=True):
    """For messages whose kind says everything."""


# On the link between two stages, once, before anything else: the connection is up.
LINK_UP = b"link up"

HELLO, PROGRESS, LOADED, MAKE_CACHE, READY, PLAN, RESULT, PING, PONG, FAILED, STOP = (
    b"hello",
    b"progress",
    b"loaded",
    b"make_cache",
    b"ready",
    b"plan",
    b"result",
    b"ping",
    b"pong",
    b"failed",
    b"stop",
)


def decode(payload: bytes | memoryview, kind: type[T], what: str) -> T:
    """The struct in a frame.

    Raises:
        PipelineError: it is none of that kind.
    """
    try:
        return msgspec.msgpack.decode(payload, type=kind)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise PipelineError(f"a damaged {what} message arrived: {error}") from error


def make_socket(context: zmq.Context[Any], kind: int) -> zmq.Socket[Any]:
    """A socket that refuses oversized messages, keeps all of ours, and does not hold up the end."""
    socket: zmq.Socket[Any] = context.socket(kind)
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.setsockopt(zmq.LINGER, 0)
    return socket


def milliseconds(timeout: float | None) -> int | None:
    """A timeout in seconds as pollers want it, rounded up so that nobody wakes before it is over."""
    return None if timeout is None else math.ceil(timeout * 1000)


class SocketFolder:
    """A private folder (0700) for Unix domain sockets.

    It is needed only until everybody is connected: :meth:`close` it then, and nothing is left behind even if all of us
    are killed, and nobody can connect any more.
    """

    def __init__(self) -> None:
        # The path of a socket is limited to about a hundred bytes, which a long TMPDIR would exceed.
        parent = tempfile.gettempdir()
        self.path = tempfile.mkdtemp(prefix="paceline-", dir=parent if len(os.fsencode(parent)) <= 64 else "/tmp")

    def address(self, name: str) -> str:
        return f"ipc://{self.path}/{name}"

    def close(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
