"""Answers that are not streamed: their shape, their text, and how they end."""

from __future__ import annotations

import pytest

from paceline.server.sampling import SamplingDefaults
from tests.server.fakes import EOS, FakeEngine, Site


async def test_a_completion() -> None:
    answer = (await Site().complete()).json()
    assert answer["object"] == "text_completion"
    assert answer["id"].startswith("cmpl-")
    assert answer["model"] == "m"
    choice = answer["choices"][0]
    assert choice == {
        "index": 0,
        "text": " then this.",
        "logprobs": None,
        "finish_reason": "stop",
        "stop_reason": None,
    }
    assert answer["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 12,
        "total_tokens": 15,
        "prompt_tokens_details": {"cached_tokens": 2},
    }


async def test_a_chat_answer() -> None:
    site = Site()
    answer = (await site.chat()).json()
    assert answer["object"] == "chat.completion"
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": " then this.", "refusal": None}
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert site.engine.sampled[0].max_tokens is None  # up to the model's length


async def test_a_completion_has_16_tokens_unless_told_otherwise() -> None:
    site = Site(FakeEngine(lambda prompt: [97] * 500))
    answer = (await site.complete()).json()
    assert answer["choices"][0]["text"] == "a" * 16
    assert answer["choices"][0]["finish_reason"] == "length"
    assert (await site.complete(max_tokens=None)).json()["usage"]["total_tokens"] == 100


async def test_max_completion_tokens_wins() -> None:
    site = Site(FakeEngine(lambda prompt: [97] * 500))
    answer = (await site.chat(max_tokens=5, max_completion_tokens=7)).json()
    assert answer["usage"]["completion_tokens"] == 7


@pytest.mark.parametrize(
    "prompt", ["abc", ["abc"], [97, 98, 99], [[97, 98, 99]]], ids=["text", "texts", "ids", "lists of ids"]
)
async def test_kinds_of_prompts(prompt: object) -> None:
    answer = (await Site(FakeEngine(lambda prompt: [*reversed(prompt), EOS])).complete(prompt=prompt)).json()
    assert [choice["text"] for choice in answer["choices"]] == ["cba"]


async def test_several_prompts_are_several_choices() -> None:
    site = Site(FakeEngine(lambda prompt: [*reversed(prompt), EOS]))
    answer = (await site.complete(prompt=["ab", "cdef", "g"])).json()
    assert [(choice["index"], choice["text"]) for choice in answer["choices"]] == [(0, "ba"), (1, "fedc"), (2, "g")]
    assert answer["usage"]["prompt_tokens"] == 7
    assert answer["usage"]["completion_tokens"] == 10  # with an end token each
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 5


async def test_a_stop_string_ends_the_answer_in_the_engine_too() -> None:
    site = Site()
    answer = (await site.complete(stop=["zzz", "en th"])).json()
    choice = answer["choices"][0]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == (" th", "stop", "en th")
    assert answer["usage"]["completion_tokens"] == len(" then th")
    request_id = site.engine.posted[0][1][0]
    assert ("finish", (request_id, len(" then th"))) in site.engine.posted


async def test_the_text_of_a_stop_token_is_left_out() -> None:
    choice = (await Site().complete(stop_token_ids=[ord("t"), ord("s")])).json()["choices"][0]
    assert (choice["text"], choice["stop_reason"]) == (" ", ord("t"))
    kept = (await Site().complete(stop_token_ids=[ord("s")], include_stop_str_in_output=True)).json()["choices"][0]
    assert kept["text"] == " then this"


async def test_completion_logprobs_have_offsets_and_bytes() -> None:
    euro = "€".encode()
    site = Site(FakeEngine(lambda prompt: [*b"a", *euro, *b"b", EOS]))
    logprobs = (await site.complete(logprobs=2)).json()["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["a", "bytes:\\xe2", "bytes:\\x82", "bytes:\\xac", "b", ""]
    assert logprobs["text_offset"] == [0, 1, 1, 1, 2, 3]
    assert logprobs["bytes"] == [[97], [0xE2], [0x82], [0xAC], [98], []]
    assert logprobs["token_logprobs"] == [-0.5] * 6
    assert logprobs["top_logprobs"][0] == {"a": -0.5, "b": -9999.0}  # never infinite


async def test_chat_logprobs() -> None:
    site = Site()
    content = (await site.chat(logprobs=True, top_logprobs=2, max_tokens=2)).json()["choices"][0]["logprobs"]["content"]
    assert content[1] == {
        "token": "t",
        "logprob": -0.5,
        "bytes": [116],
        "top_logprobs": [
            {"token": "t", "logprob": -0.5, "bytes": [116]},
            {"token": "u", "logprob": -9999.0, "bytes": [117]},
        ],
    }
    without = (await site.chat(logprobs=True)).json()["choices"][0]["logprobs"]["content"]
    assert without[0]["top_logprobs"] == []
    named = (await site.chat(logprobs=True, return_tokens_as_token_ids=True)).json()
    assert named["choices"][0]["logprobs"]["content"][0]["token"] == "token_id:32"


async def test_token_ids_if_asked_for() -> None:
    site = Site(FakeEngine(lambda prompt: [120, EOS]))
    choice = (await site.complete(return_token_ids=True)).json()["choices"][0]
    assert (choice["token_ids"], choice["prompt_token_ids"]) == ([120, EOS], [*b"one"])
    chat = (await site.chat(return_token_ids=True)).json()
    assert chat["choices"][0]["token_ids"] == [120, EOS]
    assert chat["prompt_token_ids"] == [*b"u:hello;"]


async def test_defaults_come_from_the_request_then_the_model_then_openai() -> None:
    defaults = SamplingDefaults.from_generation_config(
        {"temperature": 0.25, "top_k": 40, "top_p": "bad", "min_p": float("nan"), "max_new_tokens": True}
    )
    site = Site(defaults=defaults)
    await site.complete(temperature=0.75)
    used = site.engine.sampled[0]
    assert (used.temperature, used.top_k, used.top_p, used.min_p, used.max_tokens) == (0.75, 40, 1.0, 0.0, 16)
    shown = (await site.client.get("/v1/models")).json()["data"][0]["default_sampling_params"]
    assert shown == {"temperature": 0.25, "top_k": 40}


async def test_a_seed_is_always_set_and_ids_are_the_servers_own() -> None:
    site = Site()
    await site.complete(request_id="mine", seed=None)
    await site.complete(request_id="mine")
    ids = [args[0] for kind, args in site.engine.posted if kind == "add"]
    assert len(set(ids)) == 2
    assert not any("mine" in request_id for request_id in ids)
    assert len({sampling.seed for sampling in site.engine.sampled}) == 2


async def test_metrics_after_an_answer() -> None:
    site = Site()
    await site.complete()
    assert site.metric("vllm:prompt_tokens_total") == 3
    assert site.metric("vllm:generation_tokens_total") == 12
    assert site.metric("vllm:request_success_total") == 1
    assert site.metric("vllm:time_to_first_token_seconds_count") == 1
    assert site.metric("vllm:inter_token_latency_seconds_count") == 11
    assert site.metric("vllm:e2e_request_latency_seconds_count") == 1
    assert 'model_name="m"' in site.state.metrics.render().decode()
