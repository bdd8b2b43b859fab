"""Offline use of the real model: tokens, Ctrl-C, and what is left when a script ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline import LLM, SamplingParams

pytestmark = pytest.mark.e2e

GREEDY = SamplingParams(temperature=0.0, max_tokens=12)
PROMPTS = ["Once upon a time", "The capital of France is", "One, two, three,"]


@pytest.fixture(scope="module")
def llm(smollm2_gguf: Path) -> Iterator[LLM]:
    with LLM(str(smollm2_gguf), pipeline_parallel_size=2, max_model_len=512, num_blocks=128) as llm:
        yield llm


def test_together_in_any_order_or_alone_gives_the_same(llm: LLM) -> None:
    together = llm.generate(PROMPTS, GREEDY)
    backwards = llm.generate(PROMPTS[::-1], GREEDY)
    alone = [llm.generate(prompt, GREEDY)[0] for prompt in PROMPTS]
    assert [c.token_ids for c in together] == [c.token_ids for c in backwards[::-1]] == [c.token_ids for c in alone]
    assert "Paris" in together[1].text
    assert [c.prompt for c in together] == PROMPTS


def test_a_seed_repeats_whatever_the_neighbours(llm: LLM) -> None:
    params = SamplingParams(temperature=1.0, top_p=0.9, seed=7, max_tokens=24)
    alone = llm.generate(PROMPTS[0], params)[0].token_ids
    crowd = llm.generate([PROMPTS[1], PROMPTS[0], PROMPTS[0], PROMPTS[2]], params)
    assert crowd[1].token_ids == crowd[2].token_ids == alone
    assert llm.generate(PROMPTS[0], SamplingParams(seed=8, max_tokens=24))[0].token_ids != alone


def test_cached_tokens_are_reported(llm: LLM) -> None:
    prompt = "A prompt that is a good deal longer than one block of the cache: " + "and on and " * 20
    assert llm.generate(prompt, GREEDY)[0].num_cached_tokens == 0
    assert llm.generate(prompt, GREEDY)[0].num_cached_tokens >= 16


def test_stop_string_across_tokens(llm: LLM) -> None:
    whole = llm.generate(PROMPTS[2], GREEDY)[0].text
    stop = whole[6:11]
    (done,) = llm.generate(PROMPTS[2], SamplingParams(temperature=0.0, max_tokens=12, stop=(stop,)))
    assert done.text == whole[: whole.index(stop)]
    assert (done.finish_reason, done.stop_reason) == ("stop", stop)


def test_loop_back_changes_nothing(smollm2_gguf: Path) -> None:
    """Late stops of every kind, seeds, log probabilities and preemptions, one round ahead or not."""
    drawn = {"temperature": 0.9, "top_p": 0.95, "max_tokens": 40}
    params = [
        SamplingParams(temperature=0.0, max_tokens=40, stop=(" the",)),
        SamplingParams(seed=3, logprobs=2, **drawn),
        SamplingParams(seed=4, stop_token_ids=(28, 30, 198), **drawn),
        SamplingParams(seed=5, stop_token_ids=(28, 30, 198), min_tokens=20, **drawn),
        SamplingParams(seed=6, ignore_eos=True, **drawn),
        SamplingParams(temperature=0.0, max_tokens=1),
    ]
    prompts = [PROMPTS[i % 3] for i in range(len(params))]
    answers = []
    for loop_back in (True, False):
        options = {"max_model_len": 64, "block_size": 8, "num_blocks": 8, "enable_prefix_caching": False}
        with LLM(str(smollm2_gguf), pipeline_parallel_size=2, loop_back=loop_back, use_tqdm=False, **options) as llm:
            answers.append(llm.generate(prompts, params, use_tqdm=False))
            assert llm._engine.stats().num_preemptions > 0
    for ahead, known in zip(*answers, strict=True):
        assert (ahead.text, ahead.token_ids) == (known.text, known.token_ids)
        assert (ahead.finish_reason, ahead.stop_reason) == (known.finish_reason, known.stop_reason)
    assert {answer.finish_reason for answer in answers[0]} == {"stop", "length"}
    of_drawn = [[step.token for step in answer[1].logprobs] for answer in answers]
    assert of_drawn[0] == pytest.approx(of_drawn[1], abs=1e-3)


SCRIPT = """
import os, signal, sys
import paceline.llm
from paceline import LLM, SamplingParams

class Answer(paceline.llm._Answer):
    def add(self, delta):  # the first token presses Ctrl-C
        paceline.llm._Answer, Answer.add = Answer.__base__, Answer.__base__.add
        os.kill(os.getpid(), signal.SIGINT)

llm = LLM(sys.argv[1], pipeline_parallel_size=2, max_model_len=512, num_blocks=128, use_tqdm=False)
paceline.llm._Answer = Answer
try:
    llm.generate(["Once upon a time"] * 4, SamplingParams(max_tokens=400, ignore_eos=True), use_tqdm=False)
except KeyboardInterrupt:
    print("interrupted", flush=True)
print(llm.generate("The capital of France is", SamplingParams(temperature=0, max_tokens=1), use_tqdm=False)[0].text)
print(llm._engine.stats().num_running, "running")
"""


def test_ctrl_c_aborts_and_a_script_that_forgets_to_close_leaves_nothing(smollm2_gguf: Path, tmp_path: Path) -> None:
    script = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(smollm2_gguf)],
        capture_output=True,
        text=True,
        env=os.environ | {"TMPDIR": str(tmp_path)},
        timeout=120,
        check=False,
    )
    assert script.returncode == 0, script.stderr
    interrupted, answer, running = script.stdout.splitlines()
    assert interrupted == "interrupted"
    assert "Paris" in answer
    assert running == "0 running"
    assert "Traceback" not in script.stderr
    assert list(tmp_path.iterdir()) == []
    assert processes_of(tmp_path) == []


def processes_of(folder: Path) -> list[int]:
    """Processes that carry this test's own environment."""
    mark = f"TMPDIR={folder}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                environment = (entry / "environ").read_bytes()
            except OSError:
                continue
            if mark in environment.split(b"\0"):
                found.append(int(entry.name))
    return found


def test_bench_throughput(smollm2_gguf: Path, tmp_path: Path) -> None:
    target = tmp_path / "result.json"
    load = ["--num-prompts=6", "--input-len=24", "--output-len=8"]
    engine = ["--pipeline-parallel-size=2", "--max-model-len=512", "--num-blocks=128"]
    command = [sys.executable, "-m", "paceline", "bench", "throughput", str(smollm2_gguf), *load, *engine]
    done = subprocess.run(
        [*command, "--quiet", f"--output-json={target}"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(target.read_text())
    assert (result["completed"], result["total_input_tokens"], result["total_output_tokens"]) == (6, 144, 48)
    assert result["prefix_cache"] == "cold"
    pipeline = result["pipeline"]
    assert sum(pipeline["layer_split"]) == 30
    assert pipeline["batches"] * pipeline["mean_batch_tokens"] == pytest.approx(144 + 48 - 6)
    assert all(0.0 < busy <= 1.0 for busy in pipeline["busy_fraction"])
    assert all(cpu > 0.0 for cpu in pipeline["cpu_fraction"])
