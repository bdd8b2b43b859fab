"""Streams on which nothing moves for a while, and requests whose time is over."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest

from paceline.config import ServerConfig
from paceline.engine.choice import Choice
from paceline.errors import RequestError
from paceline.sampling_params import SamplingParams
from paceline.server.answer import Sender, keep_alive
from paceline.server.generation import Generation, Origin
from tests.server.caller import Caller
from tests.server.fakes import FakeEngine, Site

COMMENT = b": keep-alive\n\n"
BUSY = ServerConfig(sse_keep_alive=0.001)


def after_comments(caller: Caller, count: int, event: asyncio.Event) -> None:
    """Set `event` when so many comments have been sent."""

    def watch(message: dict[str, Any]) -> None:
        if caller.body.count(COMMENT) >= count:
            event.set()

    caller.on_send = watch


async def test_comments_come_before_the_first_token_and_the_stream_goes_on_as_if_they_had_not() -> None:
    engine = FakeEngine()
    engine.before_first = asyncio.Event()
    caller = Caller(Site(engine, BUSY), "/v1/completions", {"prompt": "one", "stream": True})
    after_comments(caller, 3, engine.before_first)
    await asyncio.wait_for(caller.task, 20)
    assert caller.sent[0]["status"] == 200
    assert dict(caller.sent[0]["headers"])[b"content-type"].startswith(b"text/event-stream")
    assert caller.body.startswith(COMMENT * 3)
    events = [part for part in caller.body.decode().split("\n\n") if part.startswith("data: {")]
    text = "".join(json.loads(event[6:])["choices"][0]["text"] for event in events)
    assert text == " then this."
    assert caller.body.endswith(b"data: [DONE]\n\n")
    assert caller.sent[-1]["more_body"] is False


async def test_a_failure_after_a_comment_is_told_in_the_stream() -> None:
    engine = FakeEngine()
    engine.before_first, engine.fail_after = asyncio.Event(), 0
    caller = Caller(
        Site(engine, BUSY), "/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "stream": True}
    )
    after_comments(caller, 1, engine.before_first)
    await asyncio.wait_for(caller.task, 20)
    assert [message["type"] for message in caller.sent].count("http.response.start") == 1
    assert b'"code":"engine_error"' in caller.body
    assert caller.body.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("config", [ServerConfig(), ServerConfig(sse_keep_alive=0)], ids=["not yet", "never"])
async def test_no_comments_in_a_quick_stream(config: ServerConfig) -> None:
    caller = Caller(Site(config=config), "/v1/completions", {"prompt": "one", "stream": True})
    await asyncio.wait_for(caller.task, 20)
    assert COMMENT not in caller.body


async def test_nothing_follows_the_end_of_a_response() -> None:
    sent: list[dict[str, Any]] = []
    commented = asyncio.Event()

    async def send(message: Any) -> None:
        sent.append(message)
        await asyncio.sleep(0)
        if message.get("body") == COMMENT:
            commented.set()

    sender = Sender(send, {})
    async with keep_alive(sender, 0.0005) as lock:
        await asyncio.wait_for(commented.wait(), 20)
        async with lock:
            await sender.write(b"end", more=False)
        for _ in range(200):
            await asyncio.sleep(0.00005)  # long enough for several comments, if there were any
    assert sent[-1]["body"] == b"end"
    assert sent[0]["type"] == "http.response.start"


@pytest.mark.parametrize("given", ["0", "-1", "1e9", "nan", "inf", "soon", ""])
async def test_a_timeout_that_is_none_is_refused(given: str) -> None:
    site = Site()
    reply = await site.client.post("/v1/completions", json={"prompt": "one"}, headers={"X-Request-Timeout": given})
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == "X-Request-Timeout"
    assert site.engine.timeouts == []


async def test_the_engine_gets_what_is_left_of_the_time() -> None:
    site = Site()
    headers = {"X-Request-Timeout": "60"}
    assert (await site.client.post("/v1/completions", json={"prompt": ["a", "b"]}, headers=headers)).status_code == 200
    assert len(site.engine.timeouts) == 2
    assert all(timeout is not None and 0 < timeout <= 60 for timeout in site.engine.timeouts)
    await site.complete()
    assert site.engine.timeouts[2] is None


async def test_time_that_is_over_before_the_engine_is_asked() -> None:
    site = Site()
    assert site.state.served is not None
    choice = Choice(0, "x-0", [1], SamplingParams(seed=1), site.state.served.tokenizer)
    generation = Generation(site.state, [choice], Origin(), deadline=time.perf_counter())
    with pytest.raises(RequestError, match="deadline") as caught:
        await anext(generation.events())
    assert caught.value.status == 408
    assert site.engine.timeouts == []


@pytest.mark.parametrize("stream", [False, True])
async def test_a_deadline_before_the_first_token_is_a_408(stream: bool) -> None:
    engine = FakeEngine()
    engine.time_out_after = 0
    reply = await Site(engine).complete(stream=stream)
    assert (reply.status_code, reply.json()["error"]["code"]) == (408, "deadline_exceeded")


async def test_a_deadline_inside_a_stream_is_a_finish_reason() -> None:
    engine = FakeEngine()
    engine.time_out_after = 3
    reply = await Site(engine).complete(stream=True)
    events = [json.loads(part[6:]) for part in reply.text.split("\n\n")[:-2]]
    assert events[-1]["choices"][0]["finish_reason"] == "timeout"
    assert "".join(event["choices"][0]["text"] for event in events) == " th"
