"""Listening, and the line about throughput."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
from types import SimpleNamespace

import pytest

from paceline.config import ServerConfig
from paceline.errors import ConfigError
from paceline.messages import CoreStats
from paceline.server.serve import listen
from paceline.server.stats_log import log_stats
from tests.server.fakes import Site


def test_a_port_in_use_is_one_clear_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"--port {port}: cannot listen on 127\.0\.0\.1:{port}"):
            listen(ServerConfig(port=port))


@pytest.mark.parametrize("host", ["nope.invalid", "a..b", "x" * 300, "203.0.113.1", "2001:db8::1"])
def test_a_host_that_is_not_this_machine_is_named(host: str) -> None:
    with pytest.raises(ConfigError, match=rf"--host {re.escape(host)}: is no address of this machine"):
        listen(ServerConfig(host=host))


def test_any_free_port_on_this_machine_only() -> None:
    with listen(ServerConfig(port=0)) as listener:
        assert listener.getsockname()[0] == "127.0.0.1"
        assert listener.getsockname()[1] > 0


async def test_throughput_is_logged_while_there_is_some(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "paceline.server.stats_log")
    intervals: asyncio.Queue[None] = asyncio.Queue()
    asked: asyncio.Queue[float] = asyncio.Queue()

    async def interval(seconds: float) -> None:
        asked.put_nowait(seconds)
        await intervals.get()

    monkeypatch.setattr("paceline.server.stats_log.asyncio", SimpleNamespace(sleep=interval))
    site = Site()
    site.engine.stats = CoreStats(3, 2, 16, 64, 5, 1, 0, 100, 25, [1.0, 1.0], [1.0, 1.0], 2.0)
    task = asyncio.create_task(log_stats(site.state, 10.0))

    async def next_interval() -> list[str]:
        """What is logged at the end of an interval of 10 s."""
        assert await asked.get() == 10.0
        caplog.clear()
        intervals.put_nowait(None)
        seconds = await asked.get()  # the line is out when the next interval begins
        asked.put_nowait(seconds)
        return [record.getMessage() for record in caplog.records]

    assert await next_interval() == []  # idle: silent
    await site.complete()
    (line,) = await next_interval()
    assert line.startswith("prompt 0.3 tokens/s, generation 1.2 tokens/s, running 3, waiting 2")
    assert line.endswith("KV cache 25.0%, prefix hits 25.0%, bubble -, imbalance -")
    site.state.metrics.pipeline.bubble, site.state.metrics.pipeline.imbalance = 0.125, 1.1
    await site.complete()
    (line,) = await next_interval()
    assert line.endswith("bubble 12.5%, imbalance 1.10")
    assert await next_interval() == []
    task.cancel()
