"""`bench serve` against a tiny server that answers well, badly, or only in part."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.bench.datasets import Lengths
from paceline.bench.openai_stream import LONGEST_LINE, EventLines
from paceline.bench.report import serve_text
from paceline.bench.served import ServedLoad, measure_server
from paceline.errors import BenchError
from tests.bench.openai_server import DONE, OpenAIServer, chat_event, event, text_event

USAGE = {"prompt_tokens": 10, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 0}}
WORDS = [text_event("eins "), text_event("zwei "), text_event("drei"), text_event("", "length")]


def good(body: dict[str, Any]) -> list[bytes | None]:
    return [*WORDS, event({"choices": [], "usage": USAGE}), DONE]


async def measure(server: OpenAIServer, **changes: Any) -> dict[str, Any]:
    settings: dict[str, Any] = {"num_prompts": 6, "input_len": Lengths(10), "output_len": Lengths(3), "num_warmups": 0}
    async with server.running():
        return await measure_server(ServedLoad(base_url=server.url, **settings | changes), show_progress=False)


@given(st.lists(st.binary(max_size=20), max_size=6), st.lists(st.integers(1, 9), min_size=1), st.booleans())
def test_events_do_not_depend_on_how_the_stream_is_cut(
    payloads: Sequence[bytes], sizes: Sequence[int], carriage_return: bool
) -> None:
    clean = [payload.replace(b"\n", b"").strip() for payload in payloads]
    end = b"\r\n\r\n" if carriage_return else b"\n\n"
    stream = b": a comment" + end + b"".join(b"data: " + payload + end + b": ping" + end for payload in clean)
    lines, found, place = EventLines(), [], 0
    while place < len(stream):
        size = sizes[place % len(sizes)]
        found += lines.feed(stream[place : place + size])
        place += size
    assert found == clean


def test_a_line_without_end_is_an_error() -> None:
    lines = EventLines()
    list(lines.feed(b"x" * LONGEST_LINE))
    with pytest.raises(ValueError, match="does not end"):
        list(lines.feed(b"x"))


async def test_counts_lengths_and_what_was_sent() -> None:
    server = OpenAIServer(good, tokens=[5, 6, 7, 8, 9])
    result = await measure(server, api_key="secret", extra_body={"top_p": 0.5})
    assert (result["completed"], result["failed"]) == (6, 0)
    assert (result["total_input_tokens"], result["total_output_tokens"]) == (60, 18)
    assert result["output_throughput"] == pytest.approx(18 / result["duration"])
    assert result["prefix_cache"] == "cold"
    assert "errors" not in result
    assert set(server.keys) == {"Bearer secret"}
    for body in server.bodies:
        assert len(body["prompt"]) == 10
        assert set(body["prompt"]) <= {5, 6, 7, 8, 9}
        wanted = {"max_tokens": 3, "ignore_eos": True, "return_token_ids": True, "model": "tiny", "top_p": 0.5}
        assert {key: body[key] for key in wanted} == wanted
    assert len({tuple(body["prompt"]) for body in server.bodies}) == 6
    json.dumps(result, allow_nan=False)


async def test_pieces_cut_anywhere_give_the_same_text() -> None:
    stream = b"".join([text_event("grün"), text_event("…"), event({"choices": [], "usage": USAGE}), DONE])

    def bytewise(body: dict[str, Any]) -> list[bytes | None]:
        return [stream[place : place + 3] for place in range(0, len(stream), 3)]

    result = await measure(OpenAIServer(bytewise), detailed=True, num_prompts=2)
    assert result["generated_texts"] == ["grün…"] * 2
    assert result["output_lens"] == [3, 3]
    assert [len(gaps) for gaps in result["itls"]] == [1, 1]
    assert result["errors"] == ["", ""]
    assert result["start_times"][0] == 0.0


@pytest.mark.parametrize(
    ("pieces", "words"),
    [
        ([text_event("a"), None], "ClientPayloadError"),
        ([text_event("a"), text_event("b")], "broke off"),
        ([text_event("a"), event({"error": {"message": "out of luck", "code": 500}}), DONE], "out of luck"),
        ([b"data: {broken\n\n"], "DecodeError"),
        ([event({"choices": "none"})], "ValidationError"),
        ([DONE], "empty"),
    ],
    ids=["cut", "no end", "error event", "no JSON", "other JSON", "nothing"],
)
async def test_what_goes_wrong_in_one_stream_fails_that_request_only(pieces: list[bytes | None], words: str) -> None:
    def every_third(body: dict[str, Any]) -> list[bytes | None]:
        return pieces if len(server.bodies) % 3 == 0 else good(body)

    server = OpenAIServer(every_third)
    result = await measure(server)
    assert (result["completed"], result["failed"]) == (4, 2)
    assert result["total_output_tokens"] == 12
    assert len(result["errors"]) == 1
    assert words in result["errors"][0]
    assert words in serve_text(result, ["ttft"], [99])


async def test_a_refusal_is_told_with_its_status() -> None:
    server = OpenAIServer(lambda body: [b'{"error": "too many"}'])
    server.status = "429 Too Many Requests"
    result = await measure(server)
    assert result["failed"] == 6
    assert result["errors"] == ['HTTP 429: {"error": "too many"}']
    assert result["mean_ttft_ms"] == 0.0


async def test_no_more_at_once_than_allowed() -> None:
    server = OpenAIServer(good)
    result = await measure(server, max_concurrency=2, num_prompts=9)
    assert server.most_at_once <= 2
    assert result["max_concurrent_requests"] <= 2


async def test_a_rate_spreads_the_requests() -> None:
    result = await measure(OpenAIServer(good), request_rate=100.0, num_prompts=10, detailed=True)
    assert result["completed"] == 10
    assert result["duration"] >= 0.1  # the last one is sent then
    assert sorted(result["start_times"]) == result["start_times"]


async def test_chat_sends_words_and_reads_deltas() -> None:
    def chat(body: dict[str, Any]) -> list[bytes | None]:
        assert body["messages"][0]["role"] == "user"
        assert len(body["messages"][0]["content"].split()) == 10
        assert body["max_completion_tokens"] == 3
        assert "return_token_ids" not in body
        role = chat_event({"role": "assistant", "content": ""})
        return [role, chat_event({"reasoning_content": "hm "}), chat_event({"content": "ja"}, "stop"), DONE]

    result = await measure(OpenAIServer(chat), backend="openai-chat", detailed=True, num_prompts=2)
    assert result["generated_texts"] == ["hm ja"] * 2
    assert result["output_lens"] == [2, 2]  # without usage, outputs are counted


async def test_a_warm_cache_is_warned_of_but_not_what_all_prompts_share() -> None:
    cached = {"tokens": 4}

    def answer(body: dict[str, Any]) -> list[bytes | None]:
        usage = USAGE | {"prompt_tokens_details": {"cached_tokens": cached["tokens"]}}
        return [*WORDS, event({"choices": [], "usage": usage}), DONE]

    def again(body: dict[str, Any]) -> list[bytes | None]:
        cached["tokens"] = 4 if len(server.bodies) <= 2 else 8
        return answer(body)

    template = await measure(OpenAIServer(answer), num_warmups=2)
    assert (template["prefix_cache"], template["cached_tokens"]) == ("cold", 24)
    server = OpenAIServer(again)
    warm = await measure(server, num_warmups=2)
    assert (warm["prefix_cache"], warm["cached_tokens"]) == ("warm", 48)
    assert "warning: 48 prompt tokens" in serve_text(warm, ["ttft"], [99])
    assert "warning" not in serve_text(template, ["ttft"], [99])


async def test_the_pipeline_is_read_from_the_servers_metrics() -> None:
    def metrics() -> str:
        done = len(server.bodies)
        return "\n".join(
            [
                "# TYPE paceline:stage_busy_seconds counter",
                *(f'paceline:stage_busy_seconds_total{{stage="{s}"}} {done * (s + 1) * 0.001}' for s in (0, 1)),
                "# TYPE paceline:stage_idle_seconds counter",
                *(
                    f'paceline:stage_idle_seconds_total{{stage="{s}",cause="{cause}"}} {done * seconds}'
                    for s in (0, 1)
                    for cause, seconds in (("no_work", 5.0), ("starved", 0.001 * s))
                ),
                "# TYPE paceline:batches counter",
                f"paceline:batches_total {done * 3}",
                "# TYPE vllm:prefix_cache_hits counter",
                f"vllm:prefix_cache_hits_total {done}",
                "",
            ]
        )

    server = OpenAIServer(lambda body: [*WORDS, DONE], metrics=metrics)
    result = await measure(server)
    facts = result["pipeline"]
    assert facts["stages"] == 2
    assert facts["stage_busy"] == pytest.approx([0.006 / result["duration"], 0.012 / result["duration"]])
    assert facts["stage_idle_seconds"] == {"no_work": pytest.approx(60.0), "starved": pytest.approx(0.006)}
    assert facts["bubble_fraction"] == pytest.approx(6 / 24)
    assert facts["imbalance"] == pytest.approx(12 / 9)
    assert (facts["batches"], facts["preemptions"], facts["kv_peak"]) == (18, None, None)
    assert (result["cached_tokens"], result["prefix_cache"]) == (6, "warm")  # its answers do not say
    text = serve_text(result, ["ttft"], [99])
    assert "bubble 25.0%, imbalance 1.33" in text
    assert "idle, over all stages: no_work 60.0 s" in text


async def test_a_server_that_tells_nothing_of_itself_is_measured_all_the_same() -> None:
    result = await measure(OpenAIServer(lambda body: [*WORDS, DONE]))
    assert result["pipeline"]["stages"] is None
    assert result["prefix_cache"] == "unknown"
    assert result["total_output_tokens"] == 18


async def test_the_first_warm_up_that_fails_ends_the_run() -> None:
    server = OpenAIServer(lambda body: [text_event("a"), None])
    with pytest.raises(BenchError, match="warm-up"):
        await measure(server, num_warmups=3)
    assert len(server.bodies) == 1


async def test_what_cannot_be_measured_is_said_before_anything_is_sent() -> None:
    with pytest.raises(BenchError, match="no server at"):
        await measure_server(ServedLoad(base_url="http://127.0.0.1:1"), show_progress=False)
    server = OpenAIServer(good)
    with pytest.raises(BenchError, match="does not serve big; it serves tiny"):
        await measure(server, model="big")
    server.models = []
    with pytest.raises(BenchError, match="give --model"):
        await measure(server)
    assert server.bodies == []
    assert (await measure(server, model="big"))["model_id"] == "big"


async def test_a_cache_that_was_never_looked_at_is_not_called_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.bench.served.KV_PEAK_INTERVAL", 3600.0)
    gauge = "# TYPE vllm:kv_cache_usage_perc gauge\nvllm:kv_cache_usage_perc 0.5\n"
    result = await measure(OpenAIServer(good, metrics=lambda: gauge))
    assert result["pipeline"]["kv_peak"] is None
    assert "KV cache" not in serve_text(result, ["ttft"], [99])
