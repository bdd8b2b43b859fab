"""The unmodified OpenAI client against a real server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

from tests.e2e.server import Server, serve

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def server(smollm2_gguf: Path) -> Iterator[Server]:
    options = ["--pipeline-parallel-size", "2", "--max-model-len", "512", "--num-blocks", "512", "--api-key", "secret"]
    with serve(str(smollm2_gguf), *options, "--served-model-name", "smol") as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="secret", max_retries=0)


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["smol"]


def test_chat(client: openai.OpenAI) -> None:
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    whole = client.chat.completions.create(model="smol", messages=messages, temperature=0, max_tokens=20)
    assert "Paris" in (whole.choices[0].message.content or "")
    assert whole.choices[0].finish_reason == "stop"
    assert whole.usage is not None
    stream = client.chat.completions.create(
        model="smol",
        messages=messages,
        temperature=0,
        max_tokens=20,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_completion_with_logprobs_and_stop(client: openai.OpenAI) -> None:
    done = client.completions.create(
        model="smol", prompt="One, two, three,", temperature=0, max_tokens=20, logprobs=2, stop=[" six"]
    )
    choice = done.choices[0]
    assert choice.finish_reason == "stop"
    assert " six" not in choice.text
    assert choice.logprobs is not None
    assert choice.logprobs.token_logprobs is not None
    assert all(value <= 0 for value in choice.logprobs.token_logprobs if value is not None)


def test_a_seed_repeats_whatever_the_neighbours(client: openai.OpenAI) -> None:
    def answer(count: int) -> str:
        prompts = ["The weather today"] + ["Something else entirely, number"] * (count - 1)
        reply = client.completions.create(model="smol", prompt=prompts, temperature=1, seed=7, max_tokens=16)
        return reply.choices[0].text

    assert answer(1) == answer(6) == answer(3)


@pytest.mark.parametrize(
    ("change", "error", "code", "param"),
    [
        ({"model": "other"}, openai.NotFoundError, "model_not_found", "model"),
        ({"prompt": "x " * 600}, openai.BadRequestError, "context_length_exceeded", "prompt"),
        ({"max_tokens": 600}, openai.BadRequestError, "context_length_exceeded", "max_tokens"),
        ({"max_tokens": 0}, openai.BadRequestError, "out_of_range", "max_tokens"),
        ({"prompt": []}, openai.BadRequestError, None, "prompt"),
        ({"prompt": [-1]}, openai.BadRequestError, "out_of_range", "prompt"),
        ({"prompt": [10**6]}, openai.BadRequestError, "out_of_range", "prompt"),
        ({"temperature": -1}, openai.BadRequestError, "out_of_range", "temperature"),
        ({"n": 2}, openai.BadRequestError, None, "n"),
        ({"logit_bias": {"1": 5}}, openai.BadRequestError, None, "logit_bias"),
        ({"extra_body": {"stop_token_ids": [10**6]}}, openai.BadRequestError, "out_of_range", "stop_token_ids"),
    ],
)
def test_bad_requests_name_the_field(
    client: openai.OpenAI, change: dict[str, object], error: type[openai.APIStatusError], code: str, param: str
) -> None:
    body: dict[str, object] = {"model": "smol", "prompt": "x", "max_tokens": 2} | change
    with pytest.raises(error) as raised:
        client.completions.create(**body)  # type: ignore[call-overload]
    assert raised.value.param == param
    if code is not None:
        assert raised.value.code == code


def test_neutral_values_of_unsupported_fields_pass(client: openai.OpenAI) -> None:
    client.completions.create(
        model="smol", prompt="x", max_tokens=1, n=1, presence_penalty=0, logit_bias={}, echo=False, best_of=1
    )


def test_a_wrong_key_is_refused(server: Server) -> None:
    stranger = openai.OpenAI(base_url=f"{server.url}/v1", api_key="wrong", max_retries=0)
    with pytest.raises(openai.AuthenticationError):
        stranger.models.list()
    assert httpx.get(f"{server.url}/health").status_code == 200


def test_nothing_is_left_behind(server: Server) -> None:
    text = httpx.get(f"{server.url}/metrics").text
    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
        line = next(line for line in text.splitlines() if line.startswith(f"vllm:{name}{{"))
        assert float(line.split()[-1]) == 0.0


def test_a_deadline_ends_a_stream(client: openai.OpenAI) -> None:
    stream = client.completions.create(
        model="smol",
        prompt="Once upon a time",
        max_tokens=450,
        stream=True,
        extra_body={"ignore_eos": True},
        extra_headers={"X-Request-Timeout": "0.7"},
    )
    reasons = [chunk.choices[0].finish_reason for chunk in stream]
    assert reasons[-1] == "timeout"
    assert 1 < len(reasons) < 450
