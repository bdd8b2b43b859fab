"""Requests that are refused: status, code and the name of the field; and fields that change nothing."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from paceline.config import EngineConfig, ServerConfig
from paceline.server.fields import CHAT_FIELDS, COMPLETION_FIELDS
from paceline.server.prompts import ALWAYS_COUNTED
from paceline.server.protocol import ChatRequest, CompletionRequest
from paceline.server.sampling import SamplingDefaults
from paceline.server.state import Phase
from tests.server.fakes import FakeEngine, Site

JSON = {"content-type": "application/json"}


@pytest.mark.parametrize(
    ("change", "code", "param"),
    [
        ({"max_tokens": "many"}, "invalid_request", "max_tokens"),
        ({"max_tokens": 1.5}, "invalid_request", "max_tokens"),
        ({"max_tokens": 0}, "out_of_range", "max_tokens"),
        ({"max_tokens": True}, "invalid_request", "max_tokens"),
        ({"max_tokens": 98}, "context_length_exceeded", "max_tokens"),
        ({"min_tokens": 98}, "out_of_range", "min_tokens"),
        ({"temperature": [1]}, "invalid_request", "temperature"),
        ({"temperature": -0.1}, "out_of_range", "temperature"),
        ({"seed": 2**70}, "out_of_range", "seed"),
        ({"seed": -(10**400)}, "out_of_range", "seed"),
        ({"top_k": 2**40}, "out_of_range", "top_k"),
        ({"priority": 2**40}, "invalid_request", "priority"),
        ({"priority": 1}, "unsupported", "priority"),
        ({"cache_salt": ""}, "invalid_request", "cache_salt"),
        ({"cache_salt": "x" * 1025}, "invalid_request", "cache_salt"),
        ({"stop": ["ok", 3]}, "invalid_request", "stop[1]"),
        ({"stop": [""]}, "out_of_range", "stop"),
        ({"stop_token_ids": [-1]}, "out_of_range", "stop_token_ids"),
        ({"stop_token_ids": [2**80]}, "out_of_range", "stop_token_ids"),
        ({"stream_options": {"include_usage": True}}, "invalid_request", "stream_options"),
        ({"stream": "yes"}, "invalid_request", "stream"),
        ({"allowed_token_ids": []}, "unsupported", "allowed_token_ids"),
        ({"logit_bias": {"1": 3}}, "unsupported", "logit_bias"),
        ({"n": 10**9}, "unsupported", "n"),
        ({"n": True}, "unsupported", "n"),
        ({"response_format": {"type": "json_object"}}, "unsupported", "response_format"),
        ({"guided_regex": "(a+)+$"}, "unsupported", "guided_regex"),
    ],
)
@pytest.mark.parametrize("chat", [False, True], ids=["completions", "chat"])
async def test_a_bad_field_is_named(chat: bool, change: dict[str, Any], code: str, param: str) -> None:
    site = Site()
    reply = await (site.chat if chat else site.complete)(**change)
    error = reply.json()["error"]
    assert (reply.status_code, error["code"], error["param"]) == (400, code, param)
    assert param.partition("[")[0] in error["message"]
    assert set(error) == {"message", "type", "param", "code"}
    assert site.engine.posted == []


@pytest.mark.parametrize(
    ("prompt", "code", "param"),
    [
        (None, "invalid_request", "prompt"),
        ("", "invalid_request", "prompt"),
        ([], "invalid_request", "prompt"),
        ([[]], "invalid_request", "prompt[0]"),
        ([1, "a"], "invalid_request", "prompt[1]"),
        (["a", 1], "invalid_request", "prompt[1]"),
        ([[1], ["a"]], "invalid_request", "prompt[1][0]"),
        ([1.5], "invalid_request", "prompt"),
        ([True], "invalid_request", "prompt"),
        ({"text": "a"}, "invalid_request", "prompt"),
        ([-1], "out_of_range", "prompt"),
        ([257], "out_of_range", "prompt"),
        ([2**80], "out_of_range", "prompt"),
        ([[1], [2**80]], "out_of_range", "prompt[1]"),
        ("x" * 100, "context_length_exceeded", "prompt"),
        ("x" * 101, "context_length_exceeded", "prompt"),
        ([1] * 100, "context_length_exceeded", "prompt"),
        ([1] * 101, "context_length_exceeded", "prompt"),
        (["x"] * 2000, "out_of_range", "prompt"),
    ],
)
async def test_bad_prompts(prompt: Any, code: str, param: str) -> None:
    reply = await Site().complete(prompt=prompt, max_tokens=1)
    error = reply.json()["error"]
    assert (reply.status_code, error["code"]) == (400, code)
    assert error["param"].startswith(param)
    if code == "context_length_exceeded":
        assert "100" in error["message"]


async def test_a_default_is_cut_to_what_fits_but_not_what_was_asked_for() -> None:
    site = Site(FakeEngine(lambda prompt: [97] * 500))
    answer = (await site.complete(prompt=[1] * 97)).json()
    assert (answer["usage"]["completion_tokens"], answer["choices"][0]["finish_reason"]) == (3, "length")
    assert (await site.complete(prompt=[1] * 97, max_tokens=4)).status_code == 400
    defaults = SamplingDefaults.from_generation_config({"max_new_tokens": 95})
    site = Site(FakeEngine(lambda prompt: [97] * 500), defaults=defaults)
    assert (await site.complete(prompt=[1] * 10)).json()["usage"]["completion_tokens"] == 90
    assert (await site.complete(prompt=[1] * 3)).json()["usage"]["completion_tokens"] == 95


async def test_a_prompt_one_shorter_than_the_model_gets_one_token() -> None:
    answer = (await Site().complete(prompt=[1] * 99, max_tokens=None)).json()
    assert answer["usage"]["completion_tokens"] == 1
    assert answer["choices"][0]["finish_reason"] == "length"


async def test_more_prompts_than_the_queue_holds_can_never_be_served() -> None:
    reply = await Site(engine_config=EngineConfig(max_num_queued_reqs=2)).complete(prompt=["a", "b", "c"])
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "prompt")


@pytest.mark.parametrize(
    ("messages", "code", "param"),
    [
        ([], "invalid_request", "messages"),
        ("hello", "invalid_request", "messages"),
        (["hello"], "invalid_request", "messages[0]"),
        ([{"content": "x"}], "invalid_request", "messages[0].role"),
        ([{"role": "tool", "content": "x"}], "invalid_request", "messages[0].role"),
        ([{"role": ["user"], "content": "x"}], "invalid_request", "messages[0].role"),
        ([{"role": "user", "content": "x"}, {"role": "user"}], "invalid_request", "messages[1].content"),
        ([{"role": "user", "content": 5}], "invalid_request", "messages[0].content"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "unsupported", "messages[0].content[0]"),
        ([{"role": "user", "content": [{"type": "text"}]}], "invalid_request", "messages[0].content[0].text"),
        ([{"role": "assistant", "tool_calls": [{}]}], "unsupported", "messages[0].tool_calls"),
        ([{"role": "user", "content": "bad template"}], "template_error", None),
        ([{"role": "user", "content": "x" * 200}], "context_length_exceeded", "messages"),
    ],
)
async def test_bad_messages(messages: Any, code: str, param: str | None) -> None:
    reply = await Site().chat(messages=messages)
    error = reply.json()["error"]
    assert (reply.status_code, error["code"], error["param"]) == (400, code, param)


async def test_a_message_in_parts_and_a_developer_role() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    site = Site()
    messages = [{"role": "developer", "content": "d"}, {"role": "user", "content": parts}]
    answer = (await site.chat(messages=messages, return_token_ids=True)).json()
    assert bytes(answer["prompt_token_ids"]) == b"s:d;u:a\nb;"


@pytest.mark.parametrize(
    ("data", "headers", "status"),
    [
        (b"", JSON, 400),
        (b"{", JSON, 400),
        (b"[]", JSON, 400),
        (b'"text"', JSON, 400),
        (b'{"prompt": NaN}', JSON, 400),
        (b'{"prompt": "\xff"}', JSON, 400),
        (b'{"prompt": "\\ud800"}', JSON, 400),
        (b'{"prompt": "x", "temperature": 1e999}', JSON, 400),
        (b"[" * 100_000, JSON, 400),
        (b'{"prompt": "x"}', {"content-type": "text/plain"}, 415),
        (b'{"prompt": "x"}', {}, 415),
        (b'{"prompt": "x"}', JSON | {"content-encoding": "gzip"}, 415),
        (b'{"prompt": "' + b"x" * 2000 + b'"}', JSON, 413),
    ],
)
async def test_bodies_that_are_no_request(data: bytes, headers: dict[str, str], status: int) -> None:
    site = Site(config=ServerConfig(max_request_bytes=200_000 if data[:1] == b"[" else 1024))
    reply = await site.client.post("/v1/completions", content=data, headers=headers)
    assert reply.status_code == status
    assert reply.json()["error"]["message"]


async def test_a_body_of_unknown_length_is_cut_off_too() -> None:
    async def parts() -> Any:
        for _ in range(10):
            yield b" " * 500

    site = Site(config=ServerConfig(max_request_bytes=1024))
    reply = await site.client.post("/v1/completions", content=parts(), headers=JSON)
    assert (reply.status_code, reply.json()["error"]["code"]) == (413, "request_too_large")


@pytest.mark.parametrize("chat", [False, True], ids=["completions", "chat"])
async def test_neutral_values_of_unsupported_fields_pass(chat: bool) -> None:
    site = Site()
    for name, neutral in (CHAT_FIELDS if chat else COMPLETION_FIELDS).items():
        for value in (None, *neutral):
            reply = await (site.chat if chat else site.complete)(**{name: value})
            assert reply.status_code == 200, (name, value, reply.text)


def test_no_field_is_both_supported_and_not() -> None:
    assert not COMPLETION_FIELDS.keys() & set(CompletionRequest.__struct_fields__)
    assert not CHAT_FIELDS.keys() & set(ChatRequest.__struct_fields__)


async def test_unknown_fields_are_ignored_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    site = Site()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert (await site.complete(**{"frobnicate\n": 1, "user": "me"})).status_code == 200
    assert [record.getMessage() for record in caplog.records].count(
        "unknown request fields are ignored: 'frobnicate\\n' (each is said once)"
    ) == 1
    assert "user" not in caplog.text
    assert site.metric("paceline:unknown_request_fields_total") == 3


async def test_a_request_with_thousands_of_unknown_fields_is_one_bounded_line(caplog: pytest.LogCaptureFixture) -> None:
    site = Site()
    with caplog.at_level(logging.WARNING):
        assert (await site.complete(**{f"{n:04}" + "x" * 1000: n for n in range(3000)})).status_code == 200
    (line,) = caplog.messages
    assert "'0000xxx" in line
    assert "and 2990 more" in line
    assert len(line) < 1000
    assert site.metric("paceline:unknown_request_fields_total") == 3000
    with caplog.at_level(logging.WARNING):
        for _ in range(100):
            await site.complete(**{f"{n:04}" + "x" * 1000: n for n in range(3000)})
    assert len(caplog.messages) == 10


async def test_texts_that_no_prompt_can_have_are_not_tokenized() -> None:
    site = Site()
    length = max(ALWAYS_COUNTED, site.state.require_ready().info.max_model_len)
    for body, param in (
        ({"prompt": "x" * (length + 1)}, "prompt"),
        ({"messages": [{"role": "user", "content": "x" * length}]}, "messages"),
    ):
        reply = await site.client.post("/tokenize", json=body)
        error = reply.json()["error"]
        assert (reply.status_code, error["code"], error["param"]) == (400, "context_length_exceeded", param)
    assert (await site.client.post("/tokenize", json={"prompt": "x" * length})).json()["count"] == length


@pytest.mark.parametrize("phase", [Phase.LOADING, Phase.DRAINING, Phase.ENGINE_DEAD])
async def test_503_with_the_reason(phase: Phase) -> None:
    site = Site()
    site.state.phase = phase
    for reply in (await site.complete(stream=True), await site.client.get("/health"), await site.client.get("/ping")):
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, phase.value)
        assert "retry-after" in reply.headers
    assert (await site.client.get("/health/live")).status_code == 200


async def test_health_notices_a_dead_engine() -> None:
    site = Site()
    assert (await site.client.get("/health")).json() == {"status": "ok"}
    site.engine.dead = "stage 0 was killed"
    assert (await site.client.get("/health")).json()["error"]["code"] == "engine_dead"


async def test_an_unexpected_error_tells_the_client_nothing_but_an_id(caplog: pytest.LogCaptureFixture) -> None:
    def broken(prompt: list[int]) -> list[int]:
        raise RuntimeError("secret at 0x7f00")

    site = Site()
    site.engine.answer = broken
    reply = await site.complete()
    assert (reply.status_code, reply.json()["error"]["code"]) == (500, "engine_error")
    assert "secret" not in reply.text
    error_id = reply.json()["error"]["message"].split()[2].rstrip(";")
    assert f"error {error_id}: RuntimeError" in caplog.text
    site.engine.answer = lambda prompt: [97]
    assert (await site.complete()).status_code == 200


async def test_paths_and_methods_that_are_not_there() -> None:
    site = Site()
    for reply, status in [
        (await site.client.get("/nothing"), 404),
        (await site.client.get("/v1/completions"), 405),
        (await site.client.post("/v1/embeddings", json={}), 404),
        (await site.client.get("/docs"), 404),
        (await site.client.get("/openapi.json"), 404),
    ]:
        assert reply.status_code == status
        assert json.loads(reply.text)["error"]["message"]


@pytest.mark.parametrize("ids", [[-1], [5, 2**70], [10**6]])
async def test_ids_that_no_token_has_are_not_detokenized(ids: list[int]) -> None:
    reply = await Site().client.post("/detokenize", json={"tokens": ids})
    assert (reply.status_code, reply.json()["error"]["code"], reply.json()["error"]["param"]) == (
        400,
        "out_of_range",
        "tokens",
    )
