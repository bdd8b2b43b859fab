"""What the front end's side does with an engine core that talks nonsense."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from paceline.engine.client import AsyncEngine
from paceline.errors import EngineDeadError
from tests.engine.engines import sampling
from tests.pipeline.tiny import engine_config


class Says:
    """A socket on which the core sends one message when it has been asked something."""

    def __init__(self, message: bytes) -> None:
        self._message = message
        self._asked = asyncio.Event()

    def send(self, message: bytes, flags: int) -> asyncio.Future[None]:
        self._asked.set()
        sent = asyncio.get_running_loop().create_future()
        sent.set_result(None)
        return sent

    async def recv(self) -> bytes:
        await self._asked.wait()
        return self._message


@pytest.mark.parametrize(
    "message",
    [b"", b"\xc1", msgspec.msgpack.encode({"type": "boom"}), msgspec.msgpack.encode({"type": "outputs", "outputs": 3})],
)
async def test_a_message_that_cannot_be_read_ends_every_stream(message: bytes) -> None:
    engine = AsyncEngine(engine_config(), Path("unused"))
    engine._core._socket = Says(message)
    reader = asyncio.create_task(engine._core._read())
    with pytest.raises(EngineDeadError, match="could not be read"):
        await asyncio.wait_for(anext(engine.generate("r", [1], sampling())), 10)
    await reader
    assert engine.died.is_set()
    assert engine.num_unfinished == 0
