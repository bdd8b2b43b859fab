"""The real SmolLM2 behind a real server: greedy tokens are those of transformers, however it is scheduled."""

from __future__ import annotations

import asyncio
import gc
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import torch

from paceline.tokenization import Tokenizer
from tests.e2e.server import serve
from tests.models.test_against_transformers import reference_smollm2

pytestmark = pytest.mark.e2e

OUTPUT_TOKENS = 32
TIE = 1e-4  # a gap between the oracle's two best logits that rounding may turn
STEM = "You are a careful assistant. Answer in one short paragraph, in plain words, and do not repeat the question. "
QUESTIONS = [
    "Why is the sky blue?",
    "What is the capital of France?",
    "Write a haiku about a river.",
    "def fibonacci(n):",
    "The three laws of thermodynamics are",
    "Once upon a time, in a small village by the sea,",
    "Translate to French: Good morning, my friend.",
    "List five prime numbers greater than ten.",
    "Explain photosynthesis to a child.",
    "SELECT name FROM users WHERE",
    "The quick brown fox",
    "How do airplanes stay in the air?",
    "Water boils at 100 degrees because",
    "Roses are red, violets are",
    "In 1969, the first humans",
    "My favourite food is",
    "import numpy as np\n\n",
    "Is a tomato a fruit or a vegetable?",
    "The meaning of life, according to philosophers,",
    "Dear Sir or Madam,",
]
PROMPTS = [STEM + question if i % 2 else question for i, question in enumerate(QUESTIONS)]


@dataclass(frozen=True)
class Expected:
    prompt: list[int]
    output: list[int]
    smallest_gap: float  # between the two best logits, over all steps
    gaps: list[float]


@pytest.fixture(scope="module")
def expected(smollm2_gguf: Path, smollm2_tokenizer: Tokenizer) -> list[Expected]:
    model = reference_smollm2(smollm2_gguf)
    answers = []
    for text in PROMPTS:
        prompt = smollm2_tokenizer.encode(text)
        with torch.inference_mode():
            result = model.generate(
                torch.tensor([prompt]),
                max_new_tokens=OUTPUT_TOKENS,
                do_sample=False,
                eos_token_id=None,
                output_logits=True,
                return_dict_in_generate=True,
            )
        best = [step[0].topk(2).values for step in result.logits]
        gaps = [float(two[0] - two[1]) for two in best]
        answers.append(Expected(prompt, result.sequences[0, len(prompt) :].tolist(), min(gaps), gaps))
    del model
    gc.collect()
    return answers


@dataclass(frozen=True)
class Case:
    stages: int
    streamed: bool
    at_once: int
    caching: bool
    few_blocks: bool
    loop_back: bool

    @property
    def name(self) -> str:
        how = "streamed" if self.streamed else "whole"
        cache = "cache" if self.caching else "no-cache"
        blocks = "-few-blocks" if self.few_blocks else ""
        loop = "loop-back" if self.loop_back else "no-loop-back"
        return f"pp{self.stages}-{how}-{self.at_once}-at-once-{cache}-{loop}{blocks}"


ALL = [
    Case(stages, streamed, at_once, caching, few, loop_back)
    for stages in (1, 2, 3)
    for streamed in (False, True)
    for at_once in (1, 16)
    for caching in (True, False)
    for few in (False, True)
    for loop_back in (True, False)
    if not (few and at_once == 1)  # a request alone is never preempted
]
# Every pair of values occurs in at least one of these.
PAIRWISE = [
    Case(1, False, 1, True, False, True),
    Case(1, True, 16, False, True, True),
    Case(1, True, 16, True, False, False),
    Case(2, True, 16, True, True, True),
    Case(2, False, 16, False, True, False),
    Case(2, True, 1, False, False, True),
    Case(3, False, 16, True, True, True),
    Case(3, True, 1, True, False, False),
    Case(3, True, 16, False, False, True),
]
CASES = [pytest.param(c, id=c.name, marks=() if c in PAIRWISE else pytest.mark.full) for c in ALL]


async def ask(client: httpx.AsyncClient, prompt: list[int], streamed: bool) -> list[int]:
    body = {
        "prompt": prompt,
        "max_tokens": OUTPUT_TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
        "stream": streamed,
    }
    if not streamed:
        reply = await client.post("/v1/completions", json=body)
        assert reply.status_code == 200, reply.text
        return list(reply.json()["choices"][0]["token_ids"])
    tokens: list[int] = []
    async with client.stream("POST", "/v1/completions", json=body) as stream:
        assert stream.status_code == 200
        async for line in stream.aiter_lines():
            if line.startswith("data: {"):
                for choice in httpx.Response(200, text=line[6:]).json()["choices"]:
                    tokens += choice.get("token_ids") or []
    return tokens


async def ask_all(url: str, prompts: list[list[int]], streamed: bool, at_once: int) -> list[list[int]]:
    limit = asyncio.Semaphore(at_once)
    async with httpx.AsyncClient(base_url=url, timeout=300) as client:

        async def one(prompt: list[int]) -> list[int]:
            async with limit:
                return await ask(client, prompt, streamed)

        return await asyncio.gather(*(one(prompt) for prompt in prompts))


def metric(url: str, name: str) -> float:
    text = httpx.get(f"{url}/metrics").text
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name + "{"))


@pytest.mark.parametrize("case", CASES)
async def test_greedy_tokens(case: Case, smollm2_gguf: Path, expected: list[Expected]) -> None:
    # Blocks of 8 tokens: 40 of them hold about four of these requests at full length.
    arguments = ["--pipeline-parallel-size", str(case.stages), "--max-model-len", "512", "--block-size", "8"]
    arguments += ["--num-blocks", "24" if case.few_blocks else "1024", "--max-num-batched-tokens", "64"]
    arguments += ["--loop-back" if case.loop_back else "--no-loop-back"]
    arguments += ["--enable-prefix-caching" if case.caching else "--no-enable-prefix-caching"]
    with serve(str(smollm2_gguf), *arguments) as server:
        got = await ask_all(server.url, [e.prompt for e in expected], case.streamed, case.at_once)
        hits, preemptions = (metric(server.url, f"vllm:{n}_total") for n in ("prefix_cache_hits", "num_preemptions"))
    assert (hits > 0) == case.caching
    assert preemptions > 0 or not case.few_blocks
    ties = 0
    for tokens, wanted, text in zip(got, expected, PROMPTS, strict=True):
        if tokens == wanted.output:
            continue
        at = next(i for i, (a, b) in enumerate(zip(tokens, wanted.output, strict=True)) if a != b)
        print(f"{text!r}: token {at} differs; the oracle's gap there is {wanted.gaps[at]:.2e}")
        assert wanted.gaps[at] <= TIE
        ties += 1
    assert ties <= 1
