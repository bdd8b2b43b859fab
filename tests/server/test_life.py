"""Clients that go away, and servers that are told to end."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paceline.server.fields import CHAT_FIELDS
from paceline.server.protocol import ChatRequest, CompletionRequest
from tests.server.caller import Caller
from tests.server.fakes import FakeEngine, Site

CHAT = {"messages": [{"role": "user", "content": "hello"}]}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body"), [("/v1/completions", {"prompt": ["a", "b"]}), ("/v1/chat/completions", CHAT)]
)
async def test_a_client_that_goes_away_aborts_its_requests(
    path: str, body: dict[str, Any], stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    engine = FakeEngine()
    engine.gate = asyncio.Event()  # never opened
    site = Site(engine)
    caller = Caller(site, path, body | {"stream": stream})
    await engine.first_out.wait()
    caller.hang_up()
    for _ in range(len(body.get("prompt", [0]))):
        await engine.cancelled.get()
    await caller.task
    assert engine.live == set()
    assert site.state.active == {}
    assert site.state.engine_ids == {}
    assert "aborted: the client disconnected" in caplog.text
    assert "label-7" in caplog.text
    assert site.metric("paceline:requests_cut_total") == len(body.get("prompt", [0]))


async def test_draining_waits_for_what_is_running() -> None:
    engine = FakeEngine()
    engine.gate = asyncio.Event()
    site = Site(engine)
    answer = asyncio.ensure_future(site.complete())
    await engine.first_out.wait()
    idle = asyncio.ensure_future(site.state.wait_idle())
    await asyncio.sleep(0)
    assert not idle.done()
    engine.gate.set()
    assert (await answer).status_code == 200
    await idle


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.integers(-3, 20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
FIELDS = st.sampled_from(sorted({*ChatRequest.__struct_fields__, *CompletionRequest.__struct_fields__, *CHAT_FIELDS}))
SOUND = {
    "prompt": st.text(max_size=10)
    | st.lists(st.integers(0, 256), max_size=10)
    | st.lists(st.text(max_size=5), max_size=3),
    "messages": st.lists(
        st.fixed_dictionaries(
            {"role": st.sampled_from(["user", "system", "assistant", "tool"]), "content": VALUES | st.text(max_size=5)}
        ),
        max_size=3,
    ),
}


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"])
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sound=st.fixed_dictionaries({}, optional=SOUND), odd=st.dictionaries(FIELDS, VALUES, max_size=4))
def test_no_body_makes_the_server_fail_or_leaves_anything_behind(
    path: str, sound: dict[str, Any], odd: dict[str, Any]
) -> None:
    async def check() -> None:
        site = Site()
        reply = await site.client.post(path, json=sound | odd)
        assert reply.status_code < 500, reply.text
        if reply.status_code != 200:
            assert set(reply.json()["error"]) == {"message", "type", "param", "code"}
        elif not reply.headers["content-type"].startswith("text/event-stream"):
            json.loads(reply.text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
        assert site.engine.live == set()
        assert site.state.active == {}
        assert site.state.engine_ids == {}

    asyncio.run(check())


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200))
def test_no_bytes_make_the_server_fail(data: bytes) -> None:
    async def check() -> None:
        site = Site()
        headers = {"content-type": "application/json"}
        reply = await site.client.post("/v1/completions", content=data, headers=headers)
        assert reply.status_code < 500

    asyncio.run(check())
