"""The live stream: everything once, in order, for every watcher, and none of them can hold anything up."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing
from itertools import pairwise
from typing import Any

import httpx
import pytest

from paceline.config import ServerConfig
from paceline.engine.trace_reader import TraceReader
from paceline.errors import EngineDeadError, RequestError
from paceline.messages import TraceChunk
from paceline.server import monitor
from paceline.server.monitor import MAX_WATCHERS, QUEUE_FRAMES, Monitor
from paceline.trace import History, frames
from paceline.trace.frames import FrameMaker
from paceline.trace.use import latest_use
from tests.engine.harness import make_scenario
from tests.server.fakes import Site
from tests.server.running import Running
from tests.trace.timed import TimedHarness

FRAME_KEYS = {"now", "batches", "spans", "links", "idle", "tiles", "requests", "dropped"}


@pytest.fixture(autouse=True)
def _at_once_and_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitor, "FRAME_SECONDS", 0.0)
    monkeypatch.setattr(monitor, "BACKLOG_SECONDS", 1e9)


class Replay:
    """The record of a finished run, revealed bit by bit: as if it were happening now."""

    def __init__(self, run: TimedHarness) -> None:
        self.run = run
        self.log = run.core.recorder._log
        self.shown = 1  # the first line
        self.dead = False

    async def read_trace(self, begin: int) -> TraceChunk:
        await asyncio.sleep(0)
        if self.dead:
            raise EngineDeadError("gone")
        chunk = self.log.read(begin, max(1, self.shown - begin)) if begin < self.shown else None
        if chunk is None:
            return TraceChunk(begin, begin, begin, 0.0, b"")
        return TraceChunk(chunk.begin, chunk.end, max(self.shown, chunk.end), 0.0, chunk.lines)

    def go_on(self) -> None:
        self.shown = min(self.log.total, self.shown + self.log.total // 7 + 1)


def ran(seed: int = 3) -> TimedHarness:
    """A run with some batches."""
    while True:
        run = TimedHarness(make_scenario(seed, loop_back=False))
        run.run()
        if len(run.seen_batches) >= 5:
            return run
        seed += 100


async def messages(stream: AsyncGenerator[bytes, None]) -> AsyncIterator[tuple[str, dict[str, Any]]]:
    async for data in stream:
        name, payload, *rest = data.decode().split("\n")
        assert rest == ["", ""]
        yield name.removeprefix("event: "), json.loads(payload.removeprefix("data: "))


async def watch(watching: Monitor, reader: TraceReader, replay: Replay, batches: int) -> list[dict[str, Any]]:
    """All frames up to the one with the end of the last batch."""
    seen: list[dict[str, Any]] = []
    async with aclosing(watching.watch(reader, "m")) as stream:
        async for name, message in messages(stream):
            if name == "hello":
                assert not seen
                assert message["stages"] == replay.run.options.stages
                assert (message["model"], len(message["clock_uncertainty_ms"])) == ("m", message["stages"])
                continue
            seen.append(message)
            replay.go_on()
            if sum(len(frame["spans"]) for frame in seen) >= batches * replay.run.options.stages:
                break
    return seen


@pytest.mark.parametrize("seed", range(8))
async def test_every_watcher_is_told_everything_once(seed: int) -> None:
    run = ran(seed)
    history = run.history()
    replay = Replay(run)
    reader, watching = TraceReader(replay, 2**20), Monitor()
    first = asyncio.create_task(watch(watching, reader, replay, len(history.batches)))
    while replay.shown < replay.log.total // 2 and not first.done():
        await asyncio.sleep(0)
    late = asyncio.create_task(watch(watching, reader, replay, len(history.batches)))
    for seen in await asyncio.gather(first, late):
        last = seen[-1]
        assert set(last) == FRAME_KEYS
        batches = [batch for frame in seen for batch in frame["batches"]]
        assert [batch["batch"] for batch in batches] == list(history.batches)
        for batch, true in zip(batches, run.seen_batches, strict=True):
            assert {s[0]: (s[1], s[1] + s[2]) for s in batch["slices"]} == true["slices"]
        spans = [tuple(span[:2]) for frame in seen for span in frame["spans"]]
        stages = range(run.options.stages)
        assert spans == [(stage, number) for number in history.batches for stage in stages]
        links = [link for frame in seen for link in frame["links"]]
        assert len(links) == len(history.batches) * (run.options.stages - 1)
        for stage in stages:
            ends = [(start, end) for f in seen for at, start, end, _ in f["idle"] if at == stage]
            assert all(before[1] <= after[0] + 1e-5 for before, after in pairwise(ends))
        assert [frame["dropped"] for frame in seen] == [0] * len(seen)
    assert watching._follower is None, "nobody watches: nobody works"


async def test_a_watcher_that_does_not_read_loses_frames_and_holds_nobody_up() -> None:
    run = ran()
    replay = Replay(run)
    reader, watching = TraceReader(replay, 2**20), Monitor()
    replay.go_on()
    async with aclosing(watching.watch(reader, "m")) as slow, aclosing(watching.watch(reader, "m")) as quick:
        await anext(slow)
        fast = messages(quick)
        for _ in range(QUEUE_FRAMES + 20):
            reader.history.num_events += 1  # something is always new
            await anext(fast)
        for _ in range(5):
            data = await anext(slow)
        told = json.loads(data.decode().split("\n")[1].removeprefix("data: "))
        assert told["dropped"] > 0


async def test_when_the_engine_is_gone_or_the_server_ends_the_stream_ends() -> None:
    replay = Replay(ran())
    watching = Monitor()
    stream = watching.watch(TraceReader(replay, 2**20), "m")
    await anext(stream)
    replay.dead = True
    assert [name async for name, _ in messages(stream)] != []
    with pytest.raises(EngineDeadError):
        await anext(watching.watch(TraceReader(replay, 2**20), "m"))

    replay.dead = False
    stream = watching.watch(TraceReader(replay, 2**20), "m")
    await anext(stream)
    watching.close()
    async for _ in stream:
        pass


async def test_there_may_be_only_so_many() -> None:
    reader, watching = TraceReader(Replay(ran()), 2**20), Monitor()
    streams = [watching.watch(reader, "m") for _ in range(MAX_WATCHERS + 1)]
    for stream in streams[:-1]:
        await anext(stream)
    with pytest.raises(RequestError) as refused:
        await anext(streams[-1])
    assert refused.value.status == 429
    for stream in streams:
        await stream.aclose()


async def test_those_who_come_at_once_are_counted() -> None:
    reader, watching = TraceReader(Replay(ran()), 2**20), Monitor()
    streams = [watching.watch(reader, "m") for _ in range(MAX_WATCHERS + 3)]
    first = await asyncio.gather(*(anext(stream) for stream in streams), return_exceptions=True)
    assert sum(isinstance(outcome, RequestError) and outcome.status == 429 for outcome in first) == 3
    for stream in streams:
        await stream.aclose()


@pytest.mark.parametrize(
    ("config", "key", "status"),
    [
        (ServerConfig(api_key=("one",)), "", 401),
        (ServerConfig(api_key=("one",)), "one", 403),
        (ServerConfig(api_key=("one",), admin_api_key="root"), "one", 403),
        (ServerConfig(admin_api_key="root"), "", 401),
    ],
)
async def test_only_an_admin_may_watch(config: ServerConfig, key: str, status: int) -> None:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    assert (await Site(config=config).client.get("/monitor/stream", headers=headers)).status_code == status


@pytest.mark.parametrize("seed", range(4))
def test_the_figures_are_those_of_the_last_seconds(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The frames' running sums against adding everything up anew; over the whole run, where no batch lies on an edge."""
    monkeypatch.setattr(frames, "WINDOW_SECONDS", 1e9)
    run = ran(seed)
    history, maker = History(), None
    for line in run.core.recorder._log.read(0, 2**30).lines.splitlines():
        history.feed([line])
        maker = maker or FrameMaker(history)
        told = list(maker.frames())[-1]["tiles"]
    exact = latest_use(history, 1e9)
    assert exact.tokens_out == sum(len(seen.tokens) for seen in run.seen.values())
    assert told["tokens_out_per_s"] * exact.seconds == pytest.approx(exact.tokens_out, abs=exact.seconds / 1000)
    assert told["tokens_in_per_s"] * exact.seconds == pytest.approx(exact.tokens_in, abs=exact.seconds / 1000)
    assert (told["bubble"], told["imbalance"]) == (exact.bubble, exact.imbalance)


def test_a_client_that_stops_reading_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over real sockets, with frames so large that no buffer of the system holds them."""

    def large(maker: FrameMaker) -> Iterator[dict[str, Any]]:
        maker.history.num_events += 1  # something is always new
        yield {"now": 0.0, "batches": ["x" * 200_000]}

    monkeypatch.setattr(FrameMaker, "frames", large)
    monkeypatch.setattr(monitor, "FRAME_SECONDS", 0.001)
    running = Running(Site())
    try:
        with httpx.stream("GET", f"{running.url}/monitor/stream", timeout=60) as stalled:
            with httpx.stream("GET", f"{running.url}/monitor/stream", timeout=60) as quick:
                lines = quick.iter_lines()
                for _ in range(300):
                    while "dropped" not in next(lines):
                        pass
            behind = 0
            for line in stalled.iter_lines():
                if "dropped" in line:
                    behind = json.loads(line.removeprefix("data: "))["dropped"]
                    if behind:
                        break
            assert behind > 0
    finally:
        running.stop()
