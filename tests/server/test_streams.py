"""Streams: which events, in which order, with which keys."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from paceline.config import ServerConfig
from tests.server.fakes import EOS, FakeEngine, Site

BOTH = pytest.mark.parametrize("chat", [False, True], ids=["completions", "chat"])


async def stream(site: Site, chat: bool, **body: Any) -> httpx.Response:
    return await (site.chat if chat else site.complete)(stream=True, **body)


def events_of(reply: httpx.Response) -> list[dict[str, Any]]:
    """The JSON events; checks that the stream is framed as SSE and ends with [DONE]."""
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"].startswith("text/event-stream")
    parts = reply.text.split("\n\n")
    assert parts[-2:] == ["data: [DONE]", ""]
    assert all(part.startswith("data: ") for part in parts[:-1])
    return [json.loads(part[6:]) for part in parts[:-2]]


def text_of(events: list[dict[str, Any]], index: int = 0) -> str:
    choices = [choice for event in events for choice in event["choices"] if choice["index"] == index]
    return "".join(choice["text"] if "text" in choice else choice["delta"].get("content", "") for choice in choices)


@BOTH
async def test_a_stream_says_what_the_whole_answer_says(chat: bool) -> None:
    site = Site()
    whole = (await (site.chat if chat else site.complete)()).json()["choices"][0]
    events = events_of(await stream(site, chat))
    assert text_of(events) == (whole["message"]["content"] if chat else whole["text"]) == " then this."
    assert len({event["id"] for event in events}) == 1
    assert {event["object"] for event in events} == {"chat.completion.chunk" if chat else "text_completion"}
    assert {event["model"] for event in events} == {"m"}


async def test_the_first_chat_event_names_the_role() -> None:
    events = events_of(await stream(Site(), chat=True))
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert all("role" not in event["choices"][0]["delta"] for event in events[1:])


@BOTH
async def test_every_event_has_a_finish_reason_and_only_the_last_one_set(chat: bool) -> None:
    events = events_of(await stream(Site(), chat))
    reasons = [event["choices"][0]["finish_reason"] for event in events]
    assert reasons == [None] * (len(events) - 1) + ["stop"]
    last = events[-1]["choices"][0]
    assert (last["delta"] == {}) if chat else (last["text"] == "")


@BOTH
async def test_usage_comes_last_and_is_null_before(chat: bool) -> None:
    events = events_of(await stream(Site(), chat, stream_options={"include_usage": True}))
    assert events[-1]["choices"] == []
    assert events[-1]["usage"]["completion_tokens"] == 12
    assert [event["usage"] for event in events[:-1]] == [None] * (len(events) - 1)
    assert all("usage" not in event for event in events_of(await stream(Site(), chat)))


async def test_running_usage_in_every_event() -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = events_of(await stream(Site(), False, stream_options=options))
    counts = [event["usage"]["completion_tokens"] for event in events]
    assert counts == [*range(1, 12), 12, 12]  # the end token has no text, so no event of its own


@BOTH
async def test_no_character_is_ever_torn(chat: bool) -> None:
    text = "a€𝄞é"
    events = events_of(await stream(Site(FakeEngine(lambda prompt: [*text.encode(), EOS])), chat))
    assert text_of(events) == text
    assert "�" not in str(events)


async def test_bytes_that_never_become_a_character_are_flushed_at_the_end() -> None:
    events = events_of(await stream(Site(FakeEngine(lambda prompt: [97, 0xE2, 0x82])), False))
    assert text_of(events) == "a�"


@BOTH
async def test_a_stop_string_never_leaks(chat: bool) -> None:
    site = Site(FakeEngine(lambda prompt: [*b"one ENN ENDING", EOS]))
    events = events_of(await stream(site, chat, stop=["END"]))
    assert text_of(events) == "one ENN "
    assert events[-1]["choices"][0]["finish_reason"] == "stop"
    assert events[-1]["choices"][0]["stop_reason"] == "END"


async def test_text_held_back_for_a_stop_string_is_sent_when_it_is_none() -> None:
    events = events_of(await stream(Site(FakeEngine(lambda prompt: [*b"an EN"])), False, stop=["END"]))
    assert text_of(events) == "an EN"
    assert events[-1]["choices"][0]["finish_reason"] == "length"


async def test_several_prompts_interleave_by_index() -> None:
    site = Site(FakeEngine(lambda prompt: [*reversed(prompt), EOS]))
    reply = await stream(site, False, prompt=["abcdef", "xy"], stream_options={"include_usage": True})
    events = events_of(reply)
    assert (text_of(events, 0), text_of(events, 1)) == ("fedcba", "yx")
    ends = [choice["index"] for event in events for choice in event["choices"] if choice["finish_reason"]]
    assert sorted(ends) == [0, 1]
    order = [choice["index"] for event in events for choice in event["choices"]]
    assert order != sorted(order)  # side by side, not one after the other
    assert events[-1]["usage"]["prompt_tokens"] == 8


async def test_token_ids_and_logprobs_in_events() -> None:
    site = Site(FakeEngine(lambda prompt: [*"€b".encode(), EOS]))
    events = events_of(await stream(site, False, return_token_ids=True, logprobs=1))
    told = [token for event in events for token in event["choices"][0].get("token_ids", [])]
    assert told == [*"€b".encode(), EOS]  # also those whose text came later
    assert events[0]["choices"][0]["prompt_token_ids"] == [*b"one"]
    offsets = [event["choices"][0]["logprobs"]["text_offset"] for event in events[:-1]]
    assert offsets == [[0], [0], [0], [1], [2]]
    chat = events_of(await stream(site, True, return_token_ids=True, logprobs=True))
    assert [t for event in chat for t in event["choices"][0].get("token_ids", [])] == told
    assert "prompt_token_ids" in chat[0]["choices"][0]


@BOTH
async def test_what_can_be_refused_is_refused_before_the_stream_begins(chat: bool) -> None:
    for body in ({"temperature": -1}, {"max_tokens": 1000}, {"model": "other"}, {"stop": 5}, {"n": 2}):
        reply = await stream(Site(), chat, **body)
        assert reply.status_code in (400, 404)
        assert reply.headers["content-type"] == "application/json"
    reply = await stream(Site(FakeEngine(queue=0)), chat)
    assert (reply.status_code, reply.json()["error"]["code"]) == (429, "queue_full")
    assert int(reply.headers["retry-after"]) > 0


async def test_when_one_of_several_prompts_finds_the_queue_full_all_are_refused() -> None:
    engine = FakeEngine(queue=2)
    reply = await stream(Site(engine), False, prompt=["a", "b", "c"])
    assert reply.status_code == 429
    assert engine.live == set()


@BOTH
async def test_a_failure_before_the_first_token_has_a_status_of_its_own(chat: bool) -> None:
    engine = FakeEngine()
    engine.fail_after = 0
    reply = await stream(Site(engine), chat)
    assert reply.status_code == 500
    assert reply.json()["error"]["code"] == "engine_error"
    assert "0x" not in reply.text


@BOTH
@pytest.mark.parametrize(("fault", "code"), [("fail_after", "engine_error"), ("die_after", "engine_dead")])
async def test_a_failure_inside_a_stream_is_an_event_and_then_done(chat: bool, fault: str, code: str) -> None:
    engine = FakeEngine()
    setattr(engine, fault, 3)
    events = events_of(await stream(Site(engine), chat))
    assert events[-1]["error"]["code"] == code
    assert "0x" not in str(events[-1])
    assert text_of(events[:-1]) == " th"


async def test_usage_can_be_forced() -> None:
    events = events_of(await stream(Site(config=ServerConfig(enable_force_include_usage=True)), False))
    assert events[-1]["usage"]["total_tokens"] == 15
